"""The dev and guard collections of a run: searched for checkpoints and for merge weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from sentence_transformers.base.evaluation import BaseEvaluator

from bixse.data.draws import cut_collection
from bixse.encoders.encode import encode_texts
from bixse.encoders.instructions import prompt_for
from bixse.evaluation.metrics import METRICS, PRIMARY_METRIC, evaluate_run, mean
from bixse.relevance import DEPTH, MIN_RELEVANT_GRADE, ranked
from bixse.search.bm25 import BM25
from bixse.search.exact import DOCUMENTS_PER_BLOCK, TopK, search_device, to_run
from bixse.search.store import EmbeddingStore

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.relevance import Qrels, Ranking
    from bixse.training.config import TrainConfig

Role: TypeAlias = Literal["dev", "guard"]
"""dev: collections that should get better; guard: collections that must not get worse."""
Scores: TypeAlias = "dict[str, dict[str, float]]"
"""Name of a query set -> query id -> nDCG@10."""
HITS_FROM = 100_000
"""Maximum documents of a dev or guard corpus that the base and the tuned model encode to find hits for the pool."""
HITS = 20
"""Hits per query of the base and of the tuned model that a weight between them searches; nDCG@10 reads ten."""


@dataclass(frozen=True)
class EvalQueries:
    """The judged queries of one split, named after the collection (and the split)."""

    name: str
    texts: Mapping[str, str]
    """Query id -> text of all judged queries, and perhaps of others."""
    judged: Qrels
    role: Role = "dev"

    @cached_property
    def qrels(self) -> Qrels:
        """The judgements of the queries that have a relevant document."""
        return {q: grades for q, grades in self.judged.items() if any(grade > 0 for grade in grades.values())}

    @cached_property
    def queries(self) -> dict[str, str]:
        return {query: self.texts[query] for query in self.qrels}


@dataclass(frozen=True)
class EvalCorpus:
    """A collection and its splits that are searched."""

    name: str
    corpus: Mapping[str, str]
    """Document id -> title and text."""
    sets: tuple[EvalQueries, ...]
    most: int | None = None
    """Maximum documents that a weight between base and tuned searches; None searches the complete corpus."""
    warnings: tuple[str, ...] = ()

    @cached_property
    def searched(self) -> Mapping[str, str]:
        """The documents that the base and the tuned model search: all, or `HITS_FROM` of a larger corpus."""
        if self.most is None or len(self.corpus) <= max(HITS_FROM, self.most):
            return self.corpus
        together = {f"{part.name}/{query}": grades for part in self.sets for query, grades in part.qrels.items()}
        size = max(HITS_FROM, len(self._judged))
        return self._texts(cut_collection(self.name, together, self.corpus, len(together), size).documents)

    def pool(self, runs: Sequence[Mapping[str, Ranking]]) -> Mapping[str, str]:
        """Return the documents that other weights search (id -> text): judged ones and the best hits of `runs`."""
        if self.most is None:
            return self.corpus
        rankings = [ranked(scores)[:HITS] for run in runs for queries in run.values() for scores in queries.values()]
        # without hits the documents that a model wrongly ranks high would be missing, and it would look too good
        by_rank = (name for hits in zip_longest(*rankings) for name in hits if name is not None)
        pool = dict.fromkeys(chain(self._judged, by_rank))
        return self._texts(list(pool)[: max(self.most, len(self._judged))])

    def encoded_for(self, weights: int) -> int:
        """Return the largest number of documents to encode for base, tuned and `weights` weights between them."""
        documents, hits = len(self.corpus), sum(2 * HITS * len(part.queries) for part in self.sets)
        if self.most is None:
            return (2 + weights) * documents
        pool = max(len(self._judged), min(self.most, len(self._judged) + hits))
        return 2 * len(self.searched) + weights * min(documents, pool)

    def scores(self, runs: Mapping[str, Ranking], pool: Mapping[str, str]) -> Scores:
        """Return nDCG@10 of every judged query in runs, without their documents outside the pool."""
        within = {
            name: {query: {d: score for d, score in hits.items() if d in pool} for query, hits in run.items()}
            for name, run in runs.items()
        }
        return {
            part.name: evaluate_run(part.qrels, within[part.name], [PRIMARY_METRIC])[PRIMARY_METRIC]
            for part in self.sets
        }

    def narrowed(self, part: EvalQueries, runs: Iterable[Ranking]) -> EvalCorpus:
        """Return the judged documents of a query set and those of runs: a small corpus that stays hard."""
        # a full corpus is too slow to encode at each evaluation during training; random documents would be too easy
        rows = chain(part.judged.values(), *(run.values() for run in runs))
        chosen = {document_id for row in rows for document_id in row}
        return replace(self, corpus=self._texts(name for name in self.corpus if name in chosen), sets=(part,))

    @cached_property
    def _judged(self) -> dict[str, None]:
        return dict.fromkeys(name for queries in self.sets for grades in queries.qrels.values() for name in grades)

    def _texts(self, ids: Iterable[str]) -> dict[str, str]:
        return {name: self.corpus[name] for name in ids}


def search(
    model: SentenceTransformer, corpus: Mapping[str, str], sets: Sequence[EvalQueries], cache: str | None
) -> dict[str, Ranking]:
    """Return name of a query set -> run; each document is encoded once, one block in memory at a time."""
    store, ids, best = EmbeddingStore(model, cache), list(corpus), []
    for part in sets:
        queries = encode_texts(model, list(part.queries.values()), "query")
        best.append(TopK(queries, DEPTH, search_device(len(queries), len(ids))))
    for start in range(0, len(ids), DOCUMENTS_PER_BLOCK):
        documents = store.encode([corpus[name] for name in ids[start : start + DOCUMENTS_PER_BLOCK]])
        for each in best:
            each.add(documents)
    return {part.name: to_run(list(part.queries), ids, *each.result()) for part, each in zip(sets, best, strict=True)}


def sets_of(eval_corpora: Sequence[EvalCorpus], role: Role | None = None) -> list[tuple[EvalCorpus, EvalQueries]]:
    """Return the query sets of a role, or all query sets, each with its collection."""
    return [(corpus, queries) for corpus in eval_corpora for queries in corpus.sets if role in (None, queries.role)]


class DevEvaluator(BaseEvaluator):
    """Graded nDCG@10 and the other metrics on small dev collections: the headline is `dev_ndcg@10`.

    Of several collections the metrics are means, in which collections count equally (BiXSE paper, appendix:
    BEIR(short)). The `SequentialEvaluator` of sentence-transformers returns the last score, not the mean.
    """

    def __init__(self, dev: Sequence[EvalCorpus], min_relevant_grade: float = MIN_RELEVANT_GRADE) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dev, self.min_relevant_grade = tuple(dev), min_relevant_grade
        self.primary_metric = f"dev_{PRIMARY_METRIC}"

    def __call__(
        self, model: Any, output_path: str | Path | None = None, epoch: float = -1, steps: int = -1
    ) -> dict[str, float]:
        results = {}
        for each in self.dev:
            runs = search(model, each.corpus, each.sets, "none")
            (part,) = each.sets
            results[each.name] = mean(evaluate_run(part.qrels, runs[part.name], METRICS, self.min_relevant_grade))
        every = {metric: float(np.mean([figures[metric] for figures in results.values()])) for metric in METRICS}
        if len(results) > 1:
            every |= {f"{name}_{metric}": figures[metric] for name, figures in results.items() for metric in METRICS}
        return {f"dev_{metric}": value for metric, value in every.items()}


def dev_evaluator(
    config: TrainConfig, model: SentenceTransformer, eval_corpora: Sequence[EvalCorpus]
) -> DevEvaluator | None:
    """Return the evaluator of graded nDCG@10 on dev, over judged documents and BM25 hits; None if there is none."""
    dev = sets_of(eval_corpora, "dev")
    if eval_corpora and (config.evaluations_per_epoch or config.merge is not None):  # the merge searches too
        prompt_for(model, "query")  # reports a missing prompt
    if config.evaluations_per_epoch == 0 or not dev:
        return None
    small = []
    for corpus, part in dev:
        index = BM25(list(corpus.corpus), list(corpus.corpus.values()))
        hits = index.search({query: part.texts[query] for query in part.judged}, config.dev_candidates)
        small.append(corpus.narrowed(part, [hits]))
    return DevEvaluator(small, config.min_relevant_grade)


def dev_figures(history: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """Return step -> nDCG@10 on dev, from the evaluations in a log."""
    key = f"eval_dev_{PRIMARY_METRIC}"
    return {entry["step"]: entry[key] for entry in history if key in entry}
