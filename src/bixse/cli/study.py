"""`bixse study`: a figure or table of the paper on your data."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.cli.result import CommandResult
from bixse.errors import InputError

if TYPE_CHECKING:
    import argparse

    from bixse.studies.engine.study_config import StudyConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's flags; what a study runs on stands in a preset or a YAML file."""
    from bixse.studies.engine.preset_names import preset_names

    parser.add_argument("name", nargs="?", metavar="NAME", help="the study; --list shows them")
    parser.add_argument("--list", action="store_true", help="show the studies, what they go through, and the presets")
    parser.add_argument("--preset", metavar="NAME", help=f"settings to start from: {', '.join(preset_names())}")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="YAML file: data, model, train, values, seeds ... (docs/studies.md)"
    )
    parser.add_argument("--collection", metavar="DIR", help="collection folder in the place of the configuration's")
    parser.add_argument(
        "--scale", nargs=2, type=float, metavar=("LOW", "HIGH"), help="lowest and highest grade of that collection"
    )
    parser.add_argument(
        "--min-relevant-grade", type=float, metavar="GRADE", help="its grade from which a document is relevant"
    )
    parser.add_argument("--model", metavar="NAME", help="encoder in the place of the configuration's")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", help="training seeds in the place of its")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes at once (default: one a GPU, or one a core)")
    parser.add_argument("--keep-models", action="store_true", help="leave the trained models in the cells' folders")
    parser.add_argument("--dry-run", action="store_true", help="check every cell; say steps, memory and GPU hours")
    parser.add_argument(
        "--devices", type=int, default=1, metavar="N", help="for --dry-run: devices that cells run on, one each"
    )
    parser.add_argument(
        "--teraflops", type=float, default=400.0, metavar="X", help="for --dry-run: peak of one device (default: 400)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder for cells, tables, plot and page (default: runs/study-NAME)"
    )


def run(args: argparse.Namespace) -> CommandResult:
    """Run what is missing, and print the findings."""
    if args.list:
        return CommandResult(_list())
    if args.name is None:
        raise InputError("study: got no name; expected one; fix: `bixse study --list` shows them")
    config = _config(args)
    if args.dry_run:
        return _dry_run(args, config)
    from bixse.progress import progress_bar
    from bixse.studies.engine.run_study import run_study

    out = args.out or Path("runs") / f"study-{args.name}"
    command = _command(args)
    result = run_study(args.name, config, out, args.jobs, args.keep_models, command, progress_bar)
    outcome = result.outcome
    from bixse.report.table import format_table
    from bixse.studies.findings.outcome import CLAIM_HEADERS

    lines = [f"{outcome.study.title}: {result.made} cells made, {len(outcome.results) - result.made} were there", ""]
    lines += [format_table(outcome.summary_rows(), outcome.summary_headers()), ""]
    if outcome.claims:
        lines += [format_table(outcome.claim_rows(), CLAIM_HEADERS), ""]
    lines += [f"The paper: {outcome.study.paper}.", outcome.verdict(), f"page: {result.artifacts['page']}"]
    errors = [f"cell {found.labels} seed {found.seed}: {found.reason}" for found in outcome.failed]
    metrics = {
        "cells": len(outcome.results),
        "made": result.made,
        "failed": len(errors),
        "claims": [{"claim": found.claim, "finding": found.finding} for found in outcome.claims],
    }
    code = 0 if not errors else 3 if len(errors) < len(outcome.results) else 1
    return CommandResult("\n".join(lines), metrics, result.artifacts, result.warnings, errors, code)


def _config(args: argparse.Namespace) -> StudyConfig:
    """The configuration with the flags on top."""
    from bixse.studies.engine.study_config import load_study_config

    preset = args.preset if args.preset or args.config else "laptop"
    flags = {"collection": args.collection, "scale": args.scale, "min_relevant_grade": args.min_relevant_grade}
    data = {name: value for name, value in flags.items() if value is not None}
    own: dict[str, Any] = {"data": data} if data else {}
    if args.collection is not None and (args.scale is None or args.min_relevant_grade is None):
        raise InputError(
            "--collection: got it without --scale or --min-relevant-grade; expected all three, since the grades that "
            "occur do not show those nobody gave; fix: add for example --scale 0 3 --min-relevant-grade 2"
        )
    own |= {"train": {"precision": args.precision}} if args.precision is not None else {}
    own |= {name: value for name, value in (("model", args.model), ("seeds", args.seeds)) if value is not None}
    config = load_study_config(args.name, preset, args.config, own)
    if args.collection is not None and config.data.pairs:
        raise InputError(
            "--collection: got it beside files of pairs in the configuration; expected one of the two; fix: use "
            "another preset, or name the collections in `data.dev` and `data.test`"
        )
    return config


def _dry_run(args: argparse.Namespace, config: StudyConfig) -> CommandResult:
    from bixse.report.table import format_table
    from bixse.studies.engine.study_dry_run import plan_study

    utilisation = 0.35
    if args.devices < 1 or not args.teraflops > 0:
        raise InputError("--devices, --teraflops: expected numbers above 0; fix: give those of your machine")
    plan = plan_study(args.name, config, args.devices, args.teraflops, utilisation)
    rows: list[list[str | int | float | None]] = [
        [cell.name, cell.rows, cell.steps, f"{cell.tokens:.3g}"] for cell in plan.cells
    ]
    lines = [format_table(rows, ["cell", "rows", "steps", "tokens"]), ""] if rows else []
    lines += plan.lines(args.teraflops, utilisation)
    metrics = {
        "cells": len(plan.cells) * plan.seeds + plan.others,
        "weights_gib": plan.weights_gib,
        "activations_gib": plan.activations_gib,
        "device_hours": plan.hours,
        "missing": plan.missing,
    }
    return CommandResult("\n".join(lines), metrics)


def _list() -> str:
    from bixse.studies.engine.preset_names import preset_names
    from bixse.studies.engine.study import STUDIES, find_study

    lines = []
    for name in STUDIES:
        study = find_study(name)
        lines += [f"{name}: {study.title}", f"  the paper: {study.paper}"]
        lines += [f"  {key}: {value}" for key, value in study.defaults.items()]
    return "\n".join([*lines, "", f"presets: {', '.join(preset_names())}"])


def _command(args: argparse.Namespace) -> str:
    """The command line that makes this study again."""
    words = ["bixse", "study", args.name]
    for flag in ("preset", "config", "collection", "scale", "min_relevant_grade", "model", "seeds", "precision"):
        value = getattr(args, flag)
        if value is not None:
            values = value if isinstance(value, list) else [value]
            words += [f"--{flag.replace('_', '-')}", *(f"{v:g}" if isinstance(v, float) else str(v) for v in values)]
    return shlex.join(words)
