"""Graded pairs from and to files: Parquet, JSONL or CSV, every fault of a file reported together."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.files import read_text, write_atomically
from bixse.data.graded_pairs import OPTIONAL_COLUMNS, GradedPairs, text_id
from bixse.errors import Fault, InputError, InvalidFileError, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

REQUIRED_COLUMNS = ("query", "document", "relevance")
"""Columns every file must have."""
KNOWN_COLUMNS = (*REQUIRED_COLUMNS, "query_id", "document_id", *OPTIONAL_COLUMNS)
"""Columns that are read; others are ignored."""
FORMATS = (".parquet", ".jsonl", ".csv", ".tsv")


def load_graded_pairs(path: str | Path) -> GradedPairs:
    r"""Read graded pairs from a .parquet, .jsonl, .csv or .tsv file and check every row.

    Columns: `query`, `document` (text) and `relevance` (a number in [0, 1]); optional `query_id`, `document_id`
    (made from a hash of the text when absent), `task`, `grade`, `grade_probs`, `judge`. A pair given twice with the
    same relevance is kept once.

    Raises:
        InputError: the file is missing, empty or of another format.
        InvalidFileError: every faulty row with column, what was found, what was expected and how to mend it.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "pairs.csv"
        >>> _ = path.write_text("query,document,relevance\\ncopy a folder,shutil.copytree,1.0\\n")
        >>> load_graded_pairs(path).relevance.tolist()
        [1.0]
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise InputError(
            f"{path}: got suffix {path.suffix!r}; expected one of {', '.join(FORMATS)}; to mend: convert it"
        )
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no such file"
        raise InputError(f"{path}: got {found}; expected a file of graded pairs; to mend: check the path")
    checker = _Checker(path)
    if path.suffix.lower() == ".parquet":
        rows = _parquet_rows(path)
    elif path.suffix.lower() == ".jsonl":
        rows = _json_rows(path, checker)
    else:
        rows = _csv_rows(path, "\t" if path.suffix.lower() == ".tsv" else ",")
    for number, row in rows:
        checker.add(number, row)
    return checker.result()


def save_graded_pairs(pairs: GradedPairs, path: str | Path) -> None:
    """Write graded pairs to .parquet, .jsonl or .csv; the file appears whole or not at all.

    Raises:
        InputError: the suffix names no known format.
        StorageError: the disk is full or the folder cannot be written.
    """
    path = Path(path)
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        buffer = io.BytesIO()
        pq.write_table(pairs.to_arrow(), buffer)
        write_atomically(path, buffer.getvalue())
    elif path.suffix == ".jsonl":
        write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in pairs.rows()))
    elif path.suffix in (".csv", ".tsv"):
        text = io.StringIO()
        columns = ["query_id", "query", "document_id", "document", "relevance", *pairs.extra]
        writer = csv.DictWriter(text, columns, delimiter="\t" if path.suffix == ".tsv" else ",", lineterminator="\n")
        writer.writeheader()
        writer.writerows(pairs.rows())
        write_atomically(path, text.getvalue())
    else:
        raise InputError(
            f"{path}: got suffix {path.suffix!r}; expected one of {', '.join(FORMATS)}; to mend: rename it"
        )


def _parquet_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, pa.ArrowException, OSError) as error:
        raise InputError(
            f"{path}: got a file that is no Parquet ({str(error).splitlines()[0]}); expected Parquet; "
            "to mend: write it again or name it by its real format"
        ) from error
    columns = [name for name in file.schema_arrow.names if name in KNOWN_COLUMNS]
    _require_columns(path, file.schema_arrow.names)
    number = 0
    for batch in file.iter_batches(columns=columns):
        for row in batch.to_pylist():
            number += 1
            yield number, row


def _json_rows(path: Path, checker: _Checker) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            checker.fault(number, None, shorten(line), "one JSON object a line", f"mend the line ({error})")
            continue
        if isinstance(row, dict):
            yield number, row
        else:
            checker.fault(number, None, shorten(row), "a JSON object", "write {...} with query, document, relevance")


def _csv_rows(path: Path, delimiter: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    csv.field_size_limit(2**31 - 1)
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""), delimiter=delimiter, strict=True)
    try:
        if reader.fieldnames is not None:
            _require_columns(path, reader.fieldnames)
        yield from enumerate(reader, start=1)
    except csv.Error as error:
        fault = Fault(reader.line_num, None, str(error), "well-formed CSV", "quote texts that hold commas or quotes")
        raise InvalidFileError(path, [fault]) from error


def _require_columns(path: Path, names: list[str] | Any) -> None:
    faults = [
        Fault(None, column, f"columns {', '.join(map(str, names))}", f"a column {column!r}", "rename or add the column")
        for column in REQUIRED_COLUMNS
        if column not in names
    ]
    if faults:
        raise InvalidFileError(path, faults)


class _Checker:
    """Collects valid rows and faults of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.faults: list[Fault] = []
        self.rows: list[Mapping[str, Any]] = []
        self._pairs: dict[tuple[str, str], tuple[int, float]] = {}
        self._texts: dict[tuple[str, str], tuple[int, str]] = {}

    def fault(self, row: int | None, column: str | None, found: str, expected: str, fix: str) -> None:
        self.faults.append(Fault(row, column, found, expected, fix))

    def add(self, number: int, row: Mapping[str, Any]) -> None:
        before = len(self.faults)
        for column in ("query", "document"):
            self._check_text(number, column, row.get(column, _MISSING))
        relevance = self._relevance(number, row.get("relevance", _MISSING))
        if relevance is None or len(self.faults) > before:
            return
        named = {name: self._identify(number, name, row) for name in ("query", "document")}
        if len(self.faults) > before:
            return
        key = (named["query"], named["document"])
        if key in self._pairs:
            first, value = self._pairs[key]
            if value != relevance:
                found = f"{relevance} where row {first} has {value} for the same pair"
                self.fault(number, "relevance", found, "one relevance a pair", "keep one of the two rows")
            return
        self._pairs[key] = (number, relevance)
        self.rows.append({**row, "query_id": key[0], "document_id": key[1], "relevance": relevance})

    def _check_text(self, number: int, column: str, value: Any) -> None:
        if value is _MISSING:
            self.fault(number, column, "nothing", "a text", f"add the key {column!r}")
        elif not isinstance(value, str):
            self.fault(number, column, shorten(value), "a text", "write it as a string")
        elif not value.strip():
            self.fault(number, column, "an empty text", "a text", "fill it in or drop the row")

    def _relevance(self, number: int, value: Any) -> float | None:
        if value is _MISSING:
            self.fault(number, "relevance", "nothing", "a number in [0, 1]", "add the key 'relevance'")
            return None
        try:
            relevance = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            relevance = math.nan
        if 0.0 <= relevance <= 1.0:
            return relevance
        fix = "drop the row: an unusable grade is no 0"
        if math.isfinite(relevance):
            fix = "map grades to [0, 1]: (grade - lowest) / (highest - lowest)"
        self.fault(number, "relevance", shorten(value), "a number in [0, 1]", fix)
        return None

    def _identify(self, number: int, name: str, row: Mapping[str, Any]) -> str:
        """The id of a row's query or document; one id must always carry one text."""
        given = row.get(f"{name}_id")
        identifier = str(given) if given not in (None, "") else text_id(row[name])
        first, text = self._texts.setdefault((name, identifier), (number, row[name]))
        if text != row[name]:
            found = f"{shorten(identifier)} with another text than in row {first}"
            self.fault(number, f"{name}_id", found, f"one {name} text an id", "give each text its own id")
        return identifier

    def result(self) -> GradedPairs:
        if self.faults:
            raise InvalidFileError(self.path, sorted(self.faults, key=lambda fault: fault.row or 0))
        if not self.rows:
            raise InputError(f"{self.path}: got no rows; expected at least one graded pair; to mend: check the export")
        return GradedPairs.from_rows(self.rows)


_MISSING = object()
