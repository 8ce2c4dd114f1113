"""The scores of a teacher: a description of their scale, and the stated map from scores to relevance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from bixse.converting.formats import ABSENT, FILL, Format, Judgement, SourceRow
from bixse.errors import InputError, did_you_mean, shorten
from bixse.files.values import number_hint, number_of
from bixse.relevance import GradeScale

if TYPE_CHECKING:
    from bixse.converting.convert_settings import ConvertSettings

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
_SATURATED = 1e-3  # relevance closer than this to 0 or 1 carries no grade
_LARGE = 40.0  # largest absolute log-odds of a teacher
_ROUNDING = 1e-6  # tolerance beyond the range of a map, for rounding errors (of a float32 softmax, for example)


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


def check_scores(
    positive: Sequence[float] | NDArray[Any],
    negative: Sequence[float] | NDArray[Any],
    score_map: ScoreMap,
    where: str = "scores",
) -> list[str]:
    """Return warnings if a map does not fit scores in its range; raise InputError for scores without grades."""
    from scipy.stats import mannwhitneyu  # not at the top: it takes half a second

    high, low = np.asarray(positive, dtype=np.float64), np.asarray(negative, dtype=np.float64)
    scores = np.concatenate([high, low])
    if scores.min() == scores.max():
        raise InputError(
            f"{where}: got {len(scores)} that are all {scores[0]:g}; expected grades that differ; "
            "fix: score the pairs again, or use the score map 'binary'"
        )
    relevance = map_scores(scores, score_map)
    if bool(((relevance < _SATURATED) | (relevance > 1 - _SATURATED)).all()):
        raise InputError(
            f"{where}: got relevance within {_SATURATED:g} of 0 or 1 for all {len(scores)} under the map {score_map} "
            f"(scores from {scores.min():g} to {scores.max():g}); expected grades between; fix: fit the map on "
            "labelled pairs (platt:SLOPE,INTERCEPT), or use 'binary' if the scores are labels"
        )
    kind, reason = looks_like(scores)
    warnings = []
    if score_map.kind != "platt" and kind != score_map.kind:
        warnings.append(f"the map is {score_map}, but the scores look like {kind}: {reason}")
    if len(high) and len(low):
        above = mannwhitneyu(high, low, method="asymptotic").statistic / (len(high) * len(low))  # ties count as half
        if above < 0.5:
            warnings.append(f"a positive lies above a negative in only {above:.0%} of the pairs of the file")
    return warnings


def map_scores(scores: NDArray[Any] | float, score_map: ScoreMap) -> NDArray[np.float64]:
    """Return the relevance of scores in the range of the map."""
    if score_map.kind in ("logit", "platt"):
        with np.errstate(over="ignore"):  # a score of 1e308 times the slope is infinite, which maps to 0 or 1
            return np.asarray(expit(score_map.slope * scores + score_map.intercept), dtype=np.float64)
    shares = scores / 100.0 if score_map.kind == "percent" else scores
    return np.clip(shares, 0.0, 1.0)  # only removes rounding errors: scores further out are refused


class Grading:
    """The rule that turns the labels, grades and scores of a source into grades and relevance."""

    def __init__(self, settings: ConvertSettings, form: Format) -> None:
        self.form = form
        self.scale = settings.grade_scale or GradeScale(*(form.scale or (0, 1)))
        self.score_map = parse_score_map(settings.score_map) if settings.score_map is not None else None
        if form.needs_map and self.score_map is None:
            raise InputError(
                f"{settings.path}: got no score map; expected one of {', '.join(MAPS)}; fix: choose one by what the "
                f"scores are: {'; '.join(f'{name}: {what}' for name, what in MAPS.items())}"
            )
        self.is_binary = self.score_map is not None and self.score_map.kind == "binary"
        self.teacher = None if self.is_binary else self.score_map
        """The map from the scores of a teacher to relevance, if they count."""
        self.is_unstated = "score_map" in form.options and self.score_map is None and settings.grade_scale is None

    def grade(self, row: SourceRow, item: Judgement) -> None:
        """Give a judgement its score, status, grade and relevance; add what is wrong with its value to the row."""
        value, column, label = item.value, item.value_column, item.label
        is_empty = value is None or value == ""
        is_ignored = self.is_binary and label is not None
        if not is_empty:
            item.score = number_of(value)
            if not is_ignored or self.form.needs_map:
                self._check(row, column, value, item.score)
        elif column and self.teacher is not None:
            fix = "score the pairs, or take the labels: --score-map binary"
            row.refuse(column, ABSENT, "a score of every text", fix)
        elif column and label is None and not item.status and not self.form.may_be_empty:
            row.refuse(column, value if column in row else ABSENT, "a number", FILL)
        grade, low, high = label if is_ignored or is_empty else item.score, self.scale.minimum, self.scale.maximum
        if self.teacher is not None and item.score is not None:
            item.judge, grade = f"teacher scores ({self.teacher})", float(map_scores(item.score, self.teacher))
        elif label is not None:
            item.judge = "binary labels"
        if item.status:
            return
        if grade is None:
            item.status = "no-grade"
        elif not low <= grade <= high:
            item.status = "off-scale"
        else:
            item.status, item.relevance = "graded", (grade - low) / (high - low)
            item.grade = item.grade if self.form.has_grade else float(grade)

    def _check(self, row: SourceRow, column: str, value: Any, number: float) -> None:
        """Refuse a value that is no number, or has no meaning."""
        if not math.isfinite(number):
            row.refuse(column, value, "a finite number", number_hint(value, "drop the row"))
        elif self.teacher is not None:
            low, high = self.teacher.range
            if not low <= number <= high:
                row.refuse(column, value, f"a score in the range of the map {self.teacher}", "state another map")
        elif self.is_binary and not self.form.needs_map and number not in (0, 1):
            row.refuse(column, value, "0 or 1 under the map binary", "state another map, or a scale")
        if self.is_unstated:
            fix = "state what they mean: --scale LOW HIGH, or --score-map prob, percent, logit, platt:SLOPE,INTERCEPT "
            row.refuse(column, value, "a stated scale or score map", f"{fix}or binary")


def looks_like(scores: NDArray[np.float64]) -> tuple[str, str]:
    """Return the kind of map that scores look made for, or "unknown", and the reason; it decides nothing."""
    lowest, highest = scores.min(), scores.max()
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
