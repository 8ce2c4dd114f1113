"""`bixse study`: a figure or table of the paper on your data."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from bixse.cli.result import CommandResult
from bixse.cli.verb import Folder, Options, Verb
from bixse.studies.engine.study_config import StudyConfig, preset_names

if TYPE_CHECKING:
    from collections.abc import Sequence

UTILISATION = 0.35
"""Share of a device's peak that a plan takes for reached."""


class StudyOptions(Options):
    """Where the runs go, and what is only shown."""

    list: bool = False
    """Show the studies, what they go through, and the presets."""
    dry_run: bool = False
    """Check every arm; say steps, memory and GPU hours."""
    devices: int = Field(default=1, ge=1)
    """For --dry-run: devices that runs are spread over, one each."""
    teraflops: float = 400.0
    """For --dry-run: peak of one device."""
    out: Folder | None = None
    """Folder for runs, tables, plot and page; null: runs/study-NAME."""


def run(config: StudyConfig, options: StudyOptions) -> CommandResult:
    """Run what is missing, and print the findings."""
    if options.dry_run:
        return _plan(config, options)
    from bixse.progress import progress_bar
    from bixse.report.table import format_table
    from bixse.studies.engine.run_study import run_study
    from bixse.studies.findings.outcome import CLAIM_HEADERS

    result = run_study(
        config, options.out or Path("runs") / f"study-{config.study}", _command(options.words), progress_bar
    )
    outcome = result.outcome
    lines = [f"{outcome.study.title}: {result.made} runs made, {len(outcome.results) - result.made} were there", ""]
    lines += [format_table(outcome.summary_rows(), outcome.summary_headers()), ""]
    if outcome.claims:
        lines += [format_table(outcome.claim_rows(), CLAIM_HEADERS), ""]
    lines += [f"The paper: {outcome.study.paper}.", outcome.verdict(), f"page: {result.artifacts['page']}"]
    errors = [f"run {found.label} {found.status}: {found.reason}" for found in outcome.failed]
    metrics = {
        "runs": len(outcome.results),
        "made": result.made,
        "failed": len(errors),
        "claims": [{"claim": found.claim, "finding": found.finding} for found in outcome.claims],
    }
    code = 0 if not errors else 3 if len(errors) < len(outcome.results) else 1
    return CommandResult("\n".join(lines), metrics, result.artifacts, result.warnings, errors, code)


def _plan(config: StudyConfig, options: StudyOptions) -> CommandResult:
    """What the study would take."""
    from bixse.report.table import format_table
    from bixse.studies.engine.study_plan import plan_study

    plan = plan_study(config, options.teraflops, UTILISATION)
    lines = [f"{len(plan.arms)} trained arms x {plan.seeds} seeds, {plan.others} other arms"]
    if plan.arms:
        rows: list[list[str | int | float | None]] = [
            [arm.name, arm.rows, arm.steps, f"{arm.tokens:.3g}"] for arm in plan.arms
        ]
        side_by_side = f" ({plan.hours / options.devices:,.1f} on {options.devices})" if options.devices > 1 else ""
        lines = [
            format_table(rows, ["arm", "rows", "steps", "tokens"]),
            "",
            *lines,
            f"memory of a training: {plan.weights_gib:.1f} GiB for weights, gradients and optimizer, about "
            f"{plan.activations_gib:.1f} GiB for the states of one batch, nothing for scores (the losses are tiled)",
            f"about {plan.hours:,.1f} device hours{side_by_side} at {options.teraflops:g} teraflops and "
            f"{UTILISATION:.0%} of them used; transforms that drop pairs, and encoding to measure, are not counted",
        ]
    lines += [f"not there: {name}" for name in plan.missing] or ["all files are there"]
    metrics = {
        "runs": len(plan.arms) * plan.seeds + plan.others,
        "weights_gib": plan.weights_gib,
        "activations_gib": plan.activations_gib,
        "device_hours": plan.hours,
        "missing": plan.missing,
    }
    return CommandResult("\n".join(lines), metrics)


def _known(options: StudyOptions) -> CommandResult:
    """The studies and presets."""
    from bixse.studies.paper.known_studies import STUDIES

    lines = []
    for study in STUDIES.values():
        lines += [f"{study.name}: {study.title}", f"  the paper: {study.paper}"]
        lines += [f"  {key}: {value}" for key, value in study.defaults.items()]
    return CommandResult("\n".join([*lines, "", f"presets: {', '.join(preset_names())}"]))


def _command(words: Sequence[str]) -> str:
    """The command line without what does not change the findings."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--out", "--jobs"):
        parser.add_argument(flag)
    for flag in ("--keep-models", "--json", "--debug"):
        parser.add_argument(flag, action="store_true")
    return shlex.join(["bixse", *parser.parse_known_args(list(words))[1]])


VERB = Verb(StudyConfig, StudyOptions, run, {"list": _known})
