"""Asking chat servers: several endpoints, tries bounded, an answer or a named failure for every request."""

from __future__ import annotations

import asyncio
import json
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bixse.errors import InputError
from bixse.grading.judge import Usage
from bixse.grading.server.connection import Attempt, Connection
from bixse.grading.server.endpoints import Endpoint, EndpointPool, ServerDownError
from bixse.grading.server.event_loop import LoopThread
from bixse.grading.server.rate_limit import backoff
from bixse.grading.server.reply import PASSING, SHARED, Failure, Reply, parse_reply
from bixse.grading.server.served_models import ServedModel, choose_model, models_in

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

Value = TypeVar("Value")
LONGEST_PROBE_WAIT = 5.0
"""Seconds that a question to one endpoint in particular waits between tries."""
CHAT = "/chat/completions"
DOUBTS = 5
"""Requests in a row that fail as every request may fail, before it is looked whether every request does."""


@dataclass(frozen=True)
class Outcome(Generic[Value]):
    """What became of one request after all its tries."""

    value: Value | None
    """What was read from the reply; None where there is none."""
    failure: Failure | None = None
    """Why there is none."""
    detail: str = ""
    """What the server said, for people; keys are blotted out."""
    tries: int = 1
    """Requests made."""
    seconds: float = 0.0
    """Wall time from the first wait for a free place to the end."""
    endpoint: Endpoint | None = None
    """Where it was asked last."""


@dataclass(frozen=True)
class Completion:
    """One generated text, or why there is none."""

    id: Any
    """The id that came with the body."""
    text: str | None
    """The first text; None on failure."""
    failure: Failure | None = None
    """Why there is none."""
    detail: str = ""
    """What the server said, for people."""
    usage: Usage = field(default_factory=Usage)
    """Tokens."""
    finish_reason: str = ""
    """"length" where the text is cut."""
    texts: tuple[str, ...] = ()
    """All texts, where several were asked for (`n`)."""
    tries: int = 1
    """Requests made."""
    seconds: float = 0.0
    """Wall time."""


class ServerClient:
    """A client of one or several endpoints that serve the same model.

    Args:
        endpoints: addresses, with or without `/v1`.
        api_key_variable: environment variable that holds the key; a server without keys needs none.
        concurrency: most requests at once an endpoint; the client finds how many it copes with.
        timeout: seconds for one try.
        connect_timeout: seconds until a connection stands.
        tries: most tries of one request.
        patience: seconds without any answer after which it stops.

    Raises:
        InputError: an address or a setting that cannot be used, or aiohttp is not installed.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        api_key_variable: str = "OPENAI_API_KEY",
        concurrency: int = 64,
        timeout: float = 120.0,
        connect_timeout: float = 10.0,
        tries: int = 6,
        patience: float = 300.0,
    ) -> None:
        settings = {"concurrency": concurrency, "timeout": timeout, "connect_timeout": connect_timeout, "tries": tries}
        for name, value in (settings | {"patience": patience}).items():
            if not (value > 0 and math.isfinite(value)):
                raise InputError(f"{name}: got {value}; expected a number above 0; fix: leave it out")
        self.connection = Connection(api_key_variable, timeout, connect_timeout)
        self.pool = EndpointPool.of(endpoints, concurrency, patience, self._answers_again)
        self.check: Callable[[Endpoint], Awaitable[bool]] | None = None
        """Asked too before an endpoint that was away takes part again; raises InputError where it may not."""
        self.tries = tries
        self._model: ServedModel | None = None
        self._answered: bytes | None = None
        self._checking = asyncio.Lock()
        self.loop = LoopThread()
        self.loop.run(self.connection.open())

    def __repr__(self) -> str:
        return f"ServerClient({[endpoint.address.api for endpoint in self.pool.endpoints]})"

    def __enter__(self) -> ServerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and the thread."""
        if self.loop.alive:
            self.loop.run(self.pool.close())
            self.loop.run(self.connection.close())
            self.loop.close()

    def complete(
        self, bodies: Iterable[tuple[Any, Mapping[str, Any]]], model: str | None = None
    ) -> Iterator[Completion]:
        """Generate a text for every body, many at once, in the order in which they come.

        The next body is taken only while there is room. Closing the generator cancels what is under way.

        Args:
            bodies: (id, body of a `/chat/completions` request); "model" is filled in where a body has none.
            model: model id for these; None: the one that is served.

        Raises:
            InputError: a key that does not count, or no such model.
            ServerDownError: no endpoint has answered for long.
        """
        chosen = self.served_model(model).id

        async def one(entry: tuple[Any, Mapping[str, Any]]) -> Outcome[Reply]:
            return await self.chat({"model": chosen, **entry[1]})

        for (identifier, _), outcome in self.loop.stream(bodies, one, lambda: self.pool.room):
            reply = outcome.value
            if reply is None:
                yield Completion(
                    identifier, None, outcome.failure, outcome.detail, tries=outcome.tries, seconds=outcome.seconds
                )
            else:
                yield Completion(
                    identifier,
                    reply.choices[0].text,
                    usage=reply.usage,
                    finish_reason=reply.choices[0].finish_reason,
                    texts=tuple(choice.text for choice in reply.choices),
                    tries=outcome.tries,
                    seconds=outcome.seconds,
                )

    def served_model(self, wanted: str | None = None) -> ServedModel:
        """The model that all endpoints serve; those that do not answer now rest until they do.

        Raises:
            InputError: different models, several where none is named, none of that name, or nobody answers.
        """
        return self.loop.run(self._served_model(wanted))

    async def _served_model(self, wanted: str | None) -> ServedModel:
        endpoints = list(self.pool.endpoints)
        asked = await asyncio.gather(*(self._list_models(endpoint, tries=3) for endpoint in endpoints))
        found: dict[tuple[str, str], tuple[ServedModel, str]] = {}
        away = []
        for endpoint, outcome in zip(endpoints, asked, strict=True):
            if outcome.failure in PASSING:
                away.append((endpoint, outcome.detail))
            else:
                model = choose_model(outcome.value, wanted, endpoint.address.api)
                found.setdefault(model.key, (model, endpoint.address.api))
        if not found:
            told = "; ".join(f"{endpoint.address.api}: {detail}" for endpoint, detail in away)
            raise ServerDownError(
                f"endpoints: got no answer ({told}); expected a running server; fix: start it, or correct the address"
            )
        if len(found) > 1:
            told = ", ".join(f"{model.name} of {model.kind} at {address}" for model, address in found.values())
            raise InputError(
                f"endpoints: got different models ({told}); expected the same model everywhere; fix: name it, or "
                "leave one endpoint out"
            )
        self._model = next(model for model, _ in found.values())
        for endpoint, _ in away:
            self.pool.rest(endpoint)
        return self._model

    async def _list_models(self, endpoint: Endpoint, tries: int) -> Outcome[list[tuple[ServedModel, tuple[str, ...]]]]:
        outcome = await self.ask("/models", None, models_in, endpoint, tries)
        self.stop_if_final(outcome, but=("unknown-model",))
        return outcome

    async def chat(self, body: Mapping[str, Any], endpoint: Endpoint | None = None) -> Outcome[Reply]:
        """Ask for a chat completion.

        Args:
            body: the request.
            endpoint: where to ask; None: wherever there is room.

        Raises:
            InputError: a failure that all requests share, or that of the endpoint that is named.
            ServerDownError: no endpoint has answered for long.
        """
        data = json.dumps(body).encode("utf-8")
        outcome = await self.ask(CHAT, data, parse_reply, endpoint)
        if outcome.value is not None:
            self._answered = self._answered or data
        elif endpoint is not None:
            self.stop_if_final(outcome)
        elif outcome.failure in SHARED and outcome.endpoint is not None:
            await self._stop_if_all_fail(outcome.endpoint, body)
        return outcome

    async def _stop_if_all_fail(self, endpoint: Endpoint, body: Mapping[str, Any]) -> None:
        """Raise where an endpoint refuses what it answered before, or a greeting where it has answered nothing yet.

        A request that is refused among answered ones has itself to blame, unless several are refused in a row.
        """
        async with self._checking:
            if self._answered is not None and endpoint.doubts < DOUBTS:
                return
            greeting = {"model": body.get("model"), "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
            data = self._answered or json.dumps(greeting).encode("utf-8")
            outcome = await self.ask(CHAT, data, parse_reply, endpoint)
            self.stop_if_final(outcome)
            self._answered = self._answered or (data if outcome.value is not None else None)
            endpoint.doubts = 0

    async def ask(
        self,
        path: str,
        data: bytes | None,
        parse: Callable[[Any], Value],
        endpoint: Endpoint | None = None,
        tries: int | None = None,
    ) -> Outcome[Value]:
        """Send one request until it has an answer, a final failure, or no tries left.

        Args:
            path: after the address of the API, or after its root where it begins with "root:".
            data: JSON body; None for a GET.
            parse: reads the reply; a ValueError from it asks again.
            endpoint: where to ask, outside the pool's limits; None: wherever there is room.
            tries: other than the client's.
        """
        started = time.monotonic()
        most = tries or self.tries
        outcome: Outcome[Value] = Outcome(None)
        for number in range(1, most + 1):
            place = endpoint or await self.pool.slot()
            sent = time.monotonic()
            attempt: Attempt[Value] = Attempt("again", detail="cancelled")
            try:
                attempt = await self.connection.attempt(place.address, path, data, parse)
            finally:
                if endpoint is None:
                    self.pool.release(place, sent, attempt.failure, attempt.pause, attempt.detail)
            took = time.monotonic() - started
            outcome = Outcome(attempt.value, attempt.failure, attempt.detail, number, took, place)
            if attempt.failure not in PASSING or number == most:
                break
            if endpoint is not None:
                await asyncio.sleep(min(attempt.pause or backoff(number), LONGEST_PROBE_WAIT))
            elif attempt.failure != "overloaded":
                await self.pool.sleep(backoff(number))
        return outcome

    def stop_if_final(self, outcome: Outcome[Any], but: Sequence[str] = ()) -> None:
        """Raise an InputError for a failure that every further request would share."""
        if outcome.failure in but:
            return
        variable = self.connection.key_variable
        if outcome.failure == "unauthorised":
            had = "a key that does not count" if self.connection.has_key else "no key"
            raise InputError(
                f"{variable}: got {had} ({outcome.detail}); expected a key of this server in the environment variable "
                f"{variable}; fix: set it, or name the variable that holds the key"
            )
        if outcome.failure == "no-quota":
            raise InputError(
                f"{variable}: got an account without means ({outcome.detail}); expected one that may ask; fix: "
                "look at the provider's billing page, then give the same command again"
            )
        if outcome.failure == "unknown-model":
            raise InputError(
                f"endpoint: got {outcome.detail}; expected a model that is served; fix: correct the model's "
                "name or the address"
            )

    async def _answers_again(self, endpoint: Endpoint) -> bool:
        """Whether an endpoint that was away answers again, with the same model."""
        outcome = await self._list_models(endpoint, tries=1)
        if outcome.failure in PASSING:
            return False
        if self._model is not None:
            model = choose_model(outcome.value, self._model.id, endpoint.address.api)
            if model.key != self._model.key:
                raise InputError(
                    f"{endpoint.address.api}: got {model.name} of {model.kind}; expected {self._model.name} of "
                    f"{self._model.kind}; fix: serve the same model everywhere"
                )
        return self.check is None or await self.check(endpoint)
