"""`bixse sweep`: train over a grid of settings, or random ones, and rank them on dev."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.cli.result import CommandResult

if TYPE_CHECKING:
    import argparse

    from bixse.training.sweep.sweep import SweepResult
    from bixse.training.sweep.sweep_table import SweepRow

ROWS_SHOWN = 30
"""Cells that the table on the terminal shows; the file holds all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags; what is varied stands in the YAML file."""
    parser.add_argument(
        "--config",
        type=Path,
        required=True,
        metavar="FILE",
        help="YAML file: base (settings of `bixse train`), vary (key: list of values), ... (docs/training.md)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/sweep"),
        metavar="DIR",
        help="folder for cells, table and best settings (default: runs/sweep)",
    )


def run(args: argparse.Namespace) -> CommandResult:
    """Train what is not trained yet, and print the table."""
    from bixse.training.sweep.sweep import sweep
    from bixse.training.sweep.sweep_config import load_sweep
    from bixse.training.sweep.sweep_plan import base_settings

    config = load_sweep(args.config)
    if args.precision is not None:
        config = config.model_copy(update={"base": {**base_settings(config), "precision": args.precision}})
    result = sweep(config, args.out)
    errors = [f"cell {row.cell} ({row.label}) {row.status}: {row.reason}" for row in result.failed]
    metrics = {
        "cells": len(result.rows),
        "failed": len(result.failed),
        "best": None if result.best is None else result.best.cell,
        "rows": [_figures(row) for row in result.rows],
    }
    artifacts = {"table": str(result.table_path), "record": str(args.out / "run.json")}
    if result.best_path is not None:
        artifacts["best"] = str(result.best_path)
    if result.model_path is not None:
        artifacts["model"] = str(result.model_path)
    return CommandResult(_text(result, args.out), metrics, artifacts, result.warnings, errors, _exit_code(result))


def _exit_code(result: SweepResult) -> int:
    if not result.failed:
        return 0
    if result.best is not None:
        return 3
    return 2 if all(row.status == "refused" for row in result.failed) else 1


def _text(result: SweepResult, out: Path) -> str:
    """The table, and how to go on."""
    lines = [_table(result.rows[:ROWS_SHOWN]), ""]
    if len(result.rows) > ROWS_SHOWN:
        lines.append(f"... and {len(result.rows) - ROWS_SHOWN} more")
    lines.append(f"precision: {', '.join(sorted({row.precision for row in result.rows}))}")
    lines.append(f"{'already trained' if result.reused else 'table'}: {result.table_path}")
    if result.best is None:
        return "\n".join([*lines, "no cell finished"])
    settings, model = shlex.quote(str(result.best_path)), result.model_path
    fresh = out.with_name(f"{out.name}-best")
    lines += [
        f"best: {result.best.label}; all its settings: {result.best_path}",
        f"its dev nDCG@10 flatters: it is the best of {len(result.rows)} on those queries; measure it on test, once",
        "to go on:",
        *([] if model is not None else [f"  bixse train --config {settings} --out {shlex.quote(str(fresh))}"]),
        f"  bixse evaluate {shlex.quote(str(model or fresh / 'model'))} --collection DIR --split test",
    ]
    return "\n".join(lines)


def _table(rows: list[SweepRow]) -> str:
    """The rows for the terminal."""
    from bixse.report.table import format_number, format_table
    from bixse.training.sweep.sweep_plan import show

    several = any(len(row.seeds) > 1 for row in rows)
    cells: list[list[str | int | float | None]] = [
        [
            rank if row.status == "finished" else "",
            row.cell,
            *map(show, row.settings.values()),
            format_number(row.before, 4),
            format_number(row.best, 4),
            *([format_number(row.spread, 4)] if several else []),
            " ".join(map(str, row.best_steps)),
            f"{row.seconds:.0f}",
            row.status,
        ]
        for rank, row in enumerate(rows, start=1)
    ]
    spread = ["± over seeds"] if several else []
    varied = [key.rpartition(".")[2] for key in rows[0].settings]
    head = ["rank", "cell", *varied, "dev before", "dev nDCG@10", *spread, "best step", "seconds", "status"]
    return format_table(cells, head)


def _figures(row: SweepRow) -> dict[str, Any]:
    """A row for machines."""
    return {
        "cell": row.cell,
        "settings": json.loads(json.dumps(row.settings, default=str)),
        "seeds": row.seeds,
        "precision": row.precision,
        "dev_ndcg@10_before": row.before,
        "dev_ndcg@10": row.best,
        "dev_ndcg@10_spread": row.spread,
        "best_step": row.best_steps,
        "seconds": row.seconds,
        "status": row.status,
        "reason": row.reason,
    }
