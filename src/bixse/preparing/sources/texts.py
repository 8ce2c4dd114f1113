"""Documents and queries by id, in the files of almost any tool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bixse.errors import InputError, InvalidFileError, shorten
from bixse.files.files import is_unicode
from bixse.files.rows import FORMATS, kind_of, read_blocks, text_lines
from bixse.files.values import FileColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DOCUMENT = (
    # MS MARCO 2 has two ids for a passage: `docid` is that of its document
    FileColumn("_id", "id", other_names=("pid", "docid", "doc_id", "document_id", "id")),
    FileColumn("title", needed=False),
    FileColumn("text", may_be_empty=True, other_names=("contents", "passage", "segment", "body", "document")),
)
"""Columns of a document, under the names that tools give them. An empty one is an error only where a row names it."""
QUERY = (
    FileColumn("_id", "id", other_names=("qid", "query_id", "id", "topic_id", "question_id")),
    FileColumn("text", other_names=("query", "question", "title", "query_text")),
)
"""Columns of a query."""


def texts_in(
    path: Path, columns: tuple[FileColumn, ...], errors: InvalidFileError, reached: Callable[[int], None]
) -> Iterator[tuple[int, str, str, str]]:
    """Number, id, title and text of the texts in a file.

    Args:
        path: a table (.jsonl, .parquet, and .csv and .tsv with a header); or a .tsv or .txt of id and text, or of
            MS MARCO's id, address, title and body.
        columns: `DOCUMENT` or `QUERY`.
        errors: takes the rows that cannot be read.
        reached: is told how many bytes of the file were read.
    """
    kind = kind_of(path)
    if kind in (".tsv", ".txt") and not _has_header(path, columns[0]):
        yield from _plain(path, columns is DOCUMENT, errors, reached)
        return
    if kind not in FORMATS:
        expected = ", ".join((*FORMATS, ".txt"))
        raise InputError(f"{path}: got suffix {kind!r}; expected one of {expected}; fix: rename or convert it")
    for block in read_blocks(path, columns, errors):
        reached(block.position)
        titles = block.columns.get("title", [None] * len(block))
        for number, name, title, text in zip(
            block.rows, block.columns["_id"], titles, block.columns["text"], strict=True
        ):
            yield number, name, title or "", text


def _has_header(path: Path, identifier: FileColumn) -> bool:
    for _, line, _ in text_lines(path, InvalidFileError(path)):
        return bool({name.strip() for name in line.split("\t")} & {identifier.name, *identifier.other_names})
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
