"""The error types. Each message says what was got, what was expected and how to fix it."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "choose a known word") -> str:
    """Return a hint for an unknown word: the closest known word, or `otherwise`."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else otherwise


SEEDS = 2**32  # exclusive upper bound: NumPy's
LAST_VERSION = "1.0.0rc1"
"""The last version that continues runs with settings or checkpoints of a kind that is gone."""
ERRORS_SHOWN = 20
"""Number of errors per file that a message lists; the rest are counted."""
_ERRORS_STORED = 1_000
_EXAMPLES = 3
_NOTHING = "nothing"


class BixseError(Exception):
    """The base class of errors that a user can fix. The command line prints them without a traceback."""

    exit_code = 1
    known_to_all = False
    """True if every rank raises the error; only rank 0 prints it."""

    def of_all_processes(self) -> Self:
        """Mark this error as raised by every rank."""
        self.known_to_all = True
        return self


def _fact(name: str) -> property:
    return property(lambda error: (match[name] or "").strip() if (match := _FACTS.search(str(error))) else "")


_FACTS = re.compile(
    r"(?:(?P<where>.*?): )?got (?P<got>.*?); expected (?P<expected>.*?); fix: (?P<fix>.*?)"
    r"(?: \(and [\d,]+ more(?: rows?)? alike.*)?$",
    re.MULTILINE,
)


class InputError(BixseError):
    """An error of usage, or unusable input. The first line with "where: got X; expected Y; fix: Z" has its facts.

    Example:
        >>> error = InputError("seed: got -1; expected 0 or more; fix: leave it out for 0")
        >>> error.where, error.got, error.fix
        ('seed', '-1', 'leave it out for 0')
    """

    exit_code = 2
    where = _fact("where")
    """The setting, or the file or its row; "" if the message names none."""
    got = _fact("got")
    """The refused value."""
    expected = _fact("expected")
    """The values that would be valid."""
    fix = _fact("fix")
    """The advice to the user."""


@contextmanager
def needs_extra(extra: str, purpose: str) -> Iterator[None]:
    """Turn the error of an import into an InputError with the extra of bixse that installs the package."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").startswith("bixse"):
            raise
        raise InputError(
            f"{error.name or extra}: got no usable package ({error}); expected it for {purpose}; fix: pip install "
            f"'bixse[{extra}]'"
        ) from error


def check_known(what: str, word: object, known: Iterable[str], otherwise: str = "choose a known word") -> None:
    """Refuse, by an InputError with the closest known word, a word that is not known; `what` names the setting."""
    if word not in (names := list(known)):
        fix = did_you_mean(str(word), names, otherwise)
        raise InputError(f"{what}: got {shorten(word)}; expected one of {', '.join(names) or 'none'}; fix: {fix}")


class ConfigError(InputError):
    """A configuration with an unknown key or a value outside its range."""


class OutputExistsError(InputError):
    """The output folder already holds the results of another run."""


class ModelError(InputError):
    """A model name or folder that cannot be used as an encoder."""


class NotFiniteError(InputError):
    """An embedding holds NaN or infinity."""


class IncompleteError(BixseError):
    """The work stopped before its end, without usable results yet. The same command continues it."""

    exit_code = 3


class StorageError(BixseError):
    """A write failed: the disk is full or the folder is not writable."""


class TrainingError(BixseError):
    """A training run cannot continue. The last checkpoint is kept."""


class DivergedError(TrainingError):
    """A training run reached numbers that are not finite, or a useless model. The same run would do so again."""


class InterruptedRunError(BixseError):
    """The run was stopped by Ctrl-C after a checkpoint was written. The same command continues it."""

    exit_code = 130
    known_to_all = True
    graded: Any = None
    """The pairs graded so far, if `grade` was stopped; None if there are none."""
    model: Any = None
    """The model of the last checkpoint, if `train` was stopped; None if there is none."""


@dataclass(frozen=True)
class RowError:
    """An error at one position of an input file."""

    row: int | None
    """1-based data row (the header does not count), or None for the whole file."""
    column: str | None
    got: str
    expected: str
    fix: str

    def __str__(self) -> str:
        where = [f"row {self.row}"] if self.row is not None else []
        where += [f"column {self.column!r}"] if self.column is not None else []
        prefix = f"{', '.join(where)}: " if where else ""
        return f"{prefix}got {self.got}; expected {self.expected}; fix: {self.fix}"


class InvalidFileError(InputError):
    """The errors of one input file, collected while it is read. Rows that fail alike are one error of the message.

    The message lists 20 errors. Rows fail alike if column, expected value and fix are the same.

    Example:
        >>> from pathlib import Path
        >>> errors = InvalidFileError(Path("pairs.csv"))
        >>> for row in (3, 5, 9):
        ...     errors.add(row, "relevance", "1.7", "a number in [0, 1]", "divide it")
        >>> print(errors)
        pairs.csv: 1 error
          row 3, column 'relevance': got 1.7; expected a number in [0, 1]; fix: divide it (and 2 more rows alike: 5, 9)
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path
        self.columns: dict[str, None] = {}
        """Names of the columns that the reader saw in the file, in its order; empty if it did not look."""
        self._accepted: dict[str, Sequence[str]] = {}
        self._alike: dict[tuple[str | None, str, str], list[RowError]] = {}
        self._counts: Counter[tuple[str | None, str, str]] = Counter()

    @property
    def total(self) -> int:
        """The number of faults: one per row and column."""
        return self._counts.total()

    @property
    def errors(self) -> list[RowError]:
        """The first 20 faults of each error, sorted by row, after faults of the complete file."""
        return sorted((fault for faults in self._alike.values() for fault in faults), key=lambda fault: fault.row or 0)

    def add(self, row: int | None, column: str | None, got: str, expected: str, fix: str) -> None:
        alike = (column, expected, fix)
        if alike not in self._counts and len(self._counts) >= _ERRORS_STORED:
            alike = (None, "", "")  # the names of a damaged file may differ in each of millions of rows
        self._counts[alike] += 1
        faults = self._alike.setdefault(alike, [])
        if len(faults) < ERRORS_SHOWN:
            faults.append(RowError(row, column, got, expected, fix))

    def lacks(self, row: int | None, names: Sequence[str], expected: str, fix: str) -> None:
        """Add a row without a value in a column that may have any of the `names`; it is one error if no row has it."""
        self._accepted[names[0]] = names
        self.add(row, names[0], _NOTHING, expected, fix)

    def raise_any(self) -> None:
        if self._counts:
            raise self

    def __str__(self) -> str:
        lines: dict[object, str] = {}
        for alike in sorted(self._alike, key=lambda alike: self._alike[alike][0].row or 0):
            fault = self._alike[alike][0]
            column = fault.column or ""
            names = self._accepted.get(column, (column,)) if fault.got == _NOTHING else ()
            if names and self.columns and not self.columns.keys() & set(names):  # then no row has it
                got = f"columns {shorten(', '.join(self.columns), 120)}"
                fix = fault.fix if fault.fix.startswith(("rename", "grade")) else f"rename or add {fault.column!r}"
                lines.setdefault(fault.column, str(replace(fault, row=None, got=got, fix=fix)))
            else:
                lines[alike] = f"{fault}{_others(self._alike[alike], self._counts[alike])}"
        listed = [f"{self.path}: {len(lines)} error{'s' if len(lines) != 1 else ''}"]
        listed += [f"  {line}" for line in list(lines.values())[:ERRORS_SHOWN]]
        if len(lines) > ERRORS_SHOWN:
            listed.append(f"  ... and {len(lines) - ERRORS_SHOWN} more")
        return "\n".join(listed)


def _others(faults: Sequence[RowError], count: int) -> str:
    """Return the number of faults after the first, with some of their rows (or values, if they have no rows)."""
    if count == 1:
        return ""
    rows = "" if faults[0].row is None else " row" if count == 2 else " rows"
    examples = [fault.got if fault.row is None else str(fault.row) for fault in faults[1 : 1 + _EXAMPLES]]
    start = ":" if count <= 1 + _EXAMPLES else ", for example"
    return f" (and {count - 1:,} more{rows} alike{start} {', '.join(examples)})"


def printable(text: str) -> str:
    r"""Replace control characters (escape codes, carriage returns) and direction marks; keep breaks, tabs and joiners.

    Example:
        >>> printable("\x1b[31mred\x9b0m\tand\nplain").replace("\N{REPLACEMENT CHARACTER}", "?")
        '?[31mred?0m\tand\nplain'
    """
    if text.isprintable():
        return text
    # escape codes of a server (also of one byte) could rename or clear the terminal; no-break spaces (Zs) are harmless,
    # and Persian, Hindi, emoji and hyphenation need joiners and soft hyphens
    harmless = "\n\t\u00ad\u200c\u200d"
    return "".join(c if c.isprintable() or c in harmless or unicodedata.category(c) == "Zs" else "\ufffd" for c in text)


def shorten(value: object, width: int = 60) -> str:
    """Quote a value of the data for a message, cut to `width` characters; of binary data, only its length."""
    text = f"a blob of {len(value)} bytes" if isinstance(value, bytes) else repr(value)
    if len(text) <= width:
        return text
    closing = text[-1] if text[-1] in "'\"" else ""
    return text[: width - 2] + "..." + closing


def first_fault(error: Exception) -> str:
    """Return pydantic's first fault with its location, or another library's error on one line."""
    faults = error.errors() if hasattr(error, "errors") else []
    text = f"{'.'.join(map(str, faults[0]['loc']))}: {faults[0]['msg']}" if faults else str(error)
    return " ".join(text.split()).removeprefix(": ")[:200] or "no message"
