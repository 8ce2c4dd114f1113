"""Graded pairs from and to files: Parquet, JSONL or CSV, every fault of a file reported together."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.graded_pairs import OPTIONAL_COLUMNS, GradedPairs, Pair, text_id
from bixse.data.io.files import is_unicode, read_text, write_atomically
from bixse.data.io.hints import column_hint, missing_column_hint, number_hint
from bixse.data.io.parquet import save_table, table_rows
from bixse.data.io.strict import json_fault, parse_json
from bixse.data.sources.reading import number_of
from bixse.errors import InputError, InvalidFileError, RowError, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

REQUIRED_COLUMNS = ("query", "document", "relevance")
"""Columns every file must have."""
KNOWN_COLUMNS = (*REQUIRED_COLUMNS, "query_id", "document_id", *OPTIONAL_COLUMNS)
"""Columns that are read; others are ignored."""
FORMATS = (".parquet", ".jsonl", ".csv", ".tsv")
"""Suffixes that are read and written."""


def load_graded_pairs(path: str | Path) -> GradedPairs:
    r"""Read graded pairs from a .parquet, .jsonl, .csv or .tsv file and check every row.

    Columns: `query`, `document` (text) and `relevance` (a number in [0, 1]); optional `query_id`, `document_id`
    (made from a hash of the text when absent), `task`, `grade`, `grade_probs` (a list, JSON in CSV), `judge`; other
    columns are ignored. A pair given twice with the same relevance is kept once.

    Raises:
        InputError: the file is missing, empty or of another format.
        InvalidFileError: every faulty row with column, what was found, what was expected and how to fix it.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "pairs.csv"
        >>> _ = path.write_text("query,document,relevance\ncopy a folder,shutil.copytree,1.0\n")
        >>> load_graded_pairs(path).relevance.tolist()
        [1.0]
    """
    return GradedPairs.from_rows(_read(Path(path), graded=True))


def load_pairs(path: str | Path) -> list[Pair]:
    r"""Read pairs that are still to be graded from a .parquet, .jsonl, .csv or .tsv file and check every row.

    As `load_graded_pairs`, without the column `relevance`, which is not read where there is one.

    Raises:
        InputError: the file is missing, empty or of another format.
        InvalidFileError: every faulty row with column, what was found, what was expected and how to fix it.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "pairs.csv"
        >>> _ = path.write_text("query,document\ncopy a folder,shutil.copytree\n")
        >>> load_pairs(path)[0].document
        'shutil.copytree'
    """
    rows = _read(Path(path), graded=False)
    return [Pair(row["query_id"], row["query"], row["document_id"], row["document"], row.get("task")) for row in rows]


def _read(path: Path, graded: bool) -> list[Mapping[str, Any]]:
    """The checked rows of a file of pairs."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{path}: got suffix {path.suffix!r}; expected one of {', '.join(FORMATS)}; fix: convert it")
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no such file"
        raise InputError(f"{path}: got {found}; expected a file of pairs; fix: check the path")
    checker = _Checker(path, graded)
    if path.suffix.lower() == ".parquet":
        rows = _parquet_rows(path, checker)
    elif path.suffix.lower() == ".jsonl":
        rows = _json_rows(path, checker)
    else:
        rows = _csv_rows(path, checker)
    for number, row in rows:
        checker.add(number, row)
    return checker.result()


def load_several(paths: Sequence[str | Path]) -> GradedPairs:
    """Read graded pairs from one file, or from several as one table (see `GradedPairs.joined`; named by their files).

    The order of the files does not matter.

    Raises:
        InputError: as `load_graded_pairs`; or two files have the same name.
    """
    if len(paths) == 1:
        return load_graded_pairs(paths[0])
    names = [Path(path).stem for path in paths]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice or not paths:
        raise InputError(
            f"pairs: got {f'two files named {twice[0]!r}' if twice else 'no file'}; expected files with names of "
            "their own: a name stands for the task of rows without one; fix: rename one"
        )
    return GradedPairs.joined({name: load_graded_pairs(path) for name, path in sorted(zip(names, paths, strict=True))})


def save_graded_pairs(pairs: GradedPairs, path: str | Path) -> None:
    """Write graded pairs to .parquet, .jsonl, .csv or .tsv; the file appears whole or not at all.

    Raises:
        InputError: the suffix names no known format, or there is no pair to write.
        StorageError: the disk is full or the folder cannot be written.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if len(pairs) == 0:
        raise InputError(f"{path}: got no pairs; expected at least one; fix: check what was selected")
    if suffix == ".parquet":
        save_table(pairs.to_arrow(), path)
    elif suffix == ".jsonl":
        write_atomically(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in pairs.rows()))
    elif suffix in (".csv", ".tsv"):
        text = io.StringIO()
        columns = ["query_id", "query", "document_id", "document", "relevance", *pairs.extra]
        writer = csv.DictWriter(text, columns, delimiter=_delimiter(path), lineterminator="\r\n")
        writer.writeheader()
        for row in pairs.rows():
            if row.get("grade_probs") is not None:
                row["grade_probs"] = json.dumps(row["grade_probs"])
            writer.writerow(row)
        write_atomically(path, text.getvalue())
    else:
        raise InputError(f"{path}: got suffix {path.suffix!r}; expected one of {', '.join(FORMATS)}; fix: rename it")


def _delimiter(path: Path) -> str:
    return "\t" if path.suffix.lower() == ".tsv" else ","


def _parquet_rows(path: Path, checker: _Checker) -> Iterator[tuple[int, Mapping[str, Any]]]:
    def choose(names: list[str]) -> list[str]:
        checker.require_columns(names)
        return [name for name in names if name in KNOWN_COLUMNS]

    return table_rows(path, choose)


def _json_rows(path: Path, checker: _Checker) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except (ValueError, RecursionError) as error:
            checker.faults.append(json_fault(number, line, error))
            continue
        if isinstance(row, dict):
            yield number, row
        else:
            checker.fault(number, None, shorten(row), "a JSON object", "write {...} with query, document, relevance")


def _csv_rows(path: Path, checker: _Checker) -> Iterator[tuple[int, Mapping[str, Any]]]:
    csv.field_size_limit(2**31 - 1)
    text = io.StringIO(read_text(path, keep_line_ends=True), newline="")
    reader = csv.reader(text, delimiter=_delimiter(path), strict=True)
    number = 0
    try:
        names = next(reader, None)
        if names is None:
            return
        checker.require_columns(names)
        for fields in reader:
            if not fields:
                continue
            number += 1
            if len(fields) == len(names):
                yield number, _typed(dict(zip(names, fields, strict=True)))
            else:
                fix = "put a text that holds the separator, a quote or a line end in double quotes; write 0.5, not 0,5"
                checker.fault(number, None, f"{len(fields)} columns", f"{len(names)} as in the header", fix)
    except csv.Error as error:
        fix = 'close every double quote, and write a quote inside a text as ""'
        checker.fault(number + 1, None, str(error), "well-formed CSV from here on", fix)


def _typed(row: dict[str, Any]) -> dict[str, Any]:
    """A CSV row with its optional columns read: an empty one is absent, grades are numbers, probabilities JSON."""
    for name in OPTIONAL_COLUMNS:
        row[name] = row.get(name) or None
    for name, convert in (("grade", float), ("grade_probs", json.loads)):
        if row[name] is not None:
            with contextlib.suppress(ValueError, RecursionError):
                row[name] = convert(row[name])
    return row


class _Checker:
    """Collects valid rows and faults of one file."""

    def __init__(self, path: Path, graded: bool) -> None:
        self.path = path
        self.graded = graded
        self.faults: list[RowError] = []
        self.rows: list[Mapping[str, Any]] = []
        self._pairs: dict[tuple[str, str, str | None], tuple[int, float]] = {}
        self._texts: dict[tuple[str, str], tuple[int, str]] = {}

    def require_columns(self, names: Sequence[str]) -> None:
        """Stop at once where a needed column is missing or a known one is there twice."""
        found = f"columns {shorten(', '.join(map(str, names)), 120)}"
        for column in REQUIRED_COLUMNS if self.graded else REQUIRED_COLUMNS[:2]:
            if column not in names:
                fix = self._column_hint(column, names, "rename or add the column")
                self.fault(None, column, found, f"a column {column!r}", fix)
        for column in KNOWN_COLUMNS:
            if list(names).count(column) > 1:
                self.fault(None, column, f"{list(names).count(column)} columns of that name", "one", "rename the other")
        if self.faults:
            raise InvalidFileError(self.path, self.faults)

    def _column_hint(self, column: str, names: Sequence[object], otherwise: str) -> str:
        if self.graded:
            return missing_column_hint(self.path, column, tuple(map(str, names)), REQUIRED_COLUMNS)
        return column_hint(column, names, otherwise)

    def fault(self, row: int | None, column: str | None, found: str, expected: str, fix: str) -> None:
        self.faults.append(RowError(row, column, found, expected, fix))

    def add(self, number: int, row: Mapping[str, Any]) -> None:
        before = len(self.faults)
        for column in ("query", "document"):
            self._check_text(number, column, row)
        relevance = self._relevance(number, row) if self.graded else 0.0
        columns = OPTIONAL_COLUMNS if self.graded else ("task",)
        optional = {name: self._optional(number, name, row.get(name)) for name in columns}
        if relevance is None or len(self.faults) > before:
            return
        named = {name: self._identify(number, name, row) for name in ("query", "document")}
        if len(self.faults) > before:
            return
        key = (named["query"], named["document"], optional.get("task"))
        if key in self._pairs:
            first, value = self._pairs[key]
            if value != relevance:
                found = f"{relevance} where row {first} has {value} for the same pair"
                self.fault(number, "relevance", found, "one relevance per pair", "keep one of the two rows")
            return
        self._pairs[key] = (number, relevance)
        texts = {"query": row["query"], "document": row["document"]}
        self.rows.append({"query_id": key[0], "document_id": key[1], "relevance": relevance, **texts, **optional})

    def _check_text(self, number: int, column: str, row: Mapping[str, Any]) -> None:
        value = row.get(column, _MISSING)
        if value is _MISSING:
            self.fault(
                number, column, "nothing", "a text", self._column_hint(column, [*row], f"add the key {column!r}")
            )
        elif value is None:
            self.fault(number, column, "null", "a text", "fill it in or drop the row")
        elif not isinstance(value, str):
            self.fault(number, column, shorten(value), "a text", "write it as a string")
        elif not value.strip():
            self.fault(number, column, "an empty text", "a text", "fill it in or drop the row")
        elif not is_unicode(value):
            self.fault(number, column, shorten(value), "text that UTF-8 can write", "drop the half of a surrogate pair")

    def _relevance(self, number: int, row: Mapping[str, Any]) -> float | None:
        value = row.get("relevance", _MISSING)
        if value is _MISSING:
            fix = self._column_hint("relevance", [*row], "add the key 'relevance'")
            self.fault(number, "relevance", "nothing", "a number in [0, 1]", fix)
            return None
        relevance = number_of(value)
        if 0.0 <= relevance <= 1.0:
            return relevance
        fix = number_hint(value, "drop the row: an unusable grade is no 0")
        if math.isfinite(relevance):
            fix = "map grades to [0, 1]: (grade - lowest) / (highest - lowest)"
        self.fault(number, "relevance", "null" if value is None else shorten(value), "a number in [0, 1]", fix)
        return None

    def _optional(self, number: int, column: str, value: Any) -> Any:
        """The value of an optional column: a text, a number or a list of numbers; None where it is absent."""
        if _is_absent(value):
            return None
        if column == "grade":
            if math.isfinite(grade := number_of(value)):
                return grade
            self.fault(
                number,
                column,
                shorten(value),
                "a finite number",
                number_hint(value, "leave it out where there is no grade"),
            )
        elif column == "grade_probs":
            if isinstance(value, list) and all(math.isfinite(number_of(item)) for item in value):
                return [number_of(item) for item in value]
            self.fault(number, column, shorten(value), "a list of numbers, one a grade", "write it as [0.1, 0.9]")
        elif not isinstance(value, str) or not is_unicode(value):
            self.fault(number, column, shorten(value), "a text", "write it as a string")
        return value

    def _identify(self, number: int, name: str, row: Mapping[str, Any]) -> str:
        """The id of a row's query or document; one id must always carry one text."""
        given = row.get(f"{name}_id")
        if _is_absent(given):
            identifier = text_id(row[name])
        elif isinstance(given, (str, int)) and not isinstance(given, bool) and is_unicode(str(given)):
            identifier = str(given)
        else:
            self.fault(number, f"{name}_id", shorten(given), "a text or a whole number", "write ids as strings")
            return ""
        first, text = self._texts.setdefault((name, identifier), (number, row[name]))
        if text != row[name]:
            found = f"{shorten(identifier)} with another text than in row {first}"
            self.fault(number, f"{name}_id", found, f"one {name} text an id", "give each text its own id")
        return identifier

    def result(self) -> list[Mapping[str, Any]]:
        if self.faults:
            raise InvalidFileError(self.path, sorted(self.faults, key=lambda fault: fault.row or 0))
        if not self.rows:
            raise InputError(f"{self.path}: got no rows; expected at least one pair; fix: check the export")
        return self.rows


def _is_absent(value: Any) -> bool:
    """Whether an optional value is not there: null, an empty text, or the NaN of a data frame."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


_MISSING = object()
