"""Documents and queries by id, in the files of almost any tool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bixse.data.io.files import is_unicode
from bixse.data.row_files.read import FORMATS, kind_of, raw_rows, text_lines
from bixse.data.row_files.values import FileColumn, InvalidValueError
from bixse.errors import InputError, InvalidFileError, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

ID_KEYS = ("_id", "pid", "docid", "doc_id", "document_id", "id")
"""Names under which tools keep the id of a document. MS MARCO 2 has both for a passage: `docid` is its document's."""
TEXT_KEYS = ("text", "contents", "passage", "segment", "body", "document")
"""Names of its text."""
QUERY_ID_KEYS = ("_id", "qid", "query_id", "id", "topic_id", "question_id")
"""Names of the id of a query."""
QUERY_KEYS = ("text", "query", "question", "title", "query_text")
"""Names of its text."""


def documents_in(
    path: Path, errors: InvalidFileError, reached: Callable[[int], None]
) -> Iterator[tuple[int, str, str, str]]:
    """Number, id, title and text of the documents in a file of almost any tool.

    Tables (.jsonl, .parquet, and .csv and .tsv with a header) have an id and a text under one of `ID_KEYS` and
    `TEXT_KEYS`, and maybe a `title`. A document may be empty: that is an error only where a row names it. A .tsv
    without such a header holds id and text, or MS MARCO's id, address, title and body. `reached` is told how many bytes
    of the file were read.

    Raises:
        InputError: another kind of file, or one that cannot be read.
    """
    return _texts(path, ID_KEYS, TEXT_KEYS, True, errors, reached)


def queries_in(
    path: Path, errors: InvalidFileError, reached: Callable[[int], None]
) -> Iterator[tuple[int, str, str, str]]:
    """Number, id, nothing and text of the queries in a file: a table, or a .tsv (.txt) of id and text.

    Raises:
        InputError: another kind of file, or one that cannot be read.
    """
    return _texts(path, QUERY_ID_KEYS, QUERY_KEYS, False, errors, reached)


def _texts(
    path: Path,
    id_keys: Sequence[str],
    text_keys: Sequence[str],
    documents: bool,
    errors: InvalidFileError,
    reached: Callable[[int], None],
) -> Iterator[tuple[int, str, str, str]]:
    kind = kind_of(path)
    if kind in (".tsv", ".txt") and not _has_header(path, id_keys):
        yield from _plain(path, documents, errors, reached)
        return
    if kind not in FORMATS:
        expected = ", ".join((*FORMATS, ".txt"))
        raise InputError(f"{path}: got suffix {kind!r}; expected one of {expected}; fix: rename or convert it")
    keys = tuple(dict.fromkeys((*id_keys, *text_keys, *(["title"] if documents else []))))
    for number, row, position in raw_rows(path, errors, optional=keys):
        reached(position)
        id_key = next((key for key in id_keys if row.get(key) not in (None, "")), id_keys[0])
        text_key = next((key for key in text_keys if key in row and key != id_key), text_keys[0])
        columns = (
            FileColumn(id_key),
            FileColumn("title", needed=False),
            FileColumn(text_key, may_be_empty=documents and text_key in row),
        )
        identifier = row.get(id_key)
        values = (
            str(identifier) if type(identifier) is int else identifier,
            row.get("title") if documents else None,
            row.get(text_key),
        )
        found = []
        for column, value in zip(columns, values, strict=True):
            try:
                found.append(column.read(value) or "")
            except InvalidValueError as error:
                known = id_keys if column.name == id_key else text_keys
                errors.add(number, column.name, error.got, f"{error.expected} (under {', '.join(known)})", error.fix)
        if len(found) == len(columns):
            yield number, found[0], found[1], found[2]


def _has_header(path: Path, id_keys: Sequence[str]) -> bool:
    """Whether the first line of a file names a column of ids."""
    for _, line, _ in text_lines(path, InvalidFileError(path)):
        return bool({name.strip() for name in line.split("\t")} & set(id_keys))
    return False


def _plain(
    path: Path, documents: bool, errors: InvalidFileError, reached: Callable[[int], None]
) -> Iterator[tuple[int, str, str, str]]:
    """Lines of id and text, tab-separated; or of id, address, title, body."""
    for number, line, position in text_lines(path, errors):
        reached(position)
        fields = line.split("\t")
        is_long = documents and len(fields) == 4
        identifier, title, text = fields[0].strip(), fields[2].strip() if is_long else "", fields[-1]
        if len(fields) != 2 and not is_long:
            expected = "id and text, or id, address, title, body" if documents else "id and text"
            fix = "write them with one tab between"
            errors.add(number, None, f"{len(fields)} columns in {shorten(line)}", expected, fix)
        elif not identifier or not (title or text.strip()) or not is_unicode(line):
            errors.add(number, None, shorten(line), "an id and a text", "fill it in or drop the line")
        else:
            yield number, identifier, title, text
