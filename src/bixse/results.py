"""The results of measurements: differences, estimates with intervals, calibration. Plain data, made in `evaluation`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["better", "no difference", "worse", "cannot tell"]
"""Verdict of an interval on the first system. "no difference" means that none is shown, "cannot tell" that the sample
is too small for a verdict, or that it has no variance."""
VERDICT_WORDS: dict[Verdict, str] = {
    "better": "▲ better",
    "no difference": "● no difference shown",
    "worse": "▼ worse",
    "cannot tell": "? cannot tell",
}
"""A sign and words, never colour alone."""
VERDICT_IN_A_SENTENCE: dict[Verdict, str] = {  # between the names of two systems
    "better": "better than",
    "no difference": "not shown to differ from",
    "worse": "worse than",
    "cannot tell": "not yet comparable with",
}
Interval: TypeAlias = tuple[float, float]
Bounds: TypeAlias = tuple[float | None, float | None]
"""Ends of an interval; None for too few queries, and if the queries show no variance."""
QUERIES_FROM = 40
"""Number of queries from which a mean over queries has an interval and a verdict: below it, stated 95 % intervals of
skewed differences miss too often (docs/reference/evaluation.md has the simulation)."""
LOCAL = "local"
"""Name of the suite that is any one collection."""
UNITS_FROM = 20
"""Number of units per class (labels of a kappa or a rate, queries of a chosen threshold) from which it has one."""


def too_few(units: int, name: str = "queries", least: int = QUERIES_FROM) -> str:
    """Return why a sample carries no verdict, or "" if it does: the one rule for every verdict, gate and choice.

    Example:
        >>> too_few(7), too_few(40), too_few(7, "relevant pairs", UNITS_FROM)
        ('7 queries; at least 40', '', '7 relevant pairs; at least 20')
    """
    if units == 1:
        name = f"{name[:-3]}y" if name.endswith("ies") else name.removesuffix("s")
    return "" if units >= least else f"{units} {name}; at least {least}"


@dataclass(frozen=True)
class Difference:
    """The mean of a - b over queries, with its interval.

    Example:
        >>> Difference(mean=0.02, low=0.005, high=0.035, p_value=0.01, queries=300, confidence=0.95).verdict
        'better'
    """

    mean: float
    """A mean above 0 means that a is better."""
    low: float | None
    """Ends of the interval; None for fewer than 40 queries, and if all differences are equal: they show no variance."""
    high: float | None
    p_value: float | None
    """Two-sided p-value of no difference; 1 if all differences are 0; None if there is no interval."""
    queries: int
    confidence: float = 0.95
    worth: int | None = None
    """Number of equally weighted queries that carry a mean over collections as well; None means `queries`."""

    def __post_init__(self) -> None:
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"difference: got {self.low} to {self.high}; expected the low end first; fix: swap them")

    @property
    def verdict(self) -> Verdict:
        """Return the verdict of the interval: "no difference" if it holds 0, or if every difference is 0."""
        if self.p_value == 1 and self.low is None:  # every difference is 0
            return "no difference"
        return "cannot tell" if self.few else IntervalEstimate(self.mean, self.low, self.high).verdict()

    @property
    def few(self) -> str:
        """Return why the sample carries no verdict, for example "7 queries; at least 40"; "" if it carries one."""
        if self.p_value == 1 and self.low is None:
            return ""
        same = f"{self.queries} queries with one and the same difference"
        few = too_few(self.queries) or ("" if self.worth is None else too_few(self.worth, "equally weighted queries"))
        return few or (same if self.low is None or self.low == self.high else "")

    def figures(self) -> str:
        """Return the difference of nDCG@10 with its interval, or with the reason why it has none.

        Example:
            >>> Difference(mean=0.1, low=None, high=None, p_value=None, queries=7).figures()
            'nDCG@10 +0.100, 7 queries; at least 40'
        """
        ends = "" if self.low is None else f", 95 % interval {self.low:+.3f} to {self.high:+.3f}"
        return f"nDCG@10 {self.mean:+.3f}{ends}, {self.few or f'{self.queries} queries'}"


@dataclass(frozen=True)
class Comparison:
    """A comparison of two systems on one metric, paired by query: system minus baseline."""

    system: str
    baseline: str
    metric: str
    difference: Difference

    @property
    def verdict(self) -> Verdict:
        return self.difference.verdict


@dataclass(frozen=True, kw_only=True)
class TestedDifference(Comparison):
    """A comparison on one task or over a suite, where each query counts as in the mean over tasks."""

    randomisation_p: float
    """The p-value of Fisher's randomisation test."""
    holm_p: float = 1.0
    """`randomisation_p` after Holm's correction, over all pairs, and over all pairs and tasks."""
    wins: int = 0
    """Number of queries on which the system is better; on `losses` queries the baseline is."""
    losses: int = 0
    task: str = ""
    """Name of the task; empty for the suite."""
    tasks: tuple[TestedDifference, ...] = ()
    """The tasks of a suite."""


@dataclass(frozen=True)
class IntervalEstimate:
    """A value with its 95 % interval; None if undefined, or if the sample is too small or has no variance."""

    value: float | None
    low: float | None = None
    high: float | None = None
    few: str = ""
    """Reason why a value has no interval, for example "7 queries; at least 40"; "" also if nothing differs."""

    def verdict(self, lower_is_better: bool = False) -> Verdict:
        """Return the verdict on a difference: "no difference" if the interval holds 0, "cannot tell" without one."""
        if self.low is None or self.high is None or self.low == self.high:
            # an interval without width says nothing about other queries
            return "no difference" if self.value == 0 and self.low is None and not self.few else "cannot tell"
        if not (self.low > 0 or self.high < 0):
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
    brier_interval: Bounds
    ece: float
    ece_interval: Bounds
    """Corrected for the upward bias of the estimate."""
    base_rate_brier: float
    """Brier score of always predicting mean(z)."""
    curve: list[ReliabilityBin]
    units: int | None = None
    """Number of queries, of relevant or of irrelevant pairs, whichever is the smallest; None in older files."""
    brier_few: str = ""
    """Reason why the Brier score has no interval, for example "7 queries; at least 20"."""
    ece_few: str = ""

    @property
    def against_base_rate(self) -> Verdict:
        """Compare the interval of the Brier score with the constant's score; lower is better."""
        if self.units is not None and too_few(self.units, least=UNITS_FROM):
            return "cannot tell"
        low, high = (None if bound is None else bound - self.base_rate_brier for bound in self.brier_interval)
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
