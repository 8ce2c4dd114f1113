"""Errors one at a time, keys, dead endpoints, closing in the middle: over real sockets."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc

import pytest

from bixse.errors import InputError
from bixse.judging.grade_settings import JudgeOptions, ServerSettings
from bixse.judging.judge import Question
from bixse.judging.judges import client as client_module
from bixse.judging.judges.client import ChatClient
from bixse.judging.judges.endpoints import STAND_IN, ServerDownError
from bixse.judging.judges.server_judge import ServerJudge, ServerTextModel
from helpers.chat_server import planted
from helpers.server_questions import GRADE, RUBRIC, SHARES, ask_all, planted_question

HELLO = {"model": "judge-model", "messages": [{"role": "user", "content": "hello"}]}
KEY = "sk-very-secret-0123456789"


# --- errors ---------------------------------------------------------------------------------------------------------

TRANSIENT_ERRORS = ["429", "429-date", "429-bare", "500", "502", "503", "529", "half", "garbage", "reset", "empty",
                  "null-choices", "error-200"]  # fmt: skip


@pytest.mark.parametrize("error", TRANSIENT_ERRORS)
def test_after_a_transient_error_it_tries_again(server, error):
    with ServerJudge([server.scenario()], RUBRIC) as judge:
        answer = ask_all(judge, [planted_question("a", [error, error])])["a"]
    assert (answer.status, answer.tries) == ("graded", 3)
    assert answer.grade == pytest.approx(GRADE)


def test_a_stall_ends_with_the_time_out(server):
    address = server.scenario()
    with ServerJudge([address], RUBRIC, JudgeOptions(timeout=0.4)) as judge:
        answer = ask_all(judge, [planted_question("a", ["stall"])])["a"]
    assert (answer.status, answer.tries) == ("graded", 2)
    assert 0.4 < answer.seconds < 5


def test_tries_are_bounded_and_the_last_failure_is_told(server, monkeypatch):
    monkeypatch.setattr(client_module, "FIRST_WAIT", 0.01)
    address = server.scenario()
    with ServerJudge([address], RUBRIC) as judge:
        answer = ask_all(judge, [planted_question("a", ["garbage"] * 9)])["a"]
    assert (answer.status, answer.tries) == ("failed", 6)
    assert "{not json" in answer.detail
    assert server.stats(address)["counts"]["garbage"] == 6


def test_it_waits_as_long_as_a_server_asks(server):
    address = server.scenario(capacity=1, retry_after=1, delay=0.05)
    with ServerJudge([address], RUBRIC) as judge:
        started = time.monotonic()
        found = ask_all(judge, [planted_question(str(number)) for number in range(4)])
        took = time.monotonic() - started
    assert all(answer.status == "graded" for answer in found.values())
    assert took > 1.0


def test_a_pause_longer_than_a_downtime_is_waited_for(server, monkeypatch):
    """A server that says when to come back is not down."""
    address = server.scenario()
    monkeypatch.setattr(client_module, "MAX_DOWNTIME", 0.3)
    with ServerJudge([address], RUBRIC) as judge:
        started = time.monotonic()
        found = ask_all(judge, [planted_question("a", ["429-after-1", "429-after-1"]), planted_question("b")])
    assert [found[name].status for name in "ab"] == ["graded", "graded"]
    assert time.monotonic() - started > 2.0


def test_a_pause_beyond_the_limit_costs_pairs_and_not_the_run(server, monkeypatch):
    monkeypatch.setattr(client_module, "LONGEST_BUSY", 1.0)
    monkeypatch.setattr(client_module, "LONGEST_WAIT", 0.5)
    address = server.scenario()
    with ServerJudge([address], RUBRIC, JudgeOptions(concurrency=1)) as judge:
        before = server.stats(address)["counts"]["chat"]
        questions = [planted_question("a", ["429-after-2.5"]), planted_question("b")]
        found = ask_all(judge, questions)
        assert [found[name].status for name in "ab"] == ["failed", "failed"]
        assert server.stats(address)["counts"]["chat"] == before + 1, "nothing is asked during the pause"
        time.sleep(2.5)
        assert ask_all(judge, [planted_question("b")])["b"].status == "graded"


def test_a_server_that_is_always_busy_costs_a_pair_and_not_the_run(server, monkeypatch):
    monkeypatch.setattr(client_module, "LONGEST_BUSY", 1.0)
    address = server.scenario()
    monkeypatch.setattr(client_module, "MAX_DOWNTIME", 0.2)
    with ServerJudge([address], RUBRIC) as judge:
        found = ask_all(judge, [planted_question("a", ["429-bare"] * 99), planted_question("b")])
    assert [found[name].status for name in "ab"] == ["failed", "graded"]


@pytest.mark.parametrize("end", ["huge", "huge-error"])
def test_what_is_read_of_a_reply_is_bounded(server, end):
    """The body is a hundred kilobytes of gzip that hold 100 MiB, or the message of an error as long."""
    address = server.scenario(huge=100 * 2**20)
    with ServerJudge([address], RUBRIC) as judge:
        tracemalloc.start()
        found = ask_all(judge, [planted_question("a", end=end), planted_question("b")])
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert (found["a"].status, found["a"].tries, found["b"].status) == ("failed", 1, "graded")
    assert most < 2 * client_module.MAX_REPLY
    assert found["a"].detail


# --- pace -----------------------------------------------------------------------------------------------------------


def test_a_limit_of_requests_a_second_costs_no_answer(server):
    """As hosted services have it, without saying how long to wait."""
    address = server.scenario()
    with ServerJudge([address], RUBRIC) as judge:
        server.change(address, each_second=40)
        found = ask_all(judge, [planted_question(str(number)) for number in range(150)])
    assert {answer.status for answer in found.values()} == {"graded"}
    assert server.stats(address)["counts"]["too often"] > 0


def test_there_are_never_more_requests_at_once_than_allowed(server):
    address = server.scenario(delay=0.05)
    with ServerJudge([address], RUBRIC, JudgeOptions(concurrency=24)) as judge:
        ask_all(judge, [planted_question(str(number)) for number in range(200)])
    assert server.stats(address)["most_in_flight"] == 24


def test_questions_are_taken_only_while_there_is_room(server):
    taken = []

    def questions():
        for number in range(100):
            taken.append(number)
            yield planted_question(str(number))

    with ServerJudge([server.scenario(delay=0.02)], RUBRIC, JudgeOptions(concurrency=5)) as judge:
        for answered, _ in enumerate(judge.answers(questions()), start=1):
            assert len(taken) <= answered + 5
    assert len(taken) == 100


# --- a server that goes ---------------------------------------------------------------------------------------------


def test_several_addresses_are_refused(server):
    with pytest.raises(InputError, match=r"address: got 2; expected one; fix: put several servers"):
        ServerJudge([server.scenario(), server.scenario()], RUBRIC)


def test_a_server_that_goes_and_comes_back(server, caplog):
    address = server.scenario(delay=0.01)
    with ServerJudge([address], RUBRIC, JudgeOptions(concurrency=4)) as judge:
        found = {}
        for asked, answer in judge.answers(planted_question(str(number)) for number in range(300)):
            found[asked.query_id] = answer
            if len(found) == 100:
                server.change(address, down=503)
                threading.Timer(1.5, server.change, (address,), {"down": ""}).start()
    assert len(found) == 300
    assert {answer.status for answer in found.values()} == {"graded"}
    assert "does not answer" in caplog.text and "answers again" in caplog.text


def test_when_nobody_answers_for_long_it_stops_and_keeps_what_came(server, monkeypatch):
    address = server.scenario()
    monkeypatch.setattr(client_module, "MAX_DOWNTIME", 1.5)
    with ServerJudge([address], RUBRIC) as judge:
        found = []
        started = time.monotonic()
        with pytest.raises(ServerDownError, match=r"no answer for \d+ s.*answers so far are kept"):
            for asked, answer in judge.answers(planted_question(str(number)) for number in range(1000)):
                found.append((asked.query_id, answer.status))
                if len(found) == 50:
                    server.change(address, down=503)
    assert len(found) >= 50
    assert {status for _, status in found} == {"graded"}
    assert time.monotonic() - started < 30


# --- keys -----------------------------------------------------------------------------------------------------------


def test_a_wrong_key_stops_at_once_and_names_the_variable(server, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MY_KEY", KEY)
    with pytest.raises(InputError, match="MY_KEY") as caught:
        ServerJudge([server.scenario(key="another", echo_key=True)], RUBRIC, JudgeOptions(api_key_variable="MY_KEY"))
    assert KEY not in str(caught.value) + caplog.text
    assert f"HTTP 401: {STAND_IN}" in str(caught.value)
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(InputError, match="MY_KEY: got no key"):
        ServerJudge([server.scenario(key="another")], RUBRIC, JudgeOptions(api_key_variable="MY_KEY"))


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_ends_in_mid_run_stops_it(server, monkeypatch, status):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    address = server.scenario(key=KEY, delay=0.005, key_status=status)
    found = 0
    with ServerJudge([address], RUBRIC) as judge, pytest.raises(InputError, match="OPENAI_API_KEY"):
        for _ in judge.answers(planted_question(str(number)) for number in range(5000)):
            found += 1
            if found == 100:
                server.change(address, key="changed")
    assert 100 <= found < 5000
    assert server.stats(address)["counts"][f"refused {status}"] <= 64 + 16  # in flight, and a few more until it is sure


def test_the_key_is_nowhere(server, monkeypatch, caplog):
    monkeypatch.setattr(client_module, "FIRST_WAIT", 0.01)
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    address = server.scenario(key=KEY)
    seen = []
    with ServerJudge([address], RUBRIC, JudgeOptions(max_tokens=32)) as judge:
        server.change(address, prefix=f"Bearer {KEY} says\n")
        plans = {"a": ([], ""), "b": (["garbage"] * 6, ""), "c": ([], "odd-400")}
        answers = ask_all(judge, [planted_question(name, *plan) for name, plan in plans.items()])
        seen += [answer.to_json() for answer in answers.values()]
        seen += [repr(judge), str(judge), repr(dict(judge.identity)), repr(judge._client), repr(judge.warnings)]
        seen += [repr(vars(judge)), repr(vars(judge._client))]
    assert [answers[name].status for name in "abc"] == ["refused", "failed", "failed"]
    assert (answers["a"].text, answers["a"].detail) == ("", STAND_IN)
    assert KEY not in "".join(seen) + caplog.text


def test_the_key_is_not_in_what_the_probe_says(server, monkeypatch):
    key = "sk/with/slashes+and=more"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(InputError) as caught:
        ServerJudge([server.scenario(key=key, prefix=f"{key} says nothing ", suffix="and more")], RUBRIC)
    assert STAND_IN in str(caught.value)
    assert key not in str(caught.value)


@pytest.mark.parametrize("key", ["two words", "naïve"])
def test_what_is_no_key(monkeypatch, key):
    monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(InputError, match="MY_KEY") as caught:
        ChatClient("http://localhost:1", ServerSettings(api_key_variable="MY_KEY"))
    assert key not in str(caught.value)


# --- closing --------------------------------------------------------------------------------------------------------


def tasks_of(client):
    async def others():
        return [repr(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    return client.run(others())


def test_closing_the_generator_cancels_what_is_under_way(server):
    address = server.scenario(delay=0.05)
    with ServerJudge([address], RUBRIC) as judge:
        answers = judge.answers(planted_question(str(number)) for number in range(1000))
        next(answers)
        answers.close()
        assert tasks_of(judge._client) == []
        asked = server.stats(address)["counts"]["chat"]
        time.sleep(0.3)
        assert server.stats(address)["counts"]["chat"] == asked < 100
        assert ask_all(judge, [planted_question("after")])["after"].status == "graded"  # the judge can be used again


def test_an_error_of_the_giver_of_questions_ends_it(server):
    def questions():
        yield planted_question("a")
        raise RuntimeError("no more")

    with ServerJudge([server.scenario()], RUBRIC) as judge:
        with pytest.raises(RuntimeError, match="no more"):
            list(judge.answers(questions()))
        assert tasks_of(judge._client) == []


def test_closing_the_client_in_mid_run_ends_it(server):
    client = ChatClient(server.scenario(delay=20.0))
    threading.Timer(0.3, client.close).start()
    with pytest.raises(RuntimeError, match="closed while it was in use"):
        list(client.stream([HELLO], client.chat))


def test_ctrl_c_leaves_nothing_behind(server):
    address = server.scenario(delay=30.0)
    before = set(threading.enumerate())
    client = ChatClient(address)
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        list(client.stream([HELLO] * 20, client.chat))
    assert tasks_of(client) == []
    client.close()
    client.close()  # twice does no harm
    deadline = time.monotonic() + 5
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert set(threading.enumerate()) <= before


def test_inside_a_running_loop(server):
    """As in a notebook."""

    async def cell():
        with ServerJudge([server.scenario()], RUBRIC) as judge:
            return ask_all(judge, [planted_question("a")])["a"].status

    assert asyncio.run(cell()) == "graded"


def test_a_question_without_messages_is_refused(server):
    with ServerJudge([server.scenario()], RUBRIC) as judge, pytest.raises(InputError, match="got no messages"):
        list(judge.answers([Question("q", "d", "query", "document")]))


# --- text generation ------------------------------------------------------------------------------------------------


def test_texts_are_completed(server):
    planned = [(["500"], "none"), ([], "none"), ([], "too-long")]
    texts = [planted(str(number), SHARES, *plan) for number, plan in enumerate(planned)]
    questions = [
        Question("", str(number), "", "", messages=({"role": "user", "content": text},))
        for number, text in enumerate(texts)
    ]
    with ServerTextModel([server.scenario(dialect="ignore")], max_tokens=50) as model:
        found = {asked.document_id: completion for asked, completion in model.complete(questions)}
    assert [found[name].status for name in "012"] == ["written", "written", "too-long"]
    assert found["0"].text == found["1"].text == "I have read the passage with care."
    assert (found["0"].tries, found["1"].usage.prompt) == (2, 50)


def test_a_text_that_is_cut_off_is_truncated(server):
    asked = Question("", "d", "", "", messages=({"role": "user", "content": planted("a", SHARES, [], "none")},))
    with ServerTextModel([server.scenario()], max_tokens=3) as model:
        [(_, completion)] = model.complete([asked])
    assert (completion.text, completion.status) == ("I have read", "truncated")


def test_without_aiohttp_it_says_what_to_install():
    program = (
        "import sys; sys.modules['aiohttp'] = None\n"
        "from bixse.errors import InputError\n"
        "try:\n    import bixse.judging.judges.client\n"
        "except InputError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'bixse[grade]'" in done.stdout
