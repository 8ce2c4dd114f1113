"""Writing tables to JSONL, CSV, TSV (each also with .gz) and Parquet, whole or not at all."""

from __future__ import annotations

import csv
import gzip
import io
import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO, cast

import pyarrow as pa

from bixse.files.files import atomic_file
from bixse.files.parquet import save_table
from bixse.files.read import checked_format

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH_ROWS = 1024
"""Most rows that are turned into text at once."""


def write_rows(table: pa.Table | pa.RecordBatchReader, path: str | Path) -> None:
    r"""Write rows to a file whose suffix names the format; it appears whole or not at all.

    Lists are JSON in CSV and TSV, and what is absent an empty field.

    Args:
        table: the rows; of a reader one batch after the other is in memory.
        path: .jsonl, .csv, .tsv (each may have .gz behind it) or .parquet (with page checksums).

    Raises:
        InputError: the suffix names no known format.
        StorageError: the disk is full or the folder cannot be written; the old file is left as it was.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "labels.tsv"
        >>> write_rows(pa.table({"id": ["7", "8"], "grade": [0.5, None]}), path)
        >>> path.read_text().splitlines()
        ['id\tgrade', '7\t0.5', '8\t']
    """
    path = Path(path)
    kind = checked_format(path)
    if kind == ".parquet":
        save_table(table, path)
        return
    with atomic_file(path) as file, _text(file, path) as text:
        write = csv.writer(text, delimiter="\t" if kind == ".tsv" else ",", lineterminator="\r\n").writerow
        if kind != ".jsonl":
            write(table.schema.names)
        for batch in table.to_batches(BATCH_ROWS) if isinstance(table, pa.Table) else table:
            for row in batch.to_pylist():
                if kind == ".jsonl":
                    text.write(json.dumps(row, ensure_ascii=False) + "\n")
                else:
                    write([json.dumps(value) if isinstance(value, list) else value for value in row.values()])


@contextmanager
def _text(file: BinaryIO, path: Path) -> Iterator[TextIO]:
    packed = gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) if path.suffix.lower() == ".gz" else None
    text = io.TextIOWrapper(cast("BinaryIO", packed or file), encoding="utf-8", newline="")
    yield text
    text.flush()
    text.detach()
    if packed is not None:
        packed.close()
