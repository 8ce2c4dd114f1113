"""Search a collection with an encoder and score the answers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from sentence_transformers.base.evaluation import BaseEvaluator

from bixse.encoders.encode import encode_texts
from bixse.evaluation.baseline import DEPTH, METRICS
from bixse.evaluation.metrics import evaluate_run, mean
from bixse.retrieval.exact import exact_search, to_run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer

    from bixse.data.collection import Collection
    from bixse.relevance import Qrels, Run


@dataclass(frozen=True)
class EncodedCollection:
    """A corpus and queries under one encoder, computed once and used for every figure of that model."""

    document_ids: Sequence[str]
    """N ids."""
    documents: NDArray[np.float32]
    """(N, D), L2-normalised."""
    query_ids: Sequence[str]
    """Q ids."""
    queries: NDArray[np.float32]
    """(Q, D), L2-normalised."""

    def search(
        self, query_ids: Sequence[str], depth: int = DEPTH, exclude_self: bool = False
    ) -> dict[str, dict[str, float]]:
        """The `depth` documents of highest cosine of each query: a run.

        Args:
            query_ids: queries to answer.
            depth: documents per query.
            exclude_self: leave out the document whose id equals the query's id.
        """
        rows = self._rows(self.query_ids, query_ids)
        scores, indices = exact_search(self.queries[rows], self.documents, depth + exclude_self)
        run = to_run(list(query_ids), list(self.document_ids), scores, indices, exclude_self)
        return {query_id: dict(islice(found.items(), depth)) for query_id, found in run.items()}

    def cosines(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        """Cosine of each (query id, document id) pair, (M,) in [-1, 1]."""
        queries = self.queries[self._rows(self.query_ids, [query for query, _ in pairs])]
        documents = self.documents[self._rows(self.document_ids, [document for _, document in pairs])]
        cosines: NDArray[np.float64] = np.einsum("md,md->m", queries.astype(np.float64), documents.astype(np.float64))
        return cosines

    @staticmethod
    def _rows(ids: Sequence[str], wanted: Sequence[str]) -> list[int]:
        row_of = {identifier: row for row, identifier in enumerate(ids)}
        return [row_of[identifier] for identifier in wanted]


def encode_collection(
    model: SentenceTransformer,
    collection: Collection,
    query_ids: Sequence[str],
    progress: Callable[[int], None] | None = None,
) -> EncodedCollection:
    """Embed every document of a collection and the named queries, once.

    Args:
        model: the encoder.
        collection: corpus and queries.
        query_ids: the queries to embed.
        progress: called with the number of texts done since the last call.
    """
    return EncodedCollection(
        document_ids=list(collection.corpus),
        documents=encode_texts(model, [d.content for d in collection.corpus.values()], "document", progress=progress),
        query_ids=list(query_ids),
        queries=encode_texts(model, [collection.queries[q] for q in query_ids], "query", progress=progress),
    )


class GradedRetrievalEvaluator(BaseEvaluator):
    """Graded nDCG@10 and its companions on a small collection, for choosing a checkpoint during training.

    Args:
        corpus: document id -> text; for a quick figure the judged documents and hard ones beside them.
        queries: query id -> text.
        qrels: judgements of these queries.
        relevance_level: grade from which a document counts as relevant for the binary metrics.
        name: prefix of the metrics, for example "dev".
    """

    def __init__(
        self,
        corpus: Mapping[str, str],
        queries: Mapping[str, str],
        qrels: Qrels,
        relevance_level: float = 1.0,
        name: str = "dev",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.corpus = dict(corpus)
        self.queries = dict(queries)
        self.qrels = qrels
        self.relevance_level = relevance_level
        self.name = name
        self.primary_metric = f"{name}_ndcg@10"

    def __call__(
        self, model: Any, output_path: str | Path | None = None, epoch: float = -1, steps: int = -1
    ) -> dict[str, float]:
        """Encode, search and score; the headline is `<name>_ndcg@10`."""
        encoded = EncodedCollection(
            document_ids=list(self.corpus),
            documents=encode_texts(model, list(self.corpus.values()), "document"),
            query_ids=list(self.queries),
            queries=encode_texts(model, list(self.queries.values()), "query"),
        )
        run = encoded.search(encoded.query_ids)
        per_query = evaluate_run(self.qrels, run, METRICS, self.relevance_level)
        return {f"{self.name}_{metric}": value for metric, value in mean(per_query).items()}


class MeanEvaluator(BaseEvaluator):
    """Several collections as one: the mean of each figure, every collection counting as much.

    sentence-transformers' `SequentialEvaluator` gives the last score, not the mean.

    Args:
        evaluators: one or more, with names of their own.
        name: prefix of the means, for example "dev".
    """

    def __init__(self, evaluators: Sequence[GradedRetrievalEvaluator], name: str = "dev") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.evaluators = list(evaluators)
        self.name = name
        self.primary_metric = f"{name}_ndcg@10"

    def __call__(
        self, model: Any, output_path: str | Path | None = None, epoch: float = -1, steps: int = -1
    ) -> dict[str, float]:
        """The figures of each collection, and their means; the headline is `<name>_ndcg@10`."""
        found = {evaluator.name: evaluator(model, output_path, epoch, steps) for evaluator in self.evaluators}
        means = {
            f"{self.name}_{metric}": float(np.mean([figures[f"{own}_{metric}"] for own, figures in found.items()]))
            for metric in METRICS
        }
        return {**means, **{name: value for figures in found.values() for name, value in figures.items()}}


DevEvaluator: TypeAlias = GradedRetrievalEvaluator | MeanEvaluator
"""What chooses a checkpoint: one dev collection, or the mean of several."""


def candidate_corpus(collection: Collection, qrels: Qrels, runs: Sequence[Run], depth: int) -> dict[str, str]:
    """The judged documents of some queries and the top `depth` of each run: a small corpus that stays hard.

    A full corpus is too slow to encode at each evaluation during training; random documents beside the judged ones
    would be too easy.
    """
    chosen = {document_id for judged in qrels.values() for document_id in judged}
    for run in runs:
        for query_id in qrels:
            scores = run.get(query_id, {})
            chosen.update(sorted(scores, key=lambda d: (-scores[d], d))[:depth])
    return {document_id: d.content for document_id, d in collection.corpus.items() if document_id in chosen}
