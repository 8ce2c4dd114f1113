"""`ReportData` and its parts: the validated data of a report, and its JSON file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from bixse.errors import InvalidFileError, shorten
from bixse.files.files import read_text, write_atomically
from bixse.results import CalibrationReport, Comparison, MergePoint

Text = Annotated[str, AfterValidator(lambda text: text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))]
"""Text; half a surrogate pair, which UTF-8 cannot encode, becomes the replacement character."""


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


class TrainingCurve(_Plain):
    """The log of one training run."""

    system: Text
    logged: dict[Text, list[tuple[int, float]]]
    """Field of the log -> (step, value) of each finite value, by step."""
    best_step: int | None = None
    """Step of the best checkpoint."""


class MergeCurve(_Plain):
    """The scores on dev and guard per weight of the tuned model."""

    system: Text
    weight: float
    """The chosen weight."""
    points: list[MergePoint]
    """Points by weight, the base model first."""
    reason: Text = ""
    """Reason for the chosen weight, in one sentence."""
    guards: list[Text] = Field(default_factory=list)
    """Names of the collections that must not get worse; all other collections are dev."""
    tolerance: float | None = None
    """Maximum loss on them; None in older files."""


class RankedDocument(_Plain):
    """A document of a ranking."""

    document_id: Text
    text: Text = ""
    """The beginning of its text; empty if the text is not known."""
    grade: float | None = None
    """Its judgement; None without one."""


class QueryChange(_Plain):
    """The scores of one query by the primary metric, before and after."""

    query_id: Text
    query: Text
    baseline_score: float
    system_score: float
    rankings: tuple[list[RankedDocument], list[RankedDocument]] = ([], [])
    """The best documents before and after; empty for queries that are not shown, and without rankings."""

    @property
    def change(self) -> float:
        return self.system_score - self.baseline_score


class Section(_Plain):
    """A section of lines and a table, for results without a section of their own."""

    title: Text
    lines: list[Text] = Field(default_factory=list)
    headers: list[Text] = Field(default_factory=list)
    rows: list[list[Text]] = Field(default_factory=list)


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
    created: Annotated[Text, AfterValidator(lambda text: datetime.fromisoformat(text) and text)]
    """ISO 8601."""
    description: Text = ""
    verdicts: list[Text] = Field(default_factory=list)
    """Findings in plain sentences."""
    systems: list[SystemScores] = Field(default_factory=list)
    """Systems with their figures; empty if nothing was evaluated."""
    comparisons: list[Comparison] = Field(default_factory=list)
    primary_metric: Text
    calibrations: dict[Text, CalibrationReport] = Field(default_factory=dict)
    """Name of a set of probabilities, such as "raw" -> its calibration."""
    training: list[TrainingCurve] = Field(default_factory=list)
    merges: list[MergeCurve] = Field(default_factory=list)
    guard: list[Comparison] = Field(default_factory=list)
    """Differences on the queries that must not get worse."""
    sections: list[Section] = Field(default_factory=list)
    per_query_baseline: Text = ""
    per_query_system: Text = ""
    """Names of the two systems of `per_query`."""
    per_query: list[QueryChange] = Field(default_factory=list)
    facts: dict[Text, Text] = Field(default_factory=dict)
    """Name -> value: data set, queries, documents, model, seed, versions, command."""
    timings: dict[Text, Annotated[float, Field(ge=0.0)]] = Field(default_factory=dict)
    """Stage -> seconds."""
    commands: list[Text] = Field(default_factory=list)
    notes: list[Text] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check(self) -> Self:
        known = [system.name for system in self.systems]
        if twice := [name for name in known if known.count(name) > 1]:
            raise ValueError(f"systems: got {twice[0]!r} twice; expected different names; fix: rename one")
        for name in [name for c in (*self.comparisons, *self.guard) for name in (c.system, c.baseline)]:
            if name not in known:
                raise ValueError(
                    f"comparisons: got the system {name!r}; expected one of {known}; fix: add it to systems"
                )
        figures = [system for system in self.systems if system.metrics]
        if figures and not any(self.primary_metric in system.metrics for system in figures):
            raise ValueError(
                f"primary_metric: got {self.primary_metric!r}, which no system has; expected one of "
                f"{sorted({metric for system in self.systems for metric in system.metrics})}; fix: choose one of these"
            )
        return self

    @property
    def metrics(self) -> list[str]:
        """Metrics that a system has, the primary metric first, then in order of appearance."""
        names = dict.fromkeys(metric for system in self.systems for metric in system.metrics)
        return sorted(names, key=lambda name: name != self.primary_metric)

    @property
    def tables(self) -> list[tuple[list[SystemScores], list[str]]]:
        """Systems that share metrics, with these metrics: a row holds no figures of other queries."""
        groups: list[list[SystemScores]] = []
        for system in self.systems:
            group = next((group for group in groups if any(system.metrics.keys() & each.metrics for each in group)), [])
            group.append(system)
            groups += [group] if len(group) == 1 and system.metrics else []
        return [(group, [name for name in self.metrics if any(name in each.metrics for each in group)])
                for group in groups]  # fmt: skip

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
    errors = InvalidFileError(Path(path))
    try:
        return ReportData.model_validate_json(read_text(Path(path)))
    except ValidationError as error:
        for fault in error.errors():
            column = ".".join(map(str, fault["loc"])) or None
            fix = "write the file again with the command that made it"
            errors.add(None, column, shorten(fault["input"]), fault["msg"], fix)
        raise errors from error


def training_curve(system: str, history: Sequence[Mapping[str, Any]], best_step: int | None) -> TrainingCurve:
    """Convert the trainer's log to a curve; only finite numbers are kept."""
    logged: dict[str, dict[int, float]] = {}
    for entry in history:
        for name, value in entry.items():
            # a mean logit is NaN in a step without a relevant document
            if name != "step" and isinstance(value, int | float) and math.isfinite(value):
                logged.setdefault(name, {})[int(entry["step"])] = float(value)
    return TrainingCurve(
        system=system, logged={name: sorted(values.items()) for name, values in logged.items()}, best_step=best_step
    )
