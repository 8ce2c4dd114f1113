"""The model card of a kept model says which study it came from, and what it reached there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bixse.data.io.files import read_text, write_atomically
from bixse.experiments.runner import TRAIN_FOLDER
from bixse.training.recipe import MODEL_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from bixse.experiments.arms import Run, RunResult
    from bixse.studies.engine.study import Study

CARD = "README.md"
"""The model card in a model folder."""
_BEGIN, _END = "<!-- bixse study -->", "<!-- end of bixse study -->"


def write_cards(study: Study, runs: Iterable[tuple[Run, RunResult]], folder: Path, command: str) -> list[str]:
    """Add the study to the card of every model that was kept; a second call replaces what the first one wrote.

    Args:
        study: the study.
        runs: runs with their results.
        folder: the folder of all runs.
        command: the command line that makes the study again.

    Returns:
        The folders of the models.
    """
    found = []
    for run, result in runs:
        model = folder / run.name / TRAIN_FOLDER / MODEL_FOLDER
        if not model.is_dir():
            continue
        card = model / CARD
        before = read_text(card) if card.exists() else ""
        if _BEGIN in before:
            before = before[: before.index(_BEGIN)] + before[before.index(_END) + len(_END) :].lstrip("\n")
        write_atomically(card, f"{before.rstrip()}\n\n{_section(study, run, result, command)}\n")
        found.append(str(model))
    return found


def _section(study: Study, run: Run, result: RunResult, command: str) -> str:
    labels = ", ".join(f"{label.replace('_', ' ')} {value}" for label, value in run.arm.labels.items())
    figures = ", ".join(f"{metric} {value:.4f}" for metric, value in result.metrics.items())
    lines = [_BEGIN, "## Study", "", f"Arm of the study `{study.name}` ({study.title}): {labels}, seed {run.seed}."]
    lines += [
        f"On the test queries, in {result.precision}: {figures}.",
        f"Command: `{command}`" if command else "",
        _END,
    ]
    return "\n".join(line for line in lines if line or line == "")
