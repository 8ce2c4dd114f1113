"""Shards of a search index: embeddings as memory-mapped safetensors, ids, titles and texts in SQLite."""

from __future__ import annotations

import errno
import sqlite3
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bixse.data.io.files import storage_errors
from bixse.errors import StorageError
from bixse.retrieval.index_files import OpenedFile, damaged, new_file, stored
from bixse.retrieval.index_manifest import StoredShard

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt
    import torch

    from bixse.retrieval.index_manifest import StoredFile, StoredType

TENSOR = "documents"
"""Name of the embeddings in their file."""
ROWS_TENSOR = "rows"
"""Name of the deleted rows in theirs."""
IDS_LOOKED_UP = 500
"""Ids up to which each is looked up; of more, all ids of the shard are read."""
_TABLE = "CREATE TABLE documents (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, title TEXT NOT NULL, text TEXT)"


class StoredDocument(NamedTuple):
    """A document with its id."""

    document_id: str
    title: str
    text: str


def write_shard(
    folder: Path,
    documents: Sequence[StoredDocument],
    embeddings: npt.NDArray[np.floating],
    dtype: StoredType,
) -> StoredShard:
    """Write n documents and their (n, D) embeddings; no state names the two files yet.

    Raises:
        StorageError: the disk is full or the folder cannot be written.
    """
    vectors = new_file(folder, "embeddings", "safetensors")
    texts = new_file(folder, "documents", "sqlite")
    _save(vectors, TENSOR, np.ascontiguousarray(embeddings, dtype=dtype))
    with _sqlite_errors(texts), closing(sqlite3.connect(texts)) as file, file:
        file.execute("PRAGMA journal_mode=OFF")  # a file that is not finished is named by no state
        file.execute("PRAGMA synchronous=OFF")
        file.execute(_TABLE)
        file.executemany("INSERT INTO documents VALUES (?, ?, ?, ?)", ((n, *d) for n, d in enumerate(documents)))
    return StoredShard(rows=len(documents), embeddings=stored(vectors), documents=stored(texts))


def write_deleted(folder: Path, rows: npt.NDArray[np.int64]) -> StoredFile | None:
    """Write which rows no longer count; None for none.

    Raises:
        StorageError: the disk is full or the folder cannot be written.
    """
    if not len(rows):
        return None
    path = new_file(folder, "deleted", "safetensors")
    _save(path, ROWS_TENSOR, rows)
    return stored(path)


class Shard:
    """One shard, opened: the embeddings are mapped, the texts are read when asked for.

    Each of its files is held against its checksum when it is first used, not before: to open a shard reads no text.

    Raises:
        FileNotFoundError: a file is missing.
        InputError: a file has another size or shape than was written.
    """

    def __init__(self, folder: Path, stored_shard: StoredShard, dimensions: int) -> None:
        self.rows = stored_shard.rows
        with ExitStack() as opened:
            self._vectors = OpenedFile(folder, stored_shard.embeddings)
            opened.callback(self._vectors.close)
            self._documents = OpenedFile(folder, stored_shard.documents)
            opened.callback(self._documents.close)
            self._embeddings = mapped(self._vectors.path, TENSOR)
            shape = tuple(self._embeddings.shape)
            if shape != (self.rows, dimensions):
                raise damaged(self._vectors.path, f"shape {shape}", f"({self.rows}, {dimensions})")
            self._texts = _open_texts(self._documents.path)
            opened.pop_all()

    @property
    def embeddings(self) -> torch.Tensor:
        """(n, D) embeddings of the shard's precision; pages are read from the disk when they are used."""
        self._vectors.check()
        self._vectors.close()
        return self._embeddings

    def documents(self, rows: Collection[int]) -> list[StoredDocument]:
        """The documents of some rows, in that order."""
        found = {}
        for some in _portions(list(rows)):
            marks = ",".join("?" * len(some))
            for row, *document in self._select(
                f"SELECT row, id, title, text FROM documents WHERE row IN ({marks})", some
            ):
                found[row] = StoredDocument(*document)
        return [found[row] for row in rows]

    def ids(self) -> list[str]:
        """The ids of all rows."""
        return [identifier for (identifier,) in self._select("SELECT id FROM documents ORDER BY row", ())]

    def find(self, ids: Collection[str]) -> list[tuple[str, int]]:
        """(id, row) of those of the ids that the shard holds."""
        if len(ids) > IDS_LOOKED_UP:
            wanted = ids if isinstance(ids, (set, dict)) else set(ids)
            return [(identifier, row) for row, identifier in enumerate(self.ids()) if identifier in wanted]
        marks = ",".join("?" * len(ids))
        return list(self._select(f"SELECT id, row FROM documents WHERE id IN ({marks})", tuple(ids)))

    def check(self) -> None:
        """Hold both files against their checksums; raises InputError."""
        for file in (self._vectors, self._documents):
            file.check()
            file.close()

    def close(self) -> None:
        """Close the files; the embeddings stay mapped as long as they are used."""
        for file in (self._vectors, self._documents, self._texts):
            file.close()

    def _select(self, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        self._documents.check()
        self._documents.close()
        try:
            return self._texts.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise damaged(self._documents.path, str(error), "the texts that were written") from error


def mapped(path: Path, name: str) -> torch.Tensor:
    """A tensor of a safetensors file, mapped into memory."""
    try:
        with safe_open(str(path), framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(name)
    except (SafetensorError, KeyError) as error:
        raise damaged(path, str(error), "the tensor that was written") from error
    return tensor


def _save(path: Path, name: str, values: npt.NDArray[Any]) -> None:
    """Write one tensor; raises StorageError.

    safetensors' own `save_file` would leave a file of another name when it is killed, and one that others cannot read.
    """
    with storage_errors(path), path.open("xb") as file:
        file.write(save({name: values}))


def _open_texts(path: Path) -> sqlite3.Connection:
    """A file of texts, only to be read; raises FileNotFoundError."""
    try:
        return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False)
    except sqlite3.OperationalError as error:
        if path.exists():
            raise damaged(path, str(error), "the texts that were written") from error
        raise FileNotFoundError(errno.ENOENT, str(error), str(path)) from error


def _portions(values: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(values), IDS_LOOKED_UP):
        yield values[start : start + IDS_LOOKED_UP]


@contextmanager
def _sqlite_errors(path: Path) -> Iterator[None]:
    """Turn a failed write of SQLite into a StorageError that says how to fix it."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise StorageError(
            f"{path}: got {error}; expected to write there; fix: free disk space, make the folder writable, or "
            "choose another folder"
        ) from error
