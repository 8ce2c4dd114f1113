"""The index in a collection of a Qdrant server."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ApiException

from bixse.data.corpus import Document
from bixse.errors import InputError
from bixse.index.vector_store import KEY, Answers, VectorStore

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bixse.index.index_files import Manifest

API_KEY_VARIABLE = "QDRANT_API_KEY"
ASKED_TOGETHER = 16
"""Queries per request; the answer must come within `SECONDS_WAITED`, even if every document is scored."""
SECONDS_WAITED = 300
SECONDS_BETWEEN_LOOKS = 0.5
BUILD = models.HnswConfigDiff(m=16, ef_construct=200)
SEARCHED = 128
"""Value of `hnsw_ef`: number of candidates that a search in the graph keeps."""


class QdrantStore(VectorStore):
    """A collection with one point per document; the id of a point is its row, so that a repeated write changes nothing.

    Embeddings and payload (`id`, `title`, `text`) are on the server's disk; the manifest is the metadata of the
    collection, which a server keeps from version 1.16 on.
    """

    together = 256
    approximate = f"HNSW m={BUILD.m} ef_construct={BUILD.ef_construct},ef={SEARCHED}"

    def __init__(self, label: str, address: str, name: str) -> None:
        self.label, self._address, self._name = label, address, name
        self._client: Any = None
        if self._ask("collection_exists"):
            self._recorded()

    def create(self, manifest: Manifest) -> None:
        size, metadata = manifest.encoder.dimensions, {KEY: manifest.model_dump_json()}
        vectors = models.VectorParams(size=size, distance=models.Distance.DOT, on_disk=True)
        self._ask("create_collection", vectors_config=vectors, hnsw_config=BUILD, metadata=metadata)
        self._recorded()

    def count(self) -> int:
        return int(self._ask("count", exact=True).count)

    def write(self, start: int, documents: Sequence[tuple[str, Document]], embeddings: NDArray[np.float32]) -> None:
        payloads = [{"id": name, "title": document.title, "text": document.text} for name, document in documents]
        rows = list(range(start, start + len(documents)))
        self._ask("upsert", points=models.Batch(ids=rows, vectors=embeddings.tolist(), payloads=payloads), wait=True)

    def build(self) -> None:
        """Wait until the server has built the graph by itself."""
        while (status := self._ask("get_collection").status) != models.CollectionStatus.GREEN:
            if status == models.CollectionStatus.RED:
                raise InputError(f"{self.label}: got status red; expected green; fix: see the log of the server")
            if status == models.CollectionStatus.GREY:  # after a restart the server waits for an update
                self._ask("update_collection", optimizers_config=models.OptimizersConfigDiff())
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def best(self, queries: NDArray[np.float32], top: int, exact: bool, texts: bool) -> Answers:
        params = models.SearchParams(exact=True) if exact else models.SearchParams(hnsw_ef=max(SEARCHED, top))
        options: dict[str, Any] = {"limit": top, "params": params, "with_payload": True if texts else ["id"]}
        requests = [models.QueryRequest(query=query, **options) for query in queries.tolist()]
        answers = []
        for start in range(0, len(requests), ASKED_TOGETHER):
            answers += self._ask("query_batch_points", requests=requests[start : start + ASKED_TOGETHER])
        return [
            [(point.score, point.id, *_document(point.payload)) for point in response.points] for response in answers
        ]

    def close(self) -> None:
        self._client.close()

    def _recorded(self) -> None:
        self.read((self._ask("get_collection").config.metadata or {}).get(KEY))

    def _ask(self, method: str, **arguments: Any) -> Any:
        try:
            self._client = self._client or connected(self._address)
            return getattr(self._client, method)(collection_name=self._name, **arguments)
        except (ApiException, ValueError) as error:  # ValueError: no URL, or no JSON
            raise InputError(
                f"{self.label}: got no answer to {method} ({' '.join(str(error).split())[:200]}); expected a Qdrant "
                f"server at {self._address}; fix: start it, check the URL, and put its key, if it has one, into "
                f"{API_KEY_VARIABLE}"
            ) from error


def _document(payload: dict[str, str]) -> tuple[str, Document]:
    return payload["id"], Document(payload.get("title", ""), payload.get("text", ""))


def connected(url: str) -> QdrantClient:
    """Return a client of the server; nothing is sent yet."""
    key = os.environ.get(API_KEY_VARIABLE)
    return QdrantClient(url=url, api_key=key, timeout=SECONDS_WAITED, check_compatibility=False)
