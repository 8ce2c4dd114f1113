"""Reading large files row by row: JSONL (gzip too) and Parquet in bounded memory, every fault counted."""

from __future__ import annotations

import gzip
import math
import zlib
from typing import TYPE_CHECKING, Any, cast

from bixse.data.io.files import is_unicode
from bixse.data.io.hints import column_hint, number_hint
from bixse.data.io.parquet import table_rows
from bixse.data.io.strict import json_fault, parse_json
from bixse.data.row_files.read import kind_of
from bixse.data.row_files.values import number_of
from bixse.errors import ERRORS_SHOWN, InputError, InvalidFileError, RowError, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import BinaryIO

LONGEST_LINE = 1 << 26
"""Bytes of one line of JSONL; a longer one is a fault, so that a file without line ends does not fill the memory."""


class RowErrors:
    """The faults of one file: the first are kept for the message, all are counted.

    Example:
        >>> from pathlib import Path
        >>> faults = RowErrors(Path("rows.jsonl"))
        >>> faults.text(7, "query", {"query": " "}) is None
        True
        >>> faults.total, str(faults.kept[0])
        (1, "row 7, column 'query': got an empty text; expected a text; fix: fill it in or drop the row")
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kept: list[RowError] = []
        self.total = 0
        self.bytes_read = 0.0
        """How far the reading has come in the file, as it lies on the disk."""

    def add(self, row: int | None, column: str | None, found: str, expected: str, fix: str) -> None:
        """Note a fault by its parts."""
        self.note(RowError(row, column, found, expected, fix))

    def note(self, fault: RowError) -> None:
        """Note a fault."""
        self.total += 1
        if len(self.kept) < ERRORS_SHOWN:
            self.kept.append(fault)

    def raise_any(self) -> None:
        """End the reading of a faulty file.

        Raises:
            InvalidFileError: there was a fault.
        """
        if self.total:
            raise InvalidFileError(self.path, self.kept, self.total)

    def text(self, number: int, key: str, row: Mapping[str, Any]) -> str | None:
        """The text under a key; a fault and None where there is none that can be used."""
        value = row.get(key, _MISSING)
        if value is _MISSING:
            self.add(number, key, "nothing", "a text", f"add the key {key!r}")
        elif value is None:
            self.add(number, key, "null", "a text", "fill it in or drop the row")
        elif not isinstance(value, str):
            self.add(number, key, shorten(value), "a text", "write it as a string")
        elif not value.strip():
            self.add(number, key, "an empty text", "a text", "fill it in or drop the row")
        elif not is_unicode(value):
            self.add(number, key, shorten(value), "text that UTF-8 can write", "drop the half of a surrogate pair")
        else:
            return value
        return None

    def optional_text(self, number: int, key: str, row: Mapping[str, Any]) -> str | None:
        """The text under a key that may be absent, null or empty: None then; a fault where it is something else."""
        value = row.get(key)
        return None if value is None or value == "" else self.text(number, key, row)

    def identifier(self, number: int, key: str, row: Mapping[str, Any]) -> str | None:
        """The id under a key as text; None where it is absent, a fault where it is neither text nor whole number."""
        value = row.get(key)
        if value is None or value == "":
            return None
        if isinstance(value, (str, int)) and not isinstance(value, bool) and is_unicode(identifier := str(value)):
            return identifier
        self.add(number, key, shorten(value), "a text or a whole number", "write ids as strings")
        return None

    def number(self, number: int, key: str, value: Any) -> float | None:
        """A finite number, also one spelled as text; a fault and None where it is none."""
        found = number_of(value)
        if math.isfinite(found):
            return found
        self.add(
            number,
            key,
            "null" if value is None else shorten(value),
            "a finite number",
            number_hint(value, "drop the row"),
        )
        return None


def opened(raw: BinaryIO, path: Path) -> BinaryIO:
    """The content of an open file: decompressed where its name ends in `.gz`."""
    return cast("BinaryIO", gzip.GzipFile(fileobj=raw)) if path.suffix.lower() == ".gz" else raw


def unreadable(path: Path, error: Exception) -> InputError:
    """What to say of a file that the system, or gzip, cannot read."""
    found = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return InputError(f"{path}: got {found!r}; expected a readable file; fix: check the path, or fetch it again")


def files_of(path: Path, suffixes: Sequence[str], what: str) -> list[Path]:
    """The file itself, or those of a folder with one of these suffixes, by name.

    Raises:
        InputError: no such path, or no such file in the folder.
    """
    if path.is_dir() and suffixes:
        found = sorted(file for file in path.rglob("*") if file.is_file() and kind_of(file) in suffixes)
        if found:
            return found
        raise InputError(
            f"{path}: got a folder without {' or '.join(suffixes)} files; expected {what}; fix: check the path"
        )
    if not path.is_file():
        found_here = "a folder" if path.is_dir() else "no such file"
        raise InputError(f"{path}: got {found_here}; expected {what}; fix: check the path")
    return [path]


def json_rows(path: Path, faults: RowErrors) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSONL file with their line numbers from 1; lines that are none become faults.

    Raises:
        InputError: the file cannot be read, or is UTF-16.
    """
    try:
        with path.open("rb") as raw, opened(raw, path) as file:
            for number, line in lines_of(file, path, faults):
                faults.bytes_read = raw.tell()
                try:
                    row = parse_json(line.decode("utf-8"))
                except UnicodeDecodeError as error:
                    byte = f"byte {error.object[error.start]:#04x}"
                    faults.add(number, None, byte, "UTF-8 text", "convert it, for example with `iconv -t utf-8`")
                except (ValueError, RecursionError) as error:
                    faults.note(json_fault(number, line.decode("utf-8", "replace"), error))
                else:
                    if isinstance(row, dict):
                        yield number, row
                    else:
                        faults.add(number, None, shorten(row), "a JSON object", "write {...} with its keys")
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error) from error


def lines_of(file: BinaryIO, path: Path, faults: RowErrors) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not blank, without a byte order mark."""
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            found, expected = f"a line longer than {LONGEST_LINE >> 20} MiB", "one JSON object per line"
            faults.add(number, None, found, expected, "end every object with a line end")
            while line and not line.endswith(b"\n"):
                line = file.readline(LONGEST_LINE)
            continue
        if number == 1:
            if line[:2] in (b"\xff\xfe", b"\xfe\xff"):
                raise InputError(
                    f"{path}: got UTF-16; expected UTF-8 text; fix: convert it with `iconv -f utf-16 -t utf-8`"
                )
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line.strip():
            yield number, line


def parquet_rows(
    path: Path, needed: Sequence[str], optional: Sequence[str], faults: RowErrors
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a Parquet file with their numbers from 1; only these columns are read.

    Raises:
        InputError: the file is no whole Parquet file.
        InvalidFileError: a needed column is missing, or one is there twice.
    """
    size = path.stat().st_size

    def choose(names: list[str]) -> list[str]:
        check_columns(names, needed, optional, faults)
        return [name for name in (*needed, *optional) if name in names]

    def step(share: float) -> None:
        faults.bytes_read = size * min(1.0, share)

    yield from table_rows(path, choose, step)


def check_columns(names: Sequence[str], needed: Sequence[str], optional: Sequence[str], faults: RowErrors) -> None:
    """Stop where a needed column is missing, or one is there twice.

    Raises:
        InvalidFileError: says which.
    """
    found = f"columns {shorten(', '.join(names), 120)}"
    for column in (*needed, *optional):
        if column in needed and column not in names:
            fix = column_hint(column, names, "check that the file is of this format")
            faults.add(None, column, found, f"a column {column!r}", fix)
        if (times := names.count(column)) > 1:
            faults.add(None, column, f"{times} columns of that name", "one", "rename the other")
    faults.raise_any()


_MISSING = object()
