"""A client of a chat server with retries, and a bridge from iterators to the event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import logging
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from bixse.errors import InputError, needs_extra, shorten
from bixse.judging.grade_settings import ServerSettings
from bixse.judging.judge import NOTHING, TEXT_WIDTH, Usage
from bixse.judging.judges.dialects import Reply, parse_reply
from bixse.judging.judges.endpoints import (
    SHARED,
    TRANSIENT,
    RequestError,
    Secret,
    ServedModel,
    ServerDownError,
    choose_model,
    filled_headers,
    models_in,
    never_complete,
    parse_address,
    proxy_of,
    refusal,
    reported_usage,
)
from bixse.judging.spending import OverBudgetError, Spending, guessed_usage

with needs_extra("grade", "asking servers"):
    import aiohttp
    from multidict import CIMultiDict


Item = TypeVar("Item")
Result = TypeVar("Result")
TRIES = 6
"""Maximum number of tries per request; tries on a busy server do not count."""
AWAY_AFTER = 3
"""Number of requests in a row that fail to reach the server before it counts as absent."""
REFUSALS = 5
"""Number of refusals in a row, of kinds in `SHARED`, before a check if the server refuses every request."""
FIRST_WAIT, LONGEST_WAIT = 0.5, 8.0
"""Seconds before the second try, doubled per further try up to the maximum, unless the server names a time."""
LONGEST_BUSY = 3600.0
"""Maximum seconds that a request waits for busy servers."""
LONGEST_ABSENCE = 30.0
"""Maximum seconds between two checks of an absent server."""
MAX_DOWNTIME = 300.0
"""Seconds without any answer after which a run stops."""
CONNECT_SECONDS = 10.0
IDLE_SECONDS = 4.0  # below the limit of servers for unused connections (uvicorn and llama.cpp: 5 s)
POLL_SECONDS = 0.1
MAX_REPLY, MAX_ERROR = 64 * 2**20, 64 * 2**10
"""Maximum decompressed bytes; a reply of 32,000 tokens with 20 alternatives per token has 50 MiB."""
CLOSING_SECONDS = 10.0

_NOT_CONNECTED = (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError, aiohttp.ClientHttpProxyError)

log = logging.getLogger(__name__)


class ChatClient:
    """A client of one chat server."""

    def __init__(self, address: str, settings: ServerSettings | None = None, spending: Spending | None = None) -> None:
        settings = settings or ServerSettings()
        self._key_variable = settings.api_key_variable
        key = os.environ.get(self._key_variable, "").strip()
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise InputError(
                f"{self._key_variable}: got spaces or special characters; expected a key; fix: set the variable anew"
            )
        self.address, self.at_once = parse_address(address), settings.concurrency
        (headers, secrets), proxy = filled_headers(settings.headers), proxy_of(self.address)
        self._has_key, self._secret = bool(key or secrets), Secret(key, *secrets)
        self._body = {"stream": False, **settings.body}  # some servers stream unless they are told not to
        self._unbooked: list[tuple[str, str, Usage | None, Usage]] = []
        self.charge_to(spending)
        self._missed = self._refusals = 0  # in a row: requests that did not reach the server, and refusals in `SHARED`
        self._rests_until = 0.0  # end of the pause that the server requested, on the monotonic clock
        self._watch: asyncio.Task[None] | None = None  # waits while the server is absent
        self._silent_since: float | None = None
        self._answered: Mapping[str, Any] | None = None
        self._places = asyncio.Semaphore(self.at_once)
        self._checking = asyncio.Lock()  # many requests fail at once: one check serves all
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="bixse-chat-client", daemon=True)
        self._thread.start()
        self._session = self.run(_open_session(key, headers, settings.timeout, proxy))

    def charge_to(self, spending: Spending | None) -> None:
        """Book all requests there, those so far too, and send none above its limit; None: keep them for later."""
        self.spending = spending
        while spending is not None and self._unbooked:
            spending.book(*self._unbooked.pop(0))

    def close(self) -> None:
        if self._thread.is_alive():
            with contextlib.suppress(concurrent.futures.TimeoutError):
                self.run(self._cancel_all(), CLOSING_SECONDS)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSING_SECONDS)
            self._loop.close()

    def run(self, coroutine: Coroutine[Any, Any, Result], seconds: float | None = None) -> Result:
        """Return the result of a coroutine, also inside a running loop (a notebook). Ctrl-C cancels the coroutine."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(seconds)
        except BaseException:
            future.cancel()
            raise

    def stream(
        self, items: Iterable[Item], handle: Callable[[Item], Coroutine[Any, Any, Result]]
    ) -> Iterator[tuple[Item, Result]]:
        """Handle up to `at_once` items at the same time and yield each item with its result, in order of completion.

        Items are read in the caller's thread. An error of one item is raised after the results that are ready. An
        item above the limit of dollars has no result, and no item follows it.
        Closing the generator, an error, or Ctrl-C cancels the pending requests and waits for their end.
        """
        done: queue.SimpleQueue[concurrent.futures.Future[Result]] = queue.SimpleQueue()
        under_way: dict[concurrent.futures.Future[Result], Item] = {}
        source, more = iter(items), True
        failure: BaseException | None = None
        try:
            while more or under_way:
                while more and len(under_way) < self.at_once and done.empty():
                    try:
                        item = next(source)
                    except StopIteration:
                        more = False
                        break
                    future = asyncio.run_coroutine_threadsafe(handle(item), self._loop)
                    under_way[future] = item
                    future.add_done_callback(done.put)
                if not under_way:
                    break
                future = self._next_of(done)
                item = under_way.pop(future)
                if future.cancelled():
                    raise RuntimeError("the client was closed while it was in use")
                if isinstance(future.exception(), OverBudgetError):
                    more = False  # the requests in flight are paid for: they go on
                    continue
                failure = failure or future.exception()
                if future.exception() is None:
                    yield item, future.result()  # paid for, even if another item failed
                if failure is not None and done.empty():
                    raise failure
        finally:
            for future in list(under_way):
                future.cancel()
            if under_way and self._thread.is_alive():
                with contextlib.suppress(concurrent.futures.TimeoutError):
                    self.run(_settle(), CLOSING_SECONDS)

    def _next_of(self, done: queue.SimpleQueue[Result]) -> Result:
        while True:
            try:
                return done.get(timeout=POLL_SECONDS)
            except queue.Empty:
                if not self._thread.is_alive():
                    raise RuntimeError("the client was closed while it was in use") from None

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._session.close()
        await asyncio.get_running_loop().shutdown_default_executor()

    async def chat(self, body: Mapping[str, Any]) -> Reply:
        """Ask for a chat completion until a reply or a final failure.

        RequestError concerns this request alone, InputError every request, ServerDownError means no answer for long,
        OverBudgetError that the limit leaves no room for another try.
        """
        started, tries, failed = time.monotonic(), 0, 0
        while True:
            await self._until_free()
            if self.spending is not None:
                self.spending.check(_guess(body))
            tries += 1
            try:
                reply = await self._ask(body)
                return replace(reply, tries=tries, seconds=time.monotonic() - started)
            except RequestError as error:
                busy = error.failure == "busy"  # a busy server costs no try and is no downtime
                failed += not busy
                seconds, now = _pause(error, tries), time.monotonic()
                late = busy and now + seconds - started > LONGEST_BUSY
                if seconds > LONGEST_WAIT and self._rests_until < now:
                    log.warning("%s asks for a pause of %.0f s", self.address, seconds)
                    self._rests_until = now + seconds
                if error.failure not in TRANSIENT or failed >= TRIES or late:
                    await self._stop_if_all_fail(error, body)
                    raise replace(error, tries=tries, seconds=now - started) from None
                if not busy:
                    self._stop_if_down(error.detail)
                await asyncio.sleep(seconds if seconds <= LONGEST_WAIT else 0.0)

    async def _until_free(self) -> None:
        """Wait while the server is absent or pauses."""
        while self._watch is not None or (rest := self._rests_until - time.monotonic()) > 0:
            if self._watch is not None:
                self._stop_if_down("it is away")
            elif rest > LONGEST_BUSY:
                raise RequestError("busy", f"not asked: the server asks for a pause of {rest:.0f} s")
            await asyncio.sleep(POLL_SECONDS)

    async def _ask(self, body: Mapping[str, Any]) -> Reply:
        """Send a request, book it, and read the reply."""
        status: str = "cancelled"  # the server may go on with a request that is cancelled
        usage: Usage | None = None
        async with self._places:
            try:
                content = await self._send("/chat/completions", {**body, **self._body})
                counted = reported_usage(content)
                status, usage = "replied", counted if counted.prompt else None
            except RequestError as error:
                status, usage = error.failure, error.usage
                self._note_silence(error)
                raise
            finally:
                self._unbooked.append((str(body.get("model")), status, usage, _guess(body)))
                self.charge_to(self.spending)
        self._silent_since, self._missed = None, 0
        try:
            reply = parse_reply(content, self._secret.keep)
        except (ValueError, TypeError, OverflowError):
            text = content if isinstance(content, str) else json.dumps(content)
            start = shorten(self._secret.keep(text[:80]))
            if self._answered is None and never_complete(text):
                raise InputError(
                    f"{self.address}: got {start}; expected a complete answer of a chat server; fix: correct the "
                    "address, or set up the server so that it obeys `stream: false`"
                ) from None
            raise RequestError("broken", f"an incomplete reply: {start}") from None
        self._answered = self._answered or body
        self._refusals = 0
        return reply

    def _note_silence(self, error: RequestError) -> None:
        silent = error.failure in ("away", "broken")
        self._silent_since = (self._silent_since or time.monotonic()) if silent else None
        self._missed = self._missed + 1 if error.failure == "away" else 0
        if self._missed >= AWAY_AFTER and self._watch is None:
            log.warning("%s does not answer; it is asked again in a while", self.address)
            self._watch = asyncio.get_running_loop().create_task(self._until_back())

    async def _send(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON of a response, or its text; without a body, send a GET."""
        data = None if body is None else json.dumps(body).encode()
        method, (base, mark, query) = "GET" if body is None else "POST", self.address.partition("?")
        url = f"{base}{path}{mark}{query}"
        try:
            # a redirect could carry the key to another server
            async with self._session.request(method, url, data=data, allow_redirects=False) as response:
                raw = await _body(response)
        except (aiohttp.ClientError, TimeoutError) as error:
            connected = not isinstance(error, _NOT_CONNECTED)
            late = connected and isinstance(error, TimeoutError)
            what = "no reply in time" if late else "the connection broke" if connected else "no connection"
            detail = self._secret.keep(f"{what} ({type(error).__name__}: {error})"[:TEXT_WIDTH])
            broken = late or isinstance(error, aiohttp.ClientPayloadError)
            raise RequestError("broken" if broken else "away", detail, usage=None if connected else NOTHING) from None
        try:
            content = json.loads(raw)
        except (ValueError, RecursionError):  # deeply nested JSON
            content = raw.decode("utf-8", "replace")
        if response.status >= 300:
            raise refusal(response.status, response.headers, content, self._secret)
        return content

    async def served_model(self, wanted: str | None = None) -> ServedModel:
        """Return the model that the server lists, or the wanted one."""
        listed = await self._list_models(AWAY_AFTER)
        if isinstance(listed, RequestError) and listed.failure in TRANSIENT:
            raise ServerDownError(
                f"{self.address}: got no answer ({listed.detail}); expected a running server; fix: start it, or "
                "correct the address"
            )
        self._raise_if_shared(listed, ("key", "quota"))
        return choose_model(None if isinstance(listed, RequestError) else listed, wanted, self.address)

    async def _list_models(self, tries: int = 1) -> list[ServedModel] | RequestError:
        for made in range(1, tries + 1):
            try:
                return models_in(await self._send("/models"))
            except ValueError:
                break
            except RequestError as error:
                seconds = _pause(error, made)
                if error.failure not in TRANSIENT or seconds > LONGEST_BUSY or made == tries:
                    return error
                await asyncio.sleep(seconds)
        return RequestError("refused", "no list of models")

    def _stop_if_down(self, detail: str) -> None:
        now = time.monotonic()
        silent = now - (self._silent_since or now)
        if silent > MAX_DOWNTIME:
            raise ServerDownError(
                f"{self.address}: got no answer for {silent:.0f} s ({detail}); expected an answer within "
                f"{MAX_DOWNTIME:.0f} s; fix: see that the server runs, then give the same command again (answers "
                "so far are kept)"
            )

    async def _until_back(self) -> None:
        wait, listed = FIRST_WAIT, None
        while listed is None or (isinstance(listed, RequestError) and listed.failure in TRANSIENT):
            await asyncio.sleep(wait)
            listed, wait = await self._list_models(), min(LONGEST_ABSENCE, 2 * wait)
        log.warning("%s answers again", self.address)
        self._watch, self._missed = None, 0

    async def _stop_if_all_fail(self, error: RequestError, body: Mapping[str, Any]) -> None:
        """Raise if the server refuses a request that was answered before, or a greeting if none was answered."""
        if error.failure not in SHARED:
            return
        self._refusals += 1
        async with self._checking:
            # if other requests are answered, the refused request is at fault (a firewall rejects its text)
            if self._answered is not None and self._refusals < REFUSALS:
                return
            greeting = {"model": body.get("model"), "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
            try:
                await self._ask(self._answered or greeting)
            except RequestError as refused:
                self._raise_if_shared(refused)

    def _raise_if_shared(self, error: object, kinds: Sequence[str] = SHARED) -> None:
        if not isinstance(error, RequestError) or error.failure not in kinds:
            return
        message = {
            "key": f"got {'an invalid key' if self._has_key else 'no key'} ({error.detail}); expected a key of this "
            "server in this environment variable; fix: set it, name another one with --api-key-variable, or send it in "
            "a header, such as --headers 'api-key=$NAME'",
            "quota": f"got an account without quota ({error.detail}); expected one with some left; fix: see the "
            "provider's billing page, then give the same command again",
            "model": f"got {error.detail}; expected a model that is served; fix: correct its name or the address",
            "no-chat": f"got {error.detail}; expected a chat server; fix: correct the address; a server of a reranker "
            "or of embeddings cannot be asked: name the reranker itself, --judge cross-encoder:FOLDER",
        }[error.failure]
        where = {"model": "endpoint", "no-chat": self.address}.get(error.failure, self._key_variable)
        raise InputError(f"{where}: {message}") from error


def _pause(error: RequestError, tries: int) -> float:
    """Return the seconds before the next try: the server's if it is busy, else growing with each try."""
    # random, so that the clients of a server do not return at the same moment
    backoff = random.uniform(0.5, 1.0) * min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(tries - 1, 10))
    return (error.retry_after if error.failure == "busy" else None) or backoff


def _guess(body: Mapping[str, Any]) -> Usage:
    """Return a high guess at the tokens of a request, for its price before any reply reports its own."""
    characters = sum(len(str(message.get("content"))) for message in body["messages"])
    return guessed_usage(characters, body.get("max_tokens") or body.get("max_completion_tokens"), body.get("n", 1))


async def _body(response: aiohttp.ClientResponse) -> bytearray:
    """Return the decompressed body, or the beginning of an error's body."""
    body = bytearray()
    async for part in response.content.iter_chunked(MAX_ERROR):  # gzip can expand a small body to gigabytes
        body += part
        if response.status >= 300 and len(body) > MAX_ERROR:
            break
        if len(body) > MAX_REPLY:
            raise RequestError("too-large", f"a reply of more than {MAX_REPLY / 2**20:g} MiB", usage=None)
    return body


async def _open_session(
    key: str, headers: Mapping[str, str], timeout: float, proxy: tuple[str, str, str] | None
) -> aiohttp.ClientSession:
    """Open a session without cookies or a limit of connections (`ChatClient` limits concurrency)."""
    sent = CIMultiDict({"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})})
    sent.update(headers)  # in any case of letters, a header of the user takes the place of ours
    address, user, password = proxy or (None, "", "")
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
        timeout=aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_SECONDS),
        headers=sent,
        cookie_jar=aiohttp.DummyCookieJar(),
        proxy=address,  # not trust_env, which would also send passwords of ~/.netrc
        proxy_auth=aiohttp.BasicAuth(user, password) if user else None,
    )


async def _settle() -> None:
    cancelled = [task for task in asyncio.all_tasks() if task.cancelling()]
    await asyncio.gather(*cancelled, return_exceptions=True)
