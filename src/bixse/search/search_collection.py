"""Search a collection without an index: `search_collection` for one query, `EncodedCollection` for many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bixse.data.collection_folder import read_corpus
from bixse.data.corpus import Document, JudgedCorpus, check_folder, warn_of_empty
from bixse.encoders.instructions import use_task
from bixse.encoders.loading.build import build_encoder
from bixse.relevance import DEPTH
from bixse.search.hits import Hit, checked_limits, hits_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.progress import ProgressBars
    from bixse.search.store import EmbeddingStore


@dataclass(frozen=True)
class CollectionAnswer:
    """The result of `search_collection`."""

    hits: list[Hit]
    """Highest cosine first; equal cosines are in the order of the corpus."""
    warnings: list[str]


def search_collection(
    model: str | Path,
    collection: str | Path,
    query: str,
    top: int = 10,
    threshold: float | None = None,
    at_precision: float | None = None,
    task: str | None = None,
    progress: ProgressBars | None = None,
    cache: str | Path | None = None,
) -> CollectionAnswer:
    """Return the best documents of a collection for a query. Texts are encoded once, see `EmbeddingStore`.

    `SearchSettings` describes the settings; `progress` makes a callback from a title and a total. Raises InputError for
    unusable input and ModelError if the model cannot be loaded.

    Example:
        ::

            for hit in search_collection("demo", "my-collection", "copy a folder", top=3).hits:
                hit.document_id, hit.cosine, hit.title
    """
    from bixse.encoders.encode import encode_texts  # here and below: a wrong query or path needs no torch
    from bixse.search.exact import exact_search, to_run
    from bixse.search.store import EmbeddingStore

    check_folder(Path(collection))
    corpus = read_corpus(Path(collection) / "corpus.jsonl")
    encoder = build_encoder(model)
    use_task(encoder, task)
    least = checked_limits(encoder.head, str(model), [query], top, threshold, at_precision)
    store = EmbeddingStore(encoder, cache)
    documents = encode_corpus(store, corpus, progress)
    run = to_run([""], list(corpus), *exact_search(encode_texts(encoder, [query], "query"), documents, top))
    hits = hits_of(((name, cosine, corpus[name]) for name, cosine in run[""].items()), encoder.head, least)
    empty = [name for name, document in corpus.items() if not document.content]
    return CollectionAnswer(hits, [*warn_of_empty(empty, len(corpus)), *store.warnings()])


def encode_corpus(
    store: EmbeddingStore, corpus: Mapping[str, Document], progress: ProgressBars | None = None
) -> NDArray[np.float32]:
    """Return the (N, D) embeddings of a corpus, in its order; see `EmbeddingStore`."""
    step = progress("encode documents", len(corpus)) if progress is not None else None
    return store.encode([document.content for document in corpus.values()], step)


@dataclass(frozen=True)
class EncodedCollection:
    """A corpus and queries of one encoder in memory: encoded once, searched and compared as often as needed."""

    document_ids: Sequence[str]
    documents: NDArray[np.float32]
    """(N, D), L2-normalised."""
    query_ids: Sequence[str]
    queries: NDArray[np.float32]
    """(Q, D), L2-normalised."""

    def search(self, query_ids: Sequence[str], depth: int = DEPTH) -> dict[str, dict[str, float]]:
        """Return a run of the `depth` documents of highest cosine per query."""
        from bixse.search.exact import exact_search, to_run

        rows = self._rows(self.query_ids, query_ids)
        return to_run(query_ids, self.document_ids, *exact_search(self.queries[rows], self.documents, depth))

    def cosines(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        """Return the cosine of each (query id, document id) pair, (M,) in [-1, 1]."""
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
    collection: JudgedCorpus,
    query_ids: Sequence[str],
    progress: ProgressBars | None = None,
    cache: str | Path | None = None,
) -> EncodedCollection:
    """Embed every document of a collection (see `encode_corpus`) and the named queries."""
    from bixse.encoders.encode import encode_texts
    from bixse.search.store import EmbeddingStore

    return EncodedCollection(
        document_ids=list(collection.corpus),
        documents=encode_corpus(EmbeddingStore(model, cache), collection.corpus, progress),
        query_ids=list(query_ids),
        queries=encode_texts(model, [collection.queries[query_id] for query_id in query_ids], "query"),
    )
