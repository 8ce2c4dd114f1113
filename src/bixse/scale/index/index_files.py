"""The files of an index: embeddings in memory-mapped safetensors; ids, titles and texts in Parquet."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bixse.data.collection import Document
from bixse.errors import InputError
from bixse.files.files import atomic_file
from bixse.files.parquet import checked_file, open_table, reading, table_writer
from bixse.scale.index.manifest import damaged, read_manifest
from bixse.search.exact import TopK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from bixse.scale.index.manifest import Manifest, StoredFile, StoredType

TENSOR = "documents"
SHARD_ROWS = 65_536
"""Documents of one file of embeddings, at most."""
SHARD_NUMBERS = 1 << 25
"""Numbers of one file of embeddings, at most: 128 MiB as float32, which are in memory while it is written."""
GROUP_ROWS = 256
"""Documents that are read from Parquet together, at least; a shard holds a multiple of it."""
MOST_GROUPS = 1 << 18
"""Row groups of the texts: each shard reads what the footer says of all; Parquet with more than 10^6 is not opened."""
SCHEMA = pa.schema([("id", pa.string()), ("title", pa.string()), ("text", pa.string())])


def shard_rows(dimensions: int, documents: int, shards: int = 1) -> int:
    """Documents of one file of embeddings, of which there are to be about so many; a multiple of `GROUP_ROWS`."""
    most = min(SHARD_ROWS, SHARD_NUMBERS // dimensions) // GROUP_ROWS
    wanted = -(-documents // (shards * GROUP_ROWS)) if shards > 1 else most
    return max(1, min(most, wanted)) * GROUP_ROWS


def group_rows(documents: int) -> int:
    """Documents of a row group: `GROUP_ROWS`, of a large corpus twice, four times, ... as many."""
    return GROUP_ROWS << (max(0, documents - 1) // (GROUP_ROWS * MOST_GROUPS)).bit_length()


def write_texts(path: Path, documents: Iterable[tuple[str, Document]], number: int) -> None:
    """Write ids, titles and texts of a number of documents; the file appears whole or not at all."""
    together = group_rows(number)
    rows = ({"id": name, "title": document.title, "text": document.text} for name, document in documents)
    with atomic_file(path) as file, table_writer(file, SCHEMA) as writer:
        while group := list(islice(rows, together)):
            writer.write_table(pa.Table.from_pylist(group, SCHEMA))


def read_texts(path: Path, start: int, number: int) -> list[str]:
    """The texts to be encoded of some documents of such a file."""
    with open_table(path) as file:
        size = file.metadata.row_group(0).num_rows
        groups = range(start // size, min(file.num_row_groups, -(-(start + number) // size)))
        table = file.read_row_groups(list(groups), columns=["title", "text"])
    columns = table.slice(start % size, number).to_pydict()
    return [Document(*found).content for found in zip(columns["title"], columns["text"], strict=True)]


def stream_texts(path: Path) -> Iterator[tuple[str, Document]]:
    """Ids and documents of such a file one by one, in its order."""
    with open_table(path) as file:
        for group in range(file.num_row_groups):
            columns = file.read_row_group(group).to_pydict()
            for name, title, text in zip(columns["id"], columns["title"], columns["text"], strict=True):
                yield name, Document(title, text)


def embeddings_content(embeddings: npt.NDArray[np.float32], dtype: StoredType) -> bytes:
    """The file of (n, D) embeddings."""
    content: bytes = save({TENSOR: np.ascontiguousarray(embeddings, dtype=dtype)})
    return content


class IndexFiles:
    """The files of an index, opened: embeddings are mapped, texts are read when asked for.

    A file of embeddings is held against its hash when it is first used, a page of texts against its checksum whenever
    it is read; raises InputError for one that is missing or damaged.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        for file in manifest.files:
            file.check_size(folder)
        self._shards = [self._mapped(file) for file in manifest.embeddings]
        self._starts = np.cumsum([0, *(len(shard) for shard in self._shards)])
        self._used: set[int] = set()
        if manifest.texts is None or self._starts[-1] != manifest.documents:
            raise damaged(folder, f"{self._starts[-1]} embeddings", f"{manifest.documents}, and texts")
        self._texts_path = folder / manifest.texts.name
        with reading(self._texts_path):
            self._texts = checked_file(self._texts_path)
        self._ids: pa.ChunkedArray | None = None

    def exact(
        self, queries: npt.NDArray[np.float32], top: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Scores and rows, each (Q, k), of the best documents of (Q, D) queries, as `exact_search`."""
        best = TopK(queries, top)
        for number in range(len(self._shards)):
            best.add(self.shard(number))
        return best.result()

    def embeddings(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        found = np.empty((len(rows), self.manifest.encoder.dimensions), dtype=np.float32)
        shard_of = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(shard_of):
            own = np.flatnonzero(shard_of == number)
            found[own] = self.shard(number)[torch.from_numpy(rows[own] - self._starts[number])].float().numpy()
        return found

    def documents(self, rows: Sequence[int]) -> list[tuple[str, Document]]:
        """Ids and documents of the rows, in their order."""
        found: dict[int, tuple[str, Document]] = {}
        size = self._texts.metadata.row_group(0).num_rows
        for group in sorted({row // size for row in rows}):
            wanted = [row for row in set(rows) if row // size == group]
            with reading(self._texts_path):
                table = self._texts.read_row_group(group).take([row % size for row in wanted])
            for row, values in zip(wanted, table.to_pylist(), strict=True):
                found[row] = values["id"], Document(values["title"], values["text"])
        return [found[row] for row in rows]

    def ids(self, rows: Sequence[int]) -> list[str]:
        """The document ids of the rows; those of all documents are then kept in memory."""
        if self._ids is None:
            with reading(self._texts_path):
                self._ids = self._texts.read(columns=["id"]).column("id")
        ids: list[str] = self._ids.take(pa.array(rows, pa.int64())).to_pylist()
        return ids

    def check(self) -> None:
        for file in self.manifest.files:
            file.check(self.folder)

    def close(self) -> None:
        """Close the files; the embeddings stay mapped as long as they are used."""
        self._texts.close()

    @property
    def rows(self) -> int:
        """Documents of each file of embeddings but the last."""
        return len(self._shards[0])

    def shard(self, number: int) -> torch.Tensor:
        """The (n, D) embeddings of one file, mapped."""
        file = self.manifest.embeddings[number]
        if number not in self._used and (self.folder / file.name).exists():  # one that was replaced stays mapped
            file.check(self.folder)
        self._used.add(number)
        return self._shards[number]

    def _mapped(self, file: StoredFile) -> torch.Tensor:
        path, dimensions = self.folder / file.name, self.manifest.encoder.dimensions
        try:
            with safe_open(str(path), framework="pt") as opened:
                tensor: torch.Tensor = opened.get_tensor(TENSOR)
        except (SafetensorError, OSError) as error:
            raise damaged(path, str(error), "the tensor that was written") from error
        if tensor.ndim != 2 or tensor.shape[1] != dimensions:
            raise damaged(path, f"shape {tuple(tensor.shape)}", f"(n, {dimensions})")
        return tensor


def open_files(folder: Path) -> IndexFiles:
    """Open the index in a folder, also while another process replaces it."""
    manifest = read_manifest(folder)
    try:
        return IndexFiles(folder, manifest)
    except InputError:
        if read_manifest(folder) == manifest:
            raise
        return open_files(folder)
