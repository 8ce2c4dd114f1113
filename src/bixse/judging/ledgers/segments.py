"""Segments, the files of a ledger: JSON lines while a process writes them, Parquet once it has ended."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import cache
from itertools import starmap
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa

from bixse.errors import InputError
from bixse.files.files import atomic_file, file_hash, interruptible, read_text, storage_errors
from bixse.files.parquet import open_table, read_table, table_writer
from bixse.judging.judge import USABLE

FORMAT = 2
"""Format version of ledgers."""
FOLDER_FILE = "ledger.json"
"""File that makes a folder a ledger, with the id of the ledger."""
OPEN, SEALED = ".jsonl", ".parquet"
"""Suffixes of open segments (a header, then a JSON list per answer or claim) and of sealed segments."""
_FIX = "put back a copy, or move it away (its answers are then asked again)"
"""The fix for a damaged segment."""


class StoredRow(NamedTuple):
    """An answer as JSON with the columns of segments, in this order; `written` is in seconds since 1970."""

    key: str
    query_id: str
    document_id: str
    variant: str
    repeat: int
    status: str
    mode: str
    answer: str
    written: float

    @property
    def rank(self) -> tuple[bool, float]:
        """The order of answers to one question; the highest counts: usable before unusable, then the latest."""
        return self.status in USABLE, self.written


class Claim(NamedTuple):
    """A line of an open segment: its writer begins to ask a question, or gives it back."""

    key: str
    holds: bool


_TEXT = pa.string()
SCHEMA = pa.schema(
    list(zip(StoredRow.__annotations__, [*[_TEXT] * 4, pa.int64(), *[_TEXT] * 3, pa.float64()], strict=True)),
    {"bixse_ledger": str(FORMAT)},
)
_KINDS: tuple[type | tuple[type, ...], ...] = (*[str] * 4, int, *[str] * 3, (float, int))


def check_folder(path: Path) -> None:
    """Raise an InputError for a file, or a folder of something else; a free name or an empty folder may be used."""
    names = sorted(_names(path)) if path.is_dir() else []
    if path.is_file() or (names and FOLDER_FILE not in names):
        got = f"a folder with {', '.join(names[:3])}" if names else "a file"
        raise InputError(f"{path}: got {got}; expected a ledger or an empty folder; fix: choose another --ledger")


def make_folder(path: Path) -> None:
    """Make a ledger if there is none."""
    check_folder(path)
    with storage_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        if not (path / FOLDER_FILE).exists():
            content = json.dumps({"bixse_ledger": FORMAT, "id": secrets.token_hex(16)}) + "\n"
            with suppress(FileExistsError), (path / FOLDER_FILE).open("x", encoding="utf-8") as new:
                new.write(content)  # else another process was faster
    check_ledger(path)


def check_ledger(path: Path) -> None:
    """Raise an InputError for a ledger of another version, or for one with a damaged file of its id."""
    file = path / FOLDER_FILE
    for _ in range(50):
        if text := read_text(file):  # else another process is writing it
            break
        time.sleep(0.1)
    try:
        content = json.loads(text)
        version, _ = content["bixse_ledger"], content["id"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{file}: got a damaged file; expected the id of a ledger; fix: delete it and the empty folder, or write "
            f'{{"bixse_ledger": {FORMAT}, "id": "anything"}} into it'
        ) from error
    _check_version(path, version)


def segments_of(path: Path) -> list[Path]:
    """Return the segments of a ledger by name; open segments first, since they may be sealed while they are read."""
    names = _names(path)
    sealed = {name for name in names if name.endswith(SEALED)}
    # a process that was killed between sealing and deleting leaves both: only the sealed segment counts
    twins = {name.rpartition("-")[0] + OPEN for name in sealed}
    left = {name for name in names if name.endswith(OPEN)} - twins
    return [path / name for name in (*sorted(left), *sorted(sealed))]


def new_lines(path: Path, wanted: AbstractSet[str] | None, read: dict[Path, int]) -> Iterator[StoredRow | Claim]:
    """Yield the lines of an open segment after the bytes counted in `read`, of all keys or the `wanted` keys."""
    with path.open("rb") as file:
        file.seek(read.setdefault(path, 0))
        for line in file:
            if not line.endswith(b"\n"):  # another process writes this line, or was killed before its end
                return
            read[path] += len(line)
            if read[path] == len(line):
                _check_header(path, line)
                continue
            wanted_here = wanted is None or _key(line) in wanted
            parsed = _parsed(line) if wanted_here else None
            if not line.startswith(b'["') or (wanted_here and parsed is None):
                number = path.read_bytes()[: read[path]].count(b"\n")
                raise _damaged(path, f"in line {number} no answer")
            if parsed is not None:
                yield parsed


def open_rows(path: Path) -> list[StoredRow]:
    """Return the answers of an open segment."""
    return [line for line in new_lines(path, None, {}) if isinstance(line, StoredRow)]


def sealed_rows(paths: Sequence[Path], wanted: Collection[str]) -> Iterator[StoredRow]:
    """Yield the rows of sealed segments with a `wanted` key."""
    import duckdb

    for path in paths:
        check_sealed(path)
    with interruptible(), duckdb.connect() as database:
        database.register("wanted", pa.table({"key": pa.array(list(wanted), _TEXT)}))
        names = [glob.escape(str(path)) for path in paths]
        database.execute("SELECT stored.* FROM read_parquet($1) AS stored SEMI JOIN wanted USING (key)", [names])
        while rows := database.fetchmany(10_000):
            yield from starmap(StoredRow, rows)


def seal(rows: Sequence[StoredRow], segment: Path) -> None:
    """Write the rows of an open segment as a sealed one, complete or not at all, with a hash in its name."""
    columns = zip(zip(*rows, strict=True), SCHEMA.types, strict=True)
    buffer = pa.BufferOutputStream()
    with table_writer(buffer, SCHEMA) as writer:
        writer.write_table(pa.table([pa.array(values, kind) for values, kind in columns], SCHEMA))
    content = buffer.getvalue()
    digest = hashlib.sha256(content).hexdigest()
    with atomic_file(segment.with_name(f"{segment.stem}-{digest}{SEALED}")) as file:
        file.write(content)


@cache  # a segment never changes, so a process reads it once
def check_sealed(path: Path) -> None:
    """Raise an InputError for a sealed segment that is not as it was written."""
    with open_table(path, _FIX) as file:
        digest, metadata = file_hash(path), file.schema_arrow.metadata or {}
    if path.stem.rpartition("-")[2] != digest:  # duckdb does not verify the checksums of Parquet
        raise _damaged(path, f"bytes with the hash {digest}")
    _check_version(path, metadata.get(b"bixse_ledger", b"").decode())


def answers_by_status(path: Path) -> dict[str, int]:
    """Count the answers of a ledger by status, replaced answers too; it may be in use, and nothing is written."""
    return dict(Counter(stored_values(path, "status")).most_common())


def stored_values(path: Path, column: Literal["status", "answer"]) -> Iterator[str]:
    """Yield a column of all answers of a ledger, replaced answers too; it may be in use, and nothing is written."""
    check_ledger(path)
    for segment in segments_of(path):
        if segment.suffix == OPEN:
            with suppress(FileNotFoundError):  # another process has sealed it
                yield from [getattr(row, column) for row in open_rows(segment)]
        else:
            check_sealed(segment)
            yield from read_table(segment, [column])[column].to_pylist()


def _names(path: Path) -> set[str]:
    with os.scandir(path) as entries:  # many times as fast as `Path.iterdir`, and every look at a ledger takes it
        return {entry.name for entry in entries if not entry.name.startswith(".")}


def _check_header(path: Path, line: bytes) -> None:
    with suppress(ValueError, LookupError, TypeError):
        return _check_version(path, json.loads(line)["bixse_ledger"])
    raise _damaged(path, "a first line that is no segment's")


def _key(line: bytes) -> str:
    """Return the key at the start of a line, or "" if the line is damaged."""
    key = line[2 : line.find(b'", ')]
    with suppress(ValueError, LookupError, TypeError):
        return str(json.loads(line)[0]) if b"\\" in key else key.decode()
    return ""


def _parsed(line: bytes) -> StoredRow | Claim | None:
    with suppress(ValueError, TypeError):
        values = json.loads(line)
        if len(values) == len(SCHEMA) and all(map(isinstance, values, _KINDS)):
            return StoredRow(*values)
        if len(values) == 2 and isinstance(values[1], bool):
            return Claim(*values)
    return None


def _check_version(path: Path, version: object) -> None:
    if str(version) != str(FORMAT):
        got = f"format {version}" if version else "a file that is no segment"
        raise InputError(f"{path}: got {got}; expected format {FORMAT}; fix: choose another --ledger, or a newer bixse")


def _damaged(path: Path, got: str) -> InputError:
    return InputError(f"{path}: got a damaged segment ({got}); expected it as it was written; fix: {_FIX}")
