"""The columns of a file: kinds, the check of every value, and hints that fix an invalid value."""

from __future__ import annotations

import math
import re
import shlex
import unicodedata
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from bixse.errors import shorten
from bixse.files.files import is_unicode, parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence
    from pathlib import Path

    import numpy.typing as npt


ColumnKind: TypeAlias = Literal["text", "id", "number", "integer", "numbers", "any"]
"""Kinds of columns: "numbers" is a list of finite numbers, "any" is not checked."""
SEPARATORS = {";": "semicolons", "\t": "tabs", ",": "commas", "|": "vertical bars"}
DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+\s*")
OTHER_NAMES = {
    "query": ("search", "search_query", "search_term", "question", "query_text", "anchor", "sentence1", "text1"),
    "document": ("passage", "doc", "document_text", "passage_text", "text", "title", "content", "body", "answer",
                 "positive", "product", "sentence2", "text2"),
    "relevance": ("grade", "label", "score", "rating", "stars", "judgement", "judgment", "relevance_score", "rel"),
}  # fmt: skip
"""Column of graded pairs -> names of the same column in other projects."""


class InvalidValueError(ValueError):
    """The error for a value that is not valid in its column."""

    def __init__(self, got: str, expected: str, fix: str) -> None:
        super().__init__(got, expected, fix)
        self.got, self.expected, self.fix = got, expected, fix


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
        found = self._read_present(present) if present else present
        if found is None or len(present) == len(values):
            return found
        rest = iter(found)
        return [None if value is None else next(rest) for value in values]

    def _read_present(self, values: list[Any]) -> list[Any] | None:
        types = set(map(type, values))
        if self.kind == "any" and not self.needed:
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
        if self.kind == "integer" and types == {int} and self.low <= min(values) and max(values) <= self.high:
            return values
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
            raise InvalidValueError(shorten(value), self.expected, "rename it, for example with _ for each blank")
        return text

    def _number(self, value: Any) -> float:
        exact = value
        if self.kind == "integer" and isinstance(value, str) and "_" not in value:
            with suppress(ValueError):
                exact = int(value)
        number = number_of(exact)
        if not math.isfinite(number) or (self.kind == "integer" and number != int(number)):
            fix = number_hint(value, "drop the row: what is no number is no 0")
            raise InvalidValueError(shorten(value), self.expected, fix)
        if not self.low <= number <= self.high:
            fix = f"map it to [{self.low:g}, {self.high:g}]: (value - lowest) / (highest - lowest)"
            raise InvalidValueError(shorten(value), self.expected, fix if math.isfinite(self.high) else "correct it")
        return number if self.kind == "number" else int(exact)

    def _numbers(self, value: Any) -> list[float]:
        if isinstance(value, str):
            with suppress(ValueError, RecursionError):
                value = parse_json(value)
        numbers = [number_of(item) for item in value] if isinstance(value, list) else [math.nan]
        if not all(map(math.isfinite, numbers)):
            raise InvalidValueError(shorten(value), self.expected, "write it as [0.1, 0.9]")
        return numbers


def number_of(value: Any) -> float:
    """Return the number that a value holds or spells, else NaN; a bool, bytes and Python's 1_000 are NaN.

    Example:
        >>> number_of(" 0.5"), number_of(True)
        (0.5, nan)
    """
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


def normal_form(text: str) -> str:
    r"""Return the text for comparisons: NFKC, case folded, white space as one space.

    Example:
        >>> normal_form("  Copy\n a FOLDER "), normal_form(chr(0xFB01) + "le")
        ('copy a folder', 'file')
    """
    # NFKC leaves ASCII as it is, and lower() is then equal to casefold() and faster
    folded = text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
    return " ".join(folded.split())


class FirstRows:
    """The first row of each value of a column whose values should be unique.

    As long as no hash repeats, only 64-bit hashes are stored: 8 bytes per value, up to 24 while they are sorted. At the
    first repeated hash, which may be a collision, `read_again` reads values and rows from the start. After that, values
    and rows are stored.

    Example:
        >>> column = [("a", 1), ("b", 2), ("a", 3), ("b", 4)]
        >>> first = FirstRows(lambda: column)
        >>> first.add(["a", "b"], [1, 2]), first.add(["a", "b"], [3, 4])
        ([1, 2], [1, 2])
    """

    def __init__(self, read_again: Callable[[], Iterable[tuple[Hashable, int]]]) -> None:
        self._read_again = read_again
        self._hashes: list[npt.NDArray[np.int64]] = []
        """Sorted arrays, each at least twice as long as the next one."""
        self._rows: dict[Hashable, int] | None = None

    def add(self, values: Sequence[Hashable], rows: Sequence[int]) -> Sequence[int]:
        """Return the first row of each value; the values follow all values added before."""
        if not values:
            return []
        if self._rows is None:
            hashes = np.fromiter(map(hash, values), dtype=np.int64, count=len(values))
            hashes.sort()
            if not self._repeats(hashes):
                self._keep(hashes)
                return rows
            self._rows = {}
            for value, row in self._read_again():
                self._rows.setdefault(value, row)
            self._hashes.clear()
        return [self._rows.setdefault(value, row) for value, row in zip(values, rows, strict=True)]

    def _repeats(self, hashes: npt.NDArray[np.int64]) -> bool:
        if (hashes[1:] == hashes[:-1]).any():
            return True
        places = ((part, np.searchsorted(part, hashes)) for part in self._hashes)
        return any((part[np.minimum(place, len(part) - 1)] == hashes).any() for part, place in places)

    def _keep(self, hashes: npt.NDArray[np.int64]) -> None:
        self._hashes.append(hashes)
        while len(self._hashes) > 1 and len(self._hashes[-2]) < 2 * len(self._hashes[-1]):
            joined = np.concatenate([self._hashes.pop(), self._hashes.pop()])
            joined.sort()
            self._hashes.append(joined)


def number_hint(value: object, otherwise: str) -> str:
    """Return the fix for a value that is not a number.

    Example:
        >>> number_hint("0,5", "drop the row"), number_hint("good", "drop the row")
        ('write decimals with a point: 0.5', 'drop the row')
    """
    if isinstance(value, str) and DECIMAL_COMMA.fullmatch(value):
        return f"write decimals with a point: {value.strip().replace(',', '.')}"
    return otherwise


def column_hint(column: str, names: Sequence[object], otherwise: str) -> str:
    """Return the fix for a missing column: a name in other letters, or a header with another separator.

    Example:
        >>> column_hint("relevance", ["query", "Relevance "], "add it")
        "rename 'Relevance ' to 'relevance': names are compared letter by letter"
        >>> column_hint("query", ["query;document;relevance"], "add it")
        'the header is separated by semicolons: save the file with commas as .csv, or with tabs as .tsv'
    """
    found = [name for name in names if isinstance(name, str)]
    for name in found:
        if name != column and _plain(name) == column:
            return f"rename {name!r} to {column!r}: names are compared letter by letter"
    if len(found) == 1:
        for separator, words in SEPARATORS.items():
            if separator in found[0]:
                return f"the header is separated by {words}: save the file with commas as .csv, or with tabs as .tsv"
    return otherwise


@lru_cache
def missing_column_hint(path: Path, column: str, names: tuple[str, ...], needed: tuple[str, ...]) -> str:
    """Return `column_hint`, or the command that maps the columns of graded pairs.

    Example:
        >>> from pathlib import Path
        >>> wanted = ("query", "document", "relevance")
        >>> print(missing_column_hint(Path("clicks.csv"), "query", ("search", "title", "stars"), wanted))
        with the lowest and highest possible grade for LOW HIGH: bixse convert table clicks.csv --query-column search \
--document-column title --grade-column stars --scale LOW HIGH
    """
    otherwise = f"rename or add {column!r}"
    hint = column_hint(column, names, "")
    if hint or not {*OTHER_NAMES} <= {*needed}:
        return hint or otherwise
    plain = {_plain(name): name for name in names}
    flags = {}
    for wanted, others in OTHER_NAMES.items():
        name = next((plain[one] for one in (wanted, *others) if one in plain), None)
        if name is None:
            return otherwise
        flags["grade" if wanted == "relevance" else wanted] = name
    words = [word for flag, name in flags.items() if name != flag for word in (f"--{flag}-column", shlex.quote(name))]
    command = " ".join(["bixse convert table", shlex.quote(str(path)), *words, "--scale LOW HIGH"])
    return f"with the lowest and highest possible grade for LOW HIGH: {command}"


def _plain(name: str) -> str:
    return "_".join(name.strip().casefold().replace("-", " ").split())
