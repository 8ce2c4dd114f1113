"""Which labels are compared: files of both sides on their scales, for auditing and for calibrating a judge."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.grading.audit.labels import read_labels
from bixse.grading.rubrics import load_rubric

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bixse.grading.audit.labels import Labels
    from bixse.relevance import GradeScale


@dataclass(frozen=True)
class LabelSettings:
    """Scales of the labels, and what counts as relevant."""

    scale: GradeScale | None = None
    """Of the human labels; None: the lowest to the highest label found."""
    judge_scale: GradeScale | None = None
    """Of the judge's grades; None: as its file says, else that of the human labels."""
    rubric: str | None = None
    """Name of a rubric whose scale the judge used, instead of `judge_scale`."""
    relevant_from: float | None = None
    """Human grade from which a pair is relevant; None: the lowest in the upper half of the scale."""

    def read(self, human: Path, judges: Iterable[Path]) -> tuple[Labels, list[Labels]]:
        """Human labels and each judge's, on their scales; judges of one name are named by their files.

        Raises:
            InputError: a file cannot be used.
        """
        labels = read_labels(human, self.scale)
        stated = load_rubric(self.rubric).scale if self.rubric is not None else self.judge_scale
        found = [read_labels(path, stated, otherwise=labels.scale) for path in judges]
        names = [judge.name for judge in found]
        return labels, [
            replace(judge, name=str(Path(judge.path).with_suffix(""))) if names.count(judge.name) > 1 else judge
            for judge in found
        ]

    def plain(self) -> dict[str, object]:
        """The settings as run.json keeps them."""
        scales = {"scale": self.scale, "judge_scale": self.judge_scale}
        ends = {name: [scale.minimum, scale.maximum] if scale else None for name, scale in scales.items()}
        return {**ends, "rubric": self.rubric, "relevant_from": self.relevant_from}
