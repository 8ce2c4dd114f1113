"""Judgements by pair, found by texts or by ids, in a temporary file instead of in memory."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from bixse.data.sources.judgement import Judgement
from bixse.errors import InvalidFileError, StorageError, shorten
from bixse.relevance import GradeScale

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from bixse.grading.judge import Question

_TABLES = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA cache_size = -65536;
CREATE TABLE pairs (ids BLOB PRIMARY KEY, texts BLOB, place INTEGER, file_row INTEGER) WITHOUT ROWID;
CREATE TABLE answers (pair BLOB PRIMARY KEY, judgement TEXT) WITHOUT ROWID;
"""
_JITTER = 0.01
"""Two grades of one pair nearer than this share of the scale are the same; the first is kept."""
_PACKED = ("status", "grade", "probabilities", "orders", "low", "high", "judge", "text", "detail", "row")
"""What an answer needs of a judgement."""


class KnownJudgements:
    """Judgements by pair in a temporary SQLite file, which is gone when it is closed.

    Args:
        path: the file they are from, for messages.

    Raises:
        StorageError: there is no room for the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.repeated = self.contradictory = 0
        with self._errors():
            self._file = sqlite3.connect("", isolation_level=None, check_same_thread=False)
            self._file.executescript(_TABLES)

    def fill(self, judgements: Iterable[Judgement]) -> None:
        """Take all judgements.

        Raises:
            InvalidFileError: ids that stand for different texts in different rows.
            StorageError: no room.
        """
        faults = InvalidFileError(self.path)
        with self._errors():
            self._file.execute("BEGIN")
            for place, judgement in enumerate(judgements):
                ids, texts = _ids_key(judgement), _texts_key(judgement)
                row = (ids, texts, place, judgement.row)
                if not self._file.execute("INSERT OR IGNORE INTO pairs VALUES (?, ?, ?, ?)", row).rowcount:
                    self._check_texts(judgement, ids, texts, faults)
                packed = _packed(judgement)
                pair = texts or ids
                if not self._file.execute("INSERT OR IGNORE INTO answers VALUES (?, ?)", (pair, packed)).rowcount:
                    self._settle(pair, judgement, packed)
            self._file.execute("COMMIT")
        faults.raise_any()

    def _check_texts(self, judgement: Judgement, ids: bytes, texts: bytes | None, faults: InvalidFileError) -> None:
        """Ids that are there already must stand for the same texts."""
        known, first = self._file.execute("SELECT texts, file_row FROM pairs WHERE ids = ?", (ids,)).fetchone()
        if known != texts:
            where = "in another row" if first is None else f"in row {first}"
            found = (
                f"query {shorten(judgement.query_id)}, document {shorten(judgement.document_id)}, other texts {where}"
            )
            faults.add(judgement.row, "ids", found, "one pair of texts per pair of ids", "give each text its own id")

    def _settle(self, pair: bytes, new: Judgement, packed: str) -> None:
        """A pair that is there already: a grade takes the place of none, two different grades leave none."""
        old = _unpacked(self._file.execute("SELECT judgement FROM answers WHERE pair = ?", (pair,)).fetchone()[0])
        self.repeated += 1
        if "graded" not in (old.status, new.status) or old.status == "ambiguous" or new.status != "graded":
            return
        if old.status == "graded":
            if _same(old, new):
                return
            self.contradictory += 1
            rows = f" (rows {old.row} and {new.row})" if old.row is not None else ""
            detail = f"graded {old.grade:g} and {new.grade:g} for the same texts{rows}"
            none = replace(old, status="ambiguous", grade=None, probabilities=(), orders=(), detail=detail)
            packed = _packed(none)
        self._file.execute("UPDATE answers SET judgement = ? WHERE pair = ?", (packed, pair))

    def find(self, question: Question) -> Judgement | None:
        """The judgement of a pair by its texts, or by its ids where the judgements have no texts."""
        with self._errors():
            for key in (_texts_key(question), _ids_key(question)):
                found = self._file.execute("SELECT judgement FROM answers WHERE pair = ?", (key,)).fetchone()
                if found:
                    return _unpacked(found[0])
        return None

    def has_ids(self, question: Question) -> bool:
        """Whether the ids are there, with whatever texts."""
        return self._first(_ids_key(question)) is not None

    def first_place(self, judgement: Judgement) -> int | None:
        """Place of the first judgement of these ids among all."""
        return self._first(_ids_key(judgement))

    def _first(self, ids: bytes) -> int | None:
        with self._errors():
            found = self._file.execute("SELECT place FROM pairs WHERE ids = ?", (ids,)).fetchone()
        return None if found is None else int(found[0])

    def warnings(self) -> list[str]:
        """What was found twice."""
        if not self.repeated:
            return []
        words = f"{self.path.name}: {self.repeated} judgements of pairs that were judged before"
        return [f"{words}; {self.contradictory} pairs have two different grades, and get none"]

    def close(self) -> None:
        """Close the file, which removes it."""
        self._file.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StorageError(
                f"{self.path}: got {error} in a temporary file; expected room for the judgements there; "
                "fix: free disk space, or set TMPDIR to a folder with more"
            ) from error


def _same(first: Judgement, second: Judgement) -> bool:
    """Whether two grades are one, apart from what a server that batches requests makes of the same question."""
    span = second.scale.maximum - second.scale.minimum
    return abs((first.grade or 0.0) - (second.grade or 0.0)) <= _JITTER * span


def _ids_key(pair: Judgement | Question) -> bytes:
    return _digest("ids", pair.query_id, pair.document_id)


def _texts_key(pair: Judgement | Question) -> bytes | None:
    return None if pair.query is None or pair.document is None else _digest("texts", pair.query, pair.document)


def _digest(kind: str, first: str, second: str) -> bytes:
    """16 bytes for two texts; the length of the first keeps ("a", "bc") and ("ab", "c") apart."""
    content = f"{kind} {len(first)} {first}{second}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(content).digest()[:16]


def _packed(judgement: Judgement) -> str:
    """What an answer needs of a judgement, as JSON."""
    scale = [judgement.scale.minimum, judgement.scale.maximum]
    return json.dumps([scale, *(getattr(judgement, name) for name in _PACKED)])


def _unpacked(text: str) -> Judgement:
    """The judgement that was packed, without ids and texts."""
    scale, *values = json.loads(text)
    fields = dict(zip(_PACKED, values, strict=True))
    fields["probabilities"] = tuple(fields["probabilities"])
    fields["orders"] = tuple((name, tuple(shares)) for name, shares in fields["orders"])
    return Judgement("", "", GradeScale(*scale), **fields)
