"""Tables of labels (Parquet, JSONL, CSV), row by row as they stand."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from bixse.data.io.files import read_text
from bixse.data.io.parquet import read_table
from bixse.data.io.strict import json_fault, parse_json
from bixse.data.trec import QRELS_HEADER
from bixse.errors import InvalidFileError, RowError, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

TABLES = (".parquet", ".jsonl", ".csv")
"""Suffixes of tables; a .tsv is one unless its header is that of BEIR's qrels."""


def is_table(path: Path) -> bool:
    """Whether a file is read as a table; everything else is qrels."""
    if path.suffix.lower() != ".tsv":
        return path.suffix.lower() in TABLES
    header = read_text(path).lstrip().partition("\n")[0].lower().replace("_", "-").split("\t")
    return tuple(name.strip() for name in header) != QRELS_HEADER and ("relevance" in header or "grade" in header)


def table_rows(path: Path, columns: Sequence[str] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a table with their lines, values as they stand (texts in CSV files, None where empty).

    Args:
        path: the file.
        columns: of a Parquet file read only these, where they are there.

    Raises:
        InputError: the file cannot be read.
        InvalidFileError: a line that is no JSON object, or CSV that is not well-formed.
    """
    if path.suffix.lower() == ".parquet":
        yield from enumerate(read_table(path, columns).to_pylist(), start=1)
    elif path.suffix.lower() == ".jsonl":
        for number, line in enumerate(read_text(path).split("\n"), start=1):
            if line.strip():
                yield number, _json_object(path, number, line)
    else:
        yield from _csv(path)


def _json_object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except (ValueError, RecursionError) as error:
        raise InvalidFileError(path, [json_fault(number, line, error)]) from error
    if not isinstance(row, dict):
        raise InvalidFileError(
            path, [RowError(number, None, shorten(line), "one JSON object per line", "correct the line")]
        )
    return row


def _csv(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    csv.field_size_limit(2**31 - 1)
    text = io.StringIO(read_text(path, keep_line_ends=True), newline="")
    reader = csv.reader(text, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
    try:
        names = next(reader, [])
        for fields in reader:
            if fields and len(fields) != len(names):
                expected = f"{len(names)} as in the header"
                fault = RowError(
                    reader.line_num, None, f"{len(fields)} columns", expected, "quote texts with separators"
                )
                raise InvalidFileError(path, [fault])
            if fields:
                yield reader.line_num, {name: value or None for name, value in zip(names, fields, strict=True)}
    except csv.Error as error:
        fault = RowError(reader.line_num, None, str(error), "well-formed CSV", 'write a quote inside a text as ""')
        raise InvalidFileError(path, [fault]) from error
