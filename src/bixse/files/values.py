"""The columns of a file: kinds, the check of every value, and hints that fix an invalid value."""

from __future__ import annotations

import math
import re
import shlex
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from bixse.errors import shorten
from bixse.files.files import is_unicode, parse_json

ColumnKind: TypeAlias = Literal["text", "id", "number", "integer", "numbers", "any"]
"""Kinds of columns: "numbers" is a list of finite numbers, "any" is not checked."""
SEPARATORS = {";": "semicolons", "\t": "tabs", ",": "commas", "|": "vertical bars"}
DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+\s*")
DOCUMENT_IDS = ("document_id", "docid", "doc_id", "pid", "corpus-id", "corpus_id")
"""Usual names of a column of document ids."""
WORD = re.compile(r"[^\W\d_][^{}\[\]]*")
POSTGRES_ARRAY = re.compile(r"\A\s*\{(.*)\}\s*\Z", re.DOTALL)


@dataclass(eq=False)
class InvalidValueError(ValueError):
    """The error for a value that is not valid in its column."""

    got: str
    expected: str
    fix: str


@dataclass(frozen=True)
class FileColumn:
    """A column to read, and the rule for its values.

    An id is text or an integer, not empty and without white space, which separates the columns of TREC run files. It is
    read as text. A number is finite; text that spells a number is valid (as in CSV), a bool is not. Text of white space
    alone counts as empty.
    """

    name: str
    kind: ColumnKind = "text"
    needed: bool = True
    """True if every row must have a value; else an absent, null, empty or NaN value is None."""
    may_be_empty: bool = False
    """True if a text of a needed column may be empty or null, which is read as ""."""
    unique: bool = False
    low: float = -math.inf
    high: float = math.inf
    other_names: tuple[str, ...] = ()
    """Alternative names in the file; the first one that exists is used."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the column in files."""
        return self.name, *self.other_names

    @property
    def expected(self) -> str:
        """The expected value, in words."""
        between = f" in [{self.low:g}, {self.high:g}]" if math.isfinite(self.high) else ""
        from_low = f" from {self.low:g} up" if math.isfinite(self.low) and not between else ""
        return {
            "text": "a text",
            "id": "an id: a text without white space, or a whole number",
            "number": f"a {'' if between else 'finite '}number{between}{from_low}",
            "integer": f"a whole number{between}{from_low}",
            "numbers": "a list of finite numbers",
            "any": "a value",
        }[self.kind]

    def read_all(self, values: list[Any]) -> list[Any] | None:
        """Return all values at once; None if a value needs `read`."""
        present = values if self.needed else [value for value in values if value is not None]
        converted = self._read_present(present, set(map(type, present)))
        if converted is None or len(present) == len(values):
            return converted
        rest = iter(converted)
        return [None if value is None else next(rest) for value in values]

    def _read_present(self, values: list[Any], types: set[type]) -> list[Any] | None:
        if not values or (self.kind == "any" and not self.needed):
            return values
        if self.kind == "text" and types == {str} and (self.may_be_empty or all(map(str.strip, values))):
            return values if is_unicode("".join(values)) else None
        if self.kind == "id" and types <= {str, int}:
            ids = list(map(str, values))
            joined = " ".join(ids)
            return ids if joined.split() == ids and is_unicode(joined) else None
        if self.kind == "number" and types <= {float, int}:
            with suppress(OverflowError):
                numbers = np.array(values, dtype=np.float64)
                if bool(np.all(np.isfinite(numbers) & (numbers >= self.low) & (numbers <= self.high))):
                    return list(numbers.tolist())
        return None

    def read(self, value: Any) -> Any:
        """Return one value, converted; raise InvalidValueError if it is not valid."""
        if is_empty(value):
            if not self.needed:
                return None
            if self.may_be_empty:
                return value if isinstance(value, str) else ""
            got = "null" if value is None else "an empty text" if isinstance(value, str) else "nan"
            raise InvalidValueError(got, self.expected, "fill it in or drop the row")
        if self.kind in ("text", "id"):
            return self._text(value)
        if self.kind in ("number", "integer"):
            return self._number(value)
        return self._numbers(value) if self.kind == "numbers" else value

    def _text(self, value: Any) -> str:
        text = str(value) if self.kind == "id" and type(value) is int else value
        if not isinstance(text, str):
            raise InvalidValueError(shorten(value), self.expected, "write it as a string")
        if not is_unicode(text):
            fix = "convert the file, for example with `iconv -t utf-8`; drop the half of a surrogate pair"
            raise InvalidValueError(shorten(value), "text that UTF-8 can write", fix)
        if self.kind == "id" and text.split() != [text]:
            fix = "rename it wherever it is used, for example with _ for each space: white space separates TREC files"
            raise InvalidValueError(shorten(value), self.expected, fix)
        return text

    def _number(self, value: Any) -> float:
        exact = value
        if self.kind == "integer" and isinstance(value, str) and "_" not in value:
            with suppress(ValueError):
                exact = int(value)
        number = number_of(exact)
        if not math.isfinite(number) or (self.kind == "integer" and number != int(number)):
            fix = number_hint(value, "drop the row: an unknown number is not 0")
            raise InvalidValueError(shorten(value), self.expected, fix)
        if not self.low <= number <= self.high:
            fix = f"map it to [{self.low:g}, {self.high:g}]: (value - lowest) / (highest - lowest)"
            raise InvalidValueError(shorten(value), self.expected, fix if math.isfinite(self.high) else "correct it")
        return number if self.kind == "number" else int(number if isinstance(exact, str) else exact)

    def _numbers(self, value: Any) -> list[float]:
        fix = "write it as [0.1, 0.9]"
        if isinstance(value, bytes):  # the bytes do not say their dtype, and another gives other numbers
            fix += ": numpy.frombuffer(blob, DTYPE).tolist(), with the dtype of the writer, often float32"
        if isinstance(value, str):
            listed = POSTGRES_ARRAY.sub(r"[\1]", value)
            with suppress(ValueError, RecursionError):
                value = parse_json(listed)
        numbers = [number_of(item) for item in value] if isinstance(value, list) else [math.nan]
        if not all(map(math.isfinite, numbers)):
            raise InvalidValueError(shorten(value), self.expected, fix)
        return numbers


def number_of(value: Any) -> float:
    """Return the number that a value holds or spells, else NaN; a bool, bytes and Python's 1_000 are NaN."""
    if isinstance(value, (bool, bytes)) or (isinstance(value, str) and "_" in value):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def is_empty(value: Any) -> bool:
    """Return True for null, text of white space alone, and the NaN that data frames write."""
    return (
        value is None
        or (isinstance(value, str) and not value.strip())
        or (isinstance(value, float) and math.isnan(value))
    )


def number_hint(value: object, otherwise: str) -> str:
    """Return the fix for a value that is not a number."""
    if isinstance(value, str) and DECIMAL_COMMA.fullmatch(value):
        return "write decimals with a point, 0.5"
    if isinstance(value, bool):
        return "write 1 for true and 0 for false"
    if isinstance(value, str) and WORD.fullmatch(value) and value.strip().casefold() not in ("nan", "null", "none"):
        return "give each word its number on the scale, for example with pandas: table['COLUMN'].map({'E': 3, 'I': 0})"
    return otherwise


@lru_cache
def missing_column_hint(path: Path, column: str, names: tuple[str, ...], needed: tuple[str, ...]) -> str:
    """Return the fix for a missing column: another spelling, separator or layout, or the command that maps names."""
    if "candidates" in names:
        return f"rename or add {column!r}: one row per candidate, with its texts as 'query' and 'document'"
    for name in names:
        if "_".join(name.strip().casefold().replace("-", " ").split()) == column != name:
            return f"rename {name!r} to {column!r}: names are compared letter by letter"
    for name in names if column == "score" else ():
        if "dist" in name.casefold():
            return f"rename {name!r} to 'score' and turn it (1 - {name} or -{name}): a near document has a low distance"
    for separator, words in SEPARATORS.items():
        if len(names) == 1 and separator in names[0]:
            return f"the header is separated by {words}: save the file with commas as .csv, or with tabs as .tsv"
    if column == "document" and (key := next((name for name in names if name in DOCUMENT_IDS), None)):
        return (
            f"rename or add 'document'; texts are found by id with pandas: table.merge(corpus.rename(columns={{'_id': "
            f"{key!r}, 'text': 'document'}}), on={key!r})"
        )
    if "relevance" not in needed:
        return f"rename or add {column!r}"
    if column == "relevance" and {"query", "document"} <= {*names} and "grade" not in names:
        return (
            f"grade the pairs: bixse grade --pairs {shlex.quote(str(path))} --judge JUDGE; or name the column with the "
            f"grade: bixse convert table {shlex.quote(str(path))} --columns grade=NAME --scale LOW HIGH"
        )
    return (
        f"rename or add it, or say what the columns are: bixse convert table {shlex.quote(str(path))} --columns "
        "query=NAME document=NAME grade=NAME --scale LOW HIGH"
    )
