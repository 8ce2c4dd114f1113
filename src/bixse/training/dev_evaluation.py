"""The dev collections on which a checkpoint is chosen: loaded, hashed, and made into one evaluator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bixse.data.collection_files import files_of_split, load_collection
from bixse.data.io.files import hash_files
from bixse.errors import InputError
from bixse.retrieval.bm25 import BM25
from bixse.settings import paths_in
from bixse.training.config import TrainConfig
from bixse.training.merging.watched import Split, load_watched

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bixse.data.collection import Collection
    from bixse.evaluation.dev_evaluator import DevEvaluator
    from bixse.relevance import Qrels, Run
    from bixse.training.config import TrainConfig
    from bixse.training.merging.watched import Watched


def load_dev(config: TrainConfig) -> dict[str, Collection]:
    """The dev collections of a configuration by the names of their folders; none where there is no dev.

    Raises:
        InputError: a collection or its split cannot be used, or two folders have one name.
    """
    folders = paths_in(config.dev)
    names = [folder.resolve().name for folder in folders]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            f"dev: got two folders named {twice[0]!r}; expected names of their own, under which their figures are "
            "logged; fix: rename one"
        )
    return {
        name: load_collection(folder, [config.dev_split], config.missing_documents)
        for name, folder in zip(names, folders, strict=True)
    }


def watched_splits(config: TrainConfig) -> list[Split]:
    """The dev and guard splits of a configuration."""
    guards = paths_in(config.guard)
    splits = [config.guard_split] * len(guards) if isinstance(config.guard_split, str) else config.guard_split
    found = [Split(folder, config.dev_split, "dev") for folder in paths_in(config.dev)]
    return found + [Split(folder, split, "guard") for folder, split in zip(guards, splits, strict=True)]


def load_watched_of(config: TrainConfig) -> list[Watched]:
    """What a merged model is scored on; nothing where weights are not merged.

    Raises:
        InputError: see `load_watched`.
    """
    if config.merge is None or config.dev is None:
        return []
    return load_watched(watched_splits(config), config.merge.documents, config.missing_documents)


def dev_hashes(config: TrainConfig) -> dict[str, str]:
    """Content hashes of the files of the dev and guard collections."""
    return split_hashes(watched_splits(config))


def split_hashes(splits: Sequence[Split]) -> dict[str, str]:
    """Content hashes of the files of splits, under their roles, and names where there are several of a role."""
    hashes: dict[str, str] = {}
    for entry in splits:
        alone = sum(other.role == entry.role for other in splits) == 1
        where = entry.role if alone else f"{entry.role}/{entry.folder.resolve().name}/{entry.split}"
        hashes |= hash_files({f"{where}/{name}": entry.folder / name for name in files_of_split(entry.split)})
    return hashes


def dev_evaluator(config: TrainConfig, collections: Mapping[str, Collection]) -> DevEvaluator | None:
    """Graded nDCG@10 on the dev queries, over their judged documents and those that BM25 ranks high.

    Of several collections the mean decides, each counting as much (BiXSE paper, appendix: BEIR(short)).
    """
    from bixse.evaluation.dev_evaluator import GradedRetrievalEvaluator, MeanEvaluator

    if config.evaluations_per_epoch == 0:
        return None
    found = []
    for name, collection in collections.items():
        qrels = collection.qrels[config.dev_split]
        queries = {query_id: collection.queries[query_id] for query_id in qrels}
        index = BM25(list(collection.corpus), [document.content for document in collection.corpus.values()])
        runs = [index.search(queries, config.dev_candidates)]
        corpus = candidate_corpus(collection, qrels, runs, config.dev_candidates)
        prefix = "dev" if len(collections) == 1 else f"dev_{name}"
        found.append(GradedRetrievalEvaluator(corpus, queries, qrels, config.min_relevant_grade, prefix))
    if len(found) <= 1:
        return found[0] if found else None
    return MeanEvaluator(found, "dev")


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


def dev_figures(history: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """Step -> nDCG@10 on dev, of the evaluations in a log.

    Example:
        >>> dev_figures([{"step": 0, "eval_dev_ndcg@10": 0.5}, {"step": 1, "loss": 0.2}])
        {0: 0.5}
    """
    return {entry["step"]: entry["eval_dev_ndcg@10"] for entry in history if "eval_dev_ndcg@10" in entry}
