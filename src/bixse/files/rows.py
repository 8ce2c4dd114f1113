"""Read files of rows block by block and check every row: JSONL, CSV, TSV (each also with .gz) and Parquet."""

from __future__ import annotations

import csv
import gzip
import io
import json
import shlex
import zlib
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO, TypeAlias, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bixse.errors import InputError, InvalidFileError, shorten
from bixse.files.files import RepeatedKeyError, atomic_file, not_text, parse_json
from bixse.files.parquet import open_table, row_batches, save_table
from bixse.files.values import FileColumn, InvalidValueError, missing_column_hint

FORMATS = (".parquet", ".jsonl", ".csv", ".tsv")
"""Suffixes of files of rows; all but Parquet may be followed by .gz."""
BLOCK_ROWS = 1024
BLOCK_BYTES = 1 << 26
"""Maximum bytes of text per block of JSONL or CSV."""
COLUMNS_NAMED = 100
"""Number of names of a JSONL file from which its errors name no more."""
LONGEST_LINE = 1 << 26
"""Maximum bytes per line or field: a file without line ends must not fill the memory."""
Row: TypeAlias = tuple[int, dict[str, Any], int, int]
"""Number from 1, values by name, characters, and bytes of the file that have been read."""


@dataclass(frozen=True)
class Block:
    """Checked consecutive rows of a file, column by column."""

    rows: Sequence[int]
    """Row numbers from 1: lines of JSONL, data rows of the other formats."""
    columns: Mapping[str, list[Any]]
    """Name -> one value per row, converted to the kind of the column; None for an absent optional value."""
    position: int
    """Number of bytes of the file that have been read."""

    def __len__(self) -> int:
        return len(self.rows)

    def by_row(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number and the values by name of each row."""
        for number, *values in zip(self.rows, *self.columns.values(), strict=True):
            yield number, dict(zip(self.columns, values, strict=True))


def read_rows(
    path: str | Path, columns: Sequence[FileColumn], errors: InvalidFileError | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    r"""Yield the row number and the checked row for each row of a file; see `read_blocks`."""
    for block in read_blocks(path, columns, errors):
        yield from block.by_row()


def read_blocks(
    path: str | Path,
    columns: Sequence[FileColumn],
    errors: InvalidFileError | None = None,
    rows: range | None = None,
    table: Mapping[str, list[Any]] | None = None,
) -> Iterator[Block]:
    """Read a file, or a folder of Parquet files in the order of their names, in blocks; leave out invalid rows.

    If `errors` is None, all errors are raised at the end of the file. Otherwise they are added to `errors`, and the
    caller may add its own. `rows`, counted from 0, limits what is read from Parquet. The values of a `table` in memory
    are read instead of the file, which names them in errors.
    """
    path = Path(path)
    collected = errors if errors is not None else InvalidFileError(path)
    hashes: dict[str, list[NDArray[np.int64]]] = {column.name: [] for column in columns if column.unique}
    count = 0
    for block in _checked_blocks(path, columns, collected, rows, table):
        count += len(block)
        for name, parts in hashes.items():
            parts.append(np.fromiter(map(hash, block.columns[name]), np.int64, len(block)))
        if len(block):
            yield block
    for name, parts in hashes.items():
        ordered = np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))
        if twice := set(ordered[1:][ordered[1:] == ordered[:-1]].tolist()):
            _add_repeats(_checked_blocks(path, columns, InvalidFileError(path), rows, table), name, twice, collected)
    if errors is None:
        collected.raise_any()
    if not count and not collected.total:
        raise InputError(f"{path}: got no rows; expected at least one; fix: check the export")


def check_first_rows(path: Path, columns: Sequence[FileColumn]) -> None:
    """Raise the errors of a file, of all its rows, if its first rows have any."""
    errors = InvalidFileError(path)
    next(read_blocks(path, columns, errors), None)
    if errors.total:
        for _ in read_blocks(path, columns):
            pass


def _add_repeats(blocks: Iterator[Block], name: str, twice: set[int], errors: InvalidFileError) -> None:
    """Add an error for each value of a column that an earlier row has; `twice` holds the repeated hashes."""
    first: dict[Hashable, int] = {}
    for block in blocks:
        for row, value in zip(block.rows, block.columns[name], strict=True):
            if hash(value) in twice and first.setdefault(value, row) != row:
                got = f"{shorten(value)} again, after row {first[value]}"
                errors.add(row, name, got, "a value used once", "drop or rename the repeat")


def raw_rows(
    path: Path, errors: InvalidFileError, columns: Sequence[FileColumn] | None = None
) -> Iterator[tuple[int, dict[str, Any], int]]:
    """Yield row number, row and bytes read without checks, for formats whose keys differ from row to row.

    `columns` are those that a file with a header must or may have; None reads all columns.
    """
    if (kind := checked_format(path)) == ".parquet":
        for block in _parquet_blocks(path, columns, errors):
            yield from ((number, row, block.position) for number, row in block.by_row())
        return
    rows = _json_rows(path, (), errors) if kind == ".jsonl" else _csv_rows(path, columns, errors)
    yield from ((number, row, position) for number, row, _, position in rows)


def kind_of(path: Path) -> str:
    """Return the suffix that names the format, in lower case and without `.gz`.

    A compressed file without another suffix is JSONL, like the shards of MS MARCO 2.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".gz"]:
        return suffixes[-2] if len(suffixes) > 1 else ".jsonl"
    return suffixes[-1] if suffixes else ""


def checked_format(path: Path) -> str:
    """Return the suffix of a file of rows, see `kind_of`; raise InputError for another suffix."""
    kind = kind_of(path)
    if kind not in FORMATS or (kind == ".parquet" and path.suffix.lower() == ".gz"):
        raise InputError(
            f"{path}: got suffix {path.suffix!r}; expected one of {', '.join(FORMATS)}; fix: convert it, or "
            "rename it if only its suffix is another"
        )
    return kind


def stem_of(path: Path) -> str:
    """Return the name of a file without its suffix and without `.gz`."""
    name = path.name[:-3] if path.suffix.lower() == ".gz" else path.name
    return name.rpartition(".")[0] or name


def files_of(path: Path, suffixes: Sequence[str] = FORMATS, what: str = "a file of rows") -> list[Path]:
    """Return the file itself, or the files of a folder with one of these suffixes, sorted by name."""
    if path.is_dir() and suffixes:
        rows = sorted(file for file in path.rglob("*") if file.is_file() and kind_of(file) in {*FORMATS, *suffixes})
        files = [file for file in rows if kind_of(file) in suffixes]
        if len(files) < len(rows):
            other = next(file for file in rows if kind_of(file) not in suffixes).relative_to(path)
            got = f"{other} next to {files[0].relative_to(path)}" if files else f"{other}"
            raise InputError(
                f"{path}: got a folder with {got}; expected {' or '.join(suffixes)} files alone; "
                "fix: name a file instead of the folder"
            )
        if files:
            return files
        raise InputError(
            f"{path}: got a folder without {' or '.join(suffixes)} files; expected {what}; fix: check the path"
        )
    if not path.is_file():
        stored, command = other_form(path) or ("", "")
        got = "a folder" if path.is_dir() else f"no such file{f', but {stored}' if stored else ''}"
        raise InputError(
            f"{path}: got {got}; expected {what}; fix: {f'write it with `{command}`' if stored else 'check the path'}"
        )
    return [path]


def other_form(path: Path) -> tuple[str, str] | None:
    """Return the file that holds the rows of a missing one in another format, and the command that converts it.

    Hubs store `corpus.jsonl` and `qrels/test.tsv` as `corpus/*.parquet` and `qrels/test.jsonl`.
    """
    packed, folder = path.with_name(f"{path.name}.gz"), path.with_name(stem_of(path))
    if packed.is_file():
        return str(packed), f"gunzip -k {shlex.quote(str(packed))}"
    is_qrels = path.parent.name == "qrels"
    if path.exists() or not (is_qrels or path.name in ("corpus.jsonl", "queries.jsonl")):
        return None
    patterns = (f"{folder.name}{end}{suffix}" for end in ("", "-*", "/*") for suffix in (".jsonl", ".parquet"))
    files = [file for pattern in patterns for file in sorted(path.parent.glob(pattern))]
    if not files:
        return None
    parts = [
        f"pandas.read_parquet({str(file)!r})" if kind_of(file) == ".parquet"
        else f"pandas.read_json({str(file)!r}, lines=True, dtype=False)"
        for file in files
    ]  # fmt: skip
    rows = f"pandas.concat([{', '.join(parts)}])" if len(parts) > 1 else parts[0]
    write = f".rename(columns={{'id': '_id'}}).to_json({str(path)!r}, orient='records', lines=True)"
    if is_qrels:
        write = f"[['query-id', 'corpus-id', 'score']].to_csv({str(path)!r}, sep='\\t', index=False)"
    return str(files[0]), f'python -c "import pandas; {rows}{write}"'


def text_lines(path: Path, errors: InvalidFileError) -> Iterator[tuple[int, str, int]]:
    """Yield line number from 1, text and bytes read for each line of a UTF-8 file (or .gz) that is not blank.

    Line ends and a byte order mark are dropped. A line that is too long or not UTF-8 is an error.
    """
    with opened(path) as (file, raw):
        number = 0
        while line := file.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE:
                got = f"a line longer than {LONGEST_LINE >> 20} MiB"
                errors.add(number, None, got, "one row per line", "end every row with a line end")
                while line and not line.endswith(b"\n"):
                    line = file.readline(LONGEST_LINE)
                continue
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                got = f"byte {error.object[error.start]:#04x}"
                errors.add(number, None, got, "UTF-8 text", "convert it, for example with `iconv -f latin1 -t utf-8`")
                continue
            if text.strip():
                yield number, text, raw.tell()


@contextmanager
def opened(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Open a file of text: yield its unpacked bytes, and the file as it is on the disk."""
    files_of(path, ())
    try:
        with path.open("rb") as raw:
            file = gzip.GzipFile(fileobj=raw) if path.suffix.lower() == ".gz" else raw
            if (wrong := not_text(file.peek(6)[:6])) is not None:
                raise InputError(f"{path}: {wrong}")
            yield cast("BinaryIO", file), raw
    except (OSError, EOFError, zlib.error) as error:
        got = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise InputError(
            f"{path}: got {got!r}; expected a readable file; fix: check the path, or fetch it again"
        ) from error


def _checked_blocks(
    path: Path,
    columns: Sequence[FileColumn],
    errors: InvalidFileError,
    rows: range | None,
    table: Mapping[str, list[Any]] | None,
) -> Iterator[Block]:
    if table is not None:
        chosen = _choose(path, list(table), columns, errors)
        count = len(next(iter(table.values()), ()))
        block = Block(range(1, count + 1), {name: table[title] for name, title in chosen.items()}, 0)
        return iter([_checked(block, columns, errors)])
    kind = ".parquet" if path.is_dir() else checked_format(path)
    if kind == ".parquet":
        blocks = _parquet_blocks(path, columns, errors, rows)
    else:
        read = _json_rows if kind == ".jsonl" else _csv_rows
        blocks = _in_blocks(read(path, columns, errors), columns)
    return (_checked(block, columns, errors) for block in blocks)


def _in_blocks(rows: Iterator[Row], columns: Sequence[FileColumn]) -> Iterator[Block]:
    def block() -> Block:
        return Block(numbers, {column.name: [row.get(column.name) for row in values] for column in columns}, position)

    numbers: list[int] = []
    values: list[dict[str, Any]] = []
    size = position = 0
    for number, row, length, position in rows:  # noqa: B007 (the last position is that of the block)
        numbers.append(number)
        values.append(row)
        size += length
        if len(values) == BLOCK_ROWS or size > BLOCK_BYTES:
            yield block()
            numbers, values, size = [], [], 0
    yield block()


def _json_rows(path: Path, columns: Sequence[FileColumn], errors: InvalidFileError) -> Iterator[Row]:
    needed = {column.name for column in columns if column.needed}
    keys: tuple[str, ...] = ()
    renamed: list[tuple[str, str]] = []
    looked_for = dict.fromkeys(name for column in columns for name in column.names)
    for number, line, position in text_lines(path, errors):
        try:
            row = parse_json(line)
        except RepeatedKeyError as error:
            errors.add(number, error.key, "the key twice", "each key once per object", "keep one of the two values")
            continue
        except (ValueError, RecursionError) as error:
            errors.add(number, None, f"{shorten(line)} ({error})", "one JSON object per line", "correct the line")
            continue
        if not isinstance(row, dict):
            errors.add(number, None, shorten(row), "a JSON object", "write {...} with its keys")
            continue
        if tuple(row) != keys:  # a million rows mostly have the same keys
            keys, known = tuple(row), len(errors.columns)
            errors.columns |= dict.fromkeys(keys if known < COLUMNS_NAMED else looked_for.keys() & row.keys())
            named = {column.name: _name_in(column, row) for column in columns if column.name not in row}
            renamed = [(column, name) for column, name in named.items() if name is not None]
        for column_name, name in renamed:
            row[column_name] = row[name]
        if not needed <= row.keys():
            for column in columns:
                if column.name in needed and column.name not in row:
                    fix = missing_column_hint(path, column.name, tuple(row), tuple(sorted(needed)))
                    errors.lacks(number, column.names, column.expected, fix)
            continue
        yield number, row, len(line), position


def _csv_rows(path: Path, columns: Sequence[FileColumn] | None, errors: InvalidFileError) -> Iterator[Row]:
    csv.field_size_limit(LONGEST_LINE)  # the default of 128 KiB is shorter than some documents
    delimiter = "\t" if kind_of(path) == ".tsv" else ","
    with opened(path) as (file, raw):
        # invalid UTF-8 becomes halves of surrogate pairs, so that the check of texts reports the row
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
        reader = csv.reader(_csv_lines(text), delimiter=delimiter, strict=True)
        number = 0
        try:
            names = next(reader, [])
            if not names:
                return
            empty = {column.name: "" for column in columns or () if column.needed}
            positions = {name: names.index(title) for name, title in _choose(path, names, columns, errors).items()}
            for fields in reader:
                if not fields:
                    continue
                number += 1
                if len(fields) != len(names):
                    fix = "put a text that holds the separator, a quote or a line end in double quotes; 0.5, not 0,5"
                    errors.add(number, None, f"{len(fields)} columns", f"{len(names)} as in the header", fix)
                    continue
                row = {name: fields[position] or empty.get(name) for name, position in positions.items()}
                yield number, row, sum(map(len, fields)), raw.tell()
        except csv.Error as error:
            fix = 'close every double quote, and write a quote inside a text as ""'
            errors.add(number + 1, None, str(error), "well-formed CSV from here on", fix)


def _csv_lines(text: TextIO) -> Iterator[str]:
    while line := text.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE and not line.endswith("\n"):
            raise csv.Error(f"a line longer than {LONGEST_LINE >> 20} MiB")
        yield line


def _parquet_blocks(
    path: Path, columns: Sequence[FileColumn] | None, errors: InvalidFileError, rows: range | None = None
) -> Iterator[Block]:
    number = read = 0
    for file_path in files_of(path, (".parquet",)):
        size = file_path.stat().st_size
        with open_table(file_path) as file:
            start, length = number, file.metadata.num_rows
            number += length
            if rows is not None and not (start < rows.stop and rows.start < number):
                continue
            chosen = _choose(file_path, file.schema_arrow.names, columns, errors)
            chosen_rows = None if rows is None else range(rows.start - start, rows.stop - start)
            for first, batch in row_batches(file, list(chosen.values()), BLOCK_ROWS, chosen_rows):
                values = {name: batch.column(title).to_pylist() for name, title in chosen.items()}
                numbers = range(start + first + 1, start + first + 1 + batch.num_rows)
                yield Block(numbers, values, read + size * (first + batch.num_rows) // max(1, length))
        read += size


def _choose(
    path: Path, names: Sequence[str], columns: Sequence[FileColumn] | None, errors: InvalidFileError
) -> dict[str, str]:
    """Map each column (None: all) to its name in the header; raise for a missing needed one or a name used twice."""
    chosen: dict[str, str] = {}
    if columns is None:
        columns = [FileColumn(name, "any", needed=False) for name in dict.fromkeys(names)]
    errors.columns |= dict.fromkeys(names)
    for column in columns:
        title = _name_in(column, names)
        if title is not None:
            chosen[column.name] = title
            if (times := list(names).count(title)) > 1:
                errors.add(None, title, f"{times} columns of that name", "one", "rename the other")
        elif column.needed:
            needed = tuple(sorted(other.name for other in columns if other.needed))
            fix = missing_column_hint(path, column.name, tuple(names), needed)
            errors.lacks(None, column.names, f"a column {column.name!r}", fix)
    errors.raise_any()
    return chosen


def _name_in(column: FileColumn, names: Container[str]) -> str | None:
    return next((name for name in column.names if name in names), None)


def _checked(raw: Block, columns: Sequence[FileColumn], errors: InvalidFileError) -> Block:
    """Return the valid rows with their values converted; add the others to `errors`."""
    invalid: set[int] = set()
    converted: dict[str, list[Any]] = {}
    for column in columns:
        values = raw.columns.get(column.name)
        if values is None:
            converted[column.name] = [None] * len(raw)
            continue
        at_once = column.read_all(values)
        if at_once is None:
            at_once = []
            for position, value in enumerate(values):
                try:
                    at_once.append(column.read(value))
                except InvalidValueError as error:
                    errors.add(raw.rows[position], column.name, error.got, error.expected, error.fix)
                    invalid.add(position)
                    at_once.append(None)
        converted[column.name] = at_once
    if not invalid:
        return Block(raw.rows, converted, raw.position)
    valid = [position for position in range(len(raw)) if position not in invalid]
    valid_columns = {name: [values[position] for position in valid] for name, values in converted.items()}
    return Block([raw.rows[position] for position in valid], valid_columns, raw.position)


def write_rows(table: pa.Table | pa.RecordBatchReader, path: str | Path) -> None:
    """Write a table or its batches atomically to a file whose suffix names the format.

    Lists are JSON in CSV and TSV. An absent value is an empty field.
    """
    path = Path(path)
    kind = checked_format(path)
    if kind == ".parquet":
        save_table(table, path)
        return
    with atomic_file(path) as file, ExitStack() as stack:
        if path.suffix.lower() == ".gz":  # without name and time, equal rows give equal bytes
            packed = gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0)
            file = cast("BinaryIO", stack.enter_context(packed))
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        write = csv.writer(text, delimiter="\t" if kind == ".tsv" else ",", lineterminator="\r\n").writerow
        if kind != ".jsonl":
            write(table.schema.names)
        for batch in table.to_batches(BLOCK_ROWS) if isinstance(table, pa.Table) else table:
            for row in batch.to_pylist():
                if kind == ".jsonl":
                    text.write(json.dumps(row, ensure_ascii=False) + "\n")
                else:
                    write([json.dumps(value) if isinstance(value, list) else value for value in row.values()])
        text.detach()  # a collected wrapper would close the file
