"""Which labels are compared: files of both sides on their scales, for auditing and for calibrating a judge."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import model_validator

from bixse.grading.audit.labels import read_labels
from bixse.grading.rubrics import load_rubric
from bixse.relevance import GradeScale
from bixse.settings import Flag, Settings

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

    from bixse.grading.audit.labels import Labels

Ends = Annotated[tuple[float, float] | None, Flag(metavar="GRADE")]
"""The lowest and the highest grade of a scale."""


class LabelSettings(Settings):
    """Human labels, the scales of both sides, and what counts as relevant."""

    human: Annotated[Path, Flag(metavar="QRELS")]
    """Human labels: qrels (TREC, BEIR) or a table of query_id, document_id, grade."""
    scale: Ends = None
    """Lowest and highest grade of the human labels; null: the lowest to the highest label found."""
    judge_scale: Ends = None
    """Lowest and highest grade of the judge; null: as its file says, else that of the human labels."""
    rubric: str | None = None
    """Rubric whose scale the judge used, instead of judge_scale."""
    relevant_from: Annotated[float | None, Flag(metavar="GRADE")] = None
    """Human grade from which a pair is relevant; null: the lowest in the upper half of the scale, 2 on 0 to 3."""

    @model_validator(mode="after")
    def _one_judge_scale(self) -> Self:
        if self.rubric is not None and self.judge_scale is not None:
            raise ValueError("got rubric and judge_scale; expected at most one of them; fix: drop one")
        return self

    def read(self, judges: Iterable[Path]) -> tuple[Labels, list[Labels]]:
        """Human labels and each judge's, on their scales; judges of one name are named by their files.

        Raises:
            InputError: a file cannot be used, or a scale is empty.
        """
        scale, judge_scale = (GradeScale(*ends) if ends else None for ends in (self.scale, self.judge_scale))
        labels = read_labels(self.human, scale)
        stated = load_rubric(self.rubric).scale if self.rubric is not None else judge_scale
        found = [read_labels(path, stated, otherwise=labels.scale) for path in judges]
        names = [judge.name for judge in found]
        return labels, [
            replace(judge, name=str(Path(judge.path).with_suffix(""))) if names.count(judge.name) > 1 else judge
            for judge in found
        ]
