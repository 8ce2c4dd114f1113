"""From the answers about a pair to its row: a relevance where every answer has a grade, else a status."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from bixse.data.graded_pairs import GradedPairs, Pair
from bixse.files.parquet import save_table
from bixse.judging.judge import STATUSES, Answer, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from bixse.judging.grade_settings import Prices
    from bixse.relevance import GradeScale

WIDE = 0.05
"""Bounds of relevance further apart than this are counted in the summary."""


@dataclass(frozen=True)
class JudgedPair:
    """What the judge made of one pair, all prompt variants of the rubric together; None where there is no grade."""

    pair: Pair
    answers: Sequence[Answer]
    """One per prompt variant of the rubric."""
    scale: GradeScale
    repeat: int = 0

    @property
    def status(self) -> str:
        """That of the first variant without a grade, or "graded"."""
        return next((answer.status for answer in self.answers if not answer.usable), "graded")

    @property
    def grade(self) -> float | None:
        """Mean over the variants."""
        return self._mean("grade")

    @property
    def relevance(self) -> float | None:
        """In [0, 1]."""
        return self._relevance("grade")

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """The least and most the relevance can be."""
        return self._relevance("low"), self._relevance("high")

    @property
    def probabilities(self) -> list[float] | None:
        """Of the options, divided by their sum; mean over the variants."""
        if self.status != "graded" or not all(answer.probabilities for answer in self.answers):
            return None
        shares = [[value / sum(answer.probabilities) for value in answer.probabilities] for answer in self.answers]
        return [math.fsum(column) / len(shares) for column in zip(*shares, strict=True)]

    @property
    def mass(self) -> float | None:
        """Least probability that an answer put on the options together."""
        return min((answer.mass for answer in self.answers if answer.probabilities), default=None)

    @property
    def usage(self) -> Usage:
        return sum((answer.usage for answer in self.answers), Usage())

    def _mean(self, name: str) -> float | None:
        values = [getattr(answer, name) for answer in self.answers]
        if self.status != "graded" or any(value is None for value in values):
            return None
        return math.fsum(values) / len(values)

    def _relevance(self, name: str) -> float | None:
        grade = self._mean(name)
        if grade is None:
            return None
        rounded = min(max(grade, self.scale.minimum), self.scale.maximum)  # a mean may round past the end of the scale
        return self.scale.to_relevance(rounded)

    def row(self, prices: Prices) -> dict[str, Any]:
        """One row of `judgements.parquet`."""
        (low, high), usage, last = self.bounds, self.usage, self.answers[-1]
        told = next((answer for answer in self.answers if not answer.usable), last)
        return {
            "query_id": self.pair.query_id,
            "document_id": self.pair.document_id,
            "repeat": self.repeat,
            "status": self.status,
            "relevance": self.relevance,
            "relevance_low": low,
            "relevance_high": high,
            "grade": self.grade,
            "grade_probs": self.probabilities,
            "mass": self.mass,
            "order_grades": [answer.grade for answer in self.answers],
            "mode": last.mode,
            "judge": last.judge,
            "text": told.text,
            "detail": told.detail,
            "prompt_tokens": usage.prompt,
            "cached_tokens": usage.cached,
            "completion_tokens": usage.completion,
            "reasoning_tokens": usage.reasoning,
            "usd": prices.usd(usage),
            "seconds": math.fsum(answer.seconds for answer in self.answers),
            "tries": sum(answer.tries for answer in self.answers),
        }


def graded_pairs(judgements: Iterable[JudgedPair]) -> GradedPairs:
    """The training table: graded pairs alone, without repeats; expected grade, its probabilities and the judge."""
    return GradedPairs.from_rows(
        {
            "query_id": judgement.pair.query_id,
            "query": judgement.pair.query,
            "document_id": judgement.pair.document_id,
            "document": judgement.pair.document,
            "task": judgement.pair.task,
            "relevance": judgement.relevance,
            "grade": judgement.grade,
            "grade_probs": judgement.probabilities,
            "judge": judgement.answers[-1].judge or None,
        }
        for judgement in judgements
        if judgement.status == "graded" and not judgement.repeat
    )


def save_judgements(judgements: Sequence[JudgedPair], prices: Prices, path: Path) -> None:
    """Write every judgement, graded or not, as Parquet; the file appears whole or not at all."""
    import pyarrow as pa

    text, number, whole = pa.string(), pa.float64(), pa.int64()
    kinds = {
        "query_id": text, "document_id": text, "repeat": whole, "status": text, "relevance": number,
        "relevance_low": number, "relevance_high": number, "grade": number, "grade_probs": pa.list_(number),
        "mass": number, "order_grades": pa.list_(number), "mode": text, "judge": text, "text": text, "detail": text,
        "prompt_tokens": whole, "cached_tokens": whole, "completion_tokens": whole, "reasoning_tokens": whole,
        "usd": number, "seconds": number, "tries": whole,
    }  # fmt: skip
    table = pa.Table.from_pylist([judgement.row(prices) for judgement in judgements], schema=pa.schema(kinds))
    save_table(table, path)


def summarise(judgements: Sequence[JudgedPair], prices: Prices) -> dict[str, Any]:
    """Counts, tokens, dollars and doubts about these judgements, as plain data for people and run.json."""
    first = [judgement for judgement in judgements if not judgement.repeat]
    graded = [judgement for judgement in first if judgement.status == "graded"]
    relevance = {judgement.pair: judgement.relevance for judgement in graded}
    values = [judgement.relevance or 0.0 for judgement in graded]
    statuses = Counter(judgement.status for judgement in first)
    tenths = Counter(min(9, int(value * 10)) for value in values)
    usage = sum((judgement.usage for judgement in judgements), Usage())
    changes = [
        abs(judgement.relevance - before)
        for judgement in judgements
        if judgement.repeat
        and judgement.relevance is not None
        and (before := relevance.get(judgement.pair)) is not None
    ]
    bounds = (judgement.bounds for judgement in graded)
    return {
        "pairs": len(first),
        "statuses": {status: statuses[status] for status in STATUSES if statuses[status]},
        "modes": dict(Counter(answer.mode for judgement in graded for answer in judgement.answers)),
        "mean_relevance": fmean(values) if values else None,
        "relevance_tenths": [tenths[tenth] for tenth in range(10)],
        "low_mass": sum(judgement.mass is not None and judgement.mass < 0.5 for judgement in graded),
        "wide_bounds": sum(high - low > WIDE for low, high in bounds if low is not None and high is not None),
        "prompt_tokens": usage.prompt,
        "cached_tokens": usage.cached,
        "completion_tokens": usage.completion,
        "reasoning_tokens": usage.reasoning,
        "usd": prices.usd(usage),
        "usage_unknown": sum(answer.usage_unknown for judgement in judgements for answer in judgement.answers),
        "repeats": len(changes),
        "mean_change_of_repeats": fmean(changes) if changes else None,
    }
