"""`bixse study`: a figure or table of the paper on your data."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from bixse.cli.verb import CommandResult, Folder, Options, Verb, waits
from bixse.lab.lab_config import StudyConfig, preset_names
from bixse.scale.engines.engine_settings import PlaceSettings

if TYPE_CHECKING:
    from collections.abc import Sequence


class StudyOptions(Options):
    """Options of `bixse study`."""

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
    from bixse.lab.studies.run_study import run_study
    from bixse.progress import progress_bar

    result = run_study(
        config, options.out or Path("runs") / f"study-{config.study}", _command(options.words), progress_bar
    )
    if result.waiting:
        return waits(result.waiting)
    outcome = result.outcome
    errors = [f"run {found.label} {found.status}: {found.reason}" for found in outcome.failed]
    metrics = {
        "runs": len(outcome.results),
        "made": result.made,
        "failed": len(errors),
        "claims": [{"claim": found.claim, "finding": found.finding} for found in outcome.claims],
    }
    code = 0 if not errors else 3 if len(errors) < len(outcome.results) else 1
    text = f"{result.text()}\npage: {result.artifacts['page']}"
    return CommandResult(text, metrics, result.artifacts, result.warnings, errors, code)


def _plan(config: StudyConfig, options: StudyOptions) -> CommandResult:
    from bixse.lab.studies.study_plan import plan_study

    plan = plan_study(config, options.teraflops)
    metrics = {
        "runs": plan.runs,
        "weights_gib": plan.weights_gib,
        "activations_gib": plan.activations_gib,
        "device_hours": plan.hours,
        "missing": plan.missing,
    }
    return CommandResult(plan.text(options.devices), metrics)


def _known(options: StudyOptions) -> CommandResult:
    from bixse.lab.studies.paper import describe_studies

    return CommandResult(f"{describe_studies()}\n\npresets: {', '.join(preset_names())}")


def _command(words: Sequence[str]) -> str:
    """The command line without what does not change the findings."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--out", "--jobs", *(f"--{name.replace('_', '-')}" for name in PlaceSettings.model_fields)):
        parser.add_argument(flag)
    for flag in ("--keep-models", "--json", "--debug"):
        parser.add_argument(flag, action="store_true")
    return shlex.join(["bixse", *parser.parse_known_args(list(words))[1]])


VERB = Verb(StudyConfig, StudyOptions, run, {"list": _known})
