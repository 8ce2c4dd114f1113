"""The dev and guard collections of a run: loaded once, hashed, searched for checkpoints and for merge weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from sentence_transformers.base.evaluation import BaseEvaluator
from sentence_transformers.util import cos_sim

from bixse.data.collection import Collection, check_split, files_of_split, judgements_of, load_collection
from bixse.data.trec import ranked, read_qrels
from bixse.encoders.instructions import prompt_for
from bixse.errors import InputError
from bixse.evaluation.evaluate import Evaluation, evaluate_query_sets
from bixse.evaluation.graded_evaluator import GradedInformationRetrievalEvaluator
from bixse.evaluation.metrics import METRICS, PRIMARY_METRIC
from bixse.evaluation.systems import EncoderSystem
from bixse.evaluation.tasks import QuerySet, Task, cut_collection
from bixse.files.files import hash_files
from bixse.files.values import normal_form
from bixse.relevance import DEPTH
from bixse.search.bm25 import BM25

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


class Split(NamedTuple):
    """A split of a collection folder, and its role."""

    folder: Path
    split: str
    role: Role


@dataclass(frozen=True)
class WatchedQueries(QuerySet):
    """The judged queries of one split that have a relevant document, named after the collection (and the split)."""

    role: Role = "dev"
    split: str = "dev"


@dataclass(frozen=True)
class Watched:
    """A collection and its splits that are searched."""

    collection: Collection
    sets: tuple[WatchedQueries, ...]
    most: int | None
    """Documents that each merge weight searches in a larger corpus; None searches the complete corpus."""

    @property
    def is_sampled(self) -> bool:
        return self.most is not None and self.most < len(self.collection.corpus)

    def pool(self, runs: Sequence[Mapping[str, Ranking]]) -> dict[str, str]:
        """Return the documents that a merge weight searches (id -> text): all, or judged ones and hits of `runs`."""
        if not self.is_sampled:
            return self._texts(self.collection.corpus)
        rankings = [ranked(scores) for run in runs for queries in run.values() for scores in queries.values()]
        # without hits the documents that a model wrongly ranks high would be missing, and it would look too good
        by_rank = (name for hits in zip_longest(*rankings) for name in hits if name is not None)
        pool = dict.fromkeys(chain(self._judged, by_rank))
        return self._texts(list(pool)[: max(self.most or 0, len(self._judged))])

    def encoded_for(self, weights: int) -> int:
        """Return the number of documents to encode for scoring `weights` weights."""
        documents = len(self.collection.corpus)
        if not self.is_sampled:
            return weights * documents
        return weights * max(self.most or 0, len(self._judged)) + 2 * min(documents, HITS_FROM)

    def hits(self, model: SentenceTransformer, cache: str | None) -> dict[str, Ranking]:
        """Search the corpus, or `HITS_FROM` documents of a larger one: name of a query set -> run."""
        texts = self._texts(self._searched_for_hits)
        return {name: result.run for name, result in self._search(model, texts, cache).items()}

    def scores(self, model: SentenceTransformer, pool: Mapping[str, str], cache: str | None) -> Scores:
        """Return nDCG@10 of every judged query over a pool, whose documents are encoded once for all query sets."""
        return {name: result.by_query[PRIMARY_METRIC] for name, result in self._search(model, pool, cache).items()}

    def _search(self, model: SentenceTransformer, texts: Mapping[str, str], cache: str | None) -> dict[str, Evaluation]:
        task = Task("watched", lambda: iter(texts.items()), len(texts), self.sets)
        return evaluate_query_sets(EncoderSystem(model, cache=cache), task)

    @cached_property
    def _judged(self) -> dict[str, None]:
        return dict.fromkeys(name for queries in self.sets for grades in queries.qrels.values() for name in grades)

    @property
    def _searched_for_hits(self) -> Iterable[str]:
        corpus = self.collection.corpus
        if len(corpus) <= HITS_FROM:
            return corpus
        together = {f"{part.name}/{query}": grades for part in self.sets for query, grades in part.qrels.items()}
        size = max(HITS_FROM, len(self._judged))
        return cut_collection(self.collection.name, together, corpus, len(together), size).documents

    def _texts(self, ids: Iterable[str]) -> dict[str, str]:
        return {name: self.collection.corpus[name].content for name in ids}


def watched_splits(config: TrainConfig) -> list[Split]:
    """Return the dev and guard splits of a configuration."""
    return [Split(*entry) for entry in config.splits()]


def judged_queries(splits: Sequence[Split]) -> int:
    """Return the number of dev queries with a relevant document."""
    qrels = [read_qrels(judgements_of(entry.folder, entry.split)) for entry in splits if entry.role == "dev"]
    return sum(max(grades.values()) > 0 for split in qrels for grades in split.values())


def load_watched(splits: Sequence[Split], documents: int | None) -> list[Watched]:
    """Read collections; splits of one folder share a corpus, of which each weight searches `documents` documents."""
    names = _names(splits)
    loaded = []
    for folder in dict.fromkeys(entry.folder.resolve() for entry in splits):
        parts = [(name, entry) for name, entry in zip(names, splits, strict=True) if entry.folder.resolve() == folder]
        collection = load_collection(folder, list(dict.fromkeys(entry.split for _, entry in parts)))
        sets = []
        for name, entry in parts:
            judged = {q: grades for q, grades in collection.qrels[entry.split].items() if max(grades.values()) > 0}
            queries = {query: collection.queries[query] for query in judged}
            sets.append(WatchedQueries(name, queries, judged, role=entry.role, split=entry.split))
        loaded.append(Watched(collection, tuple(sets), documents))
    return loaded


def sets_of(watched: Sequence[Watched], role: Role | None = None) -> list[tuple[Watched, WatchedQueries]]:
    """Return the query sets of a role, or all query sets, each with its collection."""
    return [(corpus, queries) for corpus in watched for queries in corpus.sets if role in (None, queries.role)]


def split_hashes(splits: Sequence[Split]) -> dict[str, str]:
    """Return content hashes of the files of splits, keyed by role, and by name too if a role has several."""
    hashes: dict[str, str] = {}
    for entry in splits:
        check_split(entry.folder, entry.split)
        alone = sum(other.role == entry.role for other in splits) == 1
        where = entry.role if alone else f"{entry.role}/{entry.folder.resolve().name}/{entry.split}"
        hashes |= hash_files(
            {f"{where}/{name}": path for name, path in files_of_split(entry.folder, entry.split).items()}
        )
    return hashes


def queries_of(watched: Sequence[Watched]) -> dict[str, Mapping[str, str]]:
    """Return role and name -> query id -> text."""
    return {f"{part.role} {part.name}": part.queries for _, part in sets_of(watched)}


def warnings_of(watched: Sequence[Watched]) -> list[str]:
    """Return the warnings of dev and guard about their ids."""
    return [f"{each.collection.name}/{line}" for each in watched for line in each.collection.warnings]


def check_not_trained_on(held_out: Mapping[str, Mapping[str, str]], queries: Iterable[str], allowed: bool) -> list[str]:
    """Refuse held-out queries among the training queries, or return warnings where they are allowed.

    Texts are compared by their `normal_form`, as in `bixse convert --dedup`.
    """
    watched = {normal_form(text) for texts in held_out.values() for text in texts.values()}
    trained = watched.intersection(map(normal_form, queries)) if watched else watched
    leaks = []
    for name, texts in held_out.items():
        shared = [query for query, text in texts.items() if normal_form(text) in trained]
        if shared:
            leaks.append(
                f"{name}: got {len(shared)} of {len(texts)} queries that are training queries too (such as "
                f"{shared[0]!r})"
            )
    if leaks and not allowed:
        raise InputError(
            f"{'; '.join(leaks)}; expected none, as a model looks better on its training queries; fix: take them "
            "out of the pairs, or allow them (`allow_shared_queries: true`, --allow-shared-queries)"
        )
    return leaks


class DevEvaluator(BaseEvaluator):
    """Graded nDCG@10 and the other metrics on dev collections: the headline is `dev_ndcg@10`.

    Of several collections the metrics are means, in which collections count equally (BiXSE paper, appendix:
    BEIR(short)). The `SequentialEvaluator` of sentence-transformers returns the last score, not the mean.
    """

    def __init__(self, evaluators: Sequence[GradedInformationRetrievalEvaluator]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.evaluators, self.primary_metric = tuple(evaluators), f"dev_{PRIMARY_METRIC}"

    def __call__(
        self, model: Any, output_path: str | Path | None = None, epoch: float = -1, steps: int = -1
    ) -> dict[str, float]:
        results = {}
        for each in self.evaluators:
            figures: Any = each.compute_all_metrics(model)["cosine"]
            results[each.name] = {f"{name[:-1]}{k}": mean for name, at in figures.items() for k, mean in at.items()}
        every = {metric: float(np.mean([figures[metric] for figures in results.values()])) for metric in METRICS}
        if len(results) > 1:
            every |= {f"{name}_{metric}": figures[metric] for name, figures in results.items() for metric in METRICS}
        return {f"dev_{metric}": value for metric, value in every.items()}


def small_evaluator(
    name: str, corpus: Mapping[str, str], queries: Mapping[str, str], qrels: Qrels, min_relevant_grade: float
) -> GradedInformationRetrievalEvaluator:
    """Return an evaluator over documents in memory (id -> text), such as those of `candidate_corpus`."""
    options = {"precision_recall_at_k": [DEPTH], "score_functions": {"cosine": cos_sim}, "name": name}
    return GradedInformationRetrievalEvaluator(queries, corpus, qrels, min_relevant_grade, **options)


def dev_evaluator(config: TrainConfig, model: SentenceTransformer, watched: Sequence[Watched]) -> DevEvaluator | None:
    """Return the evaluator of graded nDCG@10 on dev, over judged documents and BM25 hits; None if there is none."""
    dev = sets_of(watched, "dev")
    if watched and (config.evaluations_per_epoch or config.merge is not None):  # the merge searches too
        prompt_for(model, "query")  # reports a missing prompt
    if config.evaluations_per_epoch == 0 or not dev:
        return None
    evaluators = []
    for corpus, part in dev:
        collection, qrels = corpus.collection, corpus.collection.qrels[part.split]
        queries = {query_id: collection.queries[query_id] for query_id in qrels}
        index = BM25(list(collection.corpus), [document.content for document in collection.corpus.values()])
        runs = [index.search(queries, config.dev_candidates)]
        texts = candidate_corpus(collection, qrels, runs, config.dev_candidates)
        evaluators.append(small_evaluator(collection.name, texts, queries, qrels, config.min_relevant_grade))
    return DevEvaluator(evaluators)


def candidate_corpus(collection: Collection, qrels: Qrels, runs: Sequence[Ranking], depth: int) -> dict[str, str]:
    """Return the judged documents of some queries and the top `depth` of each run: a small corpus that stays hard."""
    # a full corpus is too slow to encode at each evaluation during training; random documents would be too easy
    chosen = {document_id for judged in qrels.values() for document_id in judged}
    for run in runs:
        for query_id in qrels:
            scores = run.get(query_id, {})
            chosen.update(sorted(scores, key=lambda d: (-scores[d], d))[:depth])
    return {document_id: d.content for document_id, d in collection.corpus.items() if document_id in chosen}


def dev_figures(history: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """Return step -> nDCG@10 on dev, from the evaluations in a log."""
    key = f"eval_dev_{PRIMARY_METRIC}"
    return {entry["step"]: entry[key] for entry in history if key in entry}


def _names(splits: Sequence[Split]) -> list[str]:
    """Return the name of each folder, with the split if a folder has several."""
    folders = [entry.folder.resolve().name for entry in splits]
    names = [
        name if folders.count(name) == 1 else f"{name}/{entry.split}"
        for name, entry in zip(folders, splits, strict=True)
    ]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            f"dev and guard: got two collections named {twice[0]!r}; expected distinct names, under which the "
            "figures are shown; fix: rename a folder, or leave one out"
        )
    return names
