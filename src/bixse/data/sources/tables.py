"""Rows of tables in any of the usual files: JSONL, CSV, TSV (each also with .gz) and Parquet, in bounded memory."""

from __future__ import annotations

import csv
import io
import zlib
from typing import TYPE_CHECKING, Any

from bixse.data.io.files import is_unicode
from bixse.data.row_files.read import kind_of
from bixse.data.sources.reading import (
    LONGEST_LINE,
    RowErrors,
    check_columns,
    json_rows,
    lines_of,
    opened,
    parquet_rows,
    unreadable,
)
from bixse.errors import InputError, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

TABLES = (".jsonl", ".parquet", ".csv", ".tsv")
"""Suffixes of tables."""


def table_rows(
    path: Path, needed: Sequence[str], optional: Sequence[str], faults: RowErrors
) -> Iterator[tuple[int, dict[str, Any]]]:
    r"""The rows of a table with their numbers from 1 (lines of JSONL, data rows elsewhere); faulty ones go to `faults`.

    Args:
        path: .jsonl, .csv, .tsv or .parquet; all but the last may have .gz behind it.
        needed: columns that a table with a header must have; of Parquet no others are read.
        optional: columns it may have.
        faults: receives what cannot be read.

    Raises:
        InputError: another suffix, or the file cannot be read.
        InvalidFileError: a needed column is missing in the header, or a column is there twice.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "labels.tsv"
        >>> _ = path.write_text("id\tlabel\n7\tExact\n")
        >>> list(table_rows(path, ("id",), ("label",), RowErrors(path)))
        [(1, {'id': '7', 'label': 'Exact'})]
    """
    kind = kind_of(path)
    if kind == ".parquet":
        return parquet_rows(path, needed, optional, faults)
    if kind == ".jsonl":
        return json_rows(path, faults)
    if kind in (".csv", ".tsv"):
        return csv_rows(path, needed, optional, faults, "\t" if kind == ".tsv" else ",")
    raise InputError(f"{path}: got suffix {kind!r}; expected one of {', '.join(TABLES)}; fix: rename or convert it")


def plain_lines(path: Path, faults: RowErrors) -> Iterator[tuple[int, str]]:
    """The lines of a text file that are not blank, without their ends, numbered from 1; gzip is unpacked.

    Raises:
        InputError: the file cannot be read, or is UTF-16.
    """
    try:
        with path.open("rb") as raw, opened(raw, path) as file:
            for number, line in lines_of(file, path, faults):
                faults.bytes_read = raw.tell()
                try:
                    yield number, line.decode("utf-8").rstrip("\r\n")
                except UnicodeDecodeError as error:
                    byte = f"byte {error.object[error.start]:#04x}"
                    faults.add(number, None, byte, "UTF-8 text", "convert it, for example with `iconv -t utf-8`")
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from error


def csv_rows(
    path: Path, needed: Sequence[str], optional: Sequence[str], faults: RowErrors, delimiter: str
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a file of separated values with a header; an empty field is None.

    Raises:
        InputError: the file cannot be read, or is UTF-16.
        InvalidFileError: a needed column is missing in the header, or a column is there twice.
    """
    csv.field_size_limit(LONGEST_LINE)
    number = 0
    try:
        with path.open("rb") as raw, opened(raw, path) as file:
            if file.read(2) in (b"\xff\xfe", b"\xfe\xff"):
                raise InputError(
                    f"{path}: got UTF-16; expected UTF-8 text; fix: convert it with `iconv -f utf-16 -t utf-8`"
                )
            file.seek(0)
            text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
            reader = csv.reader(text, delimiter=delimiter, strict=True)
            names = next(reader, None)
            if names is None:
                return
            check_columns(names, needed, optional, faults)
            for fields in reader:
                if not fields:
                    continue
                number += 1
                faults.bytes_read = raw.tell()
                if len(fields) != len(names):
                    fix = "put a text that holds the separator, a quote or a line end in double quotes; 0.5, not 0,5"
                    faults.add(number, None, f"{len(fields)} columns", f"{len(names)} as in the header", fix)
                elif not all(map(is_unicode, fields)):
                    column = next(name for name, field in zip(names, fields, strict=True) if not is_unicode(field))
                    shown = shorten(fields[names.index(column)].encode("utf-8", "surrogateescape"))
                    faults.add(number, column, shown, "UTF-8 text", "convert it, for example with `iconv -t utf-8`")
                else:
                    yield number, {name: field or None for name, field in zip(names, fields, strict=True)}
    except csv.Error as error:
        fix = 'close every double quote, and write a quote inside a text as ""'
        faults.add(number + 1, None, str(error), "well-formed CSV from here on", fix)
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from error
