"""Faults one at a time, keys, dead endpoints, closing in the middle: over real sockets."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from fault_server import FaultServer, fault_server, planted

from bixse.errors import InputError
from bixse.grading.judge import Answer, Question
from bixse.grading.rubrics import load_rubric
from bixse.grading.server.client import ServerClient
from bixse.grading.server.endpoints import ServerDownError
from bixse.grading.server.server_judge import ServerJudge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bixse.grading.server.event_loop import LoopThread

RUBRIC = load_rubric("trec-dl-0-3")
SHARES = [0.1, 0.2, 0.3, 0.3]
GRADE = float(np.average([0, 1, 2, 3], weights=SHARES))
KEY = "sk-very-secret-0123456789"


@pytest.fixture(scope="module")
def server() -> Iterator[FaultServer]:
    with fault_server() as running:
        yield running


def question(identifier: str, faults: list[str] | None = None, end: str = "") -> Question:
    document = planted(identifier, SHARES, faults, end)
    messages = RUBRIC.orders[0].messages("a query", document)
    return Question(identifier, "d", "a query", document, messages=messages)


def ask_all(judge: ServerJudge, questions: list[Question]) -> dict[str, Answer]:
    found: dict[str, Answer] = {}
    for asked, answer in judge.answers(questions):
        assert asked.query_id not in found
        found[asked.query_id] = answer
    assert set(found) == {asked.query_id for asked in questions}
    return found


def closed_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


# --- faults ---------------------------------------------------------------------------------------------------------

PASSING_FAULTS = ["429", "429-date", "429-bare", "500", "502", "503", "529", "half", "garbage", "reset", "empty",
                  "null-choices", "error-200"]  # fmt: skip


@pytest.mark.parametrize("fault", PASSING_FAULTS)
def test_a_fault_is_outlived(server: FaultServer, fault: str) -> None:
    with ServerJudge([server.scenario()], RUBRIC) as judge:
        answer = ask_all(judge, [question("a", [fault, fault])])["a"]
    assert (answer.status, answer.tries) == ("graded", 3)
    assert answer.grade == pytest.approx(GRADE)


def test_a_stall_ends_with_the_time_out(server: FaultServer) -> None:
    address = server.scenario()
    with ServerJudge([address], RUBRIC, timeout=0.4) as judge:
        answer = ask_all(judge, [question("a", ["stall"])])["a"]
    assert (answer.status, answer.tries) == ("graded", 2)
    assert 0.4 < answer.seconds < 5


def test_tries_are_bounded_and_the_last_failure_is_told(server: FaultServer) -> None:
    address = server.scenario()
    with ServerJudge([address], RUBRIC, tries=3) as judge:
        answer = ask_all(judge, [question("a", ["garbage"] * 9)])["a"]
    assert (answer.status, answer.tries) == ("failed", 3)
    assert "{not json" in answer.detail
    assert server.stats(address)["counts"]["garbage"] == 3


def test_a_wish_to_wait_is_kept(server: FaultServer) -> None:
    address = server.scenario(capacity=1, retry_after=1, delay=0.05)
    with ServerJudge([address], RUBRIC) as judge:
        started = time.monotonic()
        found = ask_all(judge, [question(str(number)) for number in range(4)])
        took = time.monotonic() - started
    assert all(answer.status == "graded" for answer in found.values())
    assert took > 1.0


# --- pace -----------------------------------------------------------------------------------------------------------


def test_requests_at_once_find_what_the_server_copes_with(server: FaultServer) -> None:
    address = server.scenario(capacity=12, retry_after=0.02, delay=0.01)
    with ServerJudge([address], RUBRIC) as judge:
        found = ask_all(judge, [question(str(number)) for number in range(800)])
    stats = server.stats(address)
    assert {answer.status for answer in found.values()} == {"graded"}
    assert stats["most_in_flight"] <= 12
    assert np.mean(stats["recent"][-400:]) > 3  # it goes on asking several at once
    assert stats["counts"]["over capacity"] < 240


def test_a_limit_of_requests_a_second_costs_no_answer(server: FaultServer) -> None:
    """As hosted services have it, without saying how long to wait."""
    address = server.scenario()
    with ServerJudge([address], RUBRIC) as judge:
        server.change(address, each_second=40)
        found = ask_all(judge, [question(str(number)) for number in range(150)])
    assert {answer.status for answer in found.values()} == {"graded"}
    assert server.stats(address)["counts"]["too often"] > 0


def test_requests_at_once_grow_to_the_most_that_is_allowed(server: FaultServer) -> None:
    address = server.scenario(delay=0.1)
    with ServerJudge([address], RUBRIC, concurrency=24) as judge:
        ask_all(judge, [question(str(number)) for number in range(300)])
    assert server.stats(address)["most_in_flight"] == 24


def test_questions_are_taken_only_while_there_is_room(server: FaultServer) -> None:
    taken = []

    def questions() -> Iterator[Question]:
        for number in range(100):
            taken.append(number)
            yield question(str(number))

    with ServerJudge([server.scenario(delay=0.02)], RUBRIC, concurrency=5) as judge:
        for answered, _ in enumerate(judge.answers(questions()), start=1):
            assert len(taken) <= answered + 5
    assert len(taken) == 100


# --- several endpoints ----------------------------------------------------------------------------------------------


def test_a_dead_endpoint_leaves_its_work_to_the_other(server: FaultServer, caplog: pytest.LogCaptureFixture) -> None:
    with ServerJudge([server.scenario(), closed_port()], RUBRIC) as judge:
        found = ask_all(judge, [question(str(number)) for number in range(200)])
    assert {answer.status for answer in found.values()} == {"graded"}
    assert "does not answer" in caplog.text


def test_an_endpoint_that_dies_and_comes_back(server: FaultServer, caplog: pytest.LogCaptureFixture) -> None:
    steady, shaky = server.scenario(delay=0.01), server.scenario(delay=0.01)
    with ServerJudge([steady, shaky], RUBRIC, concurrency=4) as judge:
        found: dict[str, Answer] = {}
        before = 0
        for asked, answer in judge.answers(question(str(number)) for number in range(2000)):
            found[asked.query_id] = answer
            if len(found) == 200:
                server.change(shaky, down=503)
            if len(found) == 400:
                before = server.stats(shaky)["counts"]["chat"]
                server.change(shaky, down="")
    assert len(found) == 2000
    assert {answer.status for answer in found.values()} == {"graded"}
    assert server.stats(shaky)["counts"]["chat"] > before + 100
    assert "answers again" in caplog.text


def test_another_model_does_not_come_back(server: FaultServer, caplog: pytest.LogCaptureFixture) -> None:
    steady, shaky = server.scenario(delay=0.02), server.scenario(delay=0.02)
    with ServerJudge([steady, shaky], RUBRIC, concurrency=4) as judge:
        count = 0
        for _, answer in judge.answers(question(str(number)) for number in range(400)):
            count += 1
            assert answer.status == "graded"
            if count == 40:
                server.change(shaky, down="dead", models=["other"])
            if count == 80:
                server.change(shaky, down="")
    assert count == 400
    assert "is left out" in caplog.text


def test_when_nobody_answers_for_long_it_stops_and_keeps_what_came(server: FaultServer) -> None:
    address = server.scenario()
    with ServerJudge([address], RUBRIC, patience=1.5) as judge:
        found = []
        started = time.monotonic()
        with pytest.raises(ServerDownError, match=r"no answer for \d+ s.*answers so far are kept"):
            for asked, answer in judge.answers(question(str(number)) for number in range(1000)):
                found.append((asked.query_id, answer.status))
                if len(found) == 50:
                    server.change(address, down=503)
    assert len(found) >= 50
    assert {status for _, status in found} == {"graded"}
    assert time.monotonic() - started < 30


# --- keys -----------------------------------------------------------------------------------------------------------


def test_a_wrong_key_stops_at_once_and_names_the_variable(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MY_KEY", KEY)
    with pytest.raises(InputError, match="MY_KEY") as caught:
        ServerJudge([server.scenario(key="another", echo_key=True)], RUBRIC, api_key_variable="MY_KEY")
    assert KEY not in str(caught.value) + caplog.text
    assert "[key]" in str(caught.value)
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(InputError, match="MY_KEY: got no key"):
        ServerJudge([server.scenario(key="another")], RUBRIC, api_key_variable="MY_KEY")


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_ends_in_mid_run_stops_it(server: FaultServer, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    address = server.scenario(key=KEY, delay=0.005, key_status=status)
    found = 0
    with ServerJudge([address], RUBRIC) as judge, pytest.raises(InputError, match="OPENAI_API_KEY"):
        for _ in judge.answers(question(str(number)) for number in range(5000)):
            found += 1
            if found == 100:
                server.change(address, key="changed")
    assert 100 <= found < 5000
    assert server.stats(address)["counts"][f"refused {status}"] <= 64 + 16  # in flight, and a few more until it is sure


def test_the_key_is_nowhere(
    server: FaultServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    address = server.scenario(key=KEY, prefix=f"Bearer {KEY} says\n")
    seen = []
    with ServerJudge([address, closed_port()], RUBRIC, tries=2) as judge:
        answers = ask_all(judge, [question("a"), question("b", ["garbage", "500"]), question("c", end="odd-400")])
        seen += [answer.to_json() for answer in answers.values()]
        seen += [repr(judge), str(judge), repr(dict(judge.identity)), repr(judge._client), repr(judge.warnings)]
        seen += [repr(vars(judge)), repr(vars(judge._client)), repr(judge._client.pool)]
    assert [answers[name].status for name in "abc"] == ["graded", "failed", "failed"]
    assert "[key]" in answers["a"].text
    assert KEY not in "".join(seen) + caplog.text


@pytest.mark.parametrize("key", [KEY, "sk/with/slashes+and=more"])
def test_the_key_is_not_in_what_the_probe_says(server: FaultServer, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(InputError, match=r"\[key\] says") as caught:
        ServerJudge([server.scenario(key=key, prefix=f"{key} says nothing ", suffix="and more")], RUBRIC)
    assert key not in str(caught.value)


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "naïve"])
def test_what_is_no_key(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(InputError, match="MY_KEY") as caught:
        ServerClient(["http://localhost:1"], api_key_variable="MY_KEY")
    assert key not in str(caught.value)


# --- closing --------------------------------------------------------------------------------------------------------


def tasks_of(loop: LoopThread) -> list[str]:
    async def others() -> list[str]:
        return [repr(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    return loop.run(others())


def test_closing_the_generator_cancels_what_is_under_way(server: FaultServer) -> None:
    address = server.scenario(delay=0.05)
    with ServerJudge([address], RUBRIC) as judge:
        answers = judge.answers(question(str(number)) for number in range(1000))
        next(answers)
        answers.close()  # type: ignore[attr-defined]
        assert tasks_of(judge._client.loop) == []
        asked = server.stats(address)["counts"]["chat"]
        time.sleep(0.3)
        assert server.stats(address)["counts"]["chat"] == asked < 100
        assert ask_all(judge, [question("after")])["after"].status == "graded"  # the judge can be used again


def test_an_error_of_the_giver_of_questions_ends_it(server: FaultServer) -> None:
    def questions() -> Iterator[Question]:
        yield question("a")
        raise RuntimeError("no more")

    with ServerJudge([server.scenario()], RUBRIC) as judge:
        with pytest.raises(RuntimeError, match="no more"):
            list(judge.answers(questions()))
        assert tasks_of(judge._client.loop) == []


def test_closing_the_client_in_mid_run_ends_it(server: FaultServer) -> None:
    client = ServerClient([server.scenario(delay=20.0)])
    threading.Timer(0.3, client.close).start()
    with pytest.raises(RuntimeError, match="closed while it was in use"):
        list(client.complete([(1, {"messages": [{"role": "user", "content": "hello"}]})]))


def test_ctrl_c_leaves_nothing_behind(server: FaultServer) -> None:
    address = server.scenario(delay=30.0)
    before = threading.active_count()
    client = ServerClient([address])
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    bodies = [(number, {"messages": [{"role": "user", "content": "hello"}]}) for number in range(20)]
    with pytest.raises(KeyboardInterrupt):
        list(client.complete(bodies))
    assert tasks_of(client.loop) == []
    client.close()
    client.close()  # twice does no harm
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_inside_a_running_loop(server: FaultServer) -> None:
    """As in a notebook."""

    async def cell() -> str:
        with ServerJudge([server.scenario()], RUBRIC) as judge:
            return ask_all(judge, [question("a")])["a"].status

    assert asyncio.run(cell()) == "graded"


def test_a_question_without_messages_is_refused(server: FaultServer) -> None:
    with ServerJudge([server.scenario()], RUBRIC) as judge, pytest.raises(InputError, match="got no messages"):
        list(judge.answers([Question("q", "d", "query", "document")]))


# --- text generation ------------------------------------------------------------------------------------------------


def test_plain_texts(server: FaultServer) -> None:
    address = server.scenario(dialect="ignore")

    def body(number: int, **more: Any) -> tuple[int, dict[str, Any]]:
        document = planted(str(number), SHARES, ["500"] if number % 3 == 0 else [], "none")
        return number, {
            "messages": [{"role": "user", "content": document}],
            "max_tokens": 3 if number == 5 else 50,
        } | more

    with ServerClient([address]) as client:
        found = {completion.id: completion for completion in client.complete(map(body, range(30)))}
        assert set(found) == set(range(30))
        assert {completion.text for key, completion in found.items() if key != 5} == {
            "I have read the passage with care."
        }
        assert (found[5].text, found[5].finish_reason) == ("I have read", "length")
        assert found[0].tries == 2
        assert found[1].usage.prompt == 50
        several = list(client.complete([body(1, n=3)]))
        assert len(several[0].texts) == 3
        [refused] = client.complete(
            [(0, {"messages": [{"role": "user", "content": planted("z", SHARES, [], "too-long")}]})]
        )
        assert (refused.text, refused.failure) == (None, "too-long")
        with pytest.raises(InputError, match="the model it serves"):
            list(client.complete([body(1)], model="another"))


def test_without_aiohttp_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(InputError, match=r"pip install 'bixse\[grade\]'"):
        ServerClient(["http://localhost:1"])
