"""The plot of a study, from its summary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bixse.report.study_plots import Point, line_plot, row_plot

if TYPE_CHECKING:
    from bixse.studies.findings.outcome import StudyOutcome, SummaryRow

WORDS = {"ndcg@10": "nDCG@10", "extra_mib": "extra memory, MiB", "batch_size": "queries per batch",
         "hard_negatives": "hard negatives per query", "labels_per_query": "labels per query",
         "noise": "probability of swapped labels", "cutoff": "relevance cutoff",
         "multiplier": "rate of the bias over the encoder's"}  # fmt: skip
"""What plots call metrics and labels."""


def plot_of(outcome: StudyOutcome) -> str:
    """One `<svg>`: lines over the study's axis with intervals, or a row a cell where it has none."""
    study = outcome.study
    metric = WORDS.get(study.metric, study.metric)
    if study.axis is None:
        points = [(_name(row), _point(outcome, row, 0.0)) for row in outcome.summary]
        return row_plot(study.title, metric, points)
    series: dict[str, list[Point]] = {}
    for row in outcome.summary:
        rest = [str(value) for label, value in row.labels.items() if label != study.axis]
        series.setdefault(", ".join(rest) or metric, []).append(_point(outcome, row, float(row.labels[study.axis])))
    label = WORDS.get(study.axis, study.axis.replace("_", " "))
    return line_plot(study.title, label, metric, series, study.axis_scale, study.metric == "extra_mib")


def _point(outcome: StudyOutcome, row: SummaryRow, x: float) -> Point:
    value = row.figures[outcome.study.metric]
    ends = (row.interval.low, row.interval.high) if row.interval is not None else (value, value)
    return Point(x, value, *ends)


def _name(row: SummaryRow) -> str:
    return ", ".join(str(value) for value in row.labels.values())
