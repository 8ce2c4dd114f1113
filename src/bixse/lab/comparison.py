"""Compare systems on one split of a collection: metrics, paired intervals, calibration, and the report's data."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bixse.calibration.calibrate_head import fit_head
from bixse.calibration.reliability import calibration_report
from bixse.data.trec import ranked, write_run
from bixse.encoders.loading.build import build_encoder
from bixse.evaluation.metrics import METRICS, PRIMARY_METRIC
from bixse.evaluation.statistics import paired_bootstrap
from bixse.report.schema import (
    MergeCurve,
    MergeScore,
    QueryChange,
    RankedDocument,
    ReportData,
    SideBySide,
    SystemScores,
)
from bixse.results import Comparison
from bixse.search.search_collection import encode_collection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from bixse.data.collection import Collection
    from bixse.encoders.head import RelevanceHead
    from bixse.evaluation.evaluate import Evaluation
    from bixse.progress import ProgressBars
    from bixse.relevance import GradeScale
    from bixse.results import CalibrationReport, Difference
    from bixse.search.search_collection import EncodedCollection
    from bixse.training.merge import MergeResult

SIDE_BY_SIDE = 3
"""Number of queries shown in full for the largest gains, and the same number for the largest losses."""
SHOWN_DOCUMENTS = 5


class ReportedSystem(NamedTuple):
    """The name (unique) and the label (for tables) of a system under comparison."""

    name: str
    label: str


class Comparer:
    """The evaluations of several systems on one held-out split, and their report."""

    def __init__(self, collection: Collection, split: str, scale: GradeScale, seed: int = 0) -> None:
        self.collection = collection
        self.split = split
        self.qrels = collection.qrels[split]
        self.scale = scale
        self.seed = seed
        self.systems: list[ReportedSystem] = []
        self.found: dict[str, Evaluation] = {}
        self.comparisons: list[Comparison] = []
        self.calibrations: dict[str, CalibrationReport] = {}

    def add(self, system: ReportedSystem, found: Evaluation) -> float:
        self.systems.append(system)
        self.found[system.name] = found
        return found.metrics[PRIMARY_METRIC]

    def compare(self, system: str, baseline: str, metrics: Sequence[str] = METRICS) -> None:
        """Test the difference of two systems on each metric by the paired bootstrap over queries."""
        for metric in metrics:
            difference = paired_bootstrap(
                self.found[system].per_query[metric], self.found[baseline].per_query[metric], seed=self.seed
            )
            self.comparisons.append(Comparison(system, baseline, metric, difference))

    def calibrate(
        self, label: str, model: str | Path, head: RelevanceHead | None, progress: ProgressBars | None
    ) -> RelevanceHead:
        """Fit a model's head on the dev pairs, report its calibration on the held-out pairs, and return the head."""
        judged = [query for split in ("dev", self.split) for query in self.collection.qrels[split]]
        encoded = encode_collection(build_encoder(model), self.collection, judged, progress)
        fit_cosines, fit_relevance, fit_queries = self._pairs(encoded, "dev")
        cosines, relevance, queries = self._pairs(encoded, self.split)
        fitted_on = f"{len(fit_queries)} pairs of split 'dev' of {self.collection.name}"
        fitted = fit_head(head, fit_cosines, fit_relevance, fitted_on)
        if head is not None:
            report = calibration_report(head.probability(cosines), relevance, queries, seed=self.seed)
            self.calibrations[f"{label}, as trained"] = report
        self.calibrations[f"{label}, calibrated on dev"] = calibration_report(
            fitted.probability(cosines), relevance, queries, seed=self.seed
        )
        return fitted

    def _pairs(
        self, encoded: EncodedCollection, split: str
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], list[str]]:
        judged = [(q, d, grade) for q, grades in self.collection.qrels[split].items() for d, grade in grades.items()]
        cosines = encoded.cosines([(query, document) for query, document, _ in judged])
        relevance = np.array([self.scale.to_relevance(grade) for _, _, grade in judged])
        return cosines, relevance, [query for query, _, _ in judged]

    def _verdict(self, system: str, baseline: str) -> Difference:
        wanted = (system, baseline, PRIMARY_METRIC)
        return next(c.difference for c in self.comparisons if (c.system, c.baseline, c.metric) == wanted)

    def verdict_line(self, system: str, baseline: str, queries: str = "held-out queries") -> str:
        """Return the verdict (better, no difference, or worse) with its interval."""
        labels = dict(self.systems)
        found = self._verdict(system, baseline)
        few = ", few" if found.few else ""
        return (
            f"{labels[system]} against {labels[baseline]}: {found.verdict} (nDCG@10 {found.mean:+.3f}, "
            f"95 % interval {found.low:+.3f} to {found.high:+.3f}, {found.queries} {queries}{few})"
        )

    def _summary(self, system: str, against: Sequence[str]) -> str:
        labels = dict(self.systems)
        words = {"better": "better than", "worse": "worse than", "no difference": "not shown to differ from"}
        parts = [f"{words[self._verdict(system, other).verdict]} {labels[other]}" for other in against]
        return f"{labels[system]} is {' and '.join(parts)} on the held-out queries."

    def _changes(self, system: str, baseline: str, kinds: Mapping[str, str]) -> list[QueryChange]:
        after, before = (self.found[name].per_query[PRIMARY_METRIC] for name in (system, baseline))
        return [
            QueryChange(
                query_id=query_id,
                query=self.collection.queries[query_id],
                kind=kinds.get(query_id),
                baseline_score=before[query_id],
                system_score=after[query_id],
            )
            for query_id in after
        ]

    def _side_by_side(
        self, system: str, baseline: str, changes: Sequence[QueryChange], head: RelevanceHead | None
    ) -> list[SideBySide]:
        """Return both rankings of the queries that changed most, gains first."""
        by_change = sorted(changes, key=lambda change: change.change)
        gains = [change for change in reversed(by_change) if change.change > 0][:SIDE_BY_SIDE]
        losses = [change for change in by_change if change.change < 0][:SIDE_BY_SIDE]
        return [
            SideBySide(
                **change.model_dump(exclude={"kind"}),
                baseline_name=baseline,
                system_name=system,
                baseline=self._top(baseline, change.query_id, None),
                system=self._top(system, change.query_id, head),
            )
            for change in (*gains, *losses)
        ]

    def _top(self, system: str, query_id: str, head: RelevanceHead | None) -> list[RankedDocument]:
        scores = self.found[system].run.get(query_id, {})
        return [
            RankedDocument(
                rank=rank,
                document_id=document_id,
                title=self.collection.corpus[document_id].title,
                text=self.collection.corpus[document_id].text,
                grade=self.qrels[query_id].get(document_id),
                score=scores[document_id],
                probability=head.probability(float(scores[document_id])) if head is not None else None,
            )
            for rank, document_id in enumerate(ranked(scores)[:SHOWN_DOCUMENTS], start=1)
        ]

    def report(
        self,
        system: str,
        baseline: str,
        against: Sequence[str],
        head: RelevanceHead | None,
        kinds: Mapping[str, str],
        **rest: Any,
    ) -> ReportData:
        """Return the report's data: `system` next to `baseline`, a summary `against` others, and `rest` unchanged."""
        changes = self._changes(system, baseline, kinds)
        return ReportData(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            verdicts=[self._summary(system, against)],
            systems=[
                SystemScores(name=entry.name, label=entry.label, metrics=dict(self.found[entry.name].metrics))
                for entry in self.systems
            ],
            comparisons=self.comparisons,
            primary_metric=PRIMARY_METRIC,
            calibrations=self.calibrations,
            per_query_baseline=baseline,
            per_query_system=system,
            per_query=changes,
            side_by_side=self._side_by_side(system, baseline, changes, head),
            **rest,
        )

    def write_runs(self, folder: Path) -> None:
        for name, found in self.found.items():
            write_run(folder / f"{name}.trec", found.run, name)


def merge_curve(system: str, merged: MergeResult) -> MergeCurve:
    """Return a merge's scores as a curve of the report."""
    return MergeCurve(
        system=system,
        weight=merged.weight,
        points=[MergeScore(**asdict(point)) for point in merged.points],
        reason=". ".join(merged.reason()),
        guards=sorted({change.collection for change in merged.changes if change.role == "guard"}),
    )
