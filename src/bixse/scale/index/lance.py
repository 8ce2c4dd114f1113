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
from bixse.scale.index.index_files import SCHEMA, Manifest
from bixse.scale.index.vector_store import KEY, Answers, StoreAddress, VectorStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

INDEXED_FROM = 50_000
"""Minimum number of documents for an approximate index; fewer are all scored within some 20 ms."""
SEARCHED_SHARE = 4
"""Denominator of the share of lists that a search reads."""
REFINED = 4
"""Candidates per wanted document that are scored again with the embeddings themselves."""


class LanceStore(VectorStore):
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
        self.exists = self._table is not None

    @property
    def approximate(self) -> str:
        lists, searched = _lists(self.count())
        return f"IVF{lists},SQ8 nprobe={searched}" if self._table.list_indices() else ""

    def recorded(self) -> str | None:
        schema = self._table.schema
        content = ((schema.field("vector").metadata or {}) if "vector" in schema.names else {}).get(KEY.encode())
        return None if content is None else content.decode()

    def create(self, manifest: Manifest) -> None:
        numbers, kept = pa.list_(pa.float32(), manifest.encoder.dimensions), {KEY: manifest.model_dump_json()}
        schema = pa.schema([pa.field("row", pa.int64()), *SCHEMA, pa.field("vector", numbers, metadata=kept)])
        with storage_errors(Path(self.address.place)):
            database = import_module("lancedb").connect(self.address.place)
            self._table = database.create_table(self.address.name, schema=schema)
        self.exists = True

    def count(self) -> int:
        return int(self._table.count_rows())

    def write(self, start: int, documents: Sequence[tuple[str, Document]], embeddings: NDArray[np.float32]) -> None:
        ids, texts = zip(*documents, strict=True)
        columns = {
            "row": np.arange(start, start + len(ids)),
            "id": ids,
            "title": [document.title for document in texts],
            "text": [document.text for document in texts],
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(embeddings.ravel()), embeddings.shape[1]),
        }
        with storage_errors(Path(self.address.place)):
            self._table.add(pa.table(columns, schema=self._table.schema))
        if self.count() != start + len(ids):
            raise self.incomplete("rows that another process wrote", "one writer")

    def build(self) -> None:
        """Make lists with embeddings in 8 bits per number, of which a search reads the nearest."""
        documents = self.count()
        if documents >= INDEXED_FROM and not self._table.list_indices():
            config = import_module("lancedb.index").IvfSq(distance_type="dot", num_partitions=_lists(documents)[0])
            self._table.create_index("vector", config=config)

    def best(self, queries: NDArray[np.float32], top: int, exact: bool, texts: bool) -> Answers:
        search = self._table.search(queries, vector_column_name="vector").distance_type("dot").limit(top)
        if exact:
            search = search.bypass_vector_index()
        else:
            search = search.nprobes(_lists(self.count())[1]).refine_factor(REFINED)
        columns = ["row", "id", *(["title", "text"] if texts else []), "_distance"]
        answers: Answers = [[] for _ in queries]
        for own in search.select(columns).to_list():
            document = Document(own.get("title", ""), own.get("text", ""))
            line = answers[own.get("query_index", 0)]  # one query has no such column
            line.append((1 - own["_distance"], own["row"], own["id"], document))
        return answers


def _lists(documents: int) -> tuple[int, int]:
    """Return the number of lists for a number of documents, and the number of lists that a search reads."""
    lists = round(math.sqrt(documents))
    return lists, math.ceil(lists / SEARCHED_SHARE)
