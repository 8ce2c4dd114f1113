"""`bixse sweep`: train over a grid of settings, or random ones, and rank them on dev."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.cli.verb import CommandResult, Folder, Options, Verb, waits
from bixse.lab.lab_config import SweepConfig

if TYPE_CHECKING:
    from bixse.lab.sweep import SweepResult

ROWS_SHOWN = 30
"""Arms that the table on the terminal shows; the file holds all."""


class SweepOptions(Options):
    """Options of `bixse sweep`; the YAML file says what varies."""

    out: Folder = Path("runs/sweep")
    """Folder for runs, table and best settings."""


def run(config: SweepConfig, options: SweepOptions) -> CommandResult:
    """Train what is not trained yet, and print the table."""
    from bixse.lab.sweep import figures_of, sweep

    result = sweep(config, options.out)
    if result.waiting:
        return waits(result.waiting)
    errors = [f"arm {row.arm} ({row.label}) {row.status}: {row.reason}" for row in result.failed]
    metrics = {
        "arms": len(result.rows),
        "failed": len(result.failed),
        "best": None if result.best is None else result.best.arm,
        "rows": [figures_of(row) for row in result.rows],
    }
    found = {"table": result.table_path, "record": options.out / "run.json", "best": result.best_path}
    found["model"] = result.model_path
    artifacts = {name: str(path) for name, path in found.items() if path is not None}
    code = 0 if not errors else 3 if result.best is not None else 1
    return CommandResult(_text(result, options.out), metrics, artifacts, result.warnings, errors, code)


def _text(result: SweepResult, out: Path) -> str:
    from bixse.lab.sweep import table_text

    lines = [table_text(result.rows[:ROWS_SHOWN]), ""]
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


VERB = Verb(SweepConfig, SweepOptions, run)
