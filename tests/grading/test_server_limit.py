"""The pace: additive increase, multiplicative decrease; pauses; waits; addresses and who takes the next request."""

from __future__ import annotations

import asyncio
import statistics
from datetime import UTC, datetime

import pytest

from bixse.errors import InputError
from bixse.grading.server.endpoints import Address, Endpoint, EndpointPool, ServerDownError
from bixse.grading.server.rate_limit import FIRST_WAIT, LONGEST_WAIT, AdaptiveLimit, backoff, retry_after
from bixse.grading.server.served_models import choose_model, models_in


def one_round(limit: AdaptiveLimit, now: float, coped: bool) -> None:
    """As many requests as allowed, all under way at once."""
    count = limit.allowed
    for _ in range(count):
        limit.begin()
    for _ in range(count):
        limit.end(sent=now, now=now + 0.5, coped=coped)


def test_it_doubles_a_round_until_overload_then_grows_by_one() -> None:
    limit = AdaptiveLimit(most=1000)
    one_round(limit, 0.0, True)
    assert limit.allowed == 11  # the round's last answers find less than half in use
    for now in range(1, 3000):
        limit.in_use = limit.allowed - 1
        limit.begin()
        limit.end(sent=now, now=now, coped=True)
    assert limit.allowed == 1000
    limit.in_use = 0
    one_round(limit, 5000.0, False)
    assert limit.allowed == 700  # one burst counts once
    for step in range(701):
        limit.in_use = limit.allowed - 1
        limit.begin()
        limit.end(sent=6000 + step, now=6000 + step, coped=True)
    assert limit.allowed in (700, 701)


def test_it_never_goes_below_one_or_above_the_most() -> None:
    limit = AdaptiveLimit(most=3)
    for now in range(50):
        limit.begin()
        limit.end(sent=now, now=now, coped=False)
    assert (limit.allowed, limit.in_use) == (1, 0)
    for now in range(50, 500):
        limit.in_use = limit.allowed - 1
        limit.begin()
        limit.end(sent=now, now=now, coped=True)
    assert limit.allowed == 3


def test_answers_that_say_nothing_about_load_change_nothing() -> None:
    limit = AdaptiveLimit(most=64)
    for now in range(100):
        limit.begin()
        limit.end(sent=now, now=now, coped=None)
    assert limit.allowed == 8


def test_it_does_not_grow_while_it_is_not_used() -> None:
    limit = AdaptiveLimit(most=64)
    for now in range(100):
        limit.begin()
        limit.begin()
        limit.end(sent=now, now=now, coped=True)
        limit.end(sent=now, now=now, coped=True)
    assert limit.allowed == 8


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"Retry-After": "-3"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "inf"}, None),
        ({"retry-after-ms": "250", "Retry-After": "1"}, 0.25),
        ({"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, 59.0),
        ({"Retry-After": "Fri, 31 Dec 1999 23:00:00 GMT"}, 0.0),
        ({"Retry-After": "Fri, 31 Dec 1999 23:59:59 -0000"}, 59.0),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    now = datetime(1999, 12, 31, 23, 59, 0, tzinfo=UTC)
    assert retry_after(headers, now) == seconds


def test_waits_have_full_jitter_and_grow_to_a_bound() -> None:
    for failures, bound in ((1, FIRST_WAIT), (3, FIRST_WAIT * 4), (50, LONGEST_WAIT)):
        waits = [backoff(failures) for _ in range(4000)]
        assert 0 <= min(waits) < 0.05 * bound
        assert 0.95 * bound < max(waits) <= bound
        assert statistics.mean(waits) == pytest.approx(bound / 2, rel=0.1)


@pytest.mark.parametrize(
    ("text", "api", "root"),
    [
        ("http://localhost:8000", "http://localhost:8000/v1", "http://localhost:8000"),
        ("http://localhost:8000/", "http://localhost:8000/v1", "http://localhost:8000"),
        ("http://localhost:8000/v1/", "http://localhost:8000/v1", "http://localhost:8000"),
        ("http://h/v1/chat/completions", "http://h/v1", "http://h"),
        ("https://api.groq.com/openai/v1", "https://api.groq.com/openai/v1", "https://api.groq.com/openai"),
        ("https://g.com/v1beta/openai/", "https://g.com/v1beta/openai", "https://g.com"),
        ("http://[::1]:8080", "http://[::1]:8080/v1", "http://[::1]:8080"),
        ("http://h/proxy", "http://h/proxy/v1", "http://h/proxy"),
    ],
)
def test_addresses_with_and_without_v1(text: str, api: str, root: str) -> None:
    assert Address.parse(text) == Address(api, root)


@pytest.mark.parametrize("text", ["", "localhost:8000", "ftp://h", "http://", "http://h:99999999", "http://h:x"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(InputError, match="endpoint: got"):
        Address.parse(text)


@pytest.mark.parametrize(
    "text", ["http://me:hunter2@h", "http://hunter2@h/v1", "http://h/v1?key=hunter2", "me:hunter2@h"]
)
def test_addresses_that_hold_secrets_are_refused_without_repeating_them(text: str) -> None:
    with pytest.raises(InputError) as caught:
        Address.parse(text)
    assert "hunter2" not in str(caught.value)


async def _never(endpoint: Endpoint) -> bool:
    return False


def pool_of(*addresses: str, patience: float = 60.0) -> EndpointPool:
    return EndpointPool.of(addresses, 4, patience, _never)


@pytest.mark.parametrize("addresses", [[], ["http://a", "http://a/v1"]])
def test_no_endpoint_or_one_twice(addresses: list[str]) -> None:
    with pytest.raises(InputError, match="endpoints"):
        pool_of(*addresses)


def test_the_freer_endpoint_takes_the_next_request_and_others_wait_their_turn() -> None:
    async def run() -> None:
        pool = pool_of("http://a", "http://b")
        taken = [await pool.slot() for _ in range(8)]
        assert [endpoint.limit.in_use for endpoint in pool.endpoints] == [4, 4]
        order: list[int] = []

        async def wait(number: int) -> None:
            endpoint = await pool.slot()
            order.append(number)
            pool.release(endpoint, 0.0, None)

        waiting = [asyncio.create_task(wait(number)) for number in range(5)]
        await asyncio.sleep(0)
        assert order == []
        waiting[1].cancel()
        for endpoint in taken:
            pool.release(endpoint, 0.0, None)
        await asyncio.gather(*waiting, return_exceptions=True)
        assert order == [0, 2, 3, 4]
        assert [endpoint.limit.in_use for endpoint in pool.endpoints] == [0, 0]

    asyncio.run(run())


def test_a_place_given_to_a_cancelled_request_goes_to_the_next() -> None:
    async def run() -> None:
        pool = pool_of("http://a")
        taken = [await pool.slot() for _ in range(4)]
        first, second = asyncio.create_task(pool.slot()), asyncio.create_task(pool.slot())
        await asyncio.sleep(0)
        pool.release(taken[0], 0.0, None)  # the place is promised to the first
        first.cancel()
        await asyncio.wait_for(second, 1.0)
        assert pool.endpoints[0].limit.in_use == 4

    asyncio.run(run())


def test_a_wish_to_wait_longer_than_the_patience_stops_at_once() -> None:
    async def run() -> None:
        pool = pool_of("http://a", patience=5.0)
        endpoint = await pool.slot()
        waiting = asyncio.create_task(pool.slot())
        pool.release(endpoint, 1e12, "overloaded", pause=3600.0, detail="come back tomorrow")
        with pytest.raises(ServerDownError, match=r"3600 s.*come back tomorrow"):
            await waiting

    asyncio.run(run())


def test_one_pausing_endpoint_leaves_the_work_to_the_other() -> None:
    async def run() -> None:
        pool = pool_of("http://a", "http://b", patience=5.0)
        paused = await pool.slot()
        pool.release(paused, 1e12, "overloaded", pause=3600.0)
        for _ in range(4):
            assert (await asyncio.wait_for(pool.slot(), 1.0)) is not paused

    asyncio.run(run())


def test_models() -> None:
    listed = models_in({"data": [{"id": "/m/a.gguf", "owned_by": "llamacpp", "aliases": ["a"]}]})
    assert choose_model(listed, None, "x").name == "a.gguf"
    assert choose_model(listed, "a", "x").id == "/m/a.gguf"
    assert choose_model(listed, "a.gguf", "x").kind == "llama.cpp"
    with pytest.raises(InputError, match=r"did you mean 'a\.gguf'"):
        choose_model(listed, "b.gguf", "x")
    two = models_in({"data": [{"id": "a"}, {"id": "b"}]})
    with pytest.raises(InputError, match=r"2 models \(a, b\).*--model"):
        choose_model(two, None, "x")
    assert choose_model(two, "hidden", "x").id == "hidden"
    with pytest.raises(InputError, match="no list of models"):
        choose_model(None, None, "x")
    assert choose_model(None, "m", "x").id == "m"
    for content in ({}, {"data": None}, 3, "x"):
        with pytest.raises(ValueError):
            models_in(content)
