"""Segments, the files of a ledger that is a folder: open ones, to which lines are added, and sealed ones."""

from __future__ import annotations

import json
from contextlib import contextmanager
from itertools import starmap
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bixse.data.io.files import storage_errors
from bixse.data.io.parquet import keyed_groups, open_table, save_table
from bixse.errors import InputError
from bixse.grading.ledgers.stored_row import FORMAT, StoredRow, this_process

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from pyarrow.parquet import ParquetFile

OPEN, SEALED = ".jsonl", ".parquet"
"""Suffixes: one JSON list a line after a first line with the format and the writer; sorted by key."""
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("key", "query_id", "document_id", "variant")),
        ("repeat", pa.int64()),
        *((name, pa.string()) for name in ("status", "mode", "answer")),
        ("written", pa.float64()),
    ],
    {"bixse_ledger": str(FORMAT)},
)
GROUP_ROWS = 16_384
"""Rows of a row group, which is read as a whole where it has an answer that is looked for."""
_KINDS: tuple[type | tuple[type, ...], ...] = (*[str] * 4, int, *[str] * 3, (float, int))


class OpenSegment:
    """A new segment of this process alone; every line is in the file, beyond this process, once `add` returns.

    Raises:
        StorageError: the folder cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with storage_errors(path):
            self._file = path.open("xb", buffering=0)
            self._put({"bixse_ledger": FORMAT, "owner": this_process()})

    def add(self, row: StoredRow) -> None:
        self._put(row)

    def close(self) -> None:
        self._file.close()

    def _put(self, line: Any) -> None:
        with storage_errors(self.path):
            rest = memoryview(json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
            while rest:
                rest = rest[self._file.write(rest) :]


def table_of(rows: Iterable[StoredRow]) -> pa.Table:
    """Rows as a table of `SCHEMA`."""
    columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA)


def seal(rows: Iterable[StoredRow], path: Path) -> None:
    """Write a sealed segment, whole or not at all."""
    save_table(table_of(sorted(rows)), path, GROUP_ROWS)


def owner_of(path: Path) -> str:
    """Who writes an open segment; "" where the writer was killed before it could say."""
    with path.open("rb") as file:
        return _owner(path, file.readline())


def open_rows(path: Path, wanted: Sequence[str] | None = None) -> Iterator[StoredRow]:
    """The rows of an open segment, of `wanted` keys alone where they are given.

    A last line without its end, which a killed process leaves, is none.

    Raises:
        InputError: another line cannot be read, or the segment is of another version.
        FileNotFoundError: there is none any more.
    """
    starts = None if wanted is None else {json.dumps(key, ensure_ascii=False).encode() for key in wanted}
    with path.open("rb") as file:
        if not _owner(path, file.readline()):
            return
        for number, line in enumerate(file, 2):
            if not line.endswith(b"\n"):
                return
            if starts is None or line[1 : line.find(b'", ') + 1] in starts:
                yield _row(path, number, line)
            elif not line.startswith(b'["'):
                raise _damaged(path, f"in line {number} no answer")


def sealed_rows(path: Path, wanted: Sequence[str] | None = None) -> Iterator[StoredRow]:
    """The rows of a sealed segment, of `wanted` keys (sorted) alone where they are given.

    Row groups whose range of keys has none of them are not read, and of the others the keys first.

    Raises:
        InputError: the segment cannot be read, or is of another version.
    """
    for table in sealed_tables(path, wanted):
        for batch in table.to_batches(1024):
            yield from starmap(StoredRow, zip(*(column.to_pylist() for column in batch.columns), strict=True))


def sealed_tables(path: Path, wanted: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """The same as tables of `SCHEMA`."""
    with open_sealed(path) as file:
        yield from keyed_groups(file, "key", wanted)


@contextmanager
def open_sealed(path: Path) -> Iterator[ParquetFile]:
    """A sealed segment of this version."""
    with open_table(path) as file:
        _check_version(path, (file.schema_arrow.metadata or {}).get(b"bixse_ledger", b"").decode())
        if file.schema_arrow.names != SCHEMA.names:
            raise _damaged(path, f"the columns {', '.join(file.schema_arrow.names)}")
        yield file


def _owner(path: Path, line: bytes) -> str:
    if not line.endswith(b"\n"):
        return ""
    try:
        header = json.loads(line)
        version, owner = str(header["bixse_ledger"]), str(header["owner"])
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, "a first line that is no segment's") from error
    _check_version(path, version)
    return owner


def _row(path: Path, number: int, line: bytes) -> StoredRow:
    try:
        values = json.loads(line)
        if len(values) == len(SCHEMA) and all(map(isinstance, values, _KINDS)):
            return StoredRow(*values)
    except (ValueError, TypeError):
        pass
    raise _damaged(path, f"in line {number} no answer")


def _check_version(path: Path, found: str) -> None:
    if found != str(FORMAT):
        got = f"a segment of format {found}" if found else "a file that is no segment"
        raise InputError(f"{path}: got {got}; expected one of format {FORMAT}; fix: a newer bixse, or another --ledger")


def _damaged(path: Path, got: str) -> InputError:
    return InputError(
        f"{path}: got a damaged segment ({got}); expected it as it was written; fix: put back a copy, or move it "
        "away (its answers are then asked again); `bixse grade ledger check` looks at all"
    )
