"""Documents and queries by id, in the files of almost any tool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bixse.data.io.files import is_unicode
from bixse.data.row_files.read import kind_of
from bixse.data.sources.reading import RowErrors
from bixse.data.sources.tables import TABLES, plain_lines, table_rows
from bixse.errors import InputError, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

ID_KEYS = ("_id", "pid", "docid", "doc_id", "document_id", "id", "DOCUMENT_ID")
"""Names under which tools keep the id of a document. MS MARCO 2 has both for a passage: `docid` is its document's."""
TEXT_KEYS = ("text", "contents", "passage", "segment", "body", "document", "DOCUMENT_TEXT")
"""Names of its text."""
QUERY_ID_KEYS = ("_id", "qid", "query_id", "id", "topic_id", "question_id", "QUERY_ID")
"""Names of the id of a query."""
QUERY_KEYS = ("text", "query", "question", "title", "query_text", "QUERY_TEXT")
"""Names of its text."""


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
