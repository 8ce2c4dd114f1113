"""`bixse merge`: average models, with weights given or chosen on dev."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bixse.cli.flags import add_settings, settings_from
from bixse.cli.result import CommandResult

if TYPE_CHECKING:
    import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The settings, and where the model goes."""
    from bixse.training.config import MergeModelsConfig

    add_settings(parser, MergeModelsConfig)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/merge"), metavar="DIR", help="output folder (default: runs/merge)"
    )


def run(args: argparse.Namespace) -> CommandResult:
    """Merge, and say what it changed."""
    from bixse.training.config import MergeModelsConfig
    from bixse.training.merging.merge_models import merge_models

    found = merge_models(settings_from(args, MergeModelsConfig), args.out, progress=True)
    lines = [f"{'already merged' if found.reused else 'merged'}: {found.model_path}", *found.result.lines()]
    return CommandResult(
        text="\n".join(lines),
        metrics=found.result.to_json(),
        artifacts={"model": str(found.model_path), "run": str(args.out / "run.json")},
        warnings=found.warnings,
    )
