"""Write Parquet files with a checksum per page, and check the checksums on reading."""

from __future__ import annotations

import hashlib
import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from bixse.errors import InputError
from bixse.files.files import atomic_file, cache_folder, storage_errors

REPLACE = "write or fetch it again, or name it by its real format"
"""Fix for an unreadable Parquet file."""
BYTES_IN_MEMORY = 2**26
"""Maximum size of a table in memory."""
BYTES_PER_BATCH = 2**23
"""Approximate bytes per record batch on disk: opening the file reads pages of every batch."""
BYTES_STREAMED = 2**20
"""The same, and the maximum size in memory, for a table that is only read from start to end."""
ROWS_PER_BLOCK = 2**16


def save_table(table: pa.Table | pa.RecordBatchReader, path: Path) -> None:
    """Write a table or its batches atomically with page checksums."""
    with atomic_file(path) as file, table_writer(file, table.schema) as writer:
        for part in [table] if isinstance(table, pa.Table) else table:
            writer.write(part)


def table_writer(target: Path | BinaryIO | pa.BufferOutputStream, schema: pa.Schema) -> pq.ParquetWriter:
    """Return a writer that takes one table after the other, with page checksums."""
    return pq.ParquetWriter(target, schema, write_page_checksum=True)  # off by default in pyarrow


def checked_file(path: Path) -> pq.ParquetFile:
    """Return a Parquet file whose page checksums are checked on reading."""
    # pre_buffer is on by default and keeps everything that was read until the file is closed
    return pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False, page_checksum_verification=True)


@contextmanager
def open_table(path: Path, fix: str = REPLACE) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file; the checksums of the pages, if there are any, are checked on reading."""
    with reading(path, fix), checked_file(path) as file:
        yield file


@contextmanager
def reading(path: Path, fix: str = REPLACE) -> Iterator[None]:
    """Turn an error while a Parquet file is read into an InputError that ends with `fix`."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"{path}: got unreadable Parquet ({reason[:200]}); expected a complete Parquet file, every byte as it "
            f"was written; fix: {fix}"
        ) from error


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return a table with the columns of `columns` that the file has, or with all columns if it has none of these."""
    with open_table(path) as file:
        names = [name for name in file.schema_arrow.names if columns is None or name in columns]
        return file.read(columns=names or None)


def row_batches(
    file: pq.ParquetFile, columns: Sequence[str], size: int, rows: range | None = None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield (row number of the first row from 0, batch of at most `size` rows) from the row groups with `rows`."""
    start = 0
    for group in range(file.metadata.num_row_groups):
        end = start + file.metadata.row_group(group).num_rows
        if rows is None or (start < rows.stop and rows.start < end):
            first = start
            for batch in file.iter_batches(size, row_groups=[group], columns=columns):
                low, high = (0, len(batch)) if rows is None else (max(0, rows.start - first), rows.stop - first)
                if low < min(high, len(batch)):
                    yield first + low, batch.slice(low, high - low)
                first += len(batch)
        start = end


def footer_of(path: Path) -> tuple[str, int]:
    """Return the SHA-256 of a Parquet footer (offsets, sizes, minima and maxima of columns), and the number of rows."""
    with open_table(path) as table, path.open("rb") as file:
        file.seek(-8, os.SEEK_END)
        length = int.from_bytes(file.read(4), "little")
        file.seek(-8 - length, os.SEEK_END)
        return hashlib.sha256(file.read(length)).hexdigest(), int(table.metadata.num_rows)


@dataclass(frozen=True)
class Spool:
    """A table, and its memory map if the table is on disk."""

    table: pa.Table
    mapping: mmap.mmap | None = None

    def release(self) -> None:
        """Return pages to the operating system, which reads them again on demand."""
        if self.mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            self.mapping.madvise(mmap.MADV_DONTNEED)


def spool(batches: Iterable[pa.RecordBatch], schema: pa.Schema, folder: Path | None = None) -> Spool:
    """Return record batches as one table: in memory up to 64 MB, else in a file that is deleted with the table.

    The file has no name. It is in the cache folder (`bixse.files.files`), or in the temporary folder if caching is off.
    With a `folder` the file is there, for a table that is only read from start to end, and 1 MB is in memory.
    """
    most, at_once = (BYTES_IN_MEMORY, BYTES_PER_BATCH) if folder is None else (BYTES_STREAMED, BYTES_STREAMED)
    rest, held, size = iter(batches), list[pa.RecordBatch](), 0
    for batch in rest:
        held.append(batch)
        size += batch.nbytes
        if size > most:
            break
    else:
        return Spool(pa.Table.from_batches(held, schema))
    folder = folder or cache_folder() or Path(tempfile.gettempdir())
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            with pa.ipc.new_file(file, schema) as writer:
                first = (held.pop(0) for _ in range(len(held)))  # each batch is freed once it is written
                for table in _of_some_size(chain(first, rest), at_once):
                    writer.write_table(table)
            file.flush()
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    spooled = Spool(pa.ipc.open_file(pa.py_buffer(mapping)).read_all(), mapping)
    spooled.release()
    return spooled


def _of_some_size(batches: Iterable[pa.RecordBatch], least: int) -> Iterator[pa.Table]:
    """Yield the rows in tables of about `least` bytes, each of one chunk."""
    group: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        group.append(batch)
        size += batch.nbytes
        if size >= least:
            yield pa.Table.from_batches(group).combine_chunks()
            group, size = [], 0
    if group:
        yield pa.Table.from_batches(group).combine_chunks()


def blocks(column: pa.ChunkedArray) -> Iterator[pa.Array]:
    """Yield a column in pieces of at most `ROWS_PER_BLOCK` rows."""
    for chunk in column.chunks:
        for start in range(0, len(chunk), ROWS_PER_BLOCK):
            yield chunk.slice(start, ROWS_PER_BLOCK)
