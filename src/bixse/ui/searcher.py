"""`Searcher`: a model, an index, BM25 or a run file, searched one query at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bixse.data.trec import read_run
from bixse.encoders.encode import encode_texts
from bixse.encoders.loading.build import build_encoder
from bixse.errors import InputError
from bixse.evaluation.open_system import run_file
from bixse.index.search import open_index
from bixse.index.vector_store import is_stored
from bixse.relevance import ranked
from bixse.search.bm25 import BM25, BM25_NAME
from bixse.search.exact import exact_search, home_of
from bixse.search.hits import Hit, check_queries, hits_of
from bixse.search.search_collection import encode_corpus, matches_in
from bixse.search.store import EmbeddingStore

if TYPE_CHECKING:
    from bixse.data.collection import Collection
    from bixse.data.corpus import Document

CACHED = 64  # number of cached answers per system, one per position of a slider


@dataclass(frozen=True)
class Searcher:
    """An opened system."""

    name: str  # name as given in the settings
    kind: str
    """Kind "model", "index", "bm25" or "run"."""
    find: Callable[[str, str | None, int], list[Hit]]
    """Search for a query's text, its id in the collection and a number of documents; `Hit.cosine` is the score."""
    model: Any = None  # encoder of a model or an index

    @property
    def head(self) -> Any:
        """The relevance head; None if scores are not probabilities."""
        return getattr(self.model, "head", None)


def open_searcher(name: str, collection: Collection | None, progress: Any = None) -> Searcher:
    """Load a system, which searches `collection` unless it is an index; raise InputError or ModelError on failure."""
    if name != BM25_NAME and is_stored(name):
        return _of_index(name)
    if collection is None:
        raise InputError(
            f"{name}: got a system without a collection; expected an index or a collection; fix: add --collection"
        )
    if name == BM25_NAME:
        return _of_bm25(collection.corpus)
    path = run_file(Path(name))
    return _of_run(name, path, collection.corpus) if path is not None else _of_model(name, collection.corpus, progress)


def _of_index(name: str) -> Searcher:
    index, lock = open_index(name), threading.Lock()  # requests come from several threads, a model serves one at a time

    @lru_cache(CACHED)
    def find(text: str, query_id: str | None, top: int) -> list[Hit]:
        with lock:
            return index.search(text, top)

    return Searcher(name, "index", find, index.model)


def _of_bm25(corpus: Mapping[str, Document]) -> Searcher:
    bm25 = BM25(list(corpus), [document.content for document in corpus.values()])

    def find(text: str, query_id: str | None, top: int) -> list[Hit]:
        check_queries([text])
        return _best_of(bm25.search({"query": text}, top)["query"], top, corpus)

    return Searcher(BM25_NAME, "bm25", find)


def _of_run(name: str, path: Path, corpus: Mapping[str, Document]) -> Searcher:
    run = read_run(path)

    def find(text: str, query_id: str | None, top: int) -> list[Hit]:
        if query_id not in run:
            raise InputError(
                f"{path}: got a query that it does not answer; expected one of the {len(run)} queries of the run; "
                "fix: pick a query of the collection"
            )
        return _best_of(run[query_id], top, corpus)

    return Searcher(name, "run", find)


def _of_model(name: str, corpus: Mapping[str, Document], progress: Any) -> Searcher:
    model, lock = build_encoder(name), threading.Lock()
    embeddings, items = encode_corpus(EmbeddingStore(model), corpus, progress), list(corpus.items())
    documents = torch.from_numpy(embeddings).to(home_of(embeddings.nbytes))

    @lru_cache(CACHED)
    def find(text: str, query_id: str | None, top: int) -> list[Hit]:
        check_queries([text])
        with lock:
            queries = encode_texts(model, [text], "query")
        scores, rows = exact_search(queries, documents, top)
        return hits_of(matches_in(items, rows, scores)[0], model.head, None)

    return Searcher(name, "model", find, model)


def _best_of(scores: Mapping[str, float], top: int, corpus: Mapping[str, Document]) -> list[Hit]:
    missing = ("(not in the corpus)", "")
    return [Hit(name, scores[name], None, *corpus.get(name, missing)) for name in ranked(scores)[:top]]
