"""`Searcher`: a model, an index, BM25 or a run file, searched one query at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bixse.calibration.calibrate_head import HeldOutCheck, ScoredPairs, held_out_check
from bixse.data.trec import read_run
from bixse.encoders.encode import encode_texts
from bixse.encoders.loading.build import build_encoder
from bixse.errors import InputError
from bixse.evaluation.open_system import run_file
from bixse.index.search import open_index
from bixse.index.vector_store import is_stored
from bixse.relevance import ranked
from bixse.search.bm25 import BM25, BM25_NAME
from bixse.search.exact import exact_search, home_of, to_run
from bixse.search.hits import Hit, check_queries, hits_of
from bixse.search.search_collection import encode_corpus
from bixse.search.store import EmbeddingStore

if TYPE_CHECKING:
    from bixse.data.collection import Collection

CACHED = 64  # number of cached answers and checks per system, one per position of a slider


class Searcher:
    """An opened system; it answers one query at a time, since requests come from several threads.

    Args:
        name: name as given in the settings.
        search: function of a query's text, its id in the collection and a number of documents.
        model: encoder of a model or an index, whose scores are cosines; None for BM25 and a run.
    """

    def __init__(self, name: str, search: Callable[[str, str | None, int], list[Hit]], model: Any = None):
        self.name, self.model = name, model
        self.head = getattr(model, "head", None)
        """The relevance head; None if scores are not probabilities."""
        self.judged: ScoredPairs | None = None
        """The held-out pairs with its cosines; None without a head, and without such pairs."""
        self.find, self.check = lru_cache(CACHED)(self._find), lru_cache(CACHED)(self._check)
        self._search, self._lock = search, threading.Lock()

    def _find(self, text: str, query_id: str | None, top: int) -> list[Hit]:
        """Search as `search` does; `Hit.cosine` is the score."""
        check_queries([text])
        with self._lock:
            return self._search(text, query_id, top)

    def _check(self, prior: float | None) -> HeldOutCheck:
        """Return the result of `bixse calibrate` on the judged pairs; raise InputError for too few queries."""
        assert self.judged is not None
        return held_out_check(replace(self.judged, prior=prior))


def open_searcher(name: str, collection: Collection | None, progress: Any = None) -> Searcher:
    """Load a system, which searches `collection` unless it is an index; raise InputError or ModelError on failure."""
    if name != BM25_NAME and is_stored(name):
        index = open_index(name)
        return Searcher(name, lambda text, query_id, top: index.search(text, top), index.model)
    if collection is None:
        raise InputError(
            f"{name}: got a system without a collection; expected an index or a collection; fix: add --collection"
        )
    corpus, missing = collection.corpus, ("(not in the corpus)", "")

    def best_of(scores: Mapping[str, float], top: int) -> list[Hit]:
        return [Hit(name, scores[name], None, *corpus.get(name, missing)) for name in ranked(scores)[:top]]

    if name == BM25_NAME:
        bm25 = BM25(list(corpus), [document.content for document in corpus.values()])
        return Searcher(name, lambda text, query_id, top: best_of(bm25.search({"": text}, top)[""], top))
    if (path := run_file(Path(name))) is not None:
        run = read_run(path)

        def look_up(text: str, query_id: str | None, top: int) -> list[Hit]:
            if query_id not in run:
                raise InputError(
                    f"{path}: got a query that it does not answer; expected one of the {len(run)} queries of the run; "
                    "fix: pick a query of the collection"
                )
            return best_of(run[query_id], top)

        return Searcher(name, look_up)
    model, ids = build_encoder(name), list(corpus)
    embeddings = encode_corpus(EmbeddingStore(model), corpus, progress)
    documents = torch.from_numpy(embeddings).to(home_of(embeddings.nbytes))

    def search(text: str, query_id: str | None, top: int) -> list[Hit]:
        run = to_run([""], ids, *exact_search(encode_texts(model, [text], "query"), documents, top))
        return hits_of(((name, cosine, corpus[name]) for name, cosine in run[""].items()), model.head, None)

    return Searcher(name, search, model)
