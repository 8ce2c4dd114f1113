"""A judge that is a function of the user: query and document in, a number on its scale out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from numbers import Real
from typing import TYPE_CHECKING, Any

from bixse.errors import InputError, shorten
from bixse.judging.judge import Answer, AnyJudge, Question

if TYPE_CHECKING:
    from bixse.relevance import GradeScale


class FunctionJudge(AnyJudge):
    """A judge that calls a function per pair (mode "function"); its name stands for it in ledgers."""

    def __init__(self, function: Callable[[str, str], Any], scale: GradeScale, name: str) -> None:
        self.function, self.scale, self.name = function, scale, name
        self.identity = {"kind": "function", "name": name, "scale": [scale.minimum, scale.maximum]}

    def answers(self, questions: Iterable[Question]) -> Iterator[tuple[Question, Answer]]:
        """Answer questions; raise InputError for what is no number on the scale."""
        low, high = self.scale.minimum, self.scale.maximum
        for question in questions:
            value = self.function(question.query, question.document)
            if not isinstance(value, Real) or not low <= float(value) <= high:  # NaN is not between them either
                raise InputError(
                    f"judge {self.name}: got {shorten(value)} for the query {shorten(question.query)}; expected a "
                    f"number from {low:g} to {high:g}; fix: return a number, or state the scale: Judge(function, "
                    "scale=(0, 3))"
                )
            grade = float(value)
            yield question, Answer("graded", "function", (), grade, grade, grade, judge=self.name)
