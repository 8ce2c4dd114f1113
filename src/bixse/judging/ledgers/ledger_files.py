"""Merge, check and count ledgers of either kind and any size."""

from __future__ import annotations

import secrets
import sqlite3
import tempfile
from collections import Counter
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from bixse.errors import InputError
from bixse.files.files import storage_errors
from bixse.files.parquet import row_counts, save_table
from bixse.judging.ledger import SqliteAnswers
from bixse.judging.ledgers.segment_answers import folder_id, make_folder, seal_left, segments_of
from bixse.judging.ledgers.segments import (
    GROUP_ROWS,
    OPEN,
    SCHEMA,
    SEALED,
    StoredRow,
    numbers_of,
    open_rows,
    open_sealed,
    sealed_rows,
    sealed_tables,
    table_of,
)
from bixse.judging.ledgers.writer_files import alone
from bixse.settings import Flag, Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Self

    import duckdb

MEMORY_LIMIT = "2GB"
"""Memory of DuckDB; the rest goes to temporary files."""
MERGE_LOCK = ".merge.lock"
"""File in a ledger's folder that a merge locks."""
SHOWN = 5
"""Number of conflicts that a check names."""
_EARLIER = """
SELECT old.key, coalesce(query_id, ''), coalesce(document_id, ''), coalesce(order_name, ''), coalesce(repeat, 0),
    json_extract(old.answer, '$.status'), coalesce(mode, ''), old.answer, old.written
FROM earlier AS old LEFT JOIN answers USING (key)
"""
"""Query for the replaced answers of an SQLite file, as rows."""


class LedgerSettings(Settings):
    """Settings of `bixse grade ledger`."""

    action: Annotated[Literal["merge", "check"], Flag(positional=True)]
    """merge: one of several, or one segment of all; check: what cannot be read, and questions with two different
    grades."""
    ledger: Annotated[tuple[Path, ...], Field(min_length=1), Flag(metavar="LEDGER", positional=True)]
    """SQLite files or folders."""
    to: Annotated[Path | None, Flag(metavar="PATH")] = None
    """Folder that merge puts answers into (default: the ledger itself)."""

    @model_validator(mode="after")
    def _place(self) -> Self:
        if self.action == "merge" and len(self.ledger) > 1 and self.to is None:
            raise ValueError("--to: got none; expected where to merge; fix: add it")
        if self.to is not None and self.action == "check":
            raise ValueError("--to: got it with check; expected it with merge; fix: leave it out")
        return self


@dataclass(frozen=True)
class LedgerCheck:
    """The result of a check of ledgers."""

    unreadable: Sequence[str] = ()
    """One error per unreadable file."""
    conflicts: Sequence[str] = ()
    """Keys of questions with two or more different grades, of which the latest counts; at most `SHOWN`."""
    conflicting: int = 0
    """Number of questions with different grades."""
    writing: int = 0
    """Number of open segments, of running or killed processes."""


def answers_by_status(path: Path) -> dict[str, int]:
    """Count the answers of a ledger by status; the ledger may be in use, and nothing is written."""
    if path.is_dir():  # replaced answers count too
        counts: Counter[str] = Counter()
        for part in segments_of(path):
            try:
                counts.update(_statuses(part))
            except (FileNotFoundError, InputError):  # another process may have sealed or merged it
                if part.exists():
                    raise
        return dict(counts.most_common())
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5.0)) as file:
            return dict(file.execute("SELECT status, count(*) FROM answers GROUP BY status ORDER BY 2 DESC").fetchall())
    except sqlite3.Error as error:
        raise InputError(f"{path}: got {error}; expected a ledger; fix: check that it is one") from error


def merge_ledgers(ledgers: Sequence[Path], to: Path | None = None) -> tuple[Path, int]:
    """Merge ledgers into one sealed segment of a folder, equal rows once; return the folder and the segment's rows."""
    target = to or ledgers[0]  # one ledger, a folder, is merged in place
    make_folder(target)
    with alone(target / MERGE_LOCK):  # concurrent merges wait in turn
        seal_left(target)  # segments of living processes stay unchanged
        old = [path for path in segments_of(target) if path.suffix == SEALED]
        new = target / f"segment-{secrets.token_hex(8)}{SEALED}"
        with _opened([path for path in ledgers if path != target], old) as database:
            reader = database.sql("SELECT DISTINCT * FROM stored ORDER BY key, written").to_arrow_reader(GROUP_ROWS)
            batches = (batch.cast(SCHEMA) for batch in reader)
            save_table(pa.RecordBatchReader.from_batches(SCHEMA, batches), new)
        with storage_errors(target):  # after the new segment is complete; nothing else is deleted
            for path in old:
                path.unlink(missing_ok=True)
                numbers_of(path).unlink(missing_ok=True)
    return target, sum(row_counts([new]))


def check_ledgers(ledgers: Sequence[Path]) -> LedgerCheck:
    """Read every row of every segment, and report unreadable files and conflicts."""
    unreadable, readable, writing = [], [], 0
    for path in _parts(ledgers):
        writing += path.suffix == OPEN
        try:
            for _ in _rows(path):
                pass
            readable.append(path)
        except (InputError, FileNotFoundError) as error:
            if path.exists():  # else another process sealed or merged it
                unreadable.append(str(error))
    with _opened((), readable) as database:
        found = database.execute(
            "SELECT key FROM stored WHERE status = 'graded' GROUP BY key "
            "HAVING count(DISTINCT answer->>'grade') > 1 ORDER BY key"
        ).fetchall()
    return LedgerCheck(unreadable, [key for (key,) in found[:SHOWN]], len(found), writing)


def _parts(ledgers: Iterable[Path]) -> list[Path]:
    """Return the SQLite files and segments of ledgers."""
    parts: list[Path] = []
    for path in ledgers:
        if not path.exists():
            raise InputError(f"{path}: got no such file; expected a ledger; fix: check the path")
        if path.is_dir():
            folder_id(path)
            parts += segments_of(path)
        else:
            parts.append(path)
    return parts


@contextmanager
def _opened(ledgers: Sequence[Path], parts: Sequence[Path] = ()) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database with all rows of ledgers and segments as the view `stored`."""
    import duckdb

    parts = [*_parts(ledgers), *parts]
    sealed = [path for path in parts if path.suffix == SEALED]
    try:
        for path in sealed:
            for _ in sealed_tables(path):  # DuckDB does not verify the checksums of pages
                pass
        with tempfile.TemporaryDirectory() as folder, duckdb.connect(Path(folder) / "rows.duckdb") as database:
            database.execute(f"SET memory_limit = '{MEMORY_LIMIT}'; SET preserve_insertion_order = false")
            database.execute("SET autoinstall_known_extensions = false")
            database.register("lines", table_of(()))
            database.execute("CREATE TABLE others AS SELECT * FROM lines")
            rows = (row for path in parts if path not in sealed for row in _rows(path))
            while some := list(islice(rows, GROUP_ROWS)):
                database.register("lines", table_of(some))
                database.execute("INSERT INTO others SELECT * FROM lines")
            names = ", ".join("'" + str(path).replace("'", "''") + "'" for path in sealed)
            both = f" UNION ALL SELECT * FROM read_parquet([{names}])" if sealed else ""
            database.execute(f"CREATE VIEW stored AS SELECT * FROM others{both}")
            yield database
    except Exception as error:
        if all(path.exists() for path in parts):
            raise
        raise InputError(
            f"{', '.join(sorted({str(path.parent) for path in parts if not path.exists()}))}: got segments that were "
            "sealed or merged while they were read; expected them to stay; fix: the same command again"
        ) from error


def _statuses(segment: Path) -> list[str]:
    if segment.suffix == OPEN:
        return [row.status for row in open_rows(segment)]
    with open_sealed(segment) as file:
        statuses: list[str] = file.read(["status"])["status"].to_pylist()
    return statuses


def _rows(path: Path) -> Iterator[StoredRow]:
    if path.suffix in (OPEN, SEALED):
        return (open_rows if path.suffix == OPEN else sealed_rows)(path)
    return _sqlite_rows(path)


def _sqlite_rows(path: Path) -> Iterator[StoredRow]:
    """Yield the answers of an SQLite file, then the replaced answers."""
    SqliteAnswers(path).close()  # refuses what is no ledger
    try:
        with closing(sqlite3.connect(path)) as file:
            yield from starmap(StoredRow, file.execute(f"SELECT * FROM answers UNION ALL {_EARLIER}"))
    except sqlite3.Error as error:
        raise InputError(
            f"{path}: got a damaged ledger ({error}); expected a whole SQLite file; fix: put back a copy, or "
            "`sqlite3 FILE .recover`"
        ) from error
