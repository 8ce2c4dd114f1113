"""The ledger: every answer of a judge, kept so that no question is paid for twice."""

from __future__ import annotations

import glob
import os
import sqlite3
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Generic

from typing_extensions import TypeVar

from bixse.errors import InputError, StorageError
from bixse.judging.judge import Answer, Completion
from bixse.judging.ledgers.segment_answers import SegmentAnswers
from bixse.judging.ledgers.segments import FORMAT, StoredRow
from bixse.judging.ledgers.writer_files import WriterFile, claims_count, without_writer, writer_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType


Kept = TypeVar("Kept", bound=Answer | Completion, default=Answer)


class Ledger(Generic[Kept]):
    """Answers of judges, or texts of a model, under the hash of their question (`Question.key`).

    An answer is written the moment it arrives, so a killed process loses only the requests in flight. A later answer
    can replace an answer without a grade; the first is kept too. A ledger is a file or a folder:

    - One SQLite file, on a disk of this machine (`SqliteAnswers`).
    - A folder, if `path` is one (`SegmentAnswers`), for machines that share it, also over a network. Each process
      writes its own file, and reads the files of other processes before it claims a question.

    Processes that share a ledger claim each question before they ask it. The claims of an ended process do not count.
    In a folder a claim may be seen up to a second later, on a network file system up to a minute; two processes that
    claim the same question within that time both get it. A path that is no ledger, damaged or of a later version is an
    InputError.

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
        self.store: SegmentAnswers | SqliteAnswers
        self.store = SegmentAnswers(self.path) if self.path.is_dir() else SqliteAnswers(self.path)

    def load(self, keys: Iterable[str]) -> None:
        """Prepare to find these keys: in a folder one search for all is far faster than one per key."""
        self.store.load(keys)

    def find(self, key: str) -> Kept | None:
        text = self.store.find(key)
        kept: Kept | None = None if text is None else self._kind.from_json(text)  # type: ignore[assignment]
        return kept

    def claim(self, key: str) -> bool:
        """Claim a question for this process; return False if another living process is asking it."""
        return self.store.claim(key)

    def write(
        self, key: str, answer: Kept, query_id: str = "", document_id: str = "", variant: str = "", repeat: int = 0
    ) -> None:
        """Write an answer and release its claim."""
        row = (key, query_id, document_id, variant, repeat, answer.status, answer.mode, answer.to_json(), time.time())
        self.store.write(StoredRow(*row))

    def give_back(self, key: str) -> None:
        self.store.give_back(key)

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Ledger[Kept]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
    """Answers by the hash of their question; replaced answers stay in the table `earlier`.

    The file must be on a disk of this machine, since SQLite's write-ahead log needs shared memory.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.realpath(path))  # links to one ledger must have the writers' files in one folder
        self._writer: WriterFile | None = None
        with self._errors():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(self.path, timeout=60.0, isolation_level=None)
            self._write_ahead()
            self._file.execute("PRAGMA synchronous=NORMAL")
            with self._transaction():
                self._make_tables()

    def _write_ahead(self) -> None:
        # SQLite's timeout does not apply while another process switches the log on
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
        """Do nothing: SQLite finds each key as fast alone."""

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
        """Return the owner of this process's claims; the first call makes its file, and deletes files of dead ones."""
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
        self._file.execute("BEGIN IMMEDIATE")  # takes the write lock now, so that two processes cannot both read first
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
