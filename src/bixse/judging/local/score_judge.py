"""A judge whose answer is a score: what it says becomes relevance through a map that is stated."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bixse.errors import InputError
from bixse.judging.judge import Answer, Usage
from bixse.preparing.sources.score_scale import ScoreMap, map_scores, parse_score_map
from bixse.relevance import GradeScale

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from bixse.judging.judge import Question

MODE: Final = "score"
WINDOW = 512
_ALIKE = 1e-6
"""Scores that differ less, relative to their size, are the same."""
_FEW = 16
"""Texts from which equal scores are no chance."""


class ScoreJudge(ABC):
    """Grades by a model's score of a pair, mapped to relevance once (mode "score").

    The rubric is not read; grades are relevance, 0 to 1. A pair that is longer than the model reads is answered
    "too-long", never cut.

    Args:
        kind: in messages and in `identity`.
        name: of the model, in every answer.
        score_map: from score to relevance: "logit" (a sigmoid); "prob" for scores in [0, 1]; "platt:SLOPE,INTERCEPT",
            fitted on pairs with human labels.
        longest: tokens that the model reads of what `_lengths` counts; None: no limit.
        identity: what the answers depend on beside the texts.

    Raises:
        InputError: no such map, or a model that scores three different pairs alike.
    """

    at_once = 1

    def __init__(self, kind: str, name: str, score_map: str, longest: int | None, identity: Mapping[str, Any]) -> None:
        self._kind = kind
        self._map = score_map_of(score_map)
        self._longest = longest
        self.name = name
        self.scale = GradeScale(0.0, 1.0)
        self.identity: Mapping[str, Any] = {
            "kind": kind, "model": name, "mode": MODE, **identity, "map": str(self._map)
        }  # fmt: skip
        self.warnings: list[str] = []
        """Grows while questions are answered."""
        self._check_contrast(
            self._scores([("copy a file", "shutil.copy copies a file."), ("copy a file", "Rain falls."), ("a", "b")]),
            "three different pairs",
        )

    @abstractmethod
    def _scores(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        """Scores (N,) of N pairs of query and document."""

    @abstractmethod
    def _lengths(self, questions: Sequence[Question]) -> list[int]:
        """Tokens of each question that `longest` limits."""

    @abstractmethod
    def close(self) -> None: ...

    def count_tokens(self, questions: Sequence[Question]) -> list[int]:
        return self._lengths(questions) if questions else []

    def answers(self, questions: Iterable[Question]) -> Iterator[tuple[Question, Answer]]:
        source = iter(questions)
        while taken := list(islice(source, WINDOW)):
            started = time.perf_counter()
            lengths = self._lengths(taken)
            fits = [self._longest is None or length <= self._longest for length in lengths]
            pairs = [(q.query, q.document) for q, fit in zip(taken, fits, strict=True) if fit]
            scores = self._scores(pairs) if pairs else np.zeros(0)
            if len({document for _, document in pairs}) >= _FEW:
                self._check_window(scores)
            seconds = (time.perf_counter() - started) / len(taken)
            left = iter(scores.tolist())
            for question, length, fit in zip(taken, lengths, fits, strict=True):
                yield question, self._answer(next(left) if fit else None, length, seconds)

    def _answer(self, score: float | None, length: int, seconds: float) -> Answer:
        common: dict[str, Any] = {"usage": Usage(prompt=length), "seconds": seconds, "judge": self.name}
        if score is None:
            detail = f"a pair of {length} tokens: the model reads {self._longest}"
            return Answer("too-long", MODE, detail=detail, **common)
        if not np.isfinite(score):
            return Answer("failed", MODE, detail=f"the model gave the score {score}", **common)
        lowest, highest = self._map.range
        if not lowest <= score <= highest:
            detail = f"score {score:.4g}: the map {self._map} takes {lowest:g} to {highest:g}"
            return Answer("off-scale", MODE, text=f"{score:.6g}", detail=detail, **common)
        z = float(map_scores(np.array([score]), self._map)[0])
        return Answer("graded", MODE, (1.0 - z, z), z, z, z, text=f"{score:.6g}", **common)

    def _check_contrast(self, scores: NDArray[np.float64], pairs: str) -> None:
        if np.ptp(scores) <= _ALIKE * max(1e-6, float(np.abs(scores).max())):
            raise InputError(
                f"{self._kind} {self.name!r}: got the score {scores[0]:.6g} for {pairs}; expected scores that differ; "
                "fix: choose another model (this one is not trained or not loaded whole), or look at the texts"
            )

    def _check_window(self, scores: NDArray[np.float64]) -> None:
        """Warn of scores that look like probabilities already."""
        if self._map.kind == "logit" and not self.warnings and scores.min() >= 0 and scores.max() <= 1:
            self.warnings.append(
                f"{self._kind} {self.name!r}: all raw scores lie in [0, 1] and pass a sigmoid; where they are "
                "probabilities already, use the map 'prob'"
            )
        self._check_contrast(scores, f"all of {len(scores)} pairs")


def score_map_of(text: str) -> ScoreMap:
    """A map of scores by its name; raises InputError for one of whole grades."""
    found = parse_score_map("logit" if text == "sigmoid" else text)
    if found.kind == "binary":
        fix = "use logit, prob, percent or platt:SLOPE,INTERCEPT"
        raise InputError(f"score map: got 'binary'; expected a map of scores; fix: {fix}")
    return found
