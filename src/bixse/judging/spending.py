"""The money of a ledger: every request is booked in a file next to it, and one limit holds for all commands."""

from __future__ import annotations

import json
import math
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.run import SPENT_FILE
from bixse.errors import IncompleteError
from bixse.files.files import storage_errors
from bixse.judging.judge import NOTHING, Completion, Usage
from bixse.judging.ledgers.segments import FOLDER_FILE, stored_values

if TYPE_CHECKING:
    from bixse.judging.grade_settings import Prices

LEDGER_NAME = "ledger"
"""The ledger in an output folder, unless another one is named."""
_CHARACTERS_A_TOKEN = 2.0  # for the price before any answer reports its tokens; low, so that the guess is high
_FIRST_COMPLETION = 16  # written tokens in that guess if the judge has no limit of its own


class OverBudgetError(IncompleteError):
    """The limit of dollars leaves no room for one more request."""


def cost_text(usd: float | None, unpriced: int, of_this_run: float | None) -> str:
    """Format the cost of all commands and of this one, after a comma; empty if no request was booked."""
    if usd is None:
        return ", price unknown: no --prices" if unpriced else ""
    unknown = f" and the unknown price of {unpriced:,} requests" if unpriced else ""
    return f", {usd:.4f} US dollars{unknown} ({'unknown' if of_this_run is None else f'{of_this_run:.4f}'} in this run)"


def guessed_usage(characters: int, written: int | None, answers: int = 1) -> Usage:
    """Return a high guess at the tokens of a request."""
    return Usage(prompt=int(characters / _CHARACTERS_A_TOKEN), completion=answers * (written or _FIRST_COMPLETION))


class Spending:
    """The cost of all requests about the questions of one ledger, by all commands and processes.

    The file next to the ledger has a line per request, whatever became of its answer. A request that may have cost
    something without a report of its tokens is booked at the mean price of those before it.
    """

    def __init__(self, ledger: Path, prices: Prices) -> None:
        self.ledger, self.prices = ledger.absolute(), prices
        name = SPENT_FILE if ledger.name == LEDGER_NAME else f"{ledger.name}.{SPENT_FILE}"
        self.path = self.ledger.with_name(name)
        self.reserved = 0.0
        """Dollars that the questions in flight in this process may cost."""
        self.highest = 0.0
        """Highest price of a request so far."""
        self._lock = threading.RLock()  # the client books in a thread of its own
        self._read, self._is_torn = 0, False
        self._usd, self._unpriced, self._requests = 0.0, 0, 0
        self._reported, self._reports = 0.0, 0  # dollars and number of the requests that reported their tokens
        self._before = self.spent(), self._unpriced

    def end(self) -> dict[str, Any]:
        """Return the price of all commands, that of this one, and the number of requests with an unknown price."""
        (before, unpriced), usd = self._before, self.spent()
        self._before, new = (usd, self._unpriced), self._unpriced - unpriced
        known = usd if usd or (self._requests and not self._unpriced) else None
        this = None if known is None or (new and usd == before) else max(0.0, usd - before)
        return {"usd_spent": known, "unpriced": self._unpriced, "usd_of_this_run": this}

    def book(self, model: str, status: str, usage: Usage | None, guess: Usage = NOTHING) -> None:
        """Append a request; `usage` is None without a report: then `guess` counts until another request reports."""
        if usage == NOTHING:
            return
        with self._lock, storage_errors(self.path):
            if not self.path.exists():
                self._begin()
            self.spent()
            usd = self.prices.usd(guess if usage is None else usage)
            if usage is None and usd is not None and self._reports:
                usd = self._reported / self._reports
            self._append(model, status, usage, usd)

    def spent(self) -> float:
        """Return the dollars of all requests with a known price so far, also of those that other processes booked."""
        with self._lock, storage_errors(self.path):
            if not self.path.exists():
                if self.prices.per_million is None or not (self.ledger / FOLDER_FILE).exists():
                    return self._usd
                self._begin()
            with self.path.open("rb") as file:
                file.seek(self._read)
                for line in file:
                    self._is_torn = not line.endswith(b"\n")  # a process was killed within it
                    if self._is_torn:
                        break
                    self._read += len(line)
                    with suppress(ValueError, TypeError, KeyError, AttributeError):  # such a line, ended by the next
                        self._count(**json.loads(line))
            return self._usd

    def affordable(self, more: float = 0.0) -> bool:
        """Return whether the limit leaves room for a number of dollars, in addition to the questions in flight."""
        most = self.prices.max_usd
        return most is None or self.spent() + self.reserved + more <= most * (1 + 1e-9)

    def check(self, guess: Usage) -> None:
        """Raise OverBudgetError if a request is not affordable; one of a question in flight is reserved already."""
        if not self.affordable(0.0 if self.reserved else self.highest or self.prices.usd(guess) or 0.0):
            raise OverBudgetError(
                f"max_usd: got {self.limit_reached}; expected room for one more question; fix: raise --max-usd, and "
                "the same command continues"
            )

    @property
    def limit_reached(self) -> str:
        most = self.prices.max_usd or 0.0
        return f"the limit of {most:g} US dollars, of which all commands have spent {self.spent():.4f} ({self.path})"

    def _begin(self) -> None:
        """Make the file; that of a ledger of earlier versions begins with the usage of its answers."""
        number, total = 0, NOTHING
        for text in stored_values(self.ledger, "answer") if (self.ledger / FOLDER_FILE).exists() else ():
            usage = Completion.from_json(text).usage
            number, total = number + (usage != NOTHING), total + usage
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # another process was faster
            self.path.open("xb").close()
            if number:
                self._append("", "answers of the ledger", total, None, number)

    def _append(self, model: str, status: str, usage: Usage | None, usd: float | None, requests: int = 1) -> None:
        row = {"time": time.time(), "model": model, "status": status, "usage": usage and asdict(usage), "usd": usd}
        line = ("\n" * self._is_torn + json.dumps(row | {"requests": requests}) + "\n").encode()
        with self.path.open("ab", buffering=0) as file:
            if file.write(line) < len(line):  # one write per line: several processes append
                raise OSError("no space left for a line")

    def _count(self, usage: Any, usd: Any, requests: int, **_: Any) -> None:
        if type(usd) not in (int, float) or not 0 <= usd < math.inf:  # booked without prices: those of now hold
            usd = None if usage is None else self.prices.usd(Usage(**usage))
        self._requests += requests
        self._unpriced += requests * (usd is None)
        self._usd += usd or 0.0
        if usd is not None and usage is not None:
            self._reported, self._reports = self._reported + usd, self._reports + requests
            self.highest = max(self.highest, usd / max(1, requests))
