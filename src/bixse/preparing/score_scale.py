"""The scores of a teacher: a description of their scale, and the stated map from scores to relevance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.special import expit

from bixse.errors import InputError, did_you_mean, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

MAPS = {
    "prob": "scores are probabilities of relevance, 0 to 1",
    "percent": "scores are 0 to 100, divided by 100",
    "logit": "scores are log-odds: sigmoid(score)",
    "platt:SLOPE,INTERCEPT": "sigmoid(SLOPE * score + INTERCEPT), fitted on pairs with human labels",
    "binary": "scores, if any, are ignored: 1 for positives, 0 for negatives",
}
"""Maps from a score to relevance, by their names in `--score-map`."""
_REFUSED = {
    "minmax": "min-max gives each query's best document relevance 1, whether it answers or not; an absolute scale is "
    "needed",
    "auto": "scales look alike (probabilities and cosines, percents and scaled log-odds), and a wrong guess is noise",
}
_SATURATED = 1e-3
"""Relevance closer than this to 0 or 1 carries no grade."""
_LARGE = 40.0
"""Largest absolute log-odds of a teacher."""
_ROUNDING = 1e-6
"""Tolerance beyond the range of a map, for rounding errors (of a float32 softmax, for example)."""


@dataclass(frozen=True)
class ScoreMap:
    """A monotone map from a teacher's score to relevance in [0, 1]."""

    kind: Literal["prob", "percent", "logit", "platt", "binary"]
    slope: float = 1.0
    intercept: float = 0.0

    def __str__(self) -> str:
        return f"platt:{self.slope!r},{self.intercept!r}" if self.kind == "platt" else self.kind

    @property
    def range(self) -> tuple[float, float]:
        """Return the lowest and the highest score that the map takes, with a tolerance for rounding."""
        highest = {"prob": 1.0, "percent": 100.0}.get(self.kind)
        return (-math.inf, math.inf) if highest is None else (-_ROUNDING * highest, highest + _ROUNDING * highest)


def parse_score_map(text: str) -> ScoreMap:
    """Parse a score map: prob, percent, logit, platt:SLOPE,INTERCEPT or binary."""
    word, _, numbers = text.partition(":")
    refused = _REFUSED.get(word.lower().replace("-", "").replace("_", ""))
    if refused:
        raise InputError(f"score map: got {text!r}; expected {', '.join(MAPS)} ({refused}); fix: choose one")
    if word == "platt":
        try:
            slope, intercept = (float(part) for part in numbers.split(","))
        except ValueError:
            slope = intercept = math.nan
        if not (0 < slope < math.inf and math.isfinite(intercept)):
            raise InputError(
                f"score map: got {shorten(text)}; expected platt:SLOPE,INTERCEPT with a slope above 0, as in "
                "platt:0.4,-2; fix: if your fit is written 1 / (1 + exp(A s + B)), give -A,-B"
            )
        return ScoreMap("platt", slope, intercept)
    for kind in ("prob", "percent", "logit", "binary"):
        if text == kind:
            return ScoreMap(kind)
    hint = did_you_mean(text, MAPS)
    raise InputError(f"score map: got {shorten(text)}; expected {', '.join(MAPS)}; fix: {hint}")


@dataclass(frozen=True)
class ScoreSummary:
    """The statistics of the scores of a file."""

    count: int
    lowest: float
    highest: float
    distinct: int
    above: float | None
    """Share of the (positive, negative) pairs of the file with the positive above, ties as half; None without both."""
    looks_like: str
    """One of "prob", "percent", "logit", "binary" and "unknown"."""
    reason: str


def summarise_scores(
    positive: Sequence[float] | NDArray[Any], negative: Sequence[float] | NDArray[Any]
) -> ScoreSummary:
    """Describe the finite scores of a file, positives and others; the description decides nothing."""
    high, low = np.asarray(positive, dtype=np.float64), np.asarray(negative, dtype=np.float64)
    scores = np.concatenate([high, low])
    if not len(scores):
        raise InputError("scores: got none; expected at least one; fix: check pos_scores and neg_scores")
    looks_like, reason = _looks_like(scores)
    return ScoreSummary(
        count=len(scores),
        lowest=float(scores.min()),
        highest=float(scores.max()),
        distinct=len(np.unique(scores)),
        above=_share_above(high, low),
        looks_like=looks_like,
        reason=reason,
    )


def check_scores(
    positive: NDArray[Any], negative: NDArray[Any], score_map: ScoreMap, where: str = "scores"
) -> list[str]:
    """Return warnings if a map does not fit scores in its range; raise InputError for scores without grades."""
    summary = summarise_scores(positive, negative)
    if summary.distinct == 1:
        raise InputError(
            f"{where}: got {summary.count} that are all {summary.lowest:g}; expected grades that differ; "
            "fix: score the pairs again, or use the score map 'binary'"
        )
    relevance = map_scores(np.concatenate([positive, negative]), score_map)
    if bool(((relevance < _SATURATED) | (relevance > 1 - _SATURATED)).all()):
        raise InputError(
            f"{where}: got relevance within {_SATURATED:g} of 0 or 1 for all {summary.count} under the map {score_map} "
            f"(scores from {summary.lowest:g} to {summary.highest:g}); expected grades between; fix: fit the map on "
            "labelled pairs (platt:SLOPE,INTERCEPT), or use 'binary' if the scores are labels"
        )
    warnings = []
    if score_map.kind != "platt" and summary.looks_like != score_map.kind:
        warnings.append(f"the map is {score_map}, but the scores look like {summary.looks_like}: {summary.reason}")
    if summary.above is not None and summary.above < 0.5:
        warnings.append(f"a positive lies above a negative in only {summary.above:.0%} of the pairs of the file")
    return warnings


def map_scores(scores: NDArray[Any], score_map: ScoreMap) -> NDArray[np.float64]:
    """Return the relevance of scores in the range of the map."""
    if score_map.kind in ("logit", "platt"):
        with np.errstate(over="ignore"):  # a score of 1e308 times the slope is infinite, which maps to 0 or 1
            return np.asarray(expit(score_map.slope * scores + score_map.intercept), dtype=np.float64)
    shares = scores / 100.0 if score_map.kind == "percent" else scores
    return np.clip(shares, 0.0, 1.0)  # only removes rounding errors: scores further out are refused


class FileScores:
    """The scores of a file, positives and negatives apart: 8 bytes per score."""

    def __init__(self) -> None:
        self._sides: tuple[list[NDArray[Any]], list[NDArray[Any]]] = [], []
        self.crossed = 0
        """Number of rows that score a negative above a positive."""

    def add(self, table: pa.Table) -> None:
        row, score, label = (table[name].to_numpy(zero_copy_only=False) for name in ("row", "score", "label"))
        score, label = score.astype(np.float64), label.astype(np.float64)
        known = np.isfinite(score)
        positive, negative = known & (label == 1), known & (label == 0)
        for side, chosen in zip(self._sides, (positive, negative), strict=True):
            side.append(score[chosen])
        # Rows of a file may have gaps; these numbers have none.
        _, number = np.unique(row, return_inverse=True)
        lowest, highest = np.full(number.max(initial=-1) + 1, np.inf), np.full(number.max(initial=-1) + 1, -np.inf)
        np.minimum.at(lowest, number[positive], score[positive])
        np.maximum.at(highest, number[negative], score[negative])
        self.crossed += int((highest > lowest).sum())

    def sides(self) -> tuple[NDArray[Any], NDArray[Any]]:
        positive, negative = (np.concatenate(side) if side else np.zeros(0) for side in self._sides)
        return positive, negative

    @property
    def any(self) -> bool:
        return any(len(side) for side in self.sides())


def _looks_like(scores: NDArray[np.float64]) -> tuple[str, str]:
    lowest, highest = scores.min(), scores.max()
    if lowest == highest:
        return "unknown", "all scores are equal"
    if lowest >= -_ROUNDING and highest <= 1 + _ROUNDING:
        if bool(np.isin(scores, (0.0, 1.0)).all()):
            return "binary", "every score is 0 or 1: labels, not grades"
        return "prob", "all scores lie in [0, 1]; cosines of most encoders do too, and those are no probabilities"
    if lowest >= -1 and highest <= 1:
        return "unknown", "all scores lie in [-1, 1]: cosines; fit platt:SLOPE,INTERCEPT on labelled pairs"
    if lowest >= 0 and highest <= 100 and highest > _LARGE:
        return "percent", "all scores lie in [0, 100]"
    if max(-lowest, highest) <= _LARGE:
        return "logit", f"scores leave [0, 1] and stay within {_LARGE:g} of 0, as a cross-encoder's log-odds do"
    return "unknown", "not within 0 to 100, too large for log-odds; fit platt:SLOPE,INTERCEPT on labelled pairs"


def _share_above(positive: NDArray[np.float64], negative: NDArray[np.float64]) -> float | None:
    if not len(positive) or not len(negative):
        return None
    ordered = np.sort(negative)
    below, not_above = np.searchsorted(ordered, positive, "left"), np.searchsorted(ordered, positive, "right")
    return float((below + not_above).sum() / (2.0 * len(positive) * len(negative)))
