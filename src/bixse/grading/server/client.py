"""Asking chat servers with the openai package: several endpoints of one model, a reply or an error for every request.

The package sends, retries with back-off (`Retry-After` honoured) and keeps the connections; here are the endpoints, of
which one that is away is left out until it answers again, and the bridge from plain iterators to its event loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import logging
import os
import queue
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from bixse.errors import InputError, shorten
from bixse.grading.server.address import Address, parse_addresses
from bixse.grading.server.reply import Reply, parse_reply
from bixse.grading.server.secret import Secret
from bixse.grading.server.served_models import ServedModel, choose_model, models_in

try:
    import httpx2
    import openai

    from bixse.grading.server.failure import SHARED, TRANSIENT, RequestError, ServerDownError, request_error, tries_of
except ImportError as error:
    raise InputError(
        f"{error.name}: got no such package; expected it for asking servers; fix: pip install 'bixse[grade]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
    from typing import Any

Item = TypeVar("Item")
Result = TypeVar("Result")
RETRIES = 2
"""Times that openai sends a request again before it counts as failed."""
TRIES = 6
"""Tries after which a request is given up."""
REFUSALS = 5
"""Requests refused in a row as every request may be, before it is looked whether every request is."""
IDLE_SECONDS = 4.0
"""How long an unused connection is kept: less than servers keep theirs (uvicorn and llama.cpp: 5 s)."""
LONGEST_WAIT = 30.0
"""Seconds between two looks at an endpoint that is away."""
POLL_SECONDS = 0.1
"""How often a request looks whether an endpoint is back, and a caller whether the client still works."""
CLOSING_SECONDS = 10.0
"""How long closing waits for requests that are being cancelled."""

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Endpoint:
    """One address and how it behaves."""

    address: Address
    places: asyncio.Semaphore
    """Requests it may have at once."""
    in_flight: int = 0
    refusals: int = 0
    """Requests in a row that were refused as every request may be (`SHARED`)."""
    watch: asyncio.Task[None] | None = field(default=None, repr=False)
    """While it is away: looks whether it is back."""


class ChatClient:
    """A client of one or several endpoints that serve the same model.

    Args:
        endpoints: addresses, with or without `/v1`.
        api_key_variable: environment variable that holds the key; a server without keys needs none.
        concurrency: most requests at once per endpoint.
        timeout: seconds for one try.
        connect_timeout: seconds until a connection stands.
        max_downtime: seconds without any answer after which it stops.

    Raises:
        InputError: an address, a setting or a key that cannot be used.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        api_key_variable: str = "OPENAI_API_KEY",
        concurrency: int = 64,
        timeout: float = 120.0,
        connect_timeout: float = 10.0,
        max_downtime: float = 300.0,
    ) -> None:
        for name, value in (("concurrency", concurrency), ("timeout", timeout), ("max_downtime", max_downtime)):
            if not value > 0:
                raise InputError(f"{name}: got {value}; expected a number above 0; fix: leave it out")
        key = os.environ.get(api_key_variable, "").strip()
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise InputError(
                f"{api_key_variable}: got spaces or special characters; expected a key; fix: set the variable anew"
            )
        addresses = parse_addresses(endpoints)
        self.endpoints = [Endpoint(address, asyncio.Semaphore(concurrency)) for address in addresses]
        self.at_once = concurrency * len(addresses)
        self._max_downtime = max_downtime
        self._key_variable, self._has_key, self._secret = api_key_variable, bool(key), Secret(key)
        self._silent_since: float | None = None
        self._answered: Mapping[str, Any] | None = None
        self._checking = asyncio.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="bixse-chat-client", daemon=True)
        self._thread.start()
        self._openai = self.run(_connect(key, addresses[0].api, timeout, connect_timeout))

    def __repr__(self) -> str:
        return f"ChatClient({[endpoint.address.api for endpoint in self.endpoints]})"

    def __enter__(self) -> ChatClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what is under way, close the connections and end the thread."""
        if self._thread.is_alive():
            with contextlib.suppress(concurrent.futures.TimeoutError):
                self.run(self._cancel_all(), CLOSING_SECONDS)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSING_SECONDS)
            self._loop.close()

    # --- from plain code into the event loop ------------------------------------------------------------------------

    def run(self, coroutine: Coroutine[Any, Any, Result], seconds: float | None = None) -> Result:
        """Run one coroutine and wait for it; works inside a running loop too, as in a notebook. Ctrl-C cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(seconds)
        except BaseException:
            future.cancel()
            raise

    def stream(
        self, items: Iterable[Item], handle: Callable[[Item], Coroutine[Any, Any, Result]]
    ) -> Iterator[tuple[Item, Result]]:
        """Handle items at the same time and yield each with its result as it comes.

        The next item is taken, in the caller's thread, only while fewer than `at_once` are being handled. An error of
        one item is raised after the results that are there already. Closing the generator, an error, or Ctrl-C cancels
        what is under way and waits until it is gone.

        Raises:
            RuntimeError: the client was closed meanwhile.
        """
        done: queue.SimpleQueue[concurrent.futures.Future[Result]] = queue.SimpleQueue()
        under_way: dict[concurrent.futures.Future[Result], Item] = {}
        source, more = iter(items), True
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
                if under_way:
                    future = self._next_of(done)
                    if future.cancelled():
                        raise RuntimeError("the client was closed while it was in use")
                    if future.exception() is not None:
                        yield from self._successes(done, under_way)
                    yield under_way.pop(future), future.result()
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

    @staticmethod
    def _successes(
        done: queue.SimpleQueue[concurrent.futures.Future[Result]],
        under_way: dict[concurrent.futures.Future[Result], Item],
    ) -> Iterator[tuple[Item, Result]]:
        """Results that came before an error is raised: they are paid for."""
        while not done.empty():
            future = done.get()
            item = under_way.pop(future)
            if not future.cancelled() and future.exception() is None:
                yield item, future.result()

    # --- requests ---------------------------------------------------------------------------------------------------

    def served_model(self, wanted: str | None = None) -> ServedModel:
        """The model that all endpoints serve; those that do not answer now are left out until they do.

        Raises:
            InputError: different models, several where none is named, none of that name, or a key that does not count.
            ServerDownError: nobody answers.
        """
        return self.run(self._served_model(wanted))

    async def _served_model(self, wanted: str | None) -> ServedModel:
        found: dict[tuple[str, str], tuple[ServedModel, str]] = {}
        away = []
        asked = await asyncio.gather(*(self._list_models(endpoint, RETRIES) for endpoint in self.endpoints))
        for endpoint, listed in zip(self.endpoints, asked, strict=True):
            api = endpoint.address.api
            if isinstance(listed, RequestError) and listed.failure in TRANSIENT:
                away.append(f"{api}: {listed.detail}")
                self._leave_out(endpoint)
            else:
                self._raise_if_shared(listed, ("key", "quota"))
                model = choose_model(None if isinstance(listed, RequestError) else listed, wanted, api)
                found.setdefault(model.key, (model, api))
        if not found:
            raise ServerDownError(
                f"endpoints: got no answer ({'; '.join(away)}); expected a running server; fix: start it, or correct "
                "the address"
            )
        if len(found) > 1:
            told = ", ".join(f"{model.name} of {model.kind} at {address}" for model, address in found.values())
            raise InputError(
                f"endpoints: got different models ({told}); expected the same model everywhere; fix: name it, or "
                "leave one endpoint out"
            )
        return next(model for model, _ in found.values())

    async def _list_models(
        self, endpoint: Endpoint, retries: int
    ) -> list[tuple[ServedModel, tuple[str, ...]]] | RequestError:
        try:
            return models_in((await self._send(f"{endpoint.address.api}/models", None, retries))[0])
        except RequestError as error:
            return error
        except ValueError:
            return RequestError("refused", "no list of models")

    async def chat(self, body: Mapping[str, Any], endpoint: Endpoint | None = None) -> Reply:
        """Ask for a chat completion until there is a reply or a final failure.

        Args:
            body: the request.
            endpoint: where to ask; None: wherever there is room.

        Raises:
            RequestError: this request has no reply.
            InputError: a failure that all requests share (key, account, model).
            ServerDownError: no endpoint has answered for long.
        """
        started, tries, failed = time.monotonic(), 0, 0
        while True:
            place = endpoint or await self._free_endpoint()
            try:
                reply = await self._ask(place, body)
                return replace(reply, tries=reply.tries + tries, seconds=time.monotonic() - started)
            except RequestError as error:
                tries += error.tries
                failed += 0 if error.failure == "busy" else error.tries  # a server that is busy is waited for
                if error.failure == "away" and endpoint is None:
                    self._leave_out(place)
                if error.failure not in TRANSIENT or failed >= TRIES:
                    await self._stop_if_all_fail(error, place, body, endpoint is not None)
                    raise replace(error, tries=tries, seconds=time.monotonic() - started) from None
                await self._wait(error)

    async def _free_endpoint(self) -> Endpoint:
        """The endpoint with the fewest requests of those that answer."""
        while True:
            present = [endpoint for endpoint in self.endpoints if endpoint.watch is None]
            if present:
                return min(present, key=lambda endpoint: endpoint.in_flight)
            self._stop_if_down("every endpoint is away", 0.0)
            await asyncio.sleep(POLL_SECONDS)

    async def _ask(self, endpoint: Endpoint, body: Mapping[str, Any]) -> Reply:
        endpoint.in_flight += 1
        try:
            async with endpoint.places:
                content, tries = await self._send(f"{endpoint.address.api}/chat/completions", body)
        except RequestError as error:
            silent = error.failure in TRANSIENT
            self._silent_since = (self._silent_since or time.monotonic()) if silent else None
            raise
        finally:
            endpoint.in_flight -= 1
        self._silent_since = None
        try:
            reply = self._secret.redact(parse_reply(content))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            said = shorten(self._secret.redact(json.dumps(content))[:80])
            raise RequestError("broken", f"no whole reply: {said}", tries) from None
        self._answered = self._answered or body
        endpoint.refusals = 0
        return replace(reply, tries=tries)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """JSON of a path below the root of an endpoint, None where it has no such path."""
        endpoint = await self._free_endpoint()
        try:
            return (await self._send(endpoint.address.root + path, body))[0]
        except RequestError:
            return None

    async def _send(self, url: str, body: Mapping[str, Any] | None, retries: int = RETRIES) -> tuple[Any, int]:
        """JSON of a reply (its text where it is none), and how often it was asked for; openai tries again."""
        try:
            if body is None:
                response = await self._openai.get(url, cast_to=httpx2.Response, options={"max_retries": retries})
            else:
                response = await self._openai.post(
                    url, cast_to=httpx2.Response, body=body, options={"max_retries": retries}
                )
        except openai.APIError as error:
            raise request_error(error, self._secret) from None
        try:
            return json.loads(response.content), tries_of(response.request)
        except (ValueError, RecursionError):
            return response.text, tries_of(response.request)

    # --- endpoints that are away, and failures that all requests share ----------------------------------------------

    async def _wait(self, error: RequestError) -> None:
        """Before another try; a server that asks to wait is waited for."""
        seconds = error.retry_after or 0.5
        self._stop_if_down(error.detail, seconds)
        await asyncio.sleep(seconds)

    def _stop_if_down(self, detail: str, wait: float) -> None:
        """Raise where nobody has answered for long, or a server asks to wait for longer than that."""
        now = time.monotonic()
        silent = now - (self._silent_since or now)
        if max(silent, wait) > self._max_downtime:
            names = ", ".join(endpoint.address.api for endpoint in self.endpoints)
            raise ServerDownError(
                f"{names}: got no answer for {silent:.0f} s, and {wait:.0f} s to wait ({detail}); expected an answer "
                f"within {self._max_downtime:.0f} s; fix: see that the server runs, then give the same command again "
                "(answers so far are kept)"
            )

    def _leave_out(self, endpoint: Endpoint) -> None:
        """Send an endpoint nothing until it answers again."""
        if endpoint.watch is None:
            log.warning("%s does not answer; its work goes to the others", endpoint.address.api)
            endpoint.watch = asyncio.get_running_loop().create_task(self._watch(endpoint))

    async def _watch(self, endpoint: Endpoint) -> None:
        wait = 0.5
        while True:
            await asyncio.sleep(wait)
            listed = await self._list_models(endpoint, 0)
            if not (isinstance(listed, RequestError) and listed.failure in TRANSIENT):
                log.warning("%s answers again", endpoint.address.api)
                endpoint.watch = None
                return
            wait = min(LONGEST_WAIT, 2 * wait)

    async def _stop_if_all_fail(
        self, error: RequestError, endpoint: Endpoint, body: Mapping[str, Any], named: bool
    ) -> None:
        """Raise where an endpoint refuses what it answered before, or a greeting where it has answered nothing yet.

        A request that is refused among answered ones has itself to blame, unless several are refused in a row.
        """
        if error.failure not in SHARED:
            return
        if named:
            self._raise_if_shared(error)
        endpoint.refusals += 1
        async with self._checking:
            if self._answered is not None and endpoint.refusals < REFUSALS:
                return
            greeting = {"model": body.get("model"), "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
            try:
                await self._ask(endpoint, self._answered or greeting)
            except RequestError as refused:
                self._raise_if_shared(refused)

    def _raise_if_shared(self, error: object, kinds: Sequence[str] = SHARED) -> None:
        """Raise an InputError for a failure that every further request would share."""
        if not isinstance(error, RequestError) or error.failure not in kinds:
            return
        variable = self._key_variable
        if error.failure == "key":
            had = "a key that does not count" if self._has_key else "no key"
            raise InputError(
                f"{variable}: got {had} ({error.detail}); expected a key of this server in the environment variable "
                f"{variable}; fix: set it, or name the variable that holds the key"
            ) from error
        if error.failure == "quota":
            raise InputError(
                f"{variable}: got an account without means ({error.detail}); expected one that may ask; fix: look at "
                "the provider's billing page, then give the same command again"
            ) from error
        raise InputError(
            f"endpoint: got {error.detail}; expected a model that is served; fix: correct the model's name or the "
            "address"
        ) from error

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._openai.close()
        await asyncio.get_running_loop().shutdown_default_executor()


async def _connect(key: str, base_url: str, timeout: float, connect_timeout: float) -> openai.AsyncOpenAI:
    """The client of openai, without proxies and redirects that nobody named; aiohttp carries it, which costs less."""
    http_client = openai.DefaultAioHttpClient(
        timeout=httpx2.Timeout(timeout, connect=connect_timeout),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE_SECONDS),
        trust_env=False,
        follow_redirects=False,
    )
    return openai.AsyncOpenAI(api_key=key or "EMPTY", base_url=base_url, http_client=http_client)


async def _settle() -> None:
    """Wait until what was cancelled is gone."""
    cancelled = [task for task in asyncio.all_tasks() if task.cancelling()]
    await asyncio.gather(*cancelled, return_exceptions=True)
