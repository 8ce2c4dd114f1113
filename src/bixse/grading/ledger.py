"""The ledger: every answer of a judge, kept for good, so that no question is paid for twice."""

from __future__ import annotations

import os
import socket
import sqlite3
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Generic

from typing_extensions import TypeVar

from bixse.errors import InputError, StorageError
from bixse.grading.judge import Answer, Completion

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

Kept = TypeVar("Kept", bound=Answer | Completion, default=Answer)
"""What a ledger keeps."""
LEASE = 900.0
"""Seconds after which a claim of a process on another machine no longer counts, unless it is renewed."""
_FORMAT = 1
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


class Ledger(Generic[Kept]):
    """Answers of judges, or texts of a model, under the hash of their question (`Question.key`), in one SQLite file.

    An answer is written the moment it arrives, so a process that is killed loses only the requests in flight. Several
    processes may share a ledger: each question is claimed before it is asked, and the claims of a process that is gone
    count no longer. An answer without a grade can be replaced by a later one; it is then kept in the table `earlier`.
    SQLite's write-ahead log needs a disk of this machine; on a network file system use one ledger per machine.

    Raises:
        InputError: the file is no ledger, or one of a later version.
        StorageError: it cannot be written.

    Example:
        >>> import tempfile
        >>> with Ledger(Path(tempfile.mkdtemp()) / "ledger.sqlite") as ledger:
        ...     asked = ledger.claim("key of a question")
        ...     ledger.write("key of a question", Answer("graded", "verbal", grade=2.0))
        ...     asked, ledger.find("key of a question").grade
        (True, 2.0)
    """

    def __init__(self, path: str | Path, kind: type[Kept] = Answer) -> None:  # type: ignore[assignment]
        self.path, self._kind = Path(path), kind
        self.owner = f"{socket.gethostname()}/{os.getpid()}/{_started(os.getpid())}"
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
        if version > _FORMAT or (version == 0 and tables):
            found = f"a ledger of format {version}" if version else "an SQLite file of something else"
            raise InputError(
                f"{self.path}: got {found}; expected a ledger of format {_FORMAT}; "
                "fix: choose another --ledger, or a newer bixse"
            )
        if version == 0:
            for statement in _TABLES.split(";"):
                self._file.execute(statement)
            self._file.execute(f"PRAGMA user_version={_FORMAT}")

    def find(self, key: str) -> Kept | None:
        with self._errors():
            row = self._file.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
        kept: Kept | None = self._kind.from_json(row[0]) if row else None  # type: ignore[assignment]
        return kept

    def claim(self, key: str) -> bool:
        """Take a question for this process; False where another living process is asking it."""
        with self._errors(), self._transaction():
            row = self._file.execute("SELECT owner, written FROM claims WHERE key = ?", (key,)).fetchone()
            if row is not None and row[0] != self.owner and _living(*row):
                return False
            self._file.execute("INSERT OR REPLACE INTO claims VALUES (?, ?, ?)", (key, self.owner, time.time()))
        return True

    def write(
        self, key: str, answer: Kept, query_id: str = "", document_id: str = "", variant: str = "", repeat: int = 0
    ) -> None:
        """Keep an answer and give its claim back; an earlier answer to the same question goes to `earlier`."""
        row = (key, query_id, document_id, variant, repeat, answer.status, answer.mode, answer.to_json(), time.time())
        with self._errors(), self._transaction():
            self._file.execute("INSERT INTO earlier SELECT key, answer, written FROM answers WHERE key = ?", (key,))
            self._file.execute("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            self._file.execute("DELETE FROM claims WHERE key = ?", (key,))

    def give_back(self, key: str) -> None:
        with self._errors():
            self._file.execute("DELETE FROM claims WHERE key = ? AND owner = ?", (key, self.owner))

    def release(self) -> None:
        with self._errors():
            self._file.execute("DELETE FROM claims WHERE owner = ?", (self.owner,))

    def renew(self) -> None:
        """Say that this process still works on its claims."""
        with self._errors():
            self._file.execute("UPDATE claims SET written = ? WHERE owner = ?", (time.time(), self.owner))

    def __len__(self) -> int:
        with self._errors():
            return int(self._file.execute("SELECT count(*) FROM answers").fetchone()[0])

    def close(self) -> None:
        try:
            self.release()
        finally:
            self._file.close()

    def __enter__(self) -> Ledger[Kept]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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


def _living(owner: str, written: float) -> bool:
    """Whether the process of a claim lives on this machine, or its lease on another has not run out."""
    host, process, started = owner.rsplit("/", 2)
    if host != socket.gethostname():
        return time.time() - written < LEASE
    return _started(int(process)) == started


def _started(process: int) -> str:
    """When a process of this machine started; "" where there is none."""
    import psutil

    try:
        return f"{psutil.Process(process).create_time():.2f}"
    except psutil.Error:
        return ""
