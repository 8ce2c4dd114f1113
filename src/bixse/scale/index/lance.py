"""The index in a table of LanceDB, which is files on a disk."""

from __future__ import annotations

import math
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from bixse.data.collection import Document
from bixse.files.files import storage_errors
from bixse.scale.index.index_files import SCHEMA, AnnSettings, Manifest
from bixse.scale.index.vector_store import KEY, incomplete, manifest_of, nothing_there
from bixse.search.exact import TopK

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from bixse.scale.index.vector_store import StoreAddress

READ_TOGETHER = 16_384
"""Embeddings in memory during an exact search."""
INDEXED_FROM = 50_000
"""Minimum number of documents for an approximate index; fewer are all scored within some 20 ms."""
SEARCHED_SHARE = 4
"""Denominator of the share of lists that a search reads."""


class LanceStore:
    """A table with one row per document: `row`, `id`, `title`, `text` and `vector`.

    The manifest is metadata of the column `vector` in the Arrow schema. A write appears completely or not at all, so
    the number of rows says where to continue.
    """

    together = 16_384

    def __init__(self, address: StoreAddress) -> None:
        self.address = address
        self._table: Any = None
        if "://" in address.place or Path(address.place).is_dir():  # connecting makes the folder
            with suppress(ValueError):  # no such table
                self._table = import_module("lancedb").connect(address.place).open_table(address.name)

    @property
    def manifest(self) -> Manifest:
        schema = self._opened().schema
        content = ((schema.field("vector").metadata or {}) if "vector" in schema.names else {}).get(KEY.encode())
        return manifest_of(self.address, None if content is None else content.decode())

    def exists(self) -> bool:
        return self._table is not None

    def create(self, manifest: Manifest) -> None:
        numbers = pa.list_(pa.float16() if manifest.dtype == "float16" else pa.float32(), manifest.encoder.dimensions)
        kept = {KEY: manifest.model_dump_json()}
        schema = pa.schema([pa.field("row", pa.int64()), *SCHEMA, pa.field("vector", numbers, metadata=kept)])
        with storage_errors(Path(self.address.place)):
            self._table = (
                import_module("lancedb").connect(self.address.place).create_table(self.address.name, schema=schema)
            )

    def keep(self, manifest: Manifest) -> None:
        self._opened().update_field_metadata({"path": "vector", "metadata": {KEY: manifest.model_dump_json()}})

    def written(self) -> int:
        return int(self._opened().count_rows())

    def write(self, start: int, documents: Sequence[tuple[str, Document]], embeddings: npt.NDArray[np.float32]) -> None:
        ids, texts = zip(*documents, strict=True)
        numbers = self._opened().schema.field("vector").type
        flat = pa.array(embeddings.astype(numbers.value_type.to_pandas_dtype()).ravel())
        columns = {
            "row": np.arange(start, start + len(ids)),
            "id": ids,
            "title": [document.title for document in texts],
            "text": [document.text for document in texts],
            "vector": pa.FixedSizeListArray.from_arrays(flat, numbers.list_size),
        }
        with storage_errors(Path(self.address.place)):
            self._table.add(pa.table(columns, schema=self._table.schema))
        if self.written() != start + len(ids):
            raise incomplete(self.address, "rows that another process wrote", "one writer")

    def build(self) -> AnnSettings | None:
        """Make lists with embeddings in 8 bits per number, of which a search reads the nearest."""
        documents = self.written()
        if documents < INDEXED_FROM:
            return None
        lists, searched = _lists(documents)
        made = [index for index in self._table.list_indices() if index.columns == ["vector"]]
        if not made or made[0].num_unindexed_rows:
            self._table.create_index(
                "vector", config=import_module("lancedb.index").IvfSq(distance_type="dot", num_partitions=lists)
            )
        return AnnSettings(factory=f"IVF{lists},SQ8", parameters=f"nprobe={searched}")

    def nearest(self, queries: npt.NDArray[np.float32], top: int) -> npt.NDArray[np.int64]:
        search = self._opened().search(queries, vector_column_name="vector").distance_type("dot")
        search = search.nprobes(_lists(self.written())[1]).limit(top).select(["row", "_distance"])
        found = search.to_arrow()
        rows = np.full((len(queries), top), -1)
        asked = found["query_index"].to_numpy() if len(queries) > 1 else np.zeros(len(found), np.int64)
        for number in range(len(queries)):
            own = found["row"].to_numpy()[asked == number]
            rows[number, : len(own)] = own
        return rows

    def exact(
        self, queries: npt.NDArray[np.float32], top: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        best = TopK(queries, top)
        for batch in self._opened().search().select(["row", "vector"]).to_batches(READ_TOGETHER):
            if batch.num_rows and batch["row"][0].as_py() != best.seen:
                raise incomplete(self.address, f"row {batch['row'][0]} after {best.seen - 1}", "all rows in order")
            best.add(_matrix(batch["vector"]))
        return best.result()

    def embeddings(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        found, places = self._taken(rows.tolist(), ["vector"])
        return _matrix(found["vector"].combine_chunks())[places]

    def documents(self, rows: Sequence[int]) -> list[tuple[str, Document]]:
        found, places = self._taken(rows, ["id", "title", "text"])
        values = [(own["id"], Document(own["title"], own["text"])) for own in found.to_pylist()]
        return [values[place] for place in places]

    def ids(self, rows: Sequence[int]) -> list[str]:
        found, places = self._taken(rows, ["id"])
        ids: list[str] = found["id"].take(pa.array(places, pa.int64())).to_pylist()
        return ids

    def check(self) -> None:
        documents = self.manifest.documents
        if self.written() != documents:
            raise incomplete(self.address, f"{self.written()} documents", f"{documents}")

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _opened(self) -> Any:
        if self._table is None:
            raise nothing_there(self.address)
        return self._table

    def _taken(self, rows: Sequence[int], columns: list[str]) -> tuple[pa.Table, list[int]]:
        """Return columns of the distinct rows, and the position of each of `rows` in them."""
        wanted = sorted(set(rows))
        found = self._opened().take_offsets(wanted).select(["row", *columns]).to_arrow()
        place_of = {row: place for place, row in enumerate(found["row"].to_pylist())}
        if place_of.keys() != set(wanted):
            raise incomplete(self.address, "rows that moved", "those that were written, and no others")
        return found, [place_of[row] for row in rows]


def _lists(documents: int) -> tuple[int, int]:
    """Return the number of lists for a number of documents, and the number of lists that a search reads."""
    lists = round(math.sqrt(documents))
    return lists, math.ceil(lists / SEARCHED_SHARE)


def _matrix(vectors: Any) -> npt.NDArray[np.float32]:
    """Return a column of vectors as (n, D) float32."""
    numbers = vectors.flatten().to_numpy(zero_copy_only=False)
    return np.asarray(numbers, dtype=np.float32).reshape(len(vectors), -1)
