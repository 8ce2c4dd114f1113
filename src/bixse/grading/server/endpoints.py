"""Several endpoints of one model: which of them takes the next request, and which of them rests."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bixse.errors import BixseError, InputError, shorten
from bixse.grading.server.rate_limit import LONGEST_WAIT, AdaptiveLimit, backoff
from bixse.grading.server.reply import PASSING, SHARED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from bixse.grading.server.reply import Failure

FAILURES_TO_REST = 3
"""Unreachable or timed out so often in a row, an endpoint rests."""
_VERSION = re.compile(r"v\d+(?:(?:alpha|beta)\d*)?", re.ASCII)

log = logging.getLogger(__name__)


class ServerDownError(BixseError):
    """No endpoint has answered for long; answers that came before are kept."""


@dataclass(frozen=True)
class Address:
    """Where a server answers."""

    api: str
    """Address that `/chat/completions` follows, without a slash at the end."""
    root: str
    """Address that `/tokenize` follows."""

    @classmethod
    def parse(cls, text: str) -> Address:
        """An address with or without `/v1`.

        Raises:
            InputError: no http address, or one that holds a password or a query (which could hold a key).

        Example:
            >>> Address.parse("http://localhost:8000")
            Address(api='http://localhost:8000/v1', root='http://localhost:8000')
        """
        try:
            parts = urlsplit(text.strip())
            whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            whole = False
        if "@" in text or "?" in text or "#" in text:
            raise InputError(
                "endpoint: got an address with a user, a password or a query; expected a bare one like "
                "http://localhost:8000/v1; fix: give keys in an environment variable"
            )
        if not whole:
            raise InputError(
                f"endpoint: got {shorten(text)}; expected an address like http://localhost:8000/v1; "
                "fix: begin with http:// or https://"
            )
        segments = [segment for segment in parts.path.split("/") if segment]
        for ending in (["chat", "completions"], ["completions"]):
            if segments[-len(ending) :] == ending:
                segments = segments[: -len(ending)]
        version = next((index for index, segment in enumerate(segments) if _VERSION.fullmatch(segment)), None)
        root = "/".join([f"{parts.scheme}://{parts.netloc}", *segments[:version]])
        return cls("/".join([root, *(segments[version:] if version is not None else ["v1"])]), root)


@dataclass
class Endpoint:
    """One address and how it has behaved."""

    address: Address
    """Where it is."""
    limit: AdaptiveLimit
    """Requests at once."""
    open_from: float = 0.0
    """Time before which it asked to be left alone."""
    resting: bool = False
    """It did not answer and is looked after in the background."""
    failures: int = 0
    """Tries in a row that found nobody."""
    refusals: int = 0
    """Times in a row that it said it has too much to do."""
    rests: int = 0
    """Rests in a row."""
    doubts: int = 0
    """Requests in a row that failed as every request may fail (`SHARED`)."""


@dataclass
class EndpointPool:
    """Hands out the endpoints; lives in one event loop."""

    endpoints: list[Endpoint]
    """All of them."""
    patience: float
    """Seconds without any answer after which the run stops."""
    check: Callable[[Endpoint], Awaitable[bool]]
    """Asks an endpoint that was away whether it may take part again; raises InputError where it may not."""
    _waiting: deque[asyncio.Future[Endpoint]] = field(default_factory=deque)
    _looking: set[asyncio.Task[None]] = field(default_factory=set)
    _fatal: BixseError | None = None
    _silent_since: float | None = None
    _last: str = ""
    _asleep: int = 0

    @classmethod
    def of(
        cls, addresses: Sequence[str], concurrency: int, patience: float, check: Callable[[Endpoint], Awaitable[bool]]
    ) -> EndpointPool:
        """A pool of these addresses, each once.

        Raises:
            InputError: no address, one twice, or one that cannot be used.
        """
        parsed = [Address.parse(address) for address in addresses]
        if not parsed or len(set(parsed)) != len(parsed):
            found = "none" if not parsed else "one twice"
            raise InputError(f"endpoints: got {found}; expected one or more, each once; fix: correct the list")
        return cls([Endpoint(address, AdaptiveLimit(concurrency)) for address in parsed], patience, check)

    @property
    def allowed(self) -> int:
        """Requests that may be with the endpoints at once, at least 1."""
        return max(1, sum(endpoint.limit.allowed for endpoint in self.endpoints if not endpoint.resting))

    @property
    def room(self) -> int:
        """Requests that may be under way now.

        At least 1, so that somebody finds out when a server is back. Requests that wait for their next try hold no
        place, up to as many as there can be places.
        """
        return self.allowed + min(self._asleep, sum(endpoint.limit.most for endpoint in self.endpoints))

    async def sleep(self, seconds: float) -> None:
        """Wait before another try, without a place."""
        self._asleep += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._asleep -= 1

    async def slot(self) -> Endpoint:
        """Wait for an endpoint with room and take a place there; `release` gives it back.

        Raises:
            ServerDownError: nobody has answered for longer than the patience.
            InputError: no endpoint is left that may take part.
        """
        if self._fatal is not None:
            raise self._fatal
        endpoint = None if self._waiting else self._open()
        if endpoint is not None:
            endpoint.limit.begin()
            return endpoint
        place: asyncio.Future[Endpoint] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            return await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                now = time.monotonic()
                place.result().limit.end(now, now, None)
                self._wake()
            raise

    def release(
        self,
        endpoint: Endpoint,
        sent: float,
        failure: Failure | None,
        pause: float | None = None,
        detail: str = "",
    ) -> None:
        """Give a place back and note how the request went.

        Args:
            endpoint: where it was sent.
            sent: when.
            failure: how it failed; None: it was answered. A final failure is an answer too.
            pause: seconds the server asked to wait.
            detail: what it said, for people.
        """
        now = time.monotonic()
        coped = None if failure in ("again", "disconnected") else failure not in PASSING
        endpoint.limit.end(sent, now, coped)
        if coped:
            endpoint.failures = endpoint.refusals = endpoint.rests = 0
            endpoint.doubts = endpoint.doubts + 1 if failure in SHARED else 0
            self._silent_since = None
        else:
            self._failed(now, detail)
            if failure == "overloaded" or (failure == "unavailable" and pause is not None):
                self._pause(endpoint, sent, now, pause)
            elif failure in ("unavailable", "disconnected"):
                endpoint.failures += 1
                if endpoint.failures >= FAILURES_TO_REST:
                    self.rest(endpoint)
            self._give_up(now)
        self._wake()

    def rest(self, endpoint: Endpoint) -> None:
        """Send an endpoint nothing until it answers again."""
        if not endpoint.resting:
            endpoint.resting = True
            log.warning("%s does not answer; its work goes to the others", endpoint.address.api)
            task = asyncio.get_running_loop().create_task(self._look_after(endpoint))
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)

    def fail(self, error: BixseError) -> None:
        """Stop: everyone who waits, and who asks later, gets this error."""
        self._fatal = self._fatal or error
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_exception(self._fatal)

    async def close(self) -> None:
        """Stop looking after endpoints that rest."""
        looking = list(self._looking)
        for task in looking:
            task.cancel()
        await asyncio.gather(*looking, return_exceptions=True)

    def _open(self) -> Endpoint | None:
        """The endpoint with the largest share of its places free."""
        now = time.monotonic()
        best, share = None, 0.0
        for endpoint in self.endpoints:
            limit = endpoint.limit
            if limit.free > 0 and not endpoint.resting and endpoint.open_from <= now:
                free = limit.free / limit.allowed
                if free > share:
                    best, share = endpoint, free
        return best

    def _wake(self) -> None:
        while self._waiting:
            if self._waiting[0].done():
                self._waiting.popleft()
                continue
            endpoint = self._open()
            if endpoint is None:
                return
            endpoint.limit.begin()
            self._waiting.popleft().set_result(endpoint)

    def _pause(self, endpoint: Endpoint, sent: float, now: float, asked: float | None) -> None:
        """Leave an endpoint alone as long as it asked, or longer with every refusal in a row where it did not say."""
        if asked is None:
            if sent < endpoint.open_from:
                return  # one burst of refusals counts once
            endpoint.refusals += 1
            asked = backoff(endpoint.refusals)
        endpoint.open_from = max(endpoint.open_from, now + asked)
        asyncio.get_running_loop().call_later(asked + 0.001, self._wake)

    def _failed(self, now: float, detail: str) -> None:
        """Note a failure, for the patience."""
        self._last = detail or self._last
        if self._silent_since is None:
            self._silent_since = now

    def _give_up(self, now: float) -> None:
        """Stop where nobody has answered, or will be asked again, within the patience."""
        silent = now - (self._silent_since if self._silent_since is not None else now)
        wait = min((endpoint.open_from for endpoint in self.endpoints if not endpoint.resting), default=now) - now
        if max(silent, wait) <= self.patience:
            return
        found = f"no answer for {silent:.0f} s" if silent >= wait else f"the wish to wait {wait:.0f} s"
        found += f" ({self._last})" if self._last else ""
        names = ", ".join(endpoint.address.api for endpoint in self.endpoints)
        self.fail(
            ServerDownError(
                f"{names}: got {found}; expected an answer within {self.patience:.0f} s; fix: see that the server "
                "runs, then give the same command again (answers so far are kept)"
            )
        )

    async def _look_after(self, endpoint: Endpoint) -> None:
        """Check an endpoint that rests, ever more rarely, until it may take part again."""
        while True:
            endpoint.rests += 1
            await asyncio.sleep(min(LONGEST_WAIT, 0.5 * 2.0 ** min(endpoint.rests, 10)))
            try:
                back = await self.check(endpoint)
            except BixseError as error:
                log.warning("%s is left out: %s", endpoint.address.api, error)
                self.endpoints.remove(endpoint)
                if not self.endpoints:
                    self.fail(error)
                return
            if back:
                log.warning("%s answers again", endpoint.address.api)
                endpoint.resting, endpoint.failures, self._silent_since = False, 0, None
                self._wake()
                return
            now = time.monotonic()
            self._failed(now, "")
            self._give_up(now)
