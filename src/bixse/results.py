"""The results of measurements: differences, estimates with intervals, calibration. Plain data, made in `evaluation`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["better", "no difference", "worse"]
"""Verdict of an interval on the first system; "no difference" means that none is shown."""
VERDICT_WORDS: dict[Verdict, str] = {"better": "▲ better", "no difference": "● no difference shown", "worse": "▼ worse"}
"""A sign and words, never colour alone."""
VERDICT_IN_A_SENTENCE: dict[Verdict, str] = {  # between the names of two systems
    "better": "better than",
    "no difference": "not shown to differ from",
    "worse": "worse than",
}
Interval: TypeAlias = tuple[float, float]
FEW_QUERIES = 30
"""Below this number of queries, resampled intervals are too narrow."""


@dataclass(frozen=True)
class Difference:
    """The mean of a - b over queries, with its interval.

    Example:
        >>> Difference(mean=0.02, low=0.005, high=0.035, p_value=0.01, queries=300, confidence=0.95).verdict
        'better'
    """

    mean: float
    """A mean above 0 means that a is better."""
    low: float
    high: float
    p_value: float
    """Two-sided p-value of no difference."""
    queries: int
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"difference: got {self.low} to {self.high}; expected the low end first; fix: swap them")

    @property
    def verdict(self) -> Verdict:
        """Return the verdict of the interval: "no difference" if it holds 0."""
        return IntervalEstimate(self.mean, self.low, self.high).verdict()

    @property
    def few(self) -> bool:
        """Return True for fewer than 30 queries: the interval misses the true difference too often."""
        return self.queries < FEW_QUERIES


@dataclass(frozen=True)
class Comparison:
    """A comparison of two systems on one metric, paired by query: system minus baseline."""

    system: str
    baseline: str
    metric: str
    difference: Difference


@dataclass(frozen=True)
class IntervalEstimate:
    """A value with its 95 % interval; None if undefined."""

    value: float | None
    low: float | None = None
    high: float | None = None

    def verdict(self, lower_is_better: bool = False) -> Verdict:
        """Return the verdict on a difference: "no difference" if the interval holds 0 or is undefined."""
        if self.low is None or self.high is None or not (self.low > 0 or self.high < 0):
            return "no difference"
        return "better" if (self.low > 0) != lower_is_better else "worse"


@dataclass(frozen=True)
class ReliabilityBin:
    """One point of a reliability curve."""

    predicted: float
    """Mean prediction of the pairs in the bin."""
    observed: float
    """Mean relevance; `low` and `high` are its 95 % interval."""
    count: int
    low: float
    high: float


@dataclass(frozen=True)
class CalibrationReport:
    """A report on predictions as probabilities; read `brier` against `base_rate_brier` before `ece`.

    Only predictions with information have a Brier score below `base_rate_brier`; a constant has a small `ece` too.
    """

    pairs: int
    queries: int
    brier: float
    brier_interval: Interval
    ece: float
    ece_interval: Interval
    """Corrected for the upward bias of the estimate."""
    base_rate_brier: float
    """Brier score of always predicting mean(z)."""
    curve: list[ReliabilityBin]

    @property
    def against_base_rate(self) -> Verdict:
        """Compare the interval of the Brier score with the constant's score; lower is better."""
        low, high = (bound - self.base_rate_brier for bound in self.brier_interval)
        return IntervalEstimate(self.brier, low, high).verdict(lower_is_better=True)


@dataclass(frozen=True)
class MergePoint:
    """The scores of one weight between the base and the tuned model."""

    weight: float
    """w in [0, 1]; 0 is the base model, 1 the tuned one."""
    scores: dict[str, float]
    """Name of a dev or guard collection -> mean nDCG@10."""
    below_best: float = 0.0
    """Loss of mean nDCG@10 on dev against the best weight within the guard tolerance."""
    error: float = 0.0
    """Standard error of `below_best`, paired over queries."""


@dataclass(frozen=True)
class RegradedEpoch:
    """The outcome of grading likely false negatives after an epoch."""

    epoch: int
    asked: int
    graded: int
    relevant: int
    """Graded pairs with a relevance of at least 0.5."""
    mean_relevance: float | None
    mean_probability: float | None
    """The encoder's mean probability of all asked pairs; None for a loss that learns no probability."""
    usd: float
    """Cost of all answers, including answers of an interrupted call and of a shared ledger."""
    failure: str | None = None
    """Reason why the judge did not answer all; training went on with the known grades."""

    def line(self) -> str:
        mean = "" if self.mean_relevance is None else f", mean relevance {self.mean_relevance:.3f}"
        return (
            f"regraded after epoch {self.epoch}: {self.graded} of {self.asked} likely false negatives, "
            f"{self.relevant} relevant{mean}{f', {self.usd:.4f} US dollars' if self.usd else ''}"
        )
