"""`Searcher`: a model, an index, BM25 or a run file, asked one query at a time."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from bixse.data.trec import ranked, read_run
from bixse.encoders.encode import encode_texts
from bixse.encoders.loading.build import build_encoder
from bixse.errors import InputError
from bixse.evaluation.systems import run_file
from bixse.scale.index.search import open_index
from bixse.scale.index.vector_store import is_stored
from bixse.search.bm25 import BM25, BM25_NAME
from bixse.search.exact import exact_search
from bixse.search.search_collection import Hit, check_queries, hits_of
from bixse.search.store import encode_corpus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bixse.data.collection import Collection, Document
    from bixse.encoders.head import RelevanceHead
    from bixse.progress import ProgressBars

SystemKind: TypeAlias = Literal["model", "index", "bm25", "run"]
MISSING = "(not in the corpus)"


@dataclass(frozen=True)
class Searcher:
    """One opened system."""

    name: str
    """As it was given."""
    kind: SystemKind
    find: Callable[[str, str | None, int], list[Hit]]
    """The best documents of a query: its text, its id in the collection, and how many; `Hit.cosine` is the score."""
    model: Any = None
    """The encoder, of a model or an index."""

    @property
    def head(self) -> RelevanceHead | None:
        """None where scores are no probabilities."""
        return getattr(self.model, "head", None)


def kind_of(name: str) -> SystemKind:
    """What a name on the command line stands for."""
    path = Path(name)
    if name == BM25_NAME:
        return "bm25"
    if is_stored(name):
        return "index"
    return "model" if run_file(path) is None else "run"


def open_searcher(name: str, collection: Collection | None, progress: ProgressBars | None = None) -> Searcher:
    """Load a system and, but for an index, make it answer on the documents of a collection.

    Raises:
        InputError: it cannot be used, or needs a collection and gets none.
        ModelError: the model cannot be loaded.
    """
    kind = kind_of(name)
    if kind == "index":
        index, lock = open_index(name), threading.Lock()

        def find_in_index(text: str, query_id: str | None, top: int) -> list[Hit]:
            with lock:
                return index.search(text, top)

        return Searcher(name, kind, find_in_index, index.model)
    if collection is None:
        raise InputError(
            f"{name}: got it without documents; expected --collection DIR for all that is no index; fix: add it"
        )
    corpus = collection.corpus
    if path := run_file(Path(name)):
        return Searcher(name, kind, _of_run(path, corpus))
    if kind == "bm25":
        return Searcher(name, kind, _of_bm25(corpus))
    model = build_encoder(name)
    return Searcher(name, kind, _of_model(model, corpus, progress), model)


def _scored(scores: Mapping[str, float], corpus: Mapping[str, Document], top: int) -> list[Hit]:
    names = ranked(scores)[:top]
    return [Hit(name, scores[name], None, *corpus.get(name, (MISSING, ""))) for name in names]


def _of_run(path: Path, corpus: Mapping[str, Document]) -> Callable[[str, str | None, int], list[Hit]]:
    run = read_run(path)

    def find(text: str, query_id: str | None, top: int) -> list[Hit]:
        if query_id not in run:
            raise InputError(
                f"{path}: got a query that it does not answer; expected one of its {len(run)}, as a run holds "
                "answers and no model; fix: pick a query of the collection"
            )
        return _scored(run[query_id], corpus, top)

    return find


def _of_bm25(corpus: Mapping[str, Document]) -> Callable[[str, str | None, int], list[Hit]]:
    index = BM25(list(corpus), [document.content for document in corpus.values()])

    def find(text: str, query_id: str | None, top: int) -> list[Hit]:
        check_queries([text])
        return _scored(index.search({"query": text}, top)["query"], corpus, top)

    return find


def _of_model(
    model: Any, corpus: Mapping[str, Document], progress: ProgressBars | None
) -> Callable[[str, str | None, int], list[Hit]]:
    documents, items, lock = encode_corpus(model, corpus, progress), list(corpus.items()), threading.Lock()

    def find(text: str, query_id: str | None, top: int) -> list[Hit]:
        check_queries([text])
        with lock:
            queries = encode_texts(model, [text], "query")
        scores, rows = exact_search(queries, documents, top)
        return hits_of((items[row] for row in rows[0].tolist()), scores[0].tolist(), model.head, None)

    return find
