"""Progress of long work on standard error: a bar where somebody watches, a line a minute in a log."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

from bixse.errors import printable

SECONDS_VARIABLE = "BIXSE_PROGRESS_SECONDS"
"""Environment variable: seconds between two lines where standard error is no terminal."""
SECONDS = 60.0
"""Those seconds where the variable is not set."""
ProgressBars: TypeAlias = Callable[[str, int], Callable[[int], None]]
"""Makes a progress callback from a title and a total, as `progress_bar` does."""


class Step(Protocol):
    """Tells how far work has come."""

    def __call__(self, done: int, note: str = "", known: int = 0) -> None:
        """Go on.

        Args:
            done: items done since the last call.
            note: what else is known now, such as counts of statuses and dollars.
            known: items that needed no work since the last call, since an earlier run did them; they count as done, and
                not for the rate.
        """


def progress_bar(title: str, total: int, unit: str = "it") -> Progress:
    """Progress of one piece of work; call the result with the number of items done since the last call.

    On a terminal a bar with rate, time left and note. Elsewhere nothing for the first minute, then a line a minute,
    also where nothing moves, and a last one at the end.

    Args:
        title: what stands before the bar.
        total: items in all.
        unit: what an item is called; "B" for bytes shows them as kB, MB, GB.

    Example:
        >>> step = progress_bar("grade", 100)
        >>> step(40, "38 graded, 2 failed")
        >>> step.line()
        'grade: 40 of 100 (40 %), ... left; 38 graded, 2 failed'
    """
    return Progress(title, total, unit)


class Progress:
    """See `progress_bar`."""

    def __init__(self, title: str, total: int, unit: str = "it") -> None:
        self._title, self._total, self._unit = printable(title), total, unit
        self._done, self._known, self._note = 0, 0, ""
        self._began = time.monotonic()
        self._stream, self._bar, self._told = sys.stderr, None, False
        self._ended = threading.Event()
        if _watched():
            self._bar = _terminal_bar(self._title, total, unit)
        else:
            weakref.finalize(self, self._ended.set)  # work that ends in an error is told of no more
            threading.Thread(target=_tell, args=(weakref.ref(self), self._ended, _seconds()), daemon=True).start()

    def __call__(self, done: int, note: str = "", known: int = 0) -> None:
        """Go on, see `Step`."""
        self._done, self._known, self._note = self._done + done, self._known + known, printable(note)
        if self._bar is not None:
            if known:
                self._bar.initial += known
                self._bar.last_print_n += known
                self._bar.n += known
            if note:
                self._bar.set_postfix_str(self._note, refresh=False)
            self._bar.update(done)
        if self._done + self._known >= self._total:
            self.close()

    def close(self) -> None:
        """Take the bar away, or write the last line where others were written; safe to call twice."""
        if self._bar is not None:
            self._bar.close()
        elif not self._ended.is_set():
            self._ended.set()
            if self._told:
                self.tell()

    def tell(self) -> None:
        """Write a line."""
        self._told = True
        with suppress(ValueError, OSError):  # standard error is closed: nobody reads
            self._stream.write(self.line() + "\n")
            self._stream.flush()

    def line(self) -> str:
        """How far it has come, in one line."""
        done, seconds = self._done + self._known, time.monotonic() - self._began
        rate = self._done / max(seconds, 1e-9)
        share = f" ({math.floor(100 * done / self._total)} %)" if self._total else ""
        text = f"{self._title}: {self._amount(done)} of {self._amount(self._total)}{share}"
        if done >= self._total:
            text += f" in {duration(seconds)}"
        elif self._done:
            speed = f"{self._amount(round(rate))} a second" if rate >= 10 else f"{60 * rate:.3g} a minute"
            text += f", {speed}, {duration((self._total - done) / rate)} left"
        return f"{text}; {self._note}" if self._note else text

    def _amount(self, number: int) -> str:
        if self._unit != "B":
            return f"{number:,}"
        return next(
            (f"{number / 1000**power:.3g} {name}" for power, name in ((3, "GB"), (2, "MB"), (1, "kB"))
             if number >= 1000**power), f"{number} B",
        )  # fmt: skip


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


def _watched() -> bool:
    """Whether somebody looks at standard error: a terminal or a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def _seconds() -> float:
    """Seconds between two lines; the default where the variable holds no number above 0."""
    with suppress(ValueError):
        if (given := float(os.environ.get(SECONDS_VARIABLE, ""))) > 0:
            return min(given, threading.TIMEOUT_MAX)
    return SECONDS


def _terminal_bar(title: str, total: int, unit: str) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, desc=title, file=sys.stderr, leave=False, unit=unit, unit_scale=unit == "B")


def _tell(progress: weakref.ref[Progress], ended: threading.Event, seconds: float) -> None:
    """Write a line every so often until the work has ended, or nobody does it any more."""
    while not ended.wait(seconds):
        found = progress()
        if found is None:
            return
        found.tell()
        del found
