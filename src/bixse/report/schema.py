"""`ReportData` and its parts: the validated data of a report, and its JSON file."""

from __future__ import annotations

import math
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from bixse.errors import InvalidFileError, shorten
from bixse.files.files import read_text, write_atomically
from bixse.results import CalibrationReport, Comparison

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self


UnitInterval = Annotated[float, Field(ge=0.0, le=1.0)]
Text = Annotated[str, AfterValidator(lambda text: text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))]
"""Text; half a surrogate pair, which UTF-8 cannot encode, becomes the replacement character."""
Positive = Annotated[float, Field(ge=0.0)]


def _iso(text: str) -> str:
    datetime.fromisoformat(text)
    return text


class _Plain(BaseModel):
    """A frozen model that JSON stores without loss."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, revalidate_instances="always")


class SystemScores(_Plain):
    """One row of the results table."""

    name: Text
    """Unique name, which comparisons refer to."""
    label: Text
    metrics: dict[Text, float]
    """Metric name -> mean over the queries."""
    seconds: Positive | None = None
    note: Text = ""


class TrainingPoint(_Plain):
    """The log of one training step; every field but `step` may be unknown."""

    step: int
    epoch: Positive | None = None
    loss: float | None = None
    logit_bias: float | None = None
    """beta of sigma(alpha cos + beta)."""
    logit_scale: float | None = None
    """alpha."""
    gradient_norm: Positive | None = None
    learning_rate: Positive | None = None
    mean_logit_relevant: float | None = None
    """Mean logit of the entries with a relevance of at least 0.5."""
    mean_logit_irrelevant: float | None = None
    dev_ndcg: UnitInterval | None = None


class TrainingCurve(_Plain):
    """The log of one training run."""

    system: Text
    points: list[TrainingPoint]
    best_step: int | None = None
    """Step of the kept checkpoint."""


class MergeScore(_Plain):
    """The scores of one weight between the base and the tuned model."""

    weight: UnitInterval
    """0 is the base model, 1 the tuned model."""
    scores: dict[Text, UnitInterval]
    """Name of a dev or guard collection -> nDCG@10."""
    below_best: float = 0.0
    """nDCG@10 on dev: that of the best weight minus that of this weight."""
    error: Positive = 0.0
    """Standard error of `below_best`."""


class MergeCurve(_Plain):
    """The scores on dev and guard per weight of the tuned model."""

    system: Text
    weight: UnitInterval
    """The kept weight."""
    points: list[MergeScore]
    """Points by weight, the base model first."""
    reason: Text = ""
    """Reason for the kept weight, in one sentence."""
    guards: list[Text] = Field(default_factory=list)
    """Names of the collections that must not get worse; all other collections are dev."""


class QueryChange(_Plain):
    """The scores of one query by the primary metric, before and after."""

    query_id: Text
    query: Text
    kind: Text | None = None
    baseline_score: float
    system_score: float

    @property
    def change(self) -> float:
        return self.system_score - self.baseline_score


class RankedDocument(_Plain):
    """A document at its position in a ranking."""

    rank: int
    document_id: Text
    title: Text = ""
    text: Text = ""
    grade: float | None = None
    """Grade of the pair; None if it is unjudged."""
    score: float
    probability: UnitInterval | None = None


class SideBySide(_Plain):
    """The top documents of both rankings of one query, and both scores by the primary metric."""

    query_id: Text
    query: Text
    baseline_name: Text
    system_name: Text
    baseline_score: float
    system_score: float
    baseline: list[RankedDocument]
    system: list[RankedDocument]

    @property
    def baseline_ranks(self) -> dict[str, int]:
        """Document id -> rank."""
        return {document.document_id: document.rank for document in self.baseline}


class ReportData(_Plain):
    """The data of one report: results only, so that the page can be rendered again without a model.

    Raises pydantic.ValidationError for an unknown key, a number that is not finite or out of range, two systems of one
    name, or a comparison of an unlisted system. Unknown values are None or left out.

    Example:
        >>> data = ReportData(title="Tiny", created="2026-01-31T12:00:00+00:00", primary_metric="ndcg@10",
        ...                   systems=[SystemScores(name="base", label="Base", metrics={"ndcg@10": 0.4})])
        >>> ReportData.model_validate_json(data.model_dump_json()) == data
        True
    """

    title: Text
    created: Annotated[Text, AfterValidator(_iso)]
    """ISO 8601."""
    description: Text = ""
    verdicts: list[Text] = Field(default_factory=list)
    """Findings in plain sentences."""
    systems: list[SystemScores] = Field(min_length=1)
    comparisons: list[Comparison] = Field(default_factory=list)
    primary_metric: Text
    confidence: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.95
    calibrations: dict[Text, CalibrationReport] = Field(default_factory=dict)
    """Name of a set of probabilities, such as "raw" -> its calibration."""
    training: list[TrainingCurve] = Field(default_factory=list)
    merges: list[MergeCurve] = Field(default_factory=list)
    """One curve per system that was merged with the base model."""
    guard: list[Comparison] = Field(default_factory=list)
    """Differences on the queries that must not get worse."""
    per_query_baseline: Text = ""
    per_query_system: Text = ""
    """Names of the two systems of `per_query`."""
    per_query: list[QueryChange] = Field(default_factory=list)
    side_by_side: list[SideBySide] = Field(default_factory=list)
    """Both rankings of the queries with the largest changes."""
    facts: dict[Text, Text] = Field(default_factory=dict)
    """Name -> value: data set, queries, documents, model, seed, versions, command."""
    timings: dict[Text, Positive] = Field(default_factory=dict)
    commands: list[Text] = Field(default_factory=list)
    notes: list[Text] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check(self) -> Self:
        known = [system.name for system in self.systems]
        if twice := [name for name in known if known.count(name) > 1]:
            raise ValueError(f"systems: got {twice[0]!r} twice; expected one of each; fix: rename one")
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
        """Metrics, the primary metric first, then in order of appearance."""
        names = [self.primary_metric, *(metric for system in self.systems for metric in system.metrics)]
        return list(dict.fromkeys(names))

    def label(self, name: str) -> str:
        """Return the label of a system, or `name` if the system is not listed."""
        return next((system.label for system in self.systems if system.name == name), name)

    @property
    def baselines(self) -> list[str]:
        """Baselines of the comparisons on the primary metric, in order of appearance."""
        return list(dict.fromkeys(c.baseline for c in self.comparisons if c.metric == self.primary_metric))

    def comparison(self, system: str, baseline: str) -> Comparison | None:
        """Return the comparison on the primary metric, if there is one."""
        wanted = (system, baseline, self.primary_metric)
        return next((c for c in self.comparisons if (c.system, c.baseline, c.metric) == wanted), None)


def save_report_data(data: ReportData, path: Path | str) -> None:
    """Write the data of a report as JSON, so that the page can be rendered again."""
    write_atomically(Path(path), data.model_dump_json(indent=2) + "\n")


def load_report_data(path: Path | str) -> ReportData:
    """Read a file of `save_report_data`; raise an InvalidFileError that lists every error."""
    source = Path(path)
    errors = InvalidFileError(source)
    try:
        return ReportData.model_validate_json(read_text(source))
    except ValidationError as error:
        for found in error.errors():
            column = ".".join(map(str, found["loc"])) or None
            fix = "write the file again with the command that made it"
            errors.add(None, column, shorten(found["input"]), found["msg"], fix)
        raise errors from error


def training_curve(system: str, history: Sequence[Mapping[str, Any]], best_step: int | None) -> TrainingCurve:
    """Convert the trainer's log to a curve; entries of one step are one point, and only finite figures are kept."""
    renamed = {"grad_norm": "gradient_norm", "eval_dev_ndcg@10": "dev_ndcg"}
    known = set(TrainingPoint.model_fields) - {"step"}
    points: dict[int, dict[str, Any]] = {}
    for entry in history:
        point = points.setdefault(int(entry["step"]), {"step": int(entry["step"])})
        for name, value in entry.items():
            field = renamed.get(name, name)
            if field in known and value is not None and math.isfinite(value):  # no relevant document: a NaN mean logit
                point[field] = float(value)
    return TrainingCurve(
        system=system, points=[TrainingPoint(**points[step]) for step in sorted(points)], best_step=best_step
    )
