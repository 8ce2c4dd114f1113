"""Arrow tables larger than memory: record batches spooled to an unnamed file that is memory-mapped."""

from __future__ import annotations

import mmap
import tempfile
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from bixse.files.cache import cache_folder
from bixse.files.files import storage_errors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BYTES_IN_MEMORY = 2**26
"""A table up to this size is kept in memory."""
BYTES_PER_BATCH = 2**23
"""About so much of a spooled table stands in a record batch: opening the file reads pages of every batch."""
ROWS_PER_BLOCK = 2**16
"""Rows that are turned into Python objects at a time."""


@dataclass(frozen=True)
class Spool:
    """A table, and the memory map it lies in where it is not in memory."""

    table: pa.Table
    mapping: mmap.mmap | None = None

    def release(self) -> None:
        """Give the pages that were read back to the operating system; they are read again when they are needed."""
        if self.mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            self.mapping.madvise(mmap.MADV_DONTNEED)


def spool(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Spool:
    """Record batches as one table: in memory up to 64 MB, else in a file that goes when the table does.

    The file has no name and lies in the cache folder (`bixse.files.cache`), or among the temporary files where
    nothing is to be cached.
    """
    held: list[pa.RecordBatch] = []
    size = 0
    rest = iter(batches)
    for batch in rest:
        held.append(batch)
        size += batch.nbytes
        if size > BYTES_IN_MEMORY:
            return _on_disk(held, rest, schema)
    return Spool(pa.Table.from_batches(held, schema))


def _on_disk(held: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch], schema: pa.Schema) -> Spool:
    folder = cache_folder() or Path(tempfile.gettempdir())
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            with pa.ipc.new_file(file, schema) as writer:
                first = (held.pop(0) for _ in range(len(held)))
                for table in _of_some_size(chain(first, rest)):
                    writer.write_table(table)
            file.flush()
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return Spool(pa.ipc.open_file(pa.py_buffer(mapping)).read_all(), mapping)


def _of_some_size(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows in tables of about `BYTES_PER_BATCH`, each of one chunk."""
    group: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        group.append(batch)
        size += batch.nbytes
        if size >= BYTES_PER_BATCH:
            yield pa.Table.from_batches(group).combine_chunks()
            group, size = [], 0
    if group:
        yield pa.Table.from_batches(group).combine_chunks()


def blocks(column: pa.ChunkedArray) -> Iterator[pa.Array]:
    """A column in pieces of at most `ROWS_PER_BLOCK` rows."""
    for chunk in column.chunks:
        for start in range(0, len(chunk), ROWS_PER_BLOCK):
            yield chunk.slice(start, ROWS_PER_BLOCK)
