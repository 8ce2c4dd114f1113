"""Documents and queries for an index, read block by block: a corpus need not fit in memory."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from bixse.data.collection import Document
from bixse.data.io.files import file_hash, is_unicode, read_text
from bixse.data.sources.reading import RowErrors, json_rows
from bixse.errors import InputError, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import Any


class StoredDocument(NamedTuple):
    """A document with its id."""

    id: str
    title: str
    text: str

    @property
    def content(self) -> str:
        """Title and text as one string, as every system encodes it."""
        return Document(self.title, self.text).content


class CorpusFile:
    """A corpus in BEIR's JSONL, checked once as a whole: {_id, title, text} a line.

    Args:
        path: the file.

    Raises:
        InputError: it is missing, unreadable, or holds no document with a text.
        InvalidFileError: every invalid row, an id that is there twice included. An empty document is valid: published
            corpora hold some.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            found = "a folder" if path.is_dir() else "no such file"
            raise InputError(f"{path}: got {found}; expected documents, one JSON object per line; fix: add it")
        self.path = path
        errors = RowErrors(path)
        lines: dict[str, int] = {}
        self.empty = 0
        """Documents with neither title nor text."""
        for number, row in json_rows(path, errors):
            document = _document(number, row, errors)
            if document is not None and document.id in lines:
                found = f"{shorten(document.id)} again, after row {lines[document.id]}"
                errors.add(number, "_id", found, "an id used once", "drop or rename the repeat")
            elif document is not None:
                lines[document.id] = number
                self.empty += not document.content
        errors.raise_any()
        if self.empty == len(lines):
            raise InputError(
                f"{path}: got {len(lines)} documents, none with a title or a text; expected texts; fix: check the "
                "export"
            )
        self.hash = file_hash(path)
        self.rows = len(lines)

    def __len__(self) -> int:
        return self.rows

    def warnings(self) -> list[str]:
        """One line that counts the empty documents, or none."""
        has = "has" if self.empty == 1 else "have"
        return [f"{self.empty} of {self.rows} documents {has} neither title nor text"] if self.empty else []

    def blocks(self, size: int) -> Iterator[list[StoredDocument]]:
        """The documents in file order, `size` at a time.

        Raises:
            InvalidFileError: the file was changed since it was checked.
        """
        errors = RowErrors(self.path)
        documents = (_document(number, row, errors) for number, row in json_rows(self.path, errors))
        while block := [document for document in islice(documents, size) if document is not None]:
            yield block
        errors.raise_any()


def read_queries(path: Path) -> dict[str, str]:
    r"""Queries from a file: query id -> text, in file order.

    Args:
        path: JSONL of {_id, text} where it ends in .jsonl; otherwise one query per line, after its id and a tab
            or without (then the ids are q1, q2, ... by line).

    Raises:
        InputError: it is missing, unreadable, or holds no query.
        InvalidFileError: every invalid line together.

    Example:
        >>> import tempfile, pathlib
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "queries.txt"
        >>> _ = file.write_text("copy a file\n\nt7\tsort a list\n")
        >>> read_queries(file)
        {'q1': 'copy a file', 't7': 'sort a list'}
    """
    errors = RowErrors(path)
    queries: dict[str, str] = {}
    for number, identifier, text in _query_rows(path, errors):
        if not text.strip():
            errors.add(number, "text", "an empty query", "a text", "fill it in or drop the line")
        elif identifier in queries:
            errors.add(number, "_id", f"{shorten(identifier)} again", "an id used once", "drop or rename the repeat")
        else:
            queries[identifier] = text
    errors.raise_any()
    if not queries:
        raise InputError(f"{path}: got no queries; expected at least one; fix: write one a line")
    return queries


def _document(number: int, row: Mapping[str, Any], errors: RowErrors) -> StoredDocument | None:
    identifier = errors.identifier(number, "_id", row)
    if row.get("_id") in (None, ""):
        errors.add(number, "_id", shorten(row), "an object with an _id", "give the row an _id")
    title, text = _text(number, "title", row, errors), _text(number, "text", row, errors)
    if identifier is None or title is None or text is None:
        return None
    if "title" not in row and "text" not in row:
        errors.add(number, "text", "no title and no text", "a text", "name the key so, or drop the row")
        return None
    return StoredDocument(identifier, title, text)


def _text(number: int, key: str, row: Mapping[str, Any], errors: RowErrors) -> str | None:
    """A text that may be absent or empty, or None and an error."""
    value = "" if row.get(key) is None else row[key]
    if isinstance(value, str) and is_unicode(value):
        return value
    errors.add(number, key, shorten(value), "a text", "write it as a string of whole characters")
    return None


def _query_rows(path: Path, errors: RowErrors) -> Iterator[tuple[int, str, str]]:
    """Row number, id and text of each query."""
    if path.suffix.lower() == ".jsonl":
        for number, row in json_rows(path, errors):
            identifier, text = errors.identifier(number, "_id", row), errors.text(number, "text", row)
            if identifier is not None and text is not None:
                yield number, identifier, text
            elif identifier is None:
                errors.add(number, "_id", shorten(row), "an object with an _id", "give the row an _id")
        return
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        identifier, tab, text = line.partition("\t")
        if line.strip():
            yield (number, identifier.strip(), text) if tab else (number, f"q{number}", line)
