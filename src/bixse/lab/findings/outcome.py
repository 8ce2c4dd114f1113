"""What a study's arms show together: means, intervals and tested claims, as data and as rows of tables."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bixse.evaluation.statistics import holm
from bixse.lab.experiments.arms import show
from bixse.lab.findings.contrasts import ClaimResult, PerSeed, above, interval_of, key_of, measure
from bixse.lab.studies.measures import NOT_MERGED
from bixse.report.table import format_difference, format_interval, format_number, format_p_value

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from bixse.lab.experiments.arms import ArmLabels, RunResult
    from bixse.lab.studies.study import Study
    from bixse.lab.studies.study_config import StudyConfig
    from bixse.report.table import Cell
    from bixse.results import Difference


@dataclass(frozen=True)
class SummaryRow:
    """One arm of a study (a combination of labels) over its seeds."""

    labels: ArmLabels
    seeds: int
    """Seeds that finished."""
    figures: Mapping[str, float]
    """Metric -> mean over the seeds."""
    interval: Difference | None
    """The headline metric's interval over seeds and queries; None for a study without queries."""
    spread: float | None
    """Standard deviation over the seeds; None for one."""
    seconds: float
    rows: int | None


@dataclass(frozen=True)
class ApartRow:
    """One arm on a collection that no claim rests on, or before its model was merged."""

    labels: ArmLabels
    name: str
    """Of the collection, and whether the model was merged."""
    figure: Difference
    """The headline metric with its interval over seeds and queries."""
    gain: Difference | None
    """Against the untrained encoder; None without it, or of itself."""


@dataclass(frozen=True)
class StudyOutcome:
    """Everything a study shows, as plain data."""

    study: Study
    config: StudyConfig
    results: Sequence[RunResult]
    summary: Sequence[SummaryRow]
    claims: Sequence[ClaimResult]
    command: str = ""
    models: Sequence[str] = ()
    """Folders of the models that were kept."""
    apart: Sequence[ApartRow] = ()

    @property
    def failed(self) -> list[RunResult]:
        return [found for found in self.results if found.status != "finished"]

    def verdict(self) -> str:
        if not self.claims:
            return "No claim is tested: the table is the finding."
        count = {word: sum(found.finding == word for found in self.claims) for word in
                 ("reproduced", "not shown", "contradicted", "no figures")}  # fmt: skip
        said = [f"{number} {word}" for word, number in count.items() if number]
        return f"Of {len(self.claims)} claims: {', '.join(said)}."

    def about(self) -> list[str]:
        config, study = self.config, self.study
        lines = []
        if study.needs_data:
            queries = next((found.interval.queries for found in self.summary if found.interval), 0)
            collection = ", ".join(folder.name for folder in config.data.test) or _last(config.data.collection)
            lines.append(
                f"Encoder {config.model}, collection {collection}, {queries} test queries, "
                f"{len(config.seeds)} seed{'s' if len(config.seeds) != 1 else ''}."
            )
        computed = sorted({found.precision for found in self.results if found.precision})
        if computed:
            lines.append(f"Computed in {' and '.join(computed)}.")
        if config.note:
            lines.append(config.note)
        return lines

    def claim_rows(self) -> list[list[Cell]]:
        return [
            [found.claim, *_difference_entries(found.difference, found.adjusted), found.finding]
            for found in self.claims
        ]

    def apart_headers(self) -> list[str]:
        labels = [label.replace("_", " ") for label in self.apart[0].labels] if self.apart else []
        return ["measured on", *labels, "nDCG@10", "difference from untrained", "95 % interval", "p"]

    def apart_rows(self) -> list[list[Cell]]:
        return [
            [
                row.name,
                *map(show, row.labels.values()),
                format_number(row.figure.mean),
                *_difference_entries(row.gain, row.gain.p_value if row.gain else None),
            ]
            for row in self.apart
        ]

    def summary_headers(self) -> list[str]:
        labels = [label.replace("_", " ") for label in self.summary[0].labels] if self.summary else []
        if not self.study.needs_data:
            return [*labels, "extra MiB", "seconds per pass"]
        return [*labels, "nDCG@10", "95 % interval", "± over seeds", "recall@100", "MRR@10", "pairs", "seconds"]

    def summary_rows(self) -> list[list[Cell]]:
        rows: list[list[Cell]] = []
        for row in self.summary:
            labels = [value if isinstance(value, str) else f"{value:g}" for value in row.labels.values()]
            figures = row.figures
            if not self.study.needs_data:
                extra, seconds = figures.get("extra_mib"), figures.get("pass_seconds")
                rows.append([*labels, format_number(extra, 0), format_number(seconds, 2)])
                continue
            ends = (row.interval.low, row.interval.high) if row.interval else (None, None)
            shown = [format_number(figures.get(metric)) for metric in ("recall@100", "mrr@10")]
            rows.append(
                [
                    *labels,
                    format_number(figures.get("ndcg@10")),
                    format_interval(*ends),
                    format_number(row.spread),
                    *shown,
                    row.rows,
                    f"{row.seconds:.0f}",
                ]
            )
        return rows


UNTRAINED: ArmLabels = {"loss": "untrained"}
"""The arm that others are compared with on collections of their own."""
CLAIM_HEADERS = ("claim", "difference", "95 % interval", "p (Holm)", "finding")
"""Headers of the table of claims."""


def outcome_of(
    study: Study,
    config: StudyConfig,
    values: Mapping[str, Any],
    results: Sequence[RunResult],
    command: str,
    models: Sequence[str] = (),
    seedless: Collection[Any] = (),
) -> StudyOutcome:
    """Means, intervals and tested claims of a study's results; `seedless` are keys of the systems without training."""
    finished: dict[Any, list[RunResult]] = {}
    for found in results:
        finished.setdefault(key_of(found.labels), [])
        if found.status == "finished":
            finished[key_of(found.labels)].append(found)
    figures = {key: {found.seed: found.per_query for found in group if found.per_query}
               for key, group in finished.items()}  # fmt: skip
    summary = [_summary(study, group, figures[key]) for key, group in finished.items() if group]
    claims = [measure(contrast, figures, seedless) for contrast in study.contrasts(values)]
    corrected = holm([1.0 if found.difference is None else found.difference.p_value for found in claims])
    claims = [replace(found, adjusted=p_value) for found, p_value in zip(claims, corrected, strict=True)]
    apart = _apart([found for group in finished.values() for found in group], seedless)
    return StudyOutcome(study, config, list(results), summary, claims, command, models, apart)


def _apart(results: Sequence[RunResult], seedless: Collection[Any]) -> list[ApartRow]:
    """By name and arm; the difference is from the untrained encoder on the same collection."""
    untrained = next((found for found in results if found.labels == UNTRAINED), None)
    base: dict[str, dict[str, float]] = {}
    if untrained is not None:
        for query, value in untrained.per_query.items():
            base.setdefault(query.partition("/")[0], {})[query] = value
        base |= {name: dict(own) for name, own in untrained.apart.items()}
    figures: dict[str, dict[Any, dict[int, Mapping[str, float]]]] = {}
    labels = {key_of(found.labels): found.labels for found in results}
    for found in results:
        for name, own in found.apart.items():
            figures.setdefault(name, {}).setdefault(key_of(found.labels), {})[found.seed] = own
    rows = []
    for name, arms in figures.items():
        against = base.get(name.removesuffix(NOT_MERGED))
        for key, seeds in arms.items():
            gain = None
            if against is not None and labels[key] != UNTRAINED:
                both: dict[Any, PerSeed] = {key: seeds, key_of(UNTRAINED): {0: against}}
                gain = measure(above(name, labels[key], UNTRAINED), both, {*seedless, key_of(UNTRAINED)}).difference
            rows.append(ApartRow(labels[key], name, interval_of(seeds), gain))
    return rows


def _summary(study: Study, group: Sequence[RunResult], figures: Mapping[int, Mapping[str, float]]) -> SummaryRow:
    metrics = list(group[0].metrics)
    means = {metric: statistics.fmean(found.metrics[metric] for found in group) for metric in metrics}
    headline = [found.metrics[study.metric] for found in group]
    return SummaryRow(
        labels=group[0].labels,
        seeds=len(group),
        figures=means,
        interval=interval_of(figures) if figures else None,
        spread=statistics.stdev(headline) if len(headline) > 1 else None,
        seconds=statistics.fmean(found.seconds for found in group),
        rows=group[0].rows,
    )


def _difference_entries(gap: Difference | None, p_value: float | None) -> list[Cell]:
    """Difference, interval and p value as a table shows them."""
    if gap is None:
        return ["–", "–", "–"]
    return [format_difference(gap.mean), format_interval(gap.low, gap.high, signed=True), format_p_value(p_value)]


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2] or path
