"""Compare models on the test and guard queries of a collection: searches, paired intervals, heads, and the report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.calibration.calibrate_head import fit_head
from bixse.calibration.reliability import calibration_report
from bixse.data.graded_pairs import Pairs
from bixse.data.trec import write_run
from bixse.encoders.head import RelevanceHead
from bixse.encoders.loading.build import build_encoder
from bixse.evaluation.collection_task import collection_task
from bixse.evaluation.evaluate import evaluate_task
from bixse.evaluation.metrics import METRICS, PRIMARY_METRIC
from bixse.evaluation.statistics import paired_difference
from bixse.rendering.page import write_report
from bixse.rendering.schema import ReportData, SystemScores, save_report_data, training_curve
from bixse.reporting import merge_curve, query_changes, summary
from bixse.results import Comparison
from bixse.search.search_collection import encode_collection

if TYPE_CHECKING:
    from bixse.data.corpus import JudgedCorpus
    from bixse.evaluation.evaluate import Evaluation
    from bixse.evaluation.systems import System
    from bixse.progress import ProgressBars
    from bixse.relevance import GradeScale
    from bixse.results import CalibrationReport, Difference
    from bixse.search.tasks import Task
    from bixse.training.recipe import TrainResult


COMPARED = {"test": METRICS, "guard": (PRIMARY_METRIC,)}
"""Split -> metrics whose differences are tested."""


@dataclass
class Comparer:
    """The evaluations of several systems on the splits test and guard of a collection folder, and their report."""

    folder: Path
    labels: dict[str, str] = field(default_factory=dict)
    """Name of a system -> label for tables."""
    evaluations: dict[str, dict[str, Evaluation]] = field(default_factory=lambda: defaultdict(dict))
    """Split -> name of a system -> evaluation."""
    comparisons: dict[str, list[Comparison]] = field(default_factory=lambda: defaultdict(list))
    """Split -> differences."""

    @cached_property
    def tasks(self) -> dict[str, Task]:
        return {split: collection_task(self.folder, split) for split in COMPARED}

    def search(
        self,
        name: str,
        label: str,
        system: System,
        progress: ProgressBars | None = None,
        splits: Sequence[str] = tuple(COMPARED),
    ) -> list[str]:
        """Search the queries of the splits with a system, the corpus encoded once; return notes with the figures."""
        sets = [replace(self.tasks[split].query_sets[0], name=split) for split in splits]
        task = replace(self.tasks["test"], query_sets=tuple(sets))
        self.labels[name], notes = label, []
        for split, evaluation in evaluate_task(system, task, progress=progress).items():
            self.evaluations[split][name] = evaluation
            notes.append(f"{'guard' if split == 'guard' else 'nDCG@10'} {evaluation.metrics[PRIMARY_METRIC]:.3f}")
        return notes

    def compare(self, pairs: Sequence[tuple[str, str]], split: str = "test") -> None:
        """Test the difference of each system and its baseline over the queries of a split."""
        for system, baseline in pairs:
            for metric in COMPARED[split]:
                a, b = (self.evaluations[split][name].by_query[metric] for name in (system, baseline))
                self.comparisons[split].append(Comparison(system, baseline, metric, paired_difference(a, b)))

    def _difference(self, system: str, baseline: str, split: str) -> Difference:
        wanted = (system, baseline, PRIMARY_METRIC)
        return next(c.difference for c in self.comparisons[split] if (c.system, c.baseline, c.metric) == wanted)

    def verdict_line(self, system: str, baseline: str, split: str = "test") -> str:
        """Return the verdict (better, no difference, worse, or cannot tell) with its interval."""
        gap = self._difference(system, baseline, split)
        names = f"{self.labels[system]} against {self.labels[baseline]}"
        return f"{names}, {'guard' if split == 'guard' else 'held-out'} queries: {gap.verdict} ({gap.figures()})"

    def write_report(
        self,
        out: Path,
        system: str,
        against: Sequence[str],
        trained: Mapping[str, TrainResult],
        **rest: Any,
    ) -> ReportData:
        """Write runs, results.json and report.html; per query `system` is compared with the first of `against`."""
        baseline, test = against[0], self.evaluations["test"]
        gaps = {self.labels[other]: self._difference(system, other, "test") for other in against}
        report = ReportData(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            verdicts=[summary(self.labels[system], gaps, "held-out queries")],
            systems=[
                SystemScores(name=name, label=self.labels[name], metrics=dict(evaluation.metrics))
                for name, evaluation in test.items()
            ],
            comparisons=self.comparisons["test"],
            guard=self.comparisons["guard"],
            training=[training_curve(name, result.history, result.best_step) for name, result in trained.items()],
            merges=[merge_curve(name, result.merge) for name, result in trained.items() if result.merge is not None],
            primary_metric=PRIMARY_METRIC,
            per_query_baseline=baseline,
            per_query_system=system,
            per_query=query_changes(test[baseline], test[system], self.tasks["test"]),
            **rest,
        )
        for split, folder in (("test", out / "runs"), ("guard", out / "runs" / "guard")):
            for name, evaluation in self.evaluations[split].items():
                write_run(folder / f"{name}.trec", evaluation.run, name)
        save_report_data(report, out / "results.json")
        write_report(report, out / "report.html")
        return report


def calibrate_on_dev(
    models: Mapping[str, str],
    saved: str,
    collection: JudgedCorpus,
    scale: GradeScale,
    seed: int = 0,
    progress: ProgressBars | None = None,
) -> dict[str, CalibrationReport]:
    """Fit the head of each model (label -> folder) on the dev pairs, and return reports on the test pairs.

    The model `saved` is reported as trained, too, and its fitted head is saved in its folder.
    """
    splits = {split: Pairs.from_collection(collection, split, scale) for split in ("dev", "test")}
    dev, test = splits.values()
    judged = [query for split in splits for query in collection.qrels[split]]
    reports = {}
    for label, model in models.items():
        encoded = encode_collection(build_encoder(model), collection, judged, progress)
        on_dev, on_test = (
            encoded.cosines(list(zip(pairs.query_ids, pairs.document_ids, strict=True))) for pairs in (dev, test)
        )
        head = RelevanceHead.load(Path(model)) if label == saved else None
        if head is not None:  # an interrupted call may have saved the calibrated head
            head = replace(head, slope=1.0, intercept=0.0, calibrated_on=None)
        fitted = fit_head(head, on_dev, dev.relevance, f"{len(dev)} pairs of split 'dev' of {collection.name}")
        if label == saved:
            fitted.save(Path(model))
        for words, calibrated in (("as trained", head), ("calibrated on dev", fitted)):
            if calibrated is not None:
                report = calibration_report(calibrated.probability(on_test), test.relevance, test.query_ids, seed=seed)
                reports[f"{label}, {words}"] = report
    return reports
