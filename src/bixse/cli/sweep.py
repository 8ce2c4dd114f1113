"""`bixse sweep`: train over a grid of settings, or random ones, and rank them on dev."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.cli.flags import add_settings, settings_from
from bixse.cli.result import CommandResult

if TYPE_CHECKING:
    import argparse

    from bixse.experiments.sweep.sweep import SweepResult, SweepRow

ROWS_SHOWN = 30
"""Arms that the table on the terminal shows; the file holds all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The settings, and where the runs go; what is varied stands in the YAML file."""
    from bixse.experiments.sweep.sweep_config import SweepConfig

    add_settings(parser, SweepConfig)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/sweep"),
        metavar="DIR",
        help="folder for runs, table and best settings (default: runs/sweep)",
    )


def run(args: argparse.Namespace) -> CommandResult:
    """Train what is not trained yet, and print the table."""
    from bixse.experiments.sweep.sweep import sweep
    from bixse.experiments.sweep.sweep_config import SweepConfig

    result = sweep(settings_from(args, SweepConfig), args.out)
    errors = [f"arm {row.arm} ({row.label}) {row.status}: {row.reason}" for row in result.failed]
    metrics = {
        "arms": len(result.rows),
        "failed": len(result.failed),
        "best": None if result.best is None else result.best.arm,
        "rows": [_figures(row) for row in result.rows],
    }
    found = {"table": result.table_path, "record": args.out / "run.json"}
    found |= {"best": result.best_path, "model": result.model_path}
    artifacts = {name: str(path) for name, path in found.items() if path is not None}
    code = 0 if not errors else 3 if result.best is not None else 1
    return CommandResult(_text(result, args.out), metrics, artifacts, result.warnings, errors, code)


def _text(result: SweepResult, out: Path) -> str:
    """The table, and how to go on."""
    lines = [_table(result.rows[:ROWS_SHOWN]), ""]
    if len(result.rows) > ROWS_SHOWN:
        lines.append(f"... and {len(result.rows) - ROWS_SHOWN} more")
    lines.append(f"precision: {', '.join(sorted({row.precision for row in result.rows}))}")
    lines.append(f"{'already trained' if result.reused else 'table'}: {result.table_path}")
    if result.best is None:
        return "\n".join([*lines, "no arm finished"])
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
    from bixse.experiments.arms import show
    from bixse.report.table import format_number, format_table

    several = any(len(row.seeds) > 1 for row in rows)
    table: list[list[str | int | float | None]] = [
        [
            rank if row.status == "finished" else "",
            row.arm,
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
    head = ["rank", "arm", *varied, "dev before", "dev nDCG@10", *spread, "best step", "seconds", "status"]
    return format_table(table, head)


def _figures(row: SweepRow) -> dict[str, Any]:
    """A row for machines."""
    names = {"before": "dev_ndcg@10_before", "best": "dev_ndcg@10", "spread": "dev_ndcg@10_spread"}
    names["best_steps"] = "best_step"
    left_out = ("label", "warnings", "best_run", "best_seed")
    figures = {names.get(key, key): value for key, value in asdict(row).items() if key not in left_out}
    return {**figures, "settings": json.loads(json.dumps(row.settings, default=str))}
