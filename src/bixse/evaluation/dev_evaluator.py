"""Graded metrics during training, as sentence-transformers' trainer takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from sentence_transformers.base.evaluation import BaseEvaluator

from bixse.evaluation.evaluate import evaluate
from bixse.evaluation.metrics import METRICS, PRIMARY_METRIC
from bixse.evaluation.systems import EncoderSystem
from bixse.evaluation.tasks import QuerySet, Task
from bixse.relevance import MIN_RELEVANT_GRADE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from bixse.relevance import Qrels


class GradedRetrievalEvaluator(BaseEvaluator):
    """Graded nDCG@10 and its companions on a small collection, for choosing a checkpoint during training.

    For a quick figure the corpus holds the judged documents and hard ones beside them. `name` is the prefix of the
    metrics: the headline is `<name>_ndcg@10`.
    """

    def __init__(
        self,
        corpus: Mapping[str, str],
        queries: Mapping[str, str],
        qrels: Qrels,
        min_relevant_grade: float = MIN_RELEVANT_GRADE,
        name: str = "dev",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.name = name
        self.primary_metric = f"{name}_{PRIMARY_METRIC}"
        self.corpus, self.queries = dict(corpus), dict(queries)
        sets = (QuerySet(name, self.queries, qrels),)
        self.task = Task(
            name, lambda: iter(self.corpus.items()), len(corpus), sets, min_relevant_grade=min_relevant_grade
        )

    def __call__(
        self, model: Any, output_path: str | Path | None = None, epoch: float = -1, steps: int = -1
    ) -> dict[str, float]:
        found = evaluate(EncoderSystem(model, cache="none"), self.task)
        return {f"{self.name}_{metric}": value for metric, value in found.metrics.items()}


class MeanEvaluator(BaseEvaluator):
    """The mean of each figure over several collections, each with a name of its own, beside the figures themselves.

    sentence-transformers' `SequentialEvaluator` gives the last score, not the mean.
    """

    def __init__(self, evaluators: Sequence[GradedRetrievalEvaluator], name: str = "dev") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.evaluators = list(evaluators)
        self.name = name
        self.primary_metric = f"{name}_{PRIMARY_METRIC}"

    def __call__(
        self, model: Any, output_path: str | Path | None = None, epoch: float = -1, steps: int = -1
    ) -> dict[str, float]:
        found = {evaluator.name: evaluator(model, output_path, epoch, steps) for evaluator in self.evaluators}
        means = {
            f"{self.name}_{metric}": float(np.mean([figures[f"{own}_{metric}"] for own, figures in found.items()]))
            for metric in METRICS
        }
        return {**means, **{name: value for figures in found.values() for name, value in figures.items()}}


DevEvaluator: TypeAlias = GradedRetrievalEvaluator | MeanEvaluator
