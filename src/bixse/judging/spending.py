"""The money of a ledger: every request is booked in a file beside it, and one limit holds for all commands."""

from __future__ import annotations

import json
import math
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from bixse.data.run import SPENT_FILE
from bixse.errors import IncompleteError
from bixse.files.files import storage_errors
from bixse.judging.judge import NOTHING, Completion, Stored, Usage
from bixse.judging.ledgers.segments import FOLDER_FILE, stored_values

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bixse.judging.grade_settings import Prices

LEDGER_NAME = "ledger"
"""The ledger in an output folder, unless another one is named."""
_CHARACTERS_A_TOKEN = 2.0  # for the price before any answer reports its tokens; low, so that the guess is high
_FIRST_COMPLETION = 16  # written tokens in that guess if the judge has no limit of its own


class OverBudgetError(IncompleteError):
    """The limit of dollars leaves no room for one more request."""


class Spent(NamedTuple):
    """The cost of requests."""

    usd: float = 0.0
    """Dollars of the requests with a known price."""
    unpriced: int = 0
    """Number of requests that were sent without `--prices`."""
    requests: int = 0

    @property
    def known(self) -> float | None:
        """The dollars, or None if all are unknown."""
        return None if not self.requests or (self.unpriced and not self.usd) else self.usd


def cost_text(usd: float | None, unpriced: int, of_this_run: float | None) -> str:
    """Format the cost of all commands and of this one, after a comma; empty if no request was booked."""
    if usd is None:
        return ", price unknown: no --prices" if unpriced else ""
    unknown = f" and the unknown price of {unpriced:,} requests" if unpriced else ""
    this = "price unknown" if of_this_run is None else f"{of_this_run:.4f}"
    return f", {usd:.4f} US dollars{unknown} ({this} in this run)"


def guessed_usage(characters: int, written: int | None) -> Usage:
    """Return a high guess at the tokens of a request."""
    return Usage(prompt=int(characters / _CHARACTERS_A_TOKEN), completion=written or _FIRST_COMPLETION)


class Spending:
    """The cost of all requests about the questions of one ledger, by all commands and processes.

    The file beside the ledger has a line per request with time, model, status, usage and price, whatever became of its
    answer. A request that may have cost something without a report of its tokens (a time-out, an error of the server)
    costs the mean of the others. One that was refused before any work costs nothing, and has no line. A line keeps the
    price that held when it was written; without one, the next prices hold. A ledger that was filled before there was
    such a file counts at the usage of its answers.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from bixse.judging.grade_settings import Prices
        >>> spending = Spending(Path(tempfile.mkdtemp()) / "ledger", Prices(per_million=(10.0, 0.0)))
        >>> spending.book("a model", "replied", Usage(prompt=1000))
        >>> spending.book("a model", "broken", None)
        >>> spending.spent()
        Spent(usd=0.02, unpriced=0, requests=2)
    """

    def __init__(self, ledger: Path, prices: Prices) -> None:
        self.ledger, self.prices = ledger.absolute(), prices
        name = SPENT_FILE if ledger.name == LEDGER_NAME else f"{self.ledger.name}.{SPENT_FILE}"
        self.path = self.ledger.with_name(name)
        self.by_request = False
        """True if a client of a server books each request here; the answers of other judges are booked as they come."""
        self.reserved = 0.0
        """Dollars that the questions in flight in this process may cost."""
        self.highest = 0.0
        """Highest price of a request in the lines that were read."""
        self._lock = threading.RLock()  # the client books in a thread of its own
        self._file: IO[bytes] | None = None
        self._before: Spent | None = None
        self._read = self._requests = self._priced = self._silent = self._unpriced = 0
        self._usd = self._guessed = 0.0
        self._tokens = NOTHING  # of the lines without a price

    def start(self) -> Spending:
        """Begin to count a command; reads the file."""
        if self._before is None:
            self._before = self.spent()
            usd = self.prices.usd(self._tokens)
            if usd is not None and self._unpriced:  # so that later commands know the sum without prices
                self._append(_row("", "prices of earlier lines", NOTHING, 0, usd) | {"priced": self._unpriced})
        return self

    def end(self) -> dict[str, Any]:
        """Return the price of all commands, that of this one, and the number of requests with an unknown price."""
        total, before, self._before = self.spent(), self._before or Spent(), None
        usd, unpriced = max(0.0, total.usd - before.usd), max(0, total.unpriced - before.unpriced)
        of_this_run = Spent(usd, unpriced, total.requests - before.requests)
        return {
            "usd_spent": total.known,
            "unpriced": total.unpriced,
            "usd_of_this_run": 0.0 if total.known is not None and not of_this_run.requests else of_this_run.known,
        }

    def book(self, model: str, status: str, usage: Usage | None, guess: Usage | None = None) -> None:
        """Append a request; `usage` is None without a report, and then `guess` counts until another request reports."""
        if usage != NOTHING:
            usd = None if usage is None else self.prices.usd(usage)
            self._append(_row(model, status, usage, 1, usd, guess if usage is None else None))

    def spent(self) -> Spent:
        """Return the cost of all requests so far, also those that other processes booked."""
        with self._lock:
            self._look()
            usd, priced, unpriced = self._usd, self._priced, self._unpriced
            if (open_usd := self.prices.usd(self._tokens)) is not None:
                usd, priced, unpriced = usd + open_usd, priced + unpriced, 0
            if priced:
                usd *= 1 + self._silent / priced
            elif self.prices.per_million is not None:
                usd = self._guessed
            else:
                unpriced += self._silent
            return Spent(usd, unpriced, self._requests)

    def affordable(self, more: float = 0.0) -> bool:
        """Return whether the limit leaves room for so many dollars beside the questions in flight."""
        most = self.prices.max_usd
        return most is None or self.spent().usd + self.reserved + more <= most * (1 + 1e-9)

    def check(self, guess: Usage, times: int = 1) -> None:
        """Raise OverBudgetError if a request is not affordable; one of a question in flight is reserved already."""
        if self.prices.max_usd is None:
            return
        spent = self.spent()
        more = 0.0 if self.reserved else (self.highest or self.prices.usd(guess) or 0.0) * times
        if not self.affordable(more):
            raise OverBudgetError(
                f"max_usd: got {spent.usd:.4f} US dollars spent by all commands ({self.path}); expected room for one "
                f"more question below the limit of {self.prices.max_usd:g}; fix: raise --max-usd, and the same command "
                "continues"
            )

    @property
    def limit_reached(self) -> str:
        return (
            f"the limit of {self.prices.max_usd:g} US dollars was reached ({self.spent().usd:.4f} spent by all "
            f"commands, see {self.path})"
        )

    def _append(self, row: dict[str, Any]) -> None:
        with self._lock, storage_errors(self.path):
            if self._file is None:
                self._begin()
                self._file = self.path.open("a+b", buffering=0)
                if size := self._file.seek(0, 2):
                    self._file.seek(size - 1)
                    if self._file.read(1) != b"\n":  # a process was killed within its last line
                        self._file.write(b"\n")
            line = (json.dumps(row) + "\n").encode()
            if self._file.write(line) < len(line):  # one write per line: several processes append
                raise OSError("no space left for a line")

    def _begin(self) -> None:
        """Make the file; of a ledger of earlier versions it begins with the usage of its answers."""
        if not self.path.exists():
            rows = _of_answers(self.ledger) if (self.ledger / FOLDER_FILE).exists() else ()
            content = "".join(json.dumps(row) + "\n" for row in rows)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError), self.path.open("xb", buffering=0) as file:
                file.write(content.encode())  # else another process was faster

    def _look(self) -> None:
        """Count the lines that were added since the last look."""
        if not self.path.exists():
            needed = self.by_request or self.prices.per_million is not None  # a local judge costs nothing
            if not needed or not (self.ledger / FOLDER_FILE).exists():
                return
            with storage_errors(self.path):
                self._begin()
        if self.path.stat().st_size == self._read:
            return
        with self.path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):  # another process writes it, or was killed before its end
                    return
                self._read += len(line)
                with suppress(ValueError, TypeError, KeyError, AttributeError):  # the rest of a killed process
                    self._count(**json.loads(line))

    def _count(self, usage: Any, usd: Any, requests: int = 1, guess: Any = None, priced: int = 0, **_: Any) -> None:
        if priced:  # else two commands have found the same lines
            if priced == self._unpriced:
                self._usd, self._priced = self._usd + usd, self._priced + priced
                self._unpriced, self._tokens = 0, NOTHING
            return
        self._requests += requests
        if usage is None:
            self._silent += requests
            self._guessed += (self.prices.usd(Usage(**(guess or {}))) or 0.0) * requests
            return
        tokens = Usage(**usage)
        price = usd if type(usd) in (int, float) and 0 <= usd < math.inf else None
        if price is None:
            self._unpriced, self._tokens = self._unpriced + requests, self._tokens + tokens
        else:
            self._usd, self._priced = self._usd + price, self._priced + requests
        self.highest = max(self.highest, (self.prices.usd(tokens) or 0.0 if price is None else price) / requests)


def _row(
    model: str, status: str, usage: Usage | None, requests: int, usd: float | None, guess: Usage | None = None
) -> dict[str, Any]:
    tokens = None if usage is None else asdict(usage)
    row = {"time": time.time(), "model": model, "status": status, "usage": tokens, "usd": usd}
    return row | ({"requests": requests} if requests != 1 else {}) | ({"guess": asdict(guess)} if guess else {})


def _of_answers(ledger: Path) -> Iterator[dict[str, Any]]:
    """Yield a line per model of a ledger with the usage of its answers, and one for its answers without a usage."""
    used, silent = dict[str, tuple[int, Usage]](), dict[str, int]()
    for text in stored_values(ledger, "answer"):
        answer: Stored = Completion.from_json(text)
        model = str(getattr(answer, "judge", ""))
        if answer.usage.prompt:
            number, usage = used.get(model, (0, Usage()))
            used[model] = number + 1, usage + answer.usage
        elif answer.text:
            silent[model] = silent.get(model, 0) + 1
    for model, (number, usage) in used.items():
        yield _row(model, "answers of the ledger", usage, number, None)
    for model, number in silent.items():
        yield _row(model, "answers of the ledger", None, number, None)
