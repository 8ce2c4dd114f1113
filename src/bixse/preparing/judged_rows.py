"""A row of a file of another tool, and a judgement: what the functions of `formats.py` read and give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bixse.errors import shorten
from bixse.files.files import is_unicode
from bixse.files.values import FileColumn, InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Mapping

ABSENT: Any = object()
"""A value that a row lacks."""
FILL = "fill it in or drop the row"
TEXT, OPTIONAL_TEXT = FileColumn("text"), FileColumn("text", needed=False)


@dataclass(slots=True)
class Judgement:
    """The answer of a judge to one (query, document) pair.

    A format gives texts, ids, and a label or a value; the readers of `Source` fill in the rest.
    """

    query: str | None
    """None for the text of `query_id` among the queries."""
    document: str | None
    """None for the text of `document_id` in the corpus."""
    label: float | None = None
    """1 for a positive, 0 for a negative."""
    value: Any = None
    """The grade, or the score of a teacher, as the file has it."""
    value_column: str = ""
    """The column of the value; the value is needed if it is given and there is no label."""
    query_id: str = ""
    document_id: str = ""
    """An empty id is made from the text."""
    column: str = ""
    """The column of `document_id`."""
    task: str | None = None
    judge: str | None = None
    status: str = ""
    """"graded", or the reason for no grade: "no-option", "off-scale", "no-probabilities", ... as judges answer."""
    grade_probs: list[float] | None = None
    """Raw probability of each grade from lowest to highest, evenly spaced on the scale."""
    score: float | None = None
    """The value as a number."""
    grade: float | None = None
    """The (fractional) grade, within the scale; None unless the status is "graded"."""
    relevance: float | None = None
    """The grade on [0, 1]."""


class SourceRow(dict[str, Any]):
    """A row of a file: key -> value. A value that cannot be used is an error of the row, which is then left out."""

    def __init__(self, number: int, values: Mapping[str, Any], text_ids: bool = False) -> None:
        super().__init__(values)
        self.number, self._text_ids = number, text_ids
        self.judgements: list[Judgement] = []
        self.errors: list[tuple[str, str, str, str]] = []
        """Column, what was got, what was expected, fix."""
        self.note = ""
        """The end of a sentence "12 rows ..." for a warning that counts rows."""

    def add(self, column: str, got: str, expected: str, fix: str) -> None:
        """Add an error, once: two documents of a row may lack the same."""
        if (error := (column, got, expected, fix)) not in self.errors:
            self.errors.append(error)

    def refuse(self, column: str, value: object, expected: str, fix: str) -> None:
        """Add an error that shows a value."""
        self.add(column, "nothing" if value is ABSENT else shorten(value), expected, fix)

    def read(self, rule: FileColumn, column: str = "", value: Any = ABSENT) -> Any:
        """Return a value, by default that of the column, as the rule reads it."""
        column = column or rule.name
        if value is ABSENT and (value := self.get(column, ABSENT)) is ABSENT:
            if rule.needed:
                self.refuse(column, ABSENT, rule.expected, FILL)
            return None
        try:
            return rule.read(value)
        except InvalidValueError as error:
            self.add(column, error.got, error.expected, error.fix)
            return None

    def text(self, column: str, value: Any = ABSENT) -> str:
        """Return a text, which must be there, by default that of the column."""
        return self.read(TEXT, column, value) or ""

    def id(self, column: str, value: Any = ABSENT) -> str:
        """Return an id, by default that of the column; "" if there is none."""
        value = self.get(column) if value is ABSENT else value
        if value is None or value == "":
            return ""
        if type(value) is int:
            return str(value)
        if isinstance(value, str) and is_unicode(value) and (self._text_ids or value.split() == [value]):
            return value
        expected = "a text without white space, or a whole number"
        self.refuse(column, value, expected, "write ids as such strings, or give --text-ids")
        return ""

    def first(self, *columns: str) -> str:
        """Return the first of these columns that the row has; the first of all if it has none."""
        return next((column for column in columns if column in self), columns[0])
