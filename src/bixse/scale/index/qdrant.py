"""The index in a collection of a Qdrant server."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ApiException

from bixse.data.collection import Document
from bixse.errors import InputError
from bixse.scale.index.index_files import AnnSettings, Manifest
from bixse.scale.index.vector_store import KEY, StoreAddress, incomplete, manifest_of, nothing_there, score_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

API_KEY_VARIABLE = "QDRANT_API_KEY"
ASKED_TOGETHER = 16
"""Queries per request; the answer must come within `SECONDS_WAITED`, even if every document is scored."""
SECONDS_WAITED = 300
READ_TOGETHER = 1_000
SECONDS_BETWEEN_LOOKS = 0.5
BUILD = models.HnswConfigDiff(m=16, ef_construct=200)
SEARCHED = 128
"""Value of `hnsw_ef`: number of candidates that a search in the graph keeps."""


class QdrantStore:
    """A collection with one point per document; the id of a point is its row, so that a repeated write changes nothing.

    Embeddings and payload (`id`, `title`, `text`) are on the server's disk; the manifest is the metadata of the
    collection, which a server keeps from version 1.16 on.
    """

    together = 256

    def __init__(self, address: StoreAddress) -> None:
        self.address = address
        with _answered(address, "a connection"):
            self._client: Any = connected(address.place)
        self._there = bool(self._ask("collection_exists"))
        self._manifest: Manifest | None = None

    @property
    def manifest(self) -> Manifest:
        if not self._there:
            raise nothing_there(self.address)
        if self._manifest is None:
            self._manifest = manifest_of(self.address, (self._ask("get_collection").config.metadata or {}).get(KEY))
        return self._manifest

    def exists(self) -> bool:
        return self._there

    def create(self, manifest: Manifest) -> None:
        numbers = models.Datatype.FLOAT16 if manifest.dtype == "float16" else models.Datatype.FLOAT32
        vectors = models.VectorParams(
            size=manifest.encoder.dimensions, distance=models.Distance.DOT, on_disk=True, datatype=numbers
        )
        kept = {KEY: manifest.model_dump_json()}
        self._ask("create_collection", vectors_config=vectors, hnsw_config=BUILD, metadata=kept)
        if not self._ask("get_collection").config.metadata:
            self._ask("delete_collection")
            raise InputError(
                f"{self.address}: got a server that keeps no metadata of a collection; expected Qdrant 1.16 or later; "
                "fix: a newer server"
            )
        self._there = True

    def keep(self, manifest: Manifest) -> None:
        self._ask("update_collection", metadata={KEY: manifest.model_dump_json()})
        self._manifest = manifest

    def written(self) -> int:
        """Count the documents of complete requests; a killed request may be there in part, and is sent again."""
        found = self._count()
        return found if found >= self.manifest.documents else found // self.together * self.together

    def write(self, start: int, documents: Sequence[tuple[str, Document]], embeddings: npt.NDArray[np.float32]) -> None:
        payloads = [{"id": name, "title": document.title, "text": document.text} for name, document in documents]
        rows = list(range(start, start + len(documents)))
        self._ask("upsert", points=models.Batch(ids=rows, vectors=embeddings.tolist(), payloads=payloads), wait=True)

    def build(self) -> AnnSettings:
        """Wait until the server has built the graph by itself."""
        while (status := self._ask("get_collection").status) != models.CollectionStatus.GREEN:
            if status == models.CollectionStatus.RED:
                raise incomplete(self.address, "a collection in status red", "green: see the log of the server")
            if status == models.CollectionStatus.GREY:  # after a restart the server waits for an update
                self._ask("update_collection", optimizers_config=models.OptimizersConfigDiff())
            time.sleep(SECONDS_BETWEEN_LOOKS)
        return AnnSettings(factory=f"HNSW m={BUILD.m}", parameters=f"ef_construct={BUILD.ef_construct},ef={SEARCHED}")

    def nearest(self, queries: npt.NDArray[np.float32], top: int) -> npt.NDArray[np.int64]:
        return self._search(queries, top, models.SearchParams(hnsw_ef=max(SEARCHED, top)))

    def exact(
        self, queries: npt.NDArray[np.float32], top: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        rows = self._search(queries, min(top, self.manifest.documents), models.SearchParams(exact=True))
        if rows.size and rows.min() < 0:
            raise incomplete(self.address, "fewer documents than there were", "all of them")
        return score_rows(queries, rows, self)

    def embeddings(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        return np.array([point.vector for point in self._points(rows.tolist(), with_vectors=True)], dtype=np.float32)

    def documents(self, rows: Sequence[int]) -> list[tuple[str, Document]]:
        found = [point.payload for point in self._points(rows, with_payload=True)]
        return [(own["id"], Document(own["title"], own["text"])) for own in found]

    def ids(self, rows: Sequence[int]) -> list[str]:
        return [point.payload["id"] for point in self._points(rows, with_payload=["id"])]

    def check(self) -> None:
        documents = self.manifest.documents
        if (found := self._count()) != documents:
            raise incomplete(self.address, f"{found} documents", f"{documents}")

    def close(self) -> None:
        self._client.close()

    def _count(self) -> int:
        return int(self._ask("count", exact=True).count)

    def _search(self, queries: npt.NDArray[np.float32], top: int, params: models.SearchParams) -> npt.NDArray[np.int64]:
        asked = [models.QueryRequest(query=query, limit=top, params=params) for query in queries.tolist()]
        rows = np.full((len(queries), top), -1)
        for start in range(0, len(asked), ASKED_TOGETHER):
            answers = self._ask("query_batch_points", requests=asked[start : start + ASKED_TOGETHER])
            for place, answer in enumerate(answers, start):
                rows[place, : len(answer.points)] = [point.id for point in answer.points]
        return rows

    def _points(self, rows: Sequence[int], **wanted: Any) -> list[Any]:
        """Return the points of the rows, in the order of `rows`."""
        distinct = sorted(set(rows))
        found = {}
        for start in range(0, len(distinct), READ_TOGETHER):
            asked = {"with_payload": False, "ids": distinct[start : start + READ_TOGETHER], **wanted}
            found.update({point.id: point for point in self._ask("retrieve", **asked)})
        if len(found) < len(distinct):
            raise incomplete(self.address, f"{len(found)} of {len(distinct)} documents asked for", "all of them")
        return [found[row] for row in rows]

    def _ask(self, method: str, **arguments: Any) -> Any:
        with _answered(self.address, method):
            return getattr(self._client, method)(collection_name=self.address.name, **arguments)


@contextmanager
def _answered(address: StoreAddress, asked: str) -> Iterator[None]:
    try:
        yield
    except (ApiException, ValueError) as error:  # ValueError: no URL, or no JSON
        said = " ".join(str(error).split())[:200]
        raise InputError(
            f"{address}: got no answer to {asked} ({said}); expected a Qdrant server at {address.place}; fix: start "
            f"it, check the URL, and put its key, if it has one, into {API_KEY_VARIABLE}"
        ) from error


def connected(url: str) -> QdrantClient:
    """Return a client of the server; nothing is sent yet."""
    return QdrantClient(
        url=url, api_key=os.environ.get(API_KEY_VARIABLE), timeout=SECONDS_WAITED, check_compatibility=False
    )
