"""A study's tables as CSV."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bixse.studies.findings.outcome import StudyOutcome


def runs_csv(outcome: StudyOutcome) -> str:
    """A row per run: labels, seed, status, metrics, pairs, reason; the wall time last, which is never the same."""
    metrics = list(next((found.metrics for found in outcome.results if found.metrics), {}))
    labels = list(outcome.results[0].labels) if outcome.results else []
    head = [*labels, "seed", "status", *metrics, "pairs", "precision", "reason", "seconds"]
    rows = [
        [
            *found.labels.values(), found.seed, found.status,
            *(_figure(found.metrics.get(metric)) for metric in metrics),
            "" if found.rows is None else found.rows, found.precision, found.reason, f"{found.seconds:.1f}",
        ]
        for found in outcome.results
    ]  # fmt: skip
    return _csv(head, rows)


def summary_csv(outcome: StudyOutcome) -> str:
    """A row a combination of labels: means over seeds, the headline's interval and spread."""
    labels = list(outcome.summary[0].labels) if outcome.summary else []
    metrics = list(outcome.summary[0].figures) if outcome.summary else []
    head = [*labels, "seeds", *metrics, "low", "high", "spread", "pairs", "seconds"]
    rows = [
        [
            *row.labels.values(), row.seeds, *(_figure(row.figures.get(metric)) for metric in metrics),
            *(("", "") if row.interval is None else (_figure(row.interval.low), _figure(row.interval.high))),
            _figure(row.spread), "" if row.rows is None else row.rows, f"{row.seconds:.1f}",
        ]
        for row in outcome.summary
    ]  # fmt: skip
    return _csv(head, rows)


def claims_csv(outcome: StudyOutcome) -> str:
    """A row a claim: the difference with its interval, p as it is and Holm's, and what it says."""
    rows = []
    for found in outcome.claims:
        gap = found.difference
        figures = ["", "", "", ""] if gap is None else [
            _figure(gap.mean), _figure(gap.low), _figure(gap.high), _figure(gap.p_value)
        ]  # fmt: skip
        queries = "" if gap is None else gap.queries
        rows.append([found.claim, *figures, _figure(found.adjusted), found.seeds, queries, found.finding])
    return _csv(["claim", "difference", "low", "high", "p", "p_holm", "seeds", "queries", "finding"], rows)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _csv(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue()
