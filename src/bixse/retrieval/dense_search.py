"""A collection under one encoder, held in memory: encoded once, searched and compared as often as needed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from bixse.encoders.encode import encode_texts
from bixse.retrieval.exact import DEPTH, exact_search, to_run
from bixse.retrieval.store import encode_corpus

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer

    from bixse.data.collection import Collection
    from bixse.progress import ProgressBars


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
        """The `depth` documents of highest cosine of each query: a run; see `to_run` for `exclude_self`."""
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
    """Embed every document of a collection, see `encode_corpus`, and the named queries."""
    return EncodedCollection(
        document_ids=list(collection.corpus),
        documents=encode_corpus(model, collection.corpus, progress, cache),
        query_ids=list(query_ids),
        queries=encode_texts(model, [collection.queries[query_id] for query_id in query_ids], "query"),
    )
