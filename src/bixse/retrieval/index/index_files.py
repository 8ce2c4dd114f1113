"""The files of an index: embeddings in memory-mapped safetensors; ids, titles and texts in Parquet."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bixse.data.collection import Document
from bixse.data.io.parquet import ParquetFile, checked_file, table_writer
from bixse.retrieval.exact import exact_search
from bixse.retrieval.index.manifest import StoredFile, damaged, read_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path
    from typing import Any

    import numpy.typing as npt

    from bixse.retrieval.index.manifest import Manifest, StoredType

TENSOR = "documents"
"""Name of the embeddings in their file."""
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
    """Encode documents block by block, and write a file of embeddings per block and one of all texts.

    Args:
        folder: where.
        blocks: document ids and documents, `shard_rows` at a time.
        encode: (n, D) embeddings of n texts.
        dtype: of the stored embeddings.
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

    A file of embeddings is held against its hash when it is first used; a page of texts against its checksum whenever
    it is read.

    Raises:
        FileNotFoundError: a file is missing.
        InputError: a file has another size or shape than was written.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        for file in manifest.files:
            size = (folder / file.name).stat().st_size
            if size != file.size:
                raise damaged(folder / file.name, f"{size} bytes", f"the {file.size} bytes that were written")
        with ExitStack() as opened:
            self._shards = [self._mapped(file) for file in manifest.embeddings]
            self.starts = np.cumsum([0, *(len(shard) for shard in self._shards)])
            self._texts = self._parquet()
            opened.callback(self._texts.close)
            rows = (int(self.starts[-1]), self._texts.metadata.num_rows)
            if rows != (manifest.documents, manifest.documents):
                raise damaged(folder, f"{rows[0]} embeddings and {rows[1]} texts", f"{manifest.documents} of both")
            opened.pop_all()
        self._checked: set[str] = set()
        self._ids: pa.ChunkedArray | None = None

    def exact(
        self, queries: npt.NDArray[np.float32], top: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """The documents of highest inner product, all of which are scored.

        Args:
            queries: shape (Q, D).
            top: documents per query, at least 1.

        Returns:
            Scores (Q, k), highest first, and rows (Q, k), of equal scores the lower row first; k is `top`, or the
            number of documents.
        """
        scores = np.empty((len(queries), 0), dtype=np.float32)
        rows = np.empty((len(queries), 0), dtype=np.int64)
        for number, start in enumerate(self.starts[:-1]):
            found, indices = exact_search(queries, self._shard(number), top)
            scores, rows = best(np.hstack([scores, found]), np.hstack([rows, indices + start]), top)
        return scores, rows

    def embeddings(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """(n, D) embeddings of n rows."""
        found = np.empty((len(rows), self.manifest.encoder.dimensions), dtype=np.float32)
        shard_of = np.searchsorted(self.starts, rows, side="right") - 1
        for number in np.unique(shard_of):
            own = np.flatnonzero(shard_of == number)
            found[own] = self._shard(number)[torch.from_numpy(rows[own] - self.starts[number])].float().numpy()
        return found

    def documents(self, rows: Sequence[int]) -> list[tuple[str, Document]]:
        """Ids and documents of some rows, in that order."""
        found: dict[int, tuple[str, Document]] = {}
        for group in sorted({row // GROUP_ROWS for row in rows}):
            table = self._read(lambda group=group: self._texts.read_row_group(group))  # type: ignore[misc]
            wanted = [row for row in set(rows) if row // GROUP_ROWS == group]
            taken = table.take([row % GROUP_ROWS for row in wanted]).to_pylist()
            for row, values in zip(wanted, taken, strict=True):
                found[row] = values["id"], Document(values["title"], values["text"])
        return [found[row] for row in rows]

    def ids(self, rows: Sequence[int]) -> list[str]:
        """The document ids of some rows; those of all documents are then kept in memory."""
        if self._ids is None:
            self._ids = self._read(lambda: self._texts.read(columns=["id"])).column("id")
        ids: list[str] = self._ids.take(pa.array(rows, pa.int64())).to_pylist()
        return ids

    def check(self) -> None:
        """Read every file and hold it against its hash; raises InputError."""
        for file in self.manifest.files:
            file.check(self.folder)

    def close(self) -> None:
        """Close the files; the embeddings stay mapped as long as they are used."""
        self._texts.close()

    def _shard(self, number: int) -> torch.Tensor:
        """(n, D) embeddings of a shard, in the stored type."""
        file = self.manifest.embeddings[number]
        if file.name not in self._checked and (self.folder / file.name).exists():  # replaced ones stay mapped
            file.check(self.folder)
        self._checked.add(file.name)
        return self._shards[number]

    def _mapped(self, file: StoredFile) -> torch.Tensor:
        path = self.folder / file.name
        try:
            with safe_open(str(path), framework="pt") as opened:
                tensor: torch.Tensor = opened.get_tensor(TENSOR)
        except (SafetensorError, KeyError) as error:
            raise damaged(path, str(error), "the tensor that was written") from error
        if tensor.ndim != 2 or tensor.shape[1] != self.manifest.encoder.dimensions:
            expected = f"(n, {self.manifest.encoder.dimensions})"
            raise damaged(path, f"shape {tuple(tensor.shape)}", expected)
        return tensor

    def _parquet(self) -> ParquetFile:
        path = self._texts_path()
        return self._read(lambda: checked_file(path))

    def _texts_path(self) -> Path:
        if self.manifest.texts is None:
            raise damaged(self.folder, "no file of texts", "one")
        return self.folder / self.manifest.texts.name

    def _read(self, read: Callable[[], Any]) -> Any:
        """What a call on the file of texts returns; raises InputError where the file is damaged."""
        try:
            return read()
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            found = " ".join(str(error).split())[:200]
            raise damaged(self._texts_path(), found, "the texts that were written") from error


def open_files(folder: Path) -> IndexFiles:
    """Open the index in a folder, also while another process replaces it.

    Raises:
        InputError: no index, or a damaged one.
    """
    while True:
        manifest = read_manifest(folder)
        try:
            return IndexFiles(folder, manifest)
        except FileNotFoundError as error:
            if read_manifest(folder) == manifest:
                raise damaged(folder / str(error.filename), "no such file", "every file that was written") from error


def best(
    scores: npt.NDArray[np.float32], rows: npt.NDArray[np.int64], top: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """The `top` highest scores of each line, equal ones by row, and their rows.

    Example:
        >>> scores, rows = best(np.array([[0.5, 0.7, 0.7]]), np.array([[0, 2, 1]]), top=2)
        >>> scores.tolist(), rows.tolist()
        ([[0.7, 0.7]], [[1, 2]])
    """
    order = np.lexsort((rows, -scores), axis=1)[:, :top]
    return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)
