"""The index in a collection of a Qdrant server."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ApiException

from bixse.data.collection import Document
from bixse.errors import InputError
from bixse.scale.index.vector_store import KEY, Answers, StoreAddress, VectorStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from bixse.scale.index.index_files import Manifest

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

    def __init__(self, address: StoreAddress) -> None:
        self.address = address
        try:
            self._client: Any = connected(address.place)
        except ValueError as error:
            raise self._no_answer("a connection", error) from error
        self.exists = bool(self._ask("collection_exists"))

    def recorded(self) -> str | None:
        metadata: dict[str, str] = self._ask("get_collection").config.metadata or {}
        return metadata.get(KEY)

    def create(self, manifest: Manifest) -> None:
        size = manifest.encoder.dimensions
        vectors = models.VectorParams(size=size, distance=models.Distance.DOT, on_disk=True)
        kept = {KEY: manifest.model_dump_json()}
        self._ask("create_collection", vectors_config=vectors, hnsw_config=BUILD, metadata=kept)
        if not self._ask("get_collection").config.metadata:
            self._ask("delete_collection")
            raise InputError(
                f"{self.address}: got a server that keeps no metadata of a collection; expected Qdrant 1.16 or later; "
                "fix: a newer server"
            )
        self.exists = True

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
                raise self.incomplete("a collection in status red", "green: see the log of the server")
            if status == models.CollectionStatus.GREY:  # after a restart the server waits for an update
                self._ask("update_collection", optimizers_config=models.OptimizersConfigDiff())
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def best(self, queries: NDArray[np.float32], top: int, exact: bool, texts: bool) -> Answers:
        params = models.SearchParams(exact=True) if exact else models.SearchParams(hnsw_ef=max(SEARCHED, top))
        given: dict[str, Any] = {"limit": top, "params": params, "with_payload": True if texts else ["id"]}
        asked = [models.QueryRequest(query=query, **given) for query in queries.tolist()]
        answers: Answers = []
        for start in range(0, len(asked), ASKED_TOGETHER):
            for answer in self._ask("query_batch_points", requests=asked[start : start + ASKED_TOGETHER]):
                found = ((point, point.payload) for point in answer.points)
                answers.append(
                    [(point.score, point.id, own["id"], Document(own.get("title", ""), own.get("text", "")))
                     for point, own in found]
                )  # fmt: skip
        return answers

    def close(self) -> None:
        self._client.close()

    def _ask(self, method: str, **arguments: Any) -> Any:
        try:
            return getattr(self._client, method)(collection_name=self.address.name, **arguments)
        except (ApiException, ValueError) as error:  # ValueError: no JSON
            raise self._no_answer(method, error) from error

    def _no_answer(self, asked: str, error: Exception) -> InputError:
        return InputError(
            f"{self.address}: got no answer to {asked} ({' '.join(str(error).split())[:200]}); expected a Qdrant "
            f"server at {self.address.place}; fix: start it, check the URL, and put its key, if it has one, into "
            f"{API_KEY_VARIABLE}"
        )


def connected(url: str) -> QdrantClient:
    """Return a client of the server; nothing is sent yet."""
    return QdrantClient(
        url=url, api_key=os.environ.get(API_KEY_VARIABLE), timeout=SECONDS_WAITED, check_compatibility=False
    )
