"""A judge that answers from existing judgements: qrels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.data.joined import Unjoined, warn_of
from bixse.data.trec import read_qrels
from bixse.errors import InputError, shorten
from bixse.files.files import file_hash
from bixse.judging.judge import Answer, AnyJudge, Question

if TYPE_CHECKING:
    from bixse.relevance import GradeScale

SPELLING = "replay:qrels:"


class ReplayJudge(AnyJudge):
    """A judge that answers from qrels (mode "replay"); a pair is found by its two ids, whatever its texts.

    A missing pair is answered "failed", a grade below 0 on a scale from 0 "off-scale". `repeat` is refused: existing
    judgements cannot be asked a second time.
    """

    def __init__(self, path: str | Path, scale: GradeScale) -> None:
        path = Path(path)
        self.scale, self._judge = scale, path.stem
        self.name = f"{SPELLING}{path.name}"
        self._grades = {
            (query_id, document_id): grade
            for query_id, judged in read_qrels(path).items()
            for document_id, grade in judged.items()
        }
        scale.check(path, ((grade, pair) for pair, grade in self._grades.items()))
        self._asked: dict[tuple[str, str], None] = {}
        self.identity = {
            "kind": "replay",
            "format": "qrels",
            "scale": [scale.minimum, scale.maximum],
            "content": file_hash(path),
        }

    @property
    def warnings(self) -> list[str]:  # type: ignore[override] # it is not set, but follows from the questions
        """Return the number of asked pairs that are not among the judgements, if there are some."""
        return warn_of(self.name, Unjoined.of("pairs that the judgements lack", self._asked, self._grades))

    def answers(self, questions: Iterable[Question]) -> Iterator[tuple[Question, Answer]]:
        for question in questions:
            yield question, self._answer(question)

    def _answer(self, question: Question) -> Answer:
        pair = question.query_id, question.document_id
        self._asked[pair] = None
        grade = self._grades.get(pair)
        if grade is None or question.repeat:
            again = "existing judgements cannot be asked a second time"
            detail = again if question.repeat else "not among the judgements"
            return Answer("failed", "replay", judge=self.name, detail=detail)
        if not self.scale.minimum <= grade <= self.scale.maximum:
            detail = f"grade {grade:g}; the scale is {self.scale.minimum:g} to {self.scale.maximum:g}"
            return Answer("off-scale", "replay", text=f"{grade:g}", judge=self._judge, detail=detail)
        return Answer("graded", "replay", (), grade, grade, grade, f"{grade:g}", judge=self._judge)


def open_replay(spec: str, scale: GradeScale | None) -> ReplayJudge:
    """Open the judge `replay:qrels:PATH`, whose grades are on the `scale`."""
    path = spec.removeprefix(SPELLING)
    if path in ("", spec):
        raise InputError(
            f"judge: got {shorten(spec)}; expected replay:qrels:PATH; fix: name a file of qrels, and make pairs of "
            "other formats with `bixse convert`"
        )
    if scale is None:
        raise InputError(
            f"{path}: got no scale; expected that of its grades (it cannot be inferred: a grade that was never given "
            "leaves no trace); fix: state the lowest and the highest grade, for example --scale 0 3"
        )
    return ReplayJudge(path, scale)
