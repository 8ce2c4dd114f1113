"""`TextStore`: texts by their ids in a temporary file, for sources whose rows name documents by id alone."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bixse.data.collection import Document
from bixse.data.io.files import is_unicode
from bixse.data.sources.reading import RowErrors, kind_of
from bixse.data.sources.tables import TABLES, plain_lines, table_rows
from bixse.errors import InputError, StorageError, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

_TABLE = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
PRAGMA cache_size = -65536;
CREATE TABLE texts (id TEXT PRIMARY KEY, title TEXT, text TEXT);
"""
ID_KEYS = ("_id", "pid", "docid", "doc_id", "document_id", "id", "DOCUMENT_ID")
"""Names under which tools keep the id of a document. MS MARCO 2 has both for a passage: `docid` is its document's."""
TEXT_KEYS = ("text", "contents", "passage", "segment", "body", "document", "DOCUMENT_TEXT")
"""Names of its text."""
QUERY_ID_KEYS = ("_id", "qid", "query_id", "id", "topic_id", "question_id", "QUERY_ID")
"""Names of the id of a query."""
QUERY_KEYS = ("text", "query", "question", "title", "query_text", "QUERY_TEXT")
"""Names of its text."""


class TextStore:
    """Texts by id, on the disk instead of in memory; the file is gone when the store is closed.

    Raises:
        StorageError: there is no room for the file.

    Example:
        >>> from pathlib import Path
        >>> with TextStore() as store:
        ...     store.add([(1, "d1", "shutil", "copies files")], RowErrors(Path("corpus.jsonl")))
        ...     store.get("d1").content, store.get("d2"), len(store)
        ('shutil copies files', None, 1)
    """

    def __init__(self) -> None:
        with self._errors():
            self._file = sqlite3.connect("", isolation_level=None, check_same_thread=False)
            self._file.executescript(_TABLE)

    def __enter__(self) -> TextStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        with self._errors():
            return int(self._file.execute("SELECT count(*) FROM texts").fetchone()[0])

    def add(self, rows: Iterable[tuple[int, str, str, str]], faults: RowErrors) -> None:
        """Take rows of number, id, title and text; an id that comes again with another text is a fault.

        Raises:
            StorageError: no room.
        """
        with self._errors():
            self._file.execute("BEGIN")
            for number, identifier, title, text in rows:
                row = (identifier, title, text)
                if self._file.execute("INSERT OR IGNORE INTO texts VALUES (?, ?, ?)", row).rowcount:
                    continue
                if self.get(identifier) != Document(title, text):
                    fix = "give each text its own id, or drop the repeat"
                    faults.add(number, "id", f"{shorten(identifier)} again with another text", "one text an id", fix)
            self._file.execute("COMMIT")

    def get(self, identifier: str) -> Document | None:
        """The text of an id, or None."""
        with self._errors():
            found = self._file.execute("SELECT title, text FROM texts WHERE id = ?", (identifier,)).fetchone()
        return None if found is None else Document(*found)

    def items(self) -> Iterator[tuple[str, Document]]:
        """Ids and texts, in the order they came."""
        with self._errors():
            for identifier, title, text in self._file.execute("SELECT id, title, text FROM texts ORDER BY rowid"):
                yield identifier, Document(title, text)

    def close(self) -> None:
        """Close the store, which removes its file."""
        self._file.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StorageError(
                f"texts: got {error} in a temporary file; expected room for the corpus there; "
                "fix: free disk space, or set TMPDIR to a folder with more"
            ) from error


def documents_in(path: Path, faults: RowErrors) -> Iterator[tuple[int, str, str, str]]:
    """Number, id, title and text of the documents in a file of almost any tool.

    Tables (.jsonl, .parquet, and .csv and .tsv with a header) have an id and a text under one of `ID_KEYS` and
    `TEXT_KEYS`, and maybe a `title`. A document may be empty: that is a fault only where a row
    names it. A .tsv without such a header holds id and text, or MS MARCO's id, address, title
    and body.

    Raises:
        InputError: another kind of file, or one that cannot be read.
    """
    return _texts(path, ID_KEYS, TEXT_KEYS, "title", faults)


def queries_in(path: Path, faults: RowErrors) -> Iterator[tuple[int, str, str, str]]:
    """Number, id, nothing and text of the queries in a file: a table, or a .tsv (.txt) of id and text.

    Raises:
        InputError: another kind of file, or one that cannot be read.
    """
    return _texts(path, QUERY_ID_KEYS, QUERY_KEYS, None, faults)


def _texts(
    path: Path, id_keys: Sequence[str], text_keys: Sequence[str], title_key: str | None, faults: RowErrors
) -> Iterator[tuple[int, str, str, str]]:
    kind = kind_of(path)
    if kind in (".tsv", ".txt") and not _has_header(path, id_keys):
        yield from _plain(path, title_key is not None, faults)
        return
    if kind not in TABLES:
        expected = ", ".join((*TABLES, ".txt"))
        raise InputError(f"{path}: got suffix {kind!r}; expected one of {expected}; fix: rename or convert it")
    keys = (*id_keys, *text_keys, *([title_key] if title_key else []))
    known = False
    for number, row in table_rows(path, (), tuple(dict.fromkeys(keys)), faults):
        id_key = next((key for key in id_keys if row.get(key) not in (None, "")), None)
        text_key = next((key for key in text_keys if key in row and key != id_key), text_keys[0])
        if not known and id_key is None and not any(key in row for key in (*id_keys, *text_keys)):
            fix = f"rename the columns to {id_keys[0]!r} and {text_keys[0]!r}"
            faults.add(number, None, f"keys {shorten(', '.join(row), 80)}", "an id and a text", fix)
            continue
        known = True
        if id_key is None:
            faults.add(number, id_keys[0], "nothing", "an id", f"give the row one, under one of {', '.join(id_keys)}")
            continue
        before = faults.total
        identifier = faults.identifier(number, id_key, row)
        title = (faults.optional_text(number, title_key, row) if title_key else None) or ""
        may_be_empty = title_key is not None and text_key in row and row[text_key] in (None, "")
        text = "" if may_be_empty else faults.text(number, text_key, row)
        if identifier is not None and text is not None and faults.total == before:
            yield number, identifier, title, text


def _has_header(path: Path, id_keys: Sequence[str]) -> bool:
    """Whether the first line of a file names a column of ids."""
    for _, line in plain_lines(path, RowErrors(path)):
        return bool({name.strip() for name in line.split("\t")} & {key for key in id_keys if not key.isdigit()})
    return False


def _plain(path: Path, with_title: bool, faults: RowErrors) -> Iterator[tuple[int, str, str, str]]:
    """Lines of id and text, tab-separated; or of id, address, title, body."""
    for number, line in plain_lines(path, faults):
        fields = line.split("\t")
        is_long = with_title and len(fields) == 4
        identifier, title, text = fields[0].strip(), fields[2].strip() if is_long else "", fields[-1]
        if len(fields) != 2 and not is_long:
            expected = "id and text, or id, address, title, body" if with_title else "id and text"
            fix = "write them with one tab between"
            faults.add(number, None, f"{len(fields)} columns in {shorten(line)}", expected, fix)
        elif not identifier or not (title or text.strip()) or not is_unicode(line):
            faults.add(number, None, shorten(line), "an id and a text", "fill it in or drop the line")
        else:
            yield number, identifier, title, text
