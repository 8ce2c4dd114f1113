"""Progress of long work on standard error: a bar where somebody watches, a line a minute in a log."""

from __future__ import annotations

import io
import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

from bixse.errors import printable

SECONDS_VARIABLE = "BIXSE_PROGRESS_SECONDS"
"""Environment variable: seconds between two lines where standard error is no terminal."""
SECONDS = 60.0
"""Seconds between two lines where the variable is not set."""
LINE = "{desc}: {n_fmt} of {total_fmt} ({percentage:.0f} %), {rate_fmt}, {elapsed} so far, {remaining} left{postfix}"
"""A line of a log, in the words of tqdm."""
ProgressBars: TypeAlias = Callable[[str, int], Callable[[int], None]]
"""Makes a progress callback from a title and a total."""


class Step(Protocol):
    """Tells how far work has come."""

    def __call__(self, done: int, note: str = "", known: int = 0) -> None:
        """Go on by `done` items; `known` ones an earlier run did count as done too, and not for the rate.

        `note` says what else is known now, such as counts of statuses and dollars.
        """


class Progress:
    """Progress of one piece of work; called with the number of items done since the last call, see `Step`.

    On a terminal or in a notebook a bar with rate, time left and note. Elsewhere nothing for the first minute, then a
    line a minute, also where nothing moves, and a last one at the end. The `unit` "B" shows thousands, millions, ...

    Example:
        >>> step = Progress("grade", 100)
        >>> step(40, "38 graded, 2 failed")
        >>> step.line()
        'grade: 40 of 100 (40 %), ..., 38 graded, 2 failed'
    """

    def __init__(self, title: str, total: int, unit: str = "it") -> None:
        from tqdm import tqdm

        watched = sys.stderr.isatty() or "ipykernel" in sys.modules
        shown: dict[str, Any] = {"file": sys.stderr, "leave": False, "disable": False}
        if not watched:
            shown |= {"file": io.StringIO(), "mininterval": threading.TIMEOUT_MAX}
        self._total = total
        self._bar = tqdm(total=total, desc=printable(title), unit=unit, unit_scale=unit == "B", **shown)
        self._stream, self._told, self._ended = sys.stderr, False, threading.Event()
        if not watched:
            weakref.finalize(self, self._ended.set)  # work that ends in an error is told of no more
            threading.Thread(target=_tell, args=(weakref.ref(self), self._ended, _seconds()), daemon=True).start()

    def __call__(self, done: int, note: str = "", known: int = 0) -> None:
        self._bar.initial += known
        self._bar.last_print_n += known
        self._bar.n += known
        if note:
            self._bar.set_postfix_str(printable(note), refresh=False)
        self._bar.update(done)
        if self._bar.n >= self._total:
            self.close()

    def close(self) -> None:
        """Take the bar away, or write the last line where others were written; safe to call twice."""
        if not self._ended.is_set():
            self._ended.set()
            if self._told:
                self.tell()
            self._bar.close()

    def tell(self) -> None:
        self._told = True
        with suppress(ValueError, OSError):  # standard error is closed: nobody reads
            self._stream.write(self.line() + "\n")
            self._stream.flush()

    def line(self) -> str:
        return self._bar.format_meter(**{**self._bar.format_dict, "bar_format": LINE, "ncols": None})


progress_bar = Progress


def size(number: float) -> str:
    """Write a number of bytes in the unit that suits it.

    Example:
        >>> size(312), size(2_400_000), size(96e9)
        ('312 bytes', '2.4 MB', '96.0 GB')
    """
    if number < 1000:
        return f"{number:.0f} bytes"
    unit = next(unit for unit in ("kB", "MB", "GB", "TB", "PB") if (number := number / 1000) < 999.95 or unit == "PB")
    return f"{number:.1f} {unit}"


def duration(seconds: float) -> str:
    """Seconds in the unit a person would use.

    Example:
        >>> duration(0.04), duration(12.3), duration(75), duration(7384)
        ('< 0.1 s', '12.3 s', '1 min 15 s', '2 h 03 min')
    """
    if seconds < 0.1:
        return "< 0.1 s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min"


def _seconds() -> float:
    """Seconds between two lines; the default where the variable holds no number above 0."""
    with suppress(ValueError):
        if (given := float(os.environ.get(SECONDS_VARIABLE, ""))) > 0:
            return min(given, threading.TIMEOUT_MAX)
    return SECONDS


def _tell(progress: weakref.ref[Progress], ended: threading.Event, seconds: float) -> None:
    """Write a line every so often until the work has ended, or nobody does it any more."""
    while not ended.wait(seconds):
        found = progress()
        if found is None:
            return
        found.tell()
        del found
