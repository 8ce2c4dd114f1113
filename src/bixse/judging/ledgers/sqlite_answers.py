"""Answers in one SQLite file of this machine, which several of its processes may share."""

from __future__ import annotations

import glob
import os
import sqlite3
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bixse.errors import InputError, StorageError
from bixse.judging.ledgers.writer_files import WriterFile, claims_count, without_writer, writer_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


FORMAT = 1
"""Of ledgers of both kinds."""
USABLE = ("graded", "written")
"""Statuses of answers that are not asked again."""


class StoredRow(NamedTuple):
    """One answer; SQLite's columns, and those of a segment, in this order."""

    key: str
    query_id: str
    document_id: str
    variant: str
    repeat: int
    status: str
    mode: str
    answer: str
    """As JSON."""
    written: float
    """Seconds since 1970."""

    @property
    def rank(self) -> tuple[bool, float]:
        """Of several answers to one question that with the highest stands: a usable one, then the latest."""
        return self.status in USABLE, self.written


_TABLES = """
CREATE TABLE IF NOT EXISTS answers (
    key TEXT PRIMARY KEY, query_id TEXT, document_id TEXT, order_name TEXT, repeat INTEGER, status TEXT, mode TEXT,
    answer TEXT NOT NULL, written REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS earlier (
    key TEXT, answer TEXT NOT NULL, written REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS claims (key TEXT PRIMARY KEY, owner TEXT NOT NULL, written REAL NOT NULL) WITHOUT ROWID;
"""


class SqliteAnswers:
    """Answers by the hash of their question; an answer that was replaced is kept in the table `earlier`.

    SQLite's write-ahead log needs a disk of this machine.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.realpath(path))  # through a link too, the writers' files lie in one folder
        self._writer: WriterFile | None = None
        with self._errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(self.path, timeout=60.0, isolation_level=None)
            self._write_ahead()
            self._file.execute("PRAGMA synchronous=NORMAL")
            with self._transaction():
                self._make_tables()

    def _write_ahead(self) -> None:
        """SQLite does not wait by itself where another process switches the log on now."""
        for attempt in range(100):
            try:
                self._file.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or attempt == 99:
                    raise
                time.sleep(0.05)

    def _make_tables(self) -> None:
        version = self._file.execute("PRAGMA user_version").fetchone()[0]
        tables = {name for (name,) in self._file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if version > FORMAT or (version == 0 and tables):
            found = f"a ledger of format {version}" if version else "an SQLite file of something else"
            raise InputError(
                f"{self.path}: got {found}; expected a ledger of format {FORMAT}; "
                "fix: choose another --ledger, or a newer bixse"
            )
        if version == 0:
            for statement in _TABLES.split(";"):
                self._file.execute(statement)
            self._file.execute(f"PRAGMA user_version={FORMAT}")

    def load(self, keys: Iterable[str]) -> None:
        """Every key is found as fast by itself."""

    def find(self, key: str) -> str | None:
        with self._errors():
            row = self._file.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def claim(self, key: str) -> bool:
        with self._errors(), self._transaction():
            row = self._file.execute("SELECT owner FROM claims WHERE key = ?", (key,)).fetchone()
            other = row is not None and row[0] != self._owner()
            if other and claims_count(writer_path(self.path.parent, row[0].rsplit("/", 1)[-1])):
                return False
            self._file.execute("INSERT OR REPLACE INTO claims VALUES (?, ?, ?)", (key, self._owner(), time.time()))
        return True

    def _owner(self) -> str:
        """The owner of this process's claims; the first call makes its file, and deletes those of killed processes."""
        if self._writer is None or not self._writer.held:
            for left in self.path.parent.glob(f".{glob.escape(self.path.name)}-*.writer"):
                with without_writer(left) as gone:
                    if gone:
                        left.unlink(missing_ok=True)
            self._writer = WriterFile(self.path.parent, f"{self.path.name}-")
        return self._writer.owner

    def write(self, row: StoredRow) -> None:
        with self._errors(), self._transaction():
            self._file.execute("INSERT INTO earlier SELECT key, answer, written FROM answers WHERE key = ?", row[:1])
            self._file.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            self._file.execute("DELETE FROM claims WHERE key = ?", row[:1])

    def give_back(self, key: str) -> None:
        with self._errors():
            self._file.execute("DELETE FROM claims WHERE key = ? AND owner = ?", (key, self._owner()))

    def close(self) -> None:
        try:
            if self._writer is not None and self._writer.held:
                with self._errors():
                    self._file.execute("DELETE FROM claims WHERE owner = ?", (self._writer.owner,))
                self._writer.close()
        finally:
            self._file.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing, with the right to write taken at the start so that two processes cannot both read first."""
        self._file.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._file.execute("ROLLBACK")
            raise
        self._file.execute("COMMIT")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            if isinstance(error, sqlite3.DatabaseError) and "not a database" in str(error):
                raise InputError(
                    f"{self.path}: got a file that is no ledger; expected one that `bixse grade` wrote or a free name; "
                    "fix: choose another --ledger"
                ) from error
            raise StorageError(
                f"{self.path}: got {error}; expected to write answers there; fix: free disk space, make the folder "
                "writable, or choose a --ledger on a disk of this machine"
            ) from error
