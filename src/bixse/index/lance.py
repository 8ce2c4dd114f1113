"""The index in a table of LanceDB, which is files on a disk."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bixse.data.corpus import Document
from bixse.files.files import storage_errors
from bixse.index.index_files import SCHEMA, Manifest
from bixse.index.vector_store import KEY, Answers, VectorStore

INDEXED_FROM = 50_000
"""Minimum number of documents for an approximate index; fewer are all scored within some 20 ms."""
SEARCHED_SHARE = 4
"""Denominator of the share of lists that a search reads."""
REFINED = 4
"""Candidates per wanted document that are scored again with the embeddings themselves."""


class LanceStore(VectorStore):
    """A table with one row per document: `row`, `id`, `title`, `text` and `vector`.

    The manifest is metadata of the column `vector` in the Arrow schema. A write appears completely or not at all.
    """

    together = 16_384

    def __init__(self, label: str, address: str, name: str) -> None:
        self.label, self._address, self._name = label, address, name
        self._database: Any = import_module("lancedb")
        if "://" in address or Path(address).is_dir():  # connecting makes the folder
            with suppress(ValueError):  # no such table
                self._open(self._database.connect(address).open_table(name))

    def _open(self, table: Any) -> None:
        self._table, schema = table, table.schema
        content = ((schema.field("vector").metadata or {}) if "vector" in schema.names else {}).get(KEY.encode())
        self.read(None if content is None else content.decode())
        # square root of the documents: number of lists, of which a search reads a share
        self._lists = round(self.manifest.documents**0.5)
        self._searched = -(-self._lists // SEARCHED_SHARE)
        indexed = self.manifest.documents >= INDEXED_FROM
        self.approximate = f"IVF{self._lists},SQ8 nprobe={self._searched}" if indexed else ""

    def create(self, manifest: Manifest) -> None:
        numbers, metadata = pa.list_(pa.float32(), manifest.encoder.dimensions), {KEY: manifest.model_dump_json()}
        schema = pa.schema([pa.field("row", pa.int64()), *SCHEMA, pa.field("vector", numbers, metadata=metadata)])
        with storage_errors(Path(self._address)):
            self._open(self._database.connect(self._address).create_table(self._name, schema=schema))

    def count(self) -> int:
        return int(self._table.count_rows())

    def write(self, start: int, documents: Sequence[tuple[str, Document]], embeddings: NDArray[np.float32]) -> None:
        columns = {
            "row": np.arange(start, start + len(documents)),
            "id": [name for name, _ in documents],
            "title": [document.title for _, document in documents],
            "text": [document.text for _, document in documents],
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(embeddings.ravel()), embeddings.shape[1]),
        }
        with storage_errors(Path(self._address)):
            self._table.add(pa.table(columns, schema=self._table.schema))

    def build(self) -> None:
        """Make lists with embeddings in 8 bits per number, of which a search reads the nearest."""
        if self.approximate and not self._table.list_indices():
            config = import_module("lancedb.index").IvfSq(distance_type="dot", num_partitions=self._lists)
            self._table.create_index("vector", config=config)

    def best(self, queries: NDArray[np.float32], top: int, exact: bool, texts: bool) -> Answers:
        search = self._table.search(queries, vector_column_name="vector").distance_type("dot").limit(top)
        search = search.bypass_vector_index() if exact else search.nprobes(self._searched).refine_factor(REFINED)
        columns = ["row", "id", *(["title", "text"] if texts else []), "_distance"]
        answers: Answers = [[] for _ in queries]
        for row in search.select(columns).to_list():
            document = Document(row.get("title", ""), row.get("text", ""))
            line = answers[row.get("query_index", 0)]  # one query has no such column
            line.append((1 - row["_distance"], row["row"], row["id"], document))
        return answers
