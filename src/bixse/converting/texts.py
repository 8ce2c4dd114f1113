"""Texts that rows name by id: files of documents and queries, and a database of their texts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from bixse.data.corpus import DOCUMENT_COLUMNS, QUERY_COLUMNS
from bixse.errors import InputError, InvalidFileError, shorten
from bixse.files.files import is_unicode
from bixse.files.rows import FORMATS, kind_of, read_blocks, text_lines

if TYPE_CHECKING:
    from bixse.files.values import FileColumn

DOCUMENT, QUERY = (
    (replace(identifier, unique=False), *texts) for identifier, *texts in (DOCUMENT_COLUMNS, QUERY_COLUMNS)
)
"""Columns of the texts that rows name by id. A repeated text is read once; an empty one fails if a row names it."""
MEMORY_LIMIT = "256MB"
"""Memory limit of duckdb; larger data goes to files in its folder."""
TEXTS_AT_ONCE = 20_000


class TextsById:
    """Documents or queries by id, in a database file."""

    def __init__(self, path: Path) -> None:
        self.database = database = duckdb.connect(path)
        self._count = 0
        spill = str(path.with_suffix(".spill")).replace("'", "''")
        database.execute(f"SET memory_limit = '{MEMORY_LIMIT}'; SET temp_directory = '{spill}'")
        # No downloads. Queries order their rows themselves, and keeping the order costs memory.
        database.execute("SET autoinstall_known_extensions = false; SET preserve_insertion_order = false")
        database.execute(
            "CREATE TABLE texts (position BIGINT, row BIGINT, file INTEGER, id VARCHAR, title VARCHAR, text VARCHAR)"
        )

    def add(self, file: int, texts: Iterator[tuple[int, str, str, str]]) -> None:
        """Add row, id, title and text of each text of a file."""
        for block in iter(lambda: list(itertools.islice(texts, TEXTS_AT_ONCE)), []):
            positions = range(self._count, self._count + len(block))
            columns = [positions, *zip(*block, strict=True)]
            rows = pa.table(dict(zip(("position", "row", "id", "title", "text"), columns, strict=True)))
            self.database.register("block", rows)
            self.database.execute(f"INSERT INTO texts BY NAME SELECT *, {file} AS file FROM block")
            self._count += len(block)

    def repeated(self) -> list[tuple[int, int, str]]:
        """Return file, row and id of each text whose id has another text before it."""
        return self.database.execute(
            "SELECT later.file, later.row, id "
            "FROM (SELECT id, min(position) AS position FROM texts GROUP BY id HAVING count(*) > 1) "
            "JOIN texts AS first USING (id, position) JOIN texts AS later USING (id) "
            "WHERE (later.title, later.text) IS DISTINCT FROM (first.title, first.text) ORDER BY later.position"
        ).fetchall()

    def of(self, ids: Collection[str]) -> dict[str, str]:
        """Return id -> title and text, for the ids that there are; the first text of an id counts."""
        self.database.register("wanted", pa.table({"id": list(ids)}))
        rows = self.database.execute(
            "SELECT id, title, text FROM texts SEMI JOIN wanted USING (id) ORDER BY position DESC"
        ).fetchall()
        return {identifier: f"{title} {text}" if title else text for identifier, title, text in rows}


def texts_in(
    path: Path, columns: tuple[FileColumn, ...], errors: InvalidFileError, reached: Callable[[int], None]
) -> Iterator[tuple[int, str, str, str]]:
    """Yield number, id, title and text per row of a file; `columns` is `DOCUMENT` or `QUERY`.

    The file is a table: .jsonl, .parquet, or .csv and .tsv with a header. A .tsv or .txt without a header holds id and
    text, or MS MARCO's id, address, title and body. `errors` takes the unreadable rows.
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
    """Yield tab-separated lines of id and text, or of id, address, title and body."""
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
