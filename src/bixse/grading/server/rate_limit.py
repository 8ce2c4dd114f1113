"""How fast a server is asked: requests at once that adapt, pauses it asks for, and waits between tries."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

START = 8
"""Requests at once in the beginning."""
SHRINK = 0.7
"""What is left of them after a sign of overload."""
FIRST_WAIT = 0.25
"""Seconds that bound the wait after the first failed try; each further try doubles them."""
LONGEST_WAIT = 30.0
"""Seconds that bound every wait."""


class AdaptiveLimit:
    """How many requests one endpoint gets at once: additive increase, multiplicative decrease (as in TCP).

    It doubles with every round of answers until the first sign of overload, then grows by one a round. Only requests
    sent after the last decrease can cause another, so that one burst of refusals counts once. It grows only while
    more than half of what is allowed is in use.

    Example:
        >>> limit = AdaptiveLimit(most=64)
        >>> limit.begin(); limit.end(sent=0.0, now=1.0, coped=False); limit.allowed
        5
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.in_use = 0
        self._allowed = float(min(START, most))
        self._steady = False
        self._shrunk = -math.inf

    @property
    def allowed(self) -> int:
        """Requests at once, from 1 to `most`."""
        return int(self._allowed)

    @property
    def free(self) -> int:
        """How many more may be sent now."""
        return int(self._allowed) - self.in_use

    def begin(self) -> None:
        """Count a request that is sent."""
        self.in_use += 1

    def end(self, sent: float, now: float, coped: bool | None) -> None:
        """Count a request that came back.

        Args:
            sent: time it was sent.
            now: time it came back, by the same clock.
            coped: True: answered; False: a sign of overload (429, 5xx, a time-out); None: says nothing about it.
        """
        used = 2 * self.in_use > self.allowed
        self.in_use -= 1
        if coped and used:
            self._allowed = min(float(self.most), self._allowed + (1 / self._allowed if self._steady else 1))
        elif coped is False and sent >= self._shrunk:
            self._allowed = max(1.0, self._allowed * SHRINK)
            self._steady, self._shrunk = True, now


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds a server asks to wait, from `Retry-After` (seconds or a date) or `retry-after-ms`; None: it does not say.

    Example:
        >>> retry_after({"Retry-After": "2"})
        2.0
        >>> retry_after({"Retry-After": "Wed, 21 Oct 2015 07:28:05 GMT"},
        ...             now=datetime(2015, 10, 21, 7, 28, tzinfo=timezone.utc))
        5.0
    """
    lowered = {name.lower(): value for name, value in headers.items()}
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(lowered[name]) * unit
        except (KeyError, ValueError):
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    try:
        date = parsedate_to_datetime(lowered["retry-after"])
    except (KeyError, TypeError, ValueError):
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (date - (now or datetime.now(UTC))).total_seconds())


def backoff(failures: int) -> float:
    """Seconds to wait after so many failures in a row: exponential with full jitter.

    Source: Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog 2015.
    """
    return random.uniform(0.0, min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(failures - 1, 20)))
