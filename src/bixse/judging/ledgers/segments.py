"""Segments, the files of a ledger in a folder: open segments, to which lines are added, and sealed segments."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import contextmanager, suppress
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from bixse.errors import InputError, StorageError
from bixse.files.files import atomic_file, storage_errors
from bixse.files.parquet import keyed_groups, open_table, save_table
from bixse.judging.ledgers.writer_files import WriterFile, writer_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from numpy.typing import NDArray
    from pyarrow.parquet import ParquetFile


FORMAT = 1
"""Format version of ledgers of both kinds."""
USABLE = ("graded", "written")
"""Statuses of answers that are not asked again."""


class StoredRow(NamedTuple):
    """An answer with the columns of SQLite and of segments, in this order."""

    key: str
    query_id: str
    document_id: str
    variant: str
    repeat: int
    status: str
    mode: str
    answer: str
    """The answer as JSON."""
    written: float
    """Seconds since 1970."""

    @property
    def rank(self) -> tuple[bool, float]:
        """The order of answers to one question; the highest counts: usable before unusable, then the latest."""
        return self.status in USABLE, self.written


OPEN, SEALED = ".jsonl", ".parquet"
"""Suffixes of open segments (a header with format and writer, then one JSON list per line) and sealed ones (by key)."""
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("key", "query_id", "document_id", "variant")),
        ("repeat", pa.int64()),
        *((name, pa.string()) for name in ("status", "mode", "answer")),
        ("written", pa.float64()),
    ],
    {"bixse_ledger": str(FORMAT)},
)
_FIX = "put back a copy, or move it away (its answers are then asked again); `bixse grade ledger check` looks at all"
"""The fix for a damaged segment of either kind."""
GROUP_ROWS = 16_384
"""Rows per row group. A group with a wanted answer is read completely."""
_KINDS: tuple[type | tuple[type, ...], ...] = (*[str] * 4, int, *[str] * 3, (float, int))


class OpenSegment:
    """A new segment of this process alone; a line survives the process once `add` returns."""

    def __init__(self, folder: Path) -> None:
        self.writer = WriterFile(folder, "segment-")  # locked first: others seal a segment without a writer
        self.path = folder / f"{self.writer.name}{OPEN}"
        with storage_errors(self.path):
            self._file = self.path.open("xb", buffering=0)
            self.add({"bixse_ledger": FORMAT, "owner": self.writer.owner})

    @property
    def is_there(self) -> bool:
        """Return True if no process has deleted the file."""
        with suppress(OSError):  # NFS, after another machine deleted the file
            return os.fstat(self._file.fileno()).st_nlink > 0
        return False

    def close(self, rows: Sequence[StoredRow]) -> None:
        """Seal the segment with the rows that were added, or delete it if there are none."""
        self._file.close()
        if rows:
            seal(rows, self.path.with_suffix(SEALED))
        self.path.unlink(missing_ok=True)
        self.writer.close()

    def add(self, line: Any) -> None:
        """Write a row, or the header."""
        with storage_errors(self.path):
            rest = memoryview(json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
            while rest:
                rest = rest[self._file.write(rest) :]


def table_of(rows: Iterable[StoredRow]) -> pa.Table:
    """Return rows as a table of `SCHEMA`."""
    columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    return pa.table([pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA)


def seal(rows: Iterable[StoredRow], path: Path) -> None:
    """Write a sealed segment, complete or not at all."""
    save_table(table_of(sorted(rows)), path, GROUP_ROWS)


def writer_of(segment: Path) -> Path:
    """Return the hidden file of the writer of a segment."""
    return writer_path(segment.parent, segment.stem)


def new_lines(path: Path, read: dict[Path, int]) -> Iterator[bytes]:
    """Yield the lines of a file after the bytes counted in `read`, which is updated."""
    with path.open("rb") as file:
        file.seek(read.setdefault(path, 0))
        for line in file:
            if not line.endswith(b"\n"):  # another process writes this line, or was killed before its end
                return
            read[path] += len(line)
            yield line


def open_rows(
    path: Path, wanted: AbstractSet[str] | None = None, read: dict[Path, int] | None = None
) -> Iterator[StoredRow]:
    """Yield the rows of an open segment after the bytes counted in `read`, of all keys or the `wanted` keys."""
    read = {} if read is None else read
    for line in new_lines(path, read):
        if read[path] == len(line):
            _check_header(path, line)
        elif wanted is None or _key(line) in wanted:
            yield _row(path, read[path], line)
        elif not line.startswith(b'["'):
            raise _damaged_line(path, read[path])


def sealed_rows(path: Path, wanted: Sequence[str] | None = None) -> Iterator[StoredRow]:
    """Yield the rows of a sealed segment, of all keys or the `wanted` keys (sorted)."""
    for table in sealed_tables(path, wanted):
        for batch in table.to_batches(1024):
            yield from starmap(StoredRow, zip(*(column.to_pylist() for column in batch.columns), strict=True))


def sealed_tables(path: Path, wanted: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield the rows of `sealed_rows` as tables of `SCHEMA`."""
    with open_sealed(path) as file:
        yield from keyed_groups(file, "key", wanted)


@contextmanager
def open_sealed(path: Path) -> Iterator[ParquetFile]:
    """Open a sealed segment, and check its version and columns."""
    with open_table(path, _FIX) as file:
        _check_version(path, (file.schema_arrow.metadata or {}).get(b"bixse_ledger", b"").decode())
        if file.schema_arrow.names != SCHEMA.names:
            raise _damaged(path, f"the columns {', '.join(file.schema_arrow.names)}")
        yield file


def _check_header(path: Path, line: bytes) -> None:
    try:
        version = str(json.loads(line)["bixse_ledger"])
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(path, "a first line that is no segment's") from error
    _check_version(path, version)


def _key(line: bytes) -> str:
    """Return the key at the start of a row's line, or "" if the line is damaged."""
    key = line[1 : line.find(b'", ') + 1]
    with suppress(ValueError):
        return str(json.loads(key)) if b"\\" in key else key[1:-1].decode()
    return ""


def _row(path: Path, end: int, line: bytes) -> StoredRow:
    try:
        values = json.loads(line)
        if len(values) == len(SCHEMA) and all(map(isinstance, values, _KINDS)):
            return StoredRow(*values)
    except (ValueError, TypeError):
        pass
    raise _damaged_line(path, end)


def _check_version(path: Path, found: str) -> None:
    if found != str(FORMAT):
        got = f"a segment of format {found}" if found else "a file that is no segment"
        raise InputError(f"{path}: got {got}; expected one of format {FORMAT}; fix: a newer bixse, or another --ledger")


def _damaged_line(path: Path, end: int) -> InputError:
    number = path.read_bytes()[:end].count(b"\n")
    return _damaged(path, f"in line {number} no answer")


def _damaged(path: Path, got: str) -> InputError:
    return InputError(f"{path}: got a damaged segment ({got}); expected it as it was written; fix: {_FIX}")


BLOCK = 1 << 23
"""Bytes per read of a file of numbers."""
BITS = 21  # first bits that tell nearly every other number from 50,000 wanted numbers


def numbers_of(segment: Path) -> Path:
    """Return the file with the size of the segment, 8 bytes per key, and a number that makes the sum of all 0."""
    return segment.with_name(f".{segment.stem}.keys")


class WantedKeys:
    """Sorted keys to find in many segments."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = keys
        numbers = _numbers_of(keys)
        order = np.argsort(numbers)
        self._sorted, self._key_of = numbers[order], order
        self._likely = np.zeros(1 << BITS, dtype=bool)
        self._likely[_first_bits(numbers)] = True

    def near(self, segment: Path) -> Sequence[str]:
        """Return, sorted, all wanted keys that a sealed segment has, and hardly any other."""
        try:
            return self._near(segment)
        except (OSError, ValueError):  # not made yet, or damaged
            try:
                _save_numbers(segment)
            except StorageError:  # a folder without write permission
                return self.keys
            return self._near(segment)

    def _near(self, segment: Path) -> list[str]:
        size, total, found = segment.stat().st_size, 0, []
        with numbers_of(segment).open("rb") as file:
            first = file.read(8)
            while block := file.read(BLOCK):
                numbers = np.frombuffer(block, dtype="<u8")
                total += int(numbers.sum())
                likely = numbers[self._likely.take(_first_bits(numbers))]
                places = np.minimum(np.searchsorted(self._sorted, likely), len(self._sorted) - 1)
                found.append(places[self._sorted[places] == likely])
        if int.from_bytes(first, "little") != size or (size + total) % 2**64:
            raise ValueError("another segment, or not as it was written")
        return sorted(self.keys[self._key_of[place]] for place in np.unique(np.concatenate(found)))


def _numbers_of(keys: Iterable[str]) -> NDArray[np.uint64]:
    digests = (hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=8).digest() for key in keys)
    return np.frombuffer(b"".join(digests), dtype="<u8")


def _first_bits(numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
    return (numbers >> np.uint64(64 - BITS)).view(np.int64)


def _save_numbers(segment: Path) -> None:
    total = size = segment.stat().st_size
    with atomic_file(numbers_of(segment)) as target, open_sealed(segment) as file:
        target.write(size.to_bytes(8, "little"))
        for batch in file.iter_batches(columns=["key"]):
            numbers = _numbers_of(batch.column(0).to_pylist())
            target.write(numbers.tobytes())
            total += int(numbers.sum())
        target.write((-total % 2**64).to_bytes(8, "little"))
