"""`bixse merge`: average models, with weights given or chosen on dev."""

from __future__ import annotations

from pathlib import Path

from bixse.cli.verb import CommandResult, ComputingOptions, Folder, Verb
from bixse.training.config import MergeModelsConfig


class MergeOptions(ComputingOptions):
    """Options of `bixse merge`."""

    out: Folder = Path("runs/merge")
    """Output folder."""


def run(config: MergeModelsConfig, options: MergeOptions) -> CommandResult:
    """Merge, and say what it changed."""
    from bixse.training.merge_models import merge_models

    found = merge_models(config, options.out, progress=True)
    lines = [f"{'already merged' if found.reused else 'merged'}: {found.model_path}", *found.result.lines()]
    artifacts = {"model": str(found.model_path), "run": str(options.out / "run.json")}
    return CommandResult("\n".join(lines), found.result.to_json(), artifacts, found.warnings)


VERB = Verb(MergeModelsConfig, MergeOptions, run)
