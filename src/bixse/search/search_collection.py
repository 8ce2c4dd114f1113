"""A collection without an index: `search_collection` answers one query, `EncodedCollection` many."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from bixse.data.collection_files import load_corpus, warn_of_empty
from bixse.encoders.encode import encode_on, encode_texts
from bixse.encoders.instructions import use_task
from bixse.encoders.loading.build import build_encoder
from bixse.search.exact import DEPTH, exact_search, to_run
from bixse.search.hits import Hit, check_queries, check_top, chosen_threshold, hits_of
from bixse.search.store import encode_corpus

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer

    from bixse.data.collection import Collection
    from bixse.progress import ProgressBars


@dataclass(frozen=True)
class CollectionAnswer:
    """What `search_collection` found."""

    hits: list[Hit]
    """The highest cosine first; of equal cosines the first document of the corpus."""
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
    devices: Sequence[str] | None = None,
    cache: str | Path | None = None,
) -> CollectionAnswer:
    """The best documents of a collection for a query; its texts are encoded once, see `EmbeddingStore`.

    The settings are those of `SearchSettings`, `devices` those of `encode_on`; `progress` makes a callback from a title
    and a total.

    Raises:
        InputError: collection, query, `top`, threshold or task cannot be used.
        ModelError: the model cannot be loaded.

    Example:
        ::

            for hit in search_collection("demo", "my-collection", "copy a folder", top=3).hits:
                hit.document_id, hit.cosine, hit.title
    """
    check_queries([query])
    check_top(top)
    corpus = load_corpus(collection)
    encoder = build_encoder(model)
    use_task(encoder, task)
    least = chosen_threshold(encoder.head, str(model), threshold, at_precision)
    with encode_on(encoder, devices):
        documents = encode_corpus(encoder, corpus, progress, cache)
        queries = encode_texts(encoder, [query], "query")
    scores, rows = exact_search(queries, documents, top)
    items = list(corpus.items())
    hits = hits_of((items[row] for row in rows[0].tolist()), scores[0].tolist(), encoder.head, least)
    empty = [name for name, document in items if not document.content]
    return CollectionAnswer(hits, warn_of_empty(empty, len(corpus)))


@dataclass(frozen=True)
class EncodedCollection:
    """A corpus and queries under one encoder, in memory: encoded once, searched and compared as often as needed."""

    document_ids: Sequence[str]
    documents: NDArray[np.float32]
    """(N, D), L2-normalised."""
    query_ids: Sequence[str]
    queries: NDArray[np.float32]
    """(Q, D), L2-normalised."""

    def search(
        self, query_ids: Sequence[str], depth: int = DEPTH, exclude_self: bool = False
    ) -> dict[str, dict[str, float]]:
        """A run of the `depth` documents of highest cosine per query; see `to_run` for `exclude_self`."""
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
    progress: ProgressBars | None = None,
    cache: str | Path | None = None,
) -> EncodedCollection:
    """Embed every document of a collection (see `encode_corpus`) and the named queries."""
    return EncodedCollection(
        document_ids=list(collection.corpus),
        documents=encode_corpus(model, collection.corpus, progress, cache),
        query_ids=list(query_ids),
        queries=encode_texts(model, [collection.queries[query_id] for query_id in query_ids], "query"),
    )
