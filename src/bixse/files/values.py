"""What a column of a file holds, and the rules that every value of it is checked by."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from bixse.errors import shorten
from bixse.files.files import is_unicode
from bixse.files.hints import number_hint
from bixse.files.strict import parse_json

ColumnKind: TypeAlias = Literal["text", "id", "number", "integer", "numbers", "any"]
"""Kinds of columns; "numbers" is a list of finite numbers, "any" is taken as it stands."""


class InvalidValueError(ValueError):
    """A value that its column cannot hold."""

    def __init__(self, got: str, expected: str, fix: str) -> None:
        super().__init__(got, expected, fix)
        self.got, self.expected, self.fix = got, expected, fix


@dataclass(frozen=True)
class FileColumn:
    """A column to read, and what its values must be.

    An id is text or a whole number, not empty and without white space (which separates the columns of TREC run files);
    it is read as text. A number is finite; text that spells one counts (as in CSV), a bool does not. Text of white
    space alone counts as empty.
    """

    name: str
    """Its name in the rows that are read."""
    kind: ColumnKind = "text"
    """What its values are."""
    needed: bool = True
    """The column has to be there, with a value in every row; else an absent, null, empty or NaN value is None."""
    may_be_empty: bool = False
    """Of a needed column of text: a value may be empty or null, which is read as ""."""
    unique: bool = False
    """No two rows have the same value."""
    low: float = -math.inf
    """Smallest number."""
    high: float = math.inf
    """Largest number."""
    other_names: tuple[str, ...] = ()
    """Names it may have instead in the file; the first that is there is taken."""

    @property
    def expected(self) -> str:
        """What a value should be, in words."""
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
        """All values at once, as they are used; None where one of them needs a look of its own."""
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
        """One value as it is used."""
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
    """The number a value holds or spells, NaN where it is none (a bool, bytes, and Python's 1_000 are none).

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
    """Whether a value says nothing: null, text of white space alone, or the NaN that data frames write."""
    return (
        value is None
        or (isinstance(value, str) and not value.strip())
        or (isinstance(value, float) and math.isnan(value))
    )
