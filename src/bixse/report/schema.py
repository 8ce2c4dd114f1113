"""`ReportData` and its parts: everything a report shows, as plain validated data.

A report holds results only: no model, no tensor, no path is needed to draw it, so the same JSON file can be
drawn again later or elsewhere. Numbers must be finite; a value that is not known is None or left out.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

Verdict = Literal["better", "no difference", "worse"]
"""What the interval of a difference says: above zero, across zero, below zero."""
Share = Annotated[float, Field(ge=0.0, le=1.0)]
"""A probability, rate or score in [0, 1]."""
Text = Annotated[str, AfterValidator(lambda text: text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))]
"""A text; half a surrogate pair, which no file could hold, becomes the replacement character."""
Count = Annotated[int, Field(ge=0)]
"""A number of things, 0 and up."""


class _Plain(BaseModel):
    """Frozen, closed to unknown keys, finite numbers only, so that JSON gives back what went in."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _ordered(what: str, low: float | None, high: float | None) -> None:
    """Raise ValueError unless both ends of an interval are given in order, or neither."""
    if (low is None) != (high is None):
        raise ValueError(f"{what}: got one end of an interval ({low}, {high}); expected both or neither")
    if low is not None and high is not None and low > high:
        raise ValueError(f"{what}: got the interval {low} to {high}; expected the low end first")


def _unique(what: str, names: Sequence[object]) -> None:
    """Raise ValueError at the first name that occurs twice."""
    seen: set[object] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{what}: got {name!r} twice; expected one of each; fix: rename or merge them")
        seen.add(name)


class SystemScores(_Plain):
    """One row of the results table.

    Example:
        >>> SystemScores(name="bm25", label="BM25", metrics={"ndcg@10": 0.41}).seconds is None
        True
    """

    name: Text
    """Unique key, used by comparisons."""
    label: Text
    """What the table shows."""
    metrics: dict[Text, float]
    """Metric name -> mean over the queries."""
    seconds: Annotated[float, Field(ge=0.0)] | None = None
    """Time to train or score the system, in seconds."""
    note: Text = ""
    """One line below the label."""


class Comparison(_Plain):
    """The difference system - baseline on one metric, paired by query."""

    system: Text
    """Name of the system."""
    baseline: Text
    """Name of the system it is compared with."""
    metric: Text
    """Metric name."""
    mean: float
    """Mean difference over the queries, in the metric's unit; above 0 the system is ahead."""
    low: float
    """Low end of the interval of the mean difference."""
    high: float
    """High end."""
    p_value: Share | None = None
    """Two-sided p-value, where a test was made."""
    verdict: Verdict
    """What the interval says."""
    queries: Count
    """Number of paired queries."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _ordered(f"difference of {self.system!r} and {self.baseline!r}", self.low, self.high)
        return self


class CalibrationBin(_Plain):
    """Pairs of similar predicted probability."""

    predicted: Share
    """Mean predicted probability of relevance."""
    observed: Share
    """Mean relevance found."""
    count: Count
    """Number of pairs."""
    low: Share | None = None
    """Low end of the interval of `observed`."""
    high: Share | None = None
    """High end."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _ordered("calibration bin", self.low, self.high)
        return self


class Calibration(_Plain):
    """How far the probabilities of one system can be believed."""

    name: Text
    """For example "raw" or "calibrated"."""
    pairs: Count
    """Number of judged (query, document) pairs."""
    queries: Count
    """Number of queries they belong to."""
    brier: Share
    """Mean squared error of the probability; lower is better."""
    brier_low: Share | None = None
    """Low end of the interval of `brier`."""
    brier_high: Share | None = None
    """High end."""
    ece: Share
    """Expected calibration error: mean gap between predicted and observed over the bins; lower is better."""
    ece_low: Share | None = None
    """Low end of the interval of `ece`."""
    ece_high: Share | None = None
    """High end."""
    constant_brier: Share
    """Brier score of always answering the mean relevance: a useful probability is below it."""
    curve: list[CalibrationBin] = Field(default_factory=list)
    """The bins of the reliability diagram, from low to high prediction."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _ordered(f"Brier score of {self.name!r}", self.brier_low, self.brier_high)
        _ordered(f"calibration error of {self.name!r}", self.ece_low, self.ece_high)
        return self


class TrainingPoint(_Plain):
    """What was logged at one training step; only the step must be known."""

    step: Count
    """Optimizer steps done."""
    epoch: Annotated[float, Field(ge=0.0)] | None = None
    """Passes over the training data done."""
    loss: float | None = None
    """Training loss."""
    logit_bias: float | None = None
    """beta of sigma(alpha cos + beta)."""
    logit_scale: float | None = None
    """alpha."""
    gradient_norm: Annotated[float, Field(ge=0.0)] | None = None
    """Norm of the encoder's gradient before clipping."""
    learning_rate: Annotated[float, Field(ge=0.0)] | None = None
    """The encoder's learning rate."""
    mean_logit_relevant: float | None = None
    """Mean logit of the cells with relevance 0.5 and up."""
    mean_logit_irrelevant: float | None = None
    """Mean logit of the other cells."""
    dev_ndcg: Share | None = None
    """nDCG@10 on the development queries."""


class TrainingCurve(_Plain):
    """The log of one training run."""

    system: Text
    """Name of the system trained."""
    points: list[TrainingPoint]
    """By step."""
    best_step: Count | None = None
    """Step of the checkpoint kept."""

    @field_validator("points")
    @classmethod
    def _sorted(cls, points: list[TrainingPoint]) -> list[TrainingPoint]:
        steps = [point.step for point in points]
        if steps != sorted(set(steps)):
            raise ValueError("points: got steps out of order or twice; expected steps that rise; fix: sort by step")
        return points


class MergePoint(_Plain):
    """What one weight between the base and the tuned model reaches."""

    weight: Share
    """0 is the base model, 1 the tuned one."""
    scores: dict[Text, Share]
    """Name of a dev or guard collection -> nDCG@10."""


class MergeCurve(_Plain):
    """Dev and guard against the weight of the tuned model."""

    system: Text
    """Name of the system."""
    weight: Share
    """The weight that was kept."""
    points: list[MergePoint]
    """By weight, the base model first."""
    guards: list[Text] = Field(default_factory=list)
    """Names of the collections that must not get worse; the others are dev."""


class QueryChange(_Plain):
    """One query's score before and after."""

    query_id: Text
    """Id of the query."""
    query: Text
    """Its text."""
    kind: Text | None = None
    """Kind of query, where the collection has kinds."""
    baseline_score: float
    """Primary metric of the baseline on this query."""
    system_score: float
    """Primary metric of the system."""

    @property
    def change(self) -> float:
        """system_score - baseline_score."""
        return self.system_score - self.baseline_score


class RankedDocument(_Plain):
    """One place of a ranking."""

    rank: Annotated[int, Field(ge=1)]
    """1 is the top."""
    document_id: Text
    """Id of the document."""
    title: Text = ""
    """Its title, may be empty."""
    text: Text = ""
    """Its text; the page shows the start."""
    grade: float | None = None
    """Judged grade, or None when nobody judged the pair."""
    score: float
    """The system's score."""
    probability: Share | None = None
    """Probability of relevance, where the system gives one."""


class SideBySide(_Plain):
    """The two rankings of one query."""

    query_id: Text
    """Id of the query."""
    query: Text
    """Its text."""
    baseline_name: Text
    """Name of the baseline."""
    system_name: Text
    """Name of the system."""
    baseline_score: float
    """Primary metric of the baseline on this query."""
    system_score: float
    """Primary metric of the system."""
    baseline: list[RankedDocument]
    """Top of the baseline's ranking."""
    system: list[RankedDocument]
    """Top of the system's ranking."""


class ReportData(_Plain):
    """Everything one report shows.

    Raises:
        pydantic.ValidationError: for an unknown key, a number that is not finite or out of range, an interval
            whose ends are swapped, a name that occurs twice, or a comparison of a system that is not listed.

    Example:
        >>> data = ReportData(title="Tiny", created="2026-01-31T12:00:00+00:00", primary_metric="ndcg@10",
        ...                   systems=[SystemScores(name="base", label="Base", metrics={"ndcg@10": 0.4})])
        >>> ReportData.model_validate_json(data.model_dump_json()) == data
        True
    """

    title: Text
    """Head line."""
    created: Text
    """When the results were made: ISO 8601."""
    description: Text = ""
    """One sentence below the title."""
    verdicts: list[Text] = Field(default_factory=list)
    """What was found, in plain sentences."""
    systems: list[SystemScores] = Field(min_length=1)
    """Rows of the results table, in order."""
    comparisons: list[Comparison] = Field(default_factory=list)
    """Differences with intervals, in order."""
    primary_metric: Text
    """The metric that decides."""
    confidence: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.95
    """Level of every interval of the report."""
    calibrations: list[Calibration] = Field(default_factory=list)
    """One for each set of probabilities, for example raw and calibrated."""
    training: list[TrainingCurve] = Field(default_factory=list)
    """One for each trained system."""
    merges: list[MergeCurve] = Field(default_factory=list)
    """One for each system whose weights were merged with the base model's."""
    guard: list[Comparison] = Field(default_factory=list)
    """Differences on the queries that must not get worse."""
    per_query_baseline: Text = ""
    """Name of the baseline of `per_query`."""
    per_query_system: Text = ""
    """Name of the system of `per_query`."""
    per_query: list[QueryChange] = Field(default_factory=list)
    """Every query's change of the primary metric."""
    side_by_side: list[SideBySide] = Field(default_factory=list)
    """Both rankings of the queries that moved most."""
    facts: dict[Text, Text] = Field(default_factory=dict)
    """Name -> value: data set, queries, documents, model, seed, versions, command."""
    timings: dict[Text, Annotated[float, Field(ge=0.0)]] = Field(default_factory=dict)
    """Stage -> seconds."""
    commands: list[Text] = Field(default_factory=list)
    """Shell commands to go on with."""
    notes: list[Text] = Field(default_factory=list)
    """Caveats."""

    @field_validator("created")
    @classmethod
    def _iso(cls, created: str) -> str:
        try:
            datetime.fromisoformat(created.replace("Z", "+00:00"))
        except ValueError as error:
            raise ValueError(
                f"created: got {created!r}; expected an ISO 8601 time such as 2026-01-31T12:00:00+00:00; "
                "fix: use datetime.isoformat()"
            ) from error
        return created

    @model_validator(mode="after")
    def _check(self) -> Self:
        _unique("systems", [system.name for system in self.systems])
        _unique("comparisons", [(c.system, c.baseline, c.metric) for c in self.comparisons])
        _unique("calibrations", [calibration.name for calibration in self.calibrations])
        _unique("training", [curve.system for curve in self.training])
        _unique("per_query", [change.query_id for change in self.per_query])
        known = [system.name for system in self.systems]
        for name in [name for c in (*self.comparisons, *self.guard) for name in (c.system, c.baseline)]:
            if name not in known:
                raise ValueError(
                    f"comparisons: got the system {name!r}; expected one of {known}; fix: add it to systems"
                )
        if not any(self.primary_metric in system.metrics for system in self.systems):
            raise ValueError(
                f"primary_metric: got {self.primary_metric!r}, which no system has; expected one of "
                f"{sorted({metric for system in self.systems for metric in system.metrics})}"
            )
        return self

    @property
    def metrics(self) -> list[str]:
        """Every metric of the systems: the primary one first, then in order of appearance."""
        names = [self.primary_metric, *(metric for system in self.systems for metric in system.metrics)]
        return list(dict.fromkeys(names))

    def label(self, name: str) -> str:
        """Label of a system, or the name itself when it is not listed."""
        return next((system.label for system in self.systems if system.name == name), name)
