"""`bixse study`: a figure or table of the paper on your data."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.cli.flags import add_settings, settings_from
from bixse.cli.result import CommandResult

if TYPE_CHECKING:
    import argparse

    from bixse.studies.engine.study_config import StudyConfig

UTILISATION = 0.35
"""Share of a device's peak that a plan takes for reached."""
NOT_REPEATED = ("verb", "out", "jobs", "keep_models", "list", "dry_run", "devices", "teraflops", "json", "debug")
"""Arguments that are no part of the command that makes a study again."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The settings, where the runs go, and what is only shown."""
    from bixse.studies.engine.study_config import StudyConfig

    add_settings(parser, StudyConfig)
    parser.add_argument("--list", action="store_true", help="show the studies, what they go through, and the presets")
    parser.add_argument("--dry-run", action="store_true", help="check every arm; say steps, memory and GPU hours")
    parser.add_argument(
        "--devices", type=int, default=1, metavar="N", help="for --dry-run: devices that runs are spread over, one each"
    )
    parser.add_argument(
        "--teraflops", type=float, default=400.0, metavar="X", help="for --dry-run: peak of one device (default: 400)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder for runs, tables, plot and page (default: runs/study-NAME)"
    )


def run(args: argparse.Namespace) -> CommandResult:
    """Run what is missing, and print the findings."""
    from bixse.studies.engine.study_config import StudyConfig

    if args.list:
        return CommandResult(_list())
    config = settings_from(args, StudyConfig)
    if args.dry_run:
        return _dry_run(args, config)
    from bixse.progress import progress_bar
    from bixse.report.table import format_table
    from bixse.studies.engine.run_study import run_study
    from bixse.studies.findings.outcome import CLAIM_HEADERS

    result = run_study(config, args.out or Path("runs") / f"study-{config.study}", _command(args), progress_bar)
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


def _dry_run(args: argparse.Namespace, config: StudyConfig) -> CommandResult:
    from bixse.errors import InputError
    from bixse.report.table import format_table
    from bixse.studies.engine.study_plan import plan_study

    if args.devices < 1:
        raise InputError(f"--devices: got {args.devices}; expected at least 1; fix: leave it out for one")
    plan = plan_study(config, args.teraflops, UTILISATION)
    lines = [f"{len(plan.arms)} trained arms x {plan.seeds} seeds, {plan.others} other arms"]
    if plan.arms:
        rows: list[list[str | int | float | None]] = [
            [arm.name, arm.rows, arm.steps, f"{arm.tokens:.3g}"] for arm in plan.arms
        ]
        side_by_side = f" ({plan.hours / args.devices:,.1f} on {args.devices})" if args.devices > 1 else ""
        lines = [
            format_table(rows, ["arm", "rows", "steps", "tokens"]),
            "",
            *lines,
            f"memory of a training: {plan.weights_gib:.1f} GiB for weights, gradients and optimizer, about "
            f"{plan.activations_gib:.1f} GiB for the states of one batch, nothing for scores (the losses are tiled)",
            f"about {plan.hours:,.1f} device hours{side_by_side} at {args.teraflops:g} teraflops and {UTILISATION:.0%} "
            "of them used; transforms that drop pairs, and encoding to measure, are not counted",
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


def _list() -> str:
    from bixse.studies.engine.study_config import preset_names
    from bixse.studies.paper.known_studies import STUDIES

    lines = []
    for study in STUDIES.values():
        lines += [f"{study.name}: {study.title}", f"  the paper: {study.paper}"]
        lines += [f"  {key}: {value}" for key, value in study.defaults.items()]
    return "\n".join([*lines, "", f"presets: {', '.join(preset_names())}"])


def _command(args: argparse.Namespace) -> str:
    """The command line that makes this study again."""
    given = {key: value for key, value in vars(args).items() if key not in NOT_REPEATED and value is not None}
    words = ["bixse", "study", given.pop("study", "")]
    for key, value in given.items():
        name = key.rpartition(".")[2].replace("_", "-")
        values = value if isinstance(value, list) else [value]
        words += (
            [f"--no-{name}"] if value is False else [f"--{name}", *(str(each) for each in values if each is not True)]
        )
    return shlex.join(words)
