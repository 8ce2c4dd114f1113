"""Compare systems on the test and guard queries of a collection: searches, paired intervals, and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.trec import write_run
from bixse.evaluation.collection_task import collection_task
from bixse.evaluation.evaluate import evaluate_task
from bixse.evaluation.evaluate_files import evaluate
from bixse.evaluation.metrics import METRICS, PRIMARY_METRIC
from bixse.evaluation.statistics import paired_difference
from bixse.evaluation.systems import EncoderSystem
from bixse.rendering.page import write_report
from bixse.rendering.schema import ReportData, SystemScores, save_report_data, training_curve
from bixse.reporting import merge_curve, query_changes, summary
from bixse.results import Comparison, Difference
from bixse.search.bm25 import BM25_NAME

if TYPE_CHECKING:
    from bixse.evaluation.evaluate import Evaluation
    from bixse.progress import ProgressBars
    from bixse.training.recipe import TrainResult


@dataclass
class Comparer:
    """The evaluations of several systems on the splits test and guard of a collection folder, and their report."""

    folder: Path
    seed: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    """Name of a system -> label for tables."""
    test: dict[str, Evaluation] = field(default_factory=dict)
    guard: dict[str, Evaluation] = field(default_factory=dict)
    comparisons: list[Comparison] = field(default_factory=list)
    guarded: list[Comparison] = field(default_factory=list)
    """Differences on the guard queries."""

    def search_bm25(self) -> list[str]:
        """Search the test queries with BM25; return notes with the figures."""
        self.labels[BM25_NAME] = "BM25"
        self.test[BM25_NAME] = evaluate(BM25_NAME, collection_task(self.folder, "test"), verbose=False)
        return [f"nDCG@10 {self.test[BM25_NAME].metrics[PRIMARY_METRIC]:.3f}"]

    def search(self, name: str, label: str, model: str | Path, progress: ProgressBars | None) -> list[str]:
        """Search the test and guard queries with a model, the corpus encoded once; return notes with the figures."""
        task, guards = (collection_task(self.folder, split) for split in ("test", "guard"))
        sets = [replace(each.query_sets[0], name=kind) for kind, each in (("test", task), ("guard", guards))]
        both = evaluate_task(EncoderSystem(model), replace(task, query_sets=tuple(sets)), progress=progress)
        self.labels[name], self.test[name], self.guard[name] = label, both["test"], both["guard"]
        ndcg, guard = (both[split].metrics[PRIMARY_METRIC] for split in ("test", "guard"))
        return [f"nDCG@10 {ndcg:.3f}", f"guard {guard:.3f}"]

    def compare(self, pairs: Sequence[tuple[str, str]], on_guard: bool = False) -> None:
        """Test the difference of each system and its baseline over queries, of each metric or on guard."""
        evaluations, comparisons = (self.guard, self.guarded) if on_guard else (self.test, self.comparisons)
        for system, baseline in pairs:
            for metric in (PRIMARY_METRIC,) if on_guard else METRICS:
                a, b = (evaluations[name].by_query[metric] for name in (system, baseline))
                comparisons.append(Comparison(system, baseline, metric, paired_difference(a, b)))

    def _difference(self, system: str, baseline: str, on_guard: bool) -> Difference:
        wanted = (system, baseline, PRIMARY_METRIC)
        known = self.guarded if on_guard else self.comparisons
        return next(c.difference for c in known if (c.system, c.baseline, c.metric) == wanted)

    def verdict_line(self, system: str, baseline: str, on_guard: bool = False) -> str:
        """Return the verdict (better, no difference, worse, or cannot tell) with its interval."""
        gap = self._difference(system, baseline, on_guard)
        names = f"{self.labels[system]} against {self.labels[baseline]}"
        return f"{names}, {'guard' if on_guard else 'held-out'} queries: {gap.verdict} ({gap.figures()})"

    def write_report(
        self,
        out: Path,
        system: str,
        against: Sequence[str],
        trained: Mapping[str, TrainResult],
        **rest: Any,
    ) -> ReportData:
        """Write runs, results.json and report.html; per query `system` is compared with the first of `against`."""
        baseline = against[0]
        gaps = {self.labels[other]: self._difference(system, other, False) for other in against}
        report = ReportData(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            verdicts=[summary(self.labels[system], gaps, "held-out queries")],
            systems=[
                SystemScores(name=name, label=self.labels[name], metrics=dict(evaluation.metrics))
                for name, evaluation in self.test.items()
            ],
            comparisons=self.comparisons,
            guard=self.guarded,
            training=[training_curve(name, result.history, result.best_step) for name, result in trained.items()],
            merges=[merge_curve(name, result.merge) for name, result in trained.items() if result.merge is not None],
            primary_metric=PRIMARY_METRIC,
            per_query_baseline=baseline,
            per_query_system=system,
            per_query=query_changes(self.test[baseline], self.test[system], collection_task(self.folder, "test")),
            **rest,
        )
        for folder, evaluations in ((out / "runs", self.test), (out / "runs" / "guard", self.guard)):
            for name, evaluation in evaluations.items():
                write_run(folder / f"{name}.trec", evaluation.run, name)
        save_report_data(report, out / "results.json")
        write_report(report, out / "report.html")
        return report
