"""Parquet files, every page with a checksum: written so, and checked wherever one is read."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from bixse.data.io.files import atomic_file
from bixse.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO


def save_table(table: pa.Table | pa.RecordBatchReader, path: Path) -> None:
    """Write a table, or one batch after the other, with page checksums; the file appears whole or not at all."""
    with atomic_file(path) as file, table_writer(file, table.schema) as writer:
        if isinstance(table, pa.Table):
            writer.write_table(table)
            return
        for batch in table:
            writer.write_batch(batch)


def table_writer(target: Path | BinaryIO, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer that takes one table after the other, with page checksums."""
    return pq.ParquetWriter(target, schema, write_page_checksum=True)


def checked_file(path: Path) -> pq.ParquetFile:
    """A Parquet file whose pages are held against their checksums as they are read."""
    # pre_buffer, on by default since some version of pyarrow, keeps all that was read until the file is closed
    return pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False, page_checksum_verification=True)


@contextmanager
def open_table(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file; the checksums of the pages that are read, where it has any, are verified."""
    with reading(path), checked_file(path) as file:
        yield file


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Explain what goes wrong while a Parquet file is read."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        found = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"{path}: got unreadable Parquet ({found[:200]}); expected a whole Parquet file, every byte as it was "
            "written; fix: write or fetch it again, or name it by its real format"
        ) from error


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """A Parquet file; of these columns only those that it has, all where it has none of them."""
    with open_table(path) as file:
        names = [name for name in file.schema_arrow.names if columns is None or name in columns]
        return file.read(columns=names or None)


def column_names(path: Path) -> list[str]:
    """The names of the columns of a Parquet file."""
    with open_table(path) as file:
        names: list[str] = file.schema_arrow.names
        return names
