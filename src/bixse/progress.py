"""The progress of long work on standard error: a bar on a terminal, one line per minute in a log."""

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
"""Environment variable for the seconds between two log lines."""
SECONDS = 60.0
LINE = "{desc}: {n_fmt} of {total_fmt} ({percentage:.0f} %), {rate_fmt}, {elapsed} so far, {remaining} left{postfix}"
"""Log line, a `bar_format` of tqdm."""


class Step(Protocol):
    """A callback that reports progress."""

    def __call__(self, done: int, note: str = "", known: int = 0) -> None:
        """Add `done` items, and `known` items of an earlier run, which the rate leaves out; show `note`."""


ProgressBars: TypeAlias = Callable[[str, int], Step]
"""Function of a title and a total that returns a progress callback."""


class Progress:
    """The progress of one piece of work, called with the number of items since the last call, see `Step`.

    A terminal or notebook shows a bar. A log has one line per minute, even without progress, and a last line at the
    end. The `unit` "B" scales numbers to thousands, millions, ...

    Example:
        >>> step = Progress("grade", 100)
        >>> step(40, "38 graded, 2 failed")
        >>> step.line()
        'grade: 40 of 100 (40 %), ..., 38 graded, 2 failed'
    """

    def __init__(self, title: str, total: int, unit: str = "it") -> None:
        from tqdm import tqdm

        visible = sys.stderr.isatty() or "ipykernel" in sys.modules  # a notebook is no tty, and shows bars
        shown: dict[str, Any] = {"file": sys.stderr, "leave": False, "disable": False}
        if not visible:
            shown |= {"file": io.StringIO(), "mininterval": threading.TIMEOUT_MAX}  # `_write_lines` writes, not tqdm
        self._total = total
        self._bar = tqdm(total=total, desc=printable(title), unit=unit, unit_scale=unit == "B", **shown)
        self._stream, self._reported, self._ended = sys.stderr, False, threading.Event()
        if not visible:
            weakref.finalize(self, self._ended.set)  # work that ends in an error is no longer reported
            threading.Thread(
                target=_write_lines, args=(weakref.ref(self), self._ended, _seconds()), daemon=True
            ).start()

    def __call__(self, done: int, note: str = "", known: int = 0) -> None:
        self._bar.initial += known  # tqdm's rate is that of n - initial, smoothed over n - last_print_n
        self._bar.last_print_n += known
        self._bar.n += known
        if note:
            self._bar.set_postfix_str(printable(note), refresh=False)
        self._bar.update(done)
        if self._bar.n >= self._total:
            self.close()

    def close(self) -> None:
        """Remove the bar, or write the last line of a log that has lines. Safe to call twice."""
        if not self._ended.is_set():
            self._ended.set()
            if self._reported:
                self.report()
            self._bar.close()

    def report(self) -> None:
        self._reported = True
        with suppress(ValueError, OSError):  # standard error may be closed before the work ends
            self._stream.write(self.line() + "\n")
            self._stream.flush()

    def line(self) -> str:
        return self._bar.format_meter(**{**self._bar.format_dict, "bar_format": LINE, "ncols": None})


progress_bar = Progress


def size(number: float) -> str:
    """Write a number of bytes with its unit.

    Example:
        >>> size(312), size(2_400_000), size(96e9)
        ('312 bytes', '2.4 MB', '96.0 GB')
    """
    if number < 1000:
        return f"{number:.0f} bytes"
    unit = next(unit for unit in ("kB", "MB", "GB", "TB", "PB") if (number := number / 1000) < 999.95 or unit == "PB")
    return f"{number:.1f} {unit}"


def _seconds() -> float:
    """Return the seconds between two log lines: the default unless the variable is a number above 0."""
    with suppress(ValueError):
        if (given := float(os.environ.get(SECONDS_VARIABLE, ""))) > 0:
            return min(given, threading.TIMEOUT_MAX)  # Event.wait raises OverflowError above it
    return SECONDS


def _write_lines(progress: weakref.ref[Progress], ended: threading.Event, seconds: float) -> None:
    """Write a log line every `seconds` until the work has ended or its `Progress` was garbage-collected."""
    while not ended.wait(seconds):
        alive = progress()
        if alive is None:
            return
        alive.report()
        del alive  # a reference would keep the object alive, and its finalizer from running
