"""The verbs of the lab: `bixse quickstart`, `bixse sweep` and `bixse study`."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.cli.verb import FINISHED_BEFORE, CommandResult, ComputingOptions, Options, Output, Verb, waits
from bixse.engine import PlaceSettings
from bixse.lab.lab_config import QuickstartConfig, StudyConfig, SweepConfig, preset_names
from bixse.progress import progress_bar
from bixse.rendering.table import format_table
from bixse.rendering.wording import format_difference

if TYPE_CHECKING:
    from bixse.lab.sweep import SweepResult


def run_quickstart(settings: QuickstartConfig, options: ComputingOptions) -> CommandResult:
    """Run the quick start and return the table, the verdict, the report's path and the next commands."""
    from bixse.lab.quickstart import quickstart

    result = quickstart(settings, options.folder, lambda line: sys.stderr.write(f"{line}\n"), progress_bar)
    report = result.report
    baselines = [name for name in report.baselines if report.comparison("bixse", name) is not None]
    rows: list[list[str | float]] = []
    for system in report.systems:
        gaps = [report.comparison(system.name, name) for name in baselines]
        differences = [format_difference(gap.difference.mean) if gap is not None else "" for gap in gaps]
        rows.append([system.label, *(system.metrics[name] for name in report.metrics), *differences])
    table = format_table(rows, ["system", *report.metrics, *(f"vs {report.label(name)}" for name in baselines)])
    lines = [*result.verdicts, "", table, ""]
    lines += [f"probabilities, {name}: Brier {c.brier:.3f} (a constant: {c.base_rate_brier:.3f}), ECE {c.ece:.3f}"
              for name, c in report.calibrations.items() if name.startswith("BiXSE")]  # fmt: skip
    lines += ["", f"report: {result.artifacts['report']}", "next:", *(f"  {line}" for line in report.commands)]
    metrics = {
        "systems": {system.name: system.metrics for system in report.systems},
        **report.model_dump(mode="json", include={"comparisons", "calibrations"}),
        "verdicts": result.verdicts,
    }
    warnings = [*result.warnings, *([FINISHED_BEFORE] if result.reused else [])]
    return CommandResult("\n".join(lines), metrics, result.artifacts, warnings)


QUICKSTART = Verb(
    QuickstartConfig, ComputingOptions, run_quickstart, out=Output("Folder for models and report.", "runs/quickstart")
)


ROWS_SHOWN = 30
"""Number of arms in the table on the terminal. The file holds all."""
FILE_ALONE = ("seeds", "precision", "reason")
"""Columns of the sweep's file that the terminal leaves out."""


def run_sweep(config: SweepConfig, options: Options) -> CommandResult:
    """Train the missing arms, and return the table."""
    from bixse.lab.sweep import figures_of, sweep

    result = sweep(config, options.folder)
    if result.waiting:
        return waits(result.waiting)
    errors = [f"arm {row.arm} ({row.label}) {row.status}: {row.reason}" for row in result.failed]
    metrics = {
        "arms": len(result.rows),
        "failed": len(result.failed),
        "best": None if result.best is None else result.best.arm,
        "rows": [figures_of(row) for row in result.rows],
    }
    paths = {"table": result.table_path, "record": options.folder / "run.json", "best": result.best_path}
    paths["model"] = result.model_path
    artifacts = {name: str(path) for name, path in paths.items() if path is not None}
    code = 0 if not errors else 3 if result.best is not None else 1
    return CommandResult(_sweep_text(result), metrics, artifacts, result.warnings, errors, code)


def _sweep_text(result: SweepResult) -> str:
    from bixse.lab.sweep import table_of

    table = table_of(result.rows[:ROWS_SHOWN])
    columns = [name for name in table[0] if name not in FILE_ALONE]
    lines = [format_table([[row[name] for name in columns] for row in table], columns), ""]
    if len(result.rows) > ROWS_SHOWN:
        lines.append(f"... and {len(result.rows) - ROWS_SHOWN} more")
    lines.append(f"precision: {', '.join(sorted({row.precision for row in result.rows}))}")
    lines.append(f"{'already trained' if result.reused else 'table'}: {result.table_path}")
    if result.best is None:
        return "\n".join([*lines, "no arm finished"])
    lines += [
        f"best: {result.best.label}; all its settings: {result.best_path}",
        f"its dev nDCG@10 is optimistic, as the best of {len(result.rows)} on those queries; measure it on test, once",
        "next:",
        f"  bixse evaluate {shlex.quote(str(result.model_path))} --collection DIR --split test"
        if result.model_path is not None
        else f"  bixse train --config {shlex.quote(str(result.best_path))} --out DIR",  # its model was deleted
    ]
    return "\n".join(lines)


SWEPT = Output("Folder for runs, table and best settings.", "runs/sweep")
SWEEP = Verb(SweepConfig, Options, run_sweep, out=SWEPT, report=True)


class StudyOptions(Options):
    """Options of `bixse study`."""

    list: bool = False
    """Show the studies, their values, and the presets."""


def run_a_study(config: StudyConfig, options: StudyOptions) -> CommandResult:
    """Run the missing arms, and return the findings."""
    from bixse.lab.studies.run_study import plan_study, run_study

    if options.dry_run:
        text, runs, missing = plan_study(config)
        return CommandResult(text, {"runs": runs, "missing": missing})
    out = options.out or Path("runs") / f"study-{config.study}"
    # the findings show the command line without options that do not change them
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--out", "--jobs", *(f"--{name.replace('_', '-')}" for name in PlaceSettings.model_fields)):
        parser.add_argument(flag)
    for flag in ("--keep-models", "--json", "--debug"):
        parser.add_argument(flag, action="store_true")
    command = shlex.join(["bixse", *parser.parse_known_args(list(options.words))[1]])
    result = run_study(config, out, command, progress_bar)
    if result.waiting:
        return waits(result.waiting)
    outcome = result.outcome
    errors = [f"run {each.label} {each.status}: {each.reason}" for each in outcome.failed]
    metrics = {
        "runs": len(outcome.results),
        "made": result.made,
        "failed": len(errors),
        "claims": [{"claim": each.claim, "finding": each.finding} for each in outcome.claims],
    }
    code = 0 if not errors else 3 if len(errors) < len(outcome.results) else 1
    made = f"{outcome.study.title}: {result.made} runs made, {len(outcome.results) - result.made} were there"
    text = f"{made}\n\n{outcome.text()}\nfindings: {result.artifacts['findings']}"
    return CommandResult(text, metrics, result.artifacts, result.warnings, errors, code)


def _known(options: StudyOptions) -> CommandResult:
    from bixse.lab.studies.paper import describe_studies

    return CommandResult(f"{describe_studies()}\n\npresets: {', '.join(preset_names())}")


OUT = "Folder for runs, tables and plot. Without it, runs/study-NAME."
FIRST = ("study", "preset", "model", "data.collection", "seeds")
DRY_RUN = "Check the settings of every arm, count the runs, and name missing files. Nothing is trained."
STUDY = Verb(StudyConfig, StudyOptions, run_a_study, {"list": _known}, Output(OUT), DRY_RUN, first=FIRST)
