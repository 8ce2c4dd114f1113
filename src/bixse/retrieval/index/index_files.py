"""The files of an index: embeddings in memory-mapped safetensors; ids, titles and texts in Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bixse.data.collection import Document
from bixse.data.io.parquet import checked_file, reading, table_writer
from bixse.errors import InputError
from bixse.retrieval.exact import TopK
from bixse.retrieval.index.manifest import StoredFile, damaged, read_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from bixse.retrieval.index.manifest import Manifest, StoredType

TENSOR = "documents"
SHARD_ROWS = 65_536
"""Documents of one file of embeddings, at most."""
SHARD_NUMBERS = 1 << 25
"""Numbers of one file of embeddings, at most: 128 MiB as float32, which are in memory while it is written."""
GROUP_ROWS = 256
"""Documents that are read from Parquet together; a shard holds a multiple of it."""
SCHEMA = pa.schema([("id", pa.string()), ("title", pa.string()), ("text", pa.string())])


def shard_rows(dimensions: int) -> int:
    """Documents of one file of embeddings."""
    return max(GROUP_ROWS, min(SHARD_ROWS, SHARD_NUMBERS // dimensions) // GROUP_ROWS * GROUP_ROWS)


def write_files(
    folder: Path,
    blocks: Iterable[Sequence[tuple[str, Document]]],
    encode: Callable[[Sequence[str]], npt.NDArray[np.float32]],
    dtype: StoredType,
) -> tuple[tuple[StoredFile, ...], StoredFile]:
    """Encode document ids and documents, `shard_rows` at a time: a file of embeddings per block and one of all texts.

    `encode` gives (n, D) embeddings of n texts.
    """
    embeddings: list[StoredFile] = []
    texts = folder / "documents.parquet"
    with table_writer(texts, SCHEMA) as writer:
        for block in blocks:
            vectors = np.ascontiguousarray(encode([document.content for _, document in block]), dtype=dtype)
            path = folder / f"embeddings-{len(embeddings):05d}.safetensors"
            path.write_bytes(save({TENSOR: vectors}))
            embeddings.append(StoredFile.of(path))
            rows = [{"id": name, "title": document.title, "text": document.text} for name, document in block]
            writer.write_table(pa.Table.from_pylist(rows, SCHEMA), row_group_size=GROUP_ROWS)
    return tuple(embeddings), StoredFile.of(texts)


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
            best.add(self._shard(number))
        return best.result()

    def embeddings(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        found = np.empty((len(rows), self.manifest.encoder.dimensions), dtype=np.float32)
        shard_of = np.searchsorted(self._starts, rows, side="right") - 1
        for number in np.unique(shard_of):
            own = np.flatnonzero(shard_of == number)
            found[own] = self._shard(number)[torch.from_numpy(rows[own] - self._starts[number])].float().numpy()
        return found

    def documents(self, rows: Sequence[int]) -> list[tuple[str, Document]]:
        """Ids and documents of the rows, in their order."""
        found: dict[int, tuple[str, Document]] = {}
        for group in sorted({row // GROUP_ROWS for row in rows}):
            wanted = [row for row in set(rows) if row // GROUP_ROWS == group]
            with reading(self._texts_path):
                table = self._texts.read_row_group(group).take([row % GROUP_ROWS for row in wanted])
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

    def _shard(self, number: int) -> torch.Tensor:
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
