import asyncio
import base64
import json
import logging
import os
import runpy
import signal
import sys
import threading
import time
import tracemalloc
from email.utils import formatdate
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bixse.errors import ConfigError, InputError
from bixse.judging.grade_settings import JudgeOptions, ServerSettings
from bixse.judging.judge import Question
from bixse.judging.judges import client as client_module
from bixse.judging.judges.client import ChatClient
from bixse.judging.judges.endpoints import (
    RUN,
    STAND_IN,
    Secret,
    ServerDownError,
    choose_model,
    error_message,
    models_in,
    parse_address,
    proxy_of,
    refusal,
)
from bixse.judging.judges.server_judge import ServerJudge, ServerTextModel
from bixse.judging.open_judge import JudgeConfig
from helpers.server_questions import RUBRIC, ask_all, ask_one, planted_question

HELLO = {"model": "judge-model", "messages": [{"role": "user", "content": "hello"}]}
KEY = "sk-very-secret-0123456789"


def statuses_of_many(judge, count, after, happens):
    """Yield the status of each answer; something happens after a number of answers."""
    for number, (_, answer) in enumerate(judge.answers(planted_question(str(number)) for number in range(count))):
        if number == after:
            happens()
        yield answer.status


def test_a_stall_ends_with_the_time_out(server):
    address = server.scenario()
    with ServerJudge(address, RUBRIC, JudgeOptions(timeout=0.4)) as judge:
        answer = ask_one(judge, errors=["stall"])
    assert (answer.status, answer.tries) == ("graded", 2)
    assert 0.4 < answer.seconds < 5


def test_tries_are_bounded_and_the_last_failure_is_told(server, monkeypatch):
    monkeypatch.setattr(client_module, "FIRST_WAIT", 0.01)
    address = server.scenario()
    with ServerJudge(address, RUBRIC) as judge:
        answer = ask_one(judge, errors=["garbage"] * 9)
    assert (answer.status, answer.tries) == ("failed", 6)
    assert "{not json" in answer.detail
    assert server.stats(address)["counts"]["garbage"] == 6


def test_a_pause_longer_than_a_downtime_is_waited_for(server, monkeypatch):
    address = server.scenario()
    monkeypatch.setattr(client_module, "MAX_DOWNTIME", 0.3)
    with ServerJudge(address, RUBRIC) as judge:
        started = time.monotonic()
        found = ask_all(judge, [planted_question("a", ["429-after-1", "429-after-1"]), planted_question("b")])
    assert [found[name].status for name in "ab"] == ["graded", "graded"]
    assert time.monotonic() - started > 2.0


def test_a_pause_beyond_the_limit_costs_pairs_and_not_the_run(server, monkeypatch):
    monkeypatch.setattr(client_module, "LONGEST_BUSY", 1.0)
    monkeypatch.setattr(client_module, "LONGEST_WAIT", 0.5)
    address = server.scenario()
    with ServerJudge(address, RUBRIC, JudgeOptions(concurrency=1)) as judge:
        before = server.stats(address)["counts"]["chat"]
        questions = [planted_question("a", ["429-after-2.5"]), planted_question("b")]
        found = ask_all(judge, questions)
        assert [found[name].status for name in "ab"] == ["failed", "failed"]
        assert server.stats(address)["counts"]["chat"] == before + 1, "nothing is asked during the pause"
        time.sleep(2.5)
        assert ask_one(judge).status == "graded"


def test_a_server_that_is_always_busy_costs_a_pair_and_not_the_run(server, monkeypatch):
    monkeypatch.setattr(client_module, "LONGEST_BUSY", 1.0)
    address = server.scenario()
    monkeypatch.setattr(client_module, "MAX_DOWNTIME", 0.2)
    with ServerJudge(address, RUBRIC) as judge:
        found = ask_all(judge, [planted_question("a", ["429"] * 99), planted_question("b")])
    assert [found[name].status for name in "ab"] == ["failed", "graded"]


@pytest.mark.parametrize(("end", "fact"), [("huge", "MiB"), ("huge-error", "HTTP 400")])
def test_a_reply_is_read_up_to_a_limit(server, end, fact):
    with ServerJudge(server.scenario(huge=80 * 2**20), RUBRIC) as judge:
        tracemalloc.start()
        answer = ask_one(judge, end=end)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert ask_one(judge).status == "graded"
    assert (answer.status, answer.tries) == ("failed", 1)
    assert most < 2 * client_module.MAX_REPLY
    assert fact in answer.detail


def test_requests_and_questions_taken_ahead_stay_within_the_concurrency(server):
    drawn, address = [], server.scenario(delay=0.05)

    def questions():
        for number in range(200):
            drawn.append(number)
            yield planted_question(str(number))

    with ServerJudge(address, RUBRIC, JudgeOptions(concurrency=24)) as judge:
        for answered, _ in enumerate(judge.answers(questions()), start=1):
            assert len(drawn) <= answered + 24
    assert len(drawn) == 200
    assert server.stats(address)["most_in_flight"] == 24


def test_a_server_that_goes_and_comes_back(server, caplog):
    address = server.scenario(delay=0.01)

    def goes():
        server.change(address, down=True)
        threading.Timer(1.5, server.change, (address,), {"down": False}).start()

    with ServerJudge(address, RUBRIC, JudgeOptions(concurrency=4)) as judge:
        assert list(statuses_of_many(judge, 300, 100, goes)) == ["graded"] * 300
    assert "does not answer" in caplog.text and "answers again" in caplog.text


def test_when_nobody_answers_for_long_it_stops_and_keeps_what_came(server, monkeypatch):
    address, statuses = server.scenario(), []
    monkeypatch.setattr(client_module, "MAX_DOWNTIME", 1.5)
    with ServerJudge(address, RUBRIC) as judge, pytest.raises(ServerDownError, match=r"no answer for \d+ s"):
        statuses.extend(statuses_of_many(judge, 1000, 50, lambda: server.change(address, down=True)))
    assert len(statuses) >= 50 and set(statuses) == {"graded"}


def test_a_wrong_key_stops_at_once_and_names_the_variable(server, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MY_KEY", KEY)
    with pytest.raises(InputError, match="MY_KEY") as caught:
        ServerJudge(server.scenario(key="another"), RUBRIC, JudgeOptions(api_key_variable="MY_KEY"))
    assert KEY not in str(caught.value) + caplog.text
    assert f"HTTP 401: {STAND_IN}" in str(caught.value)
    with pytest.raises(InputError) as caught:  # a model that repeats the key in its answers
        judge = server.scenario(key=KEY, prefix=f"{KEY} says nothing ", suffix="and more")
        ServerJudge(judge, RUBRIC, JudgeOptions(api_key_variable="MY_KEY"))
    assert KEY not in str(caught.value) and STAND_IN in str(caught.value)
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(InputError, match="MY_KEY: got no key"):
        ServerJudge(server.scenario(key="another"), RUBRIC, JudgeOptions(api_key_variable="MY_KEY"))


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_ends_in_mid_run_stops_it(server, monkeypatch, status):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    address, statuses = server.scenario(key=KEY, delay=0.005, key_status=status), []
    with ServerJudge(address, RUBRIC) as judge, pytest.raises(InputError, match="OPENAI_API_KEY"):
        assert KEY not in repr(judge) + repr(vars(judge)) + repr(vars(judge.client)) + repr(dict(judge.identity))
        statuses.extend(statuses_of_many(judge, 5000, 100, lambda: server.change(address, key="changed")))
    assert 100 <= len(statuses) < 5000
    assert server.stats(address)["counts"][f"refused {status}"] <= 64 + 16  # in flight, and a few more until it is sure


@pytest.mark.parametrize("key", ["two words", "naïve"])
def test_an_invalid_key_is_refused_without_repeating_it(monkeypatch, key):
    monkeypatch.setenv("MY_KEY", key)
    with pytest.raises(InputError, match="MY_KEY") as caught:
        ChatClient("http://localhost:1", ServerSettings(api_key_variable="MY_KEY"))
    assert key not in str(caught.value)


def tasks_of(client):
    async def others():
        return [repr(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    return client.run(others())


def test_closing_the_generator_cancels_pending_requests(server):
    address = server.scenario(delay=0.05)
    with ServerJudge(address, RUBRIC) as judge:
        answers = judge.answers(planted_question(str(number)) for number in range(1000))
        next(answers)
        answers.close()
        assert tasks_of(judge.client) == []
        asked = server.stats(address)["counts"]["chat"]
        time.sleep(0.3)
        assert server.stats(address)["counts"]["chat"] == asked < 100
        assert ask_one(judge).status == "graded"  # the judge can be used again


def test_an_error_of_the_giver_of_questions_ends_it(server):
    def questions():
        yield planted_question("a")
        raise RuntimeError("no more")

    with ServerJudge(server.scenario(), RUBRIC) as judge:
        with pytest.raises(RuntimeError, match="no more"):
            list(judge.answers(questions()))
        assert tasks_of(judge.client) == []


def test_closing_the_client_in_mid_run_ends_it(server):
    client = ChatClient(server.scenario(delay=20.0))
    threading.Timer(0.3, client.close).start()
    with pytest.raises(RuntimeError, match="closed while it was in use"):
        list(client.stream([HELLO], client.chat))


def test_ctrl_c_leaves_no_task_and_no_thread(server):
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


def test_a_judge_answers_inside_a_running_event_loop(server):
    async def notebook_cell():
        with ServerJudge(server.scenario(), RUBRIC) as judge:
            return ask_one(judge).status

    assert asyncio.run(notebook_cell()) == "graded"


def test_a_question_without_messages_is_refused(server):
    with ServerJudge(server.scenario(), RUBRIC) as judge, pytest.raises(InputError, match="got no messages"):
        list(judge.answers([Question("q", "d", "query", "document")]))


def test_texts_are_completed(server):
    planned = {"tried": ["500"], "too-long": [], "none": []}
    questions = [planted_question(end, errors, end) for end, errors in planned.items()]
    with ServerTextModel(server.scenario(), max_tokens=3) as model:
        found = {asked.query_id: completion for asked, completion in model.complete(questions)}
    assert [found[end].status for end in planned] == ["written", "too-long", "truncated"]
    assert (found["tried"].tries, found["tried"].usage.prompt, found["none"].text) == (2, 50, "I have read")


def test_without_aiohttp_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(InputError, match=r"pip install 'bixse\[grade\]'"):
        runpy.run_path(client_module.__file__)


def error_of(status, told, headers=None):
    return refusal(status, headers or {}, {"error": told}, Secret(""))


@pytest.mark.parametrize(
    ("status", "message", "failure"),
    [
        (429, "Rate limit reached", "busy"),
        (429, {"code": "insufficient_quota", "message": "You exceeded your current quota"}, "quota"),
        (400, {"code": "context_length_exceeded", "message": "no"}, "too-long"),
        (402, "Insufficient credits", "quota"),
        (500, "Internal Server Error", "broken"),
        (503, "Loading model", "away"),
        (502, "", "away"),
        (529, "", "busy"),
        (408, "", "broken"),
        (401, "Incorrect API key", "key"),
        (403, "You are not allowed to request logprobs from this model", "no-logprobs"),
        (403, "Your chosen model requires moderation and your input was flagged", "filtered"),
        (404, "The model `x` does not exist.", "model"),
        (404, "Not Found", "no-chat"),
        (404, "The API deployment for this resource does not exist", "model"),
        (405, "Method Not Allowed", "no-chat"),
        (404, "The model served-model does not support Chat Completions API", "no-chat"),
        (400, '"nomic-embed-text" does not support chat', "no-chat"),
        (501, "This server does not support completions. Start it without `--embeddings`", "no-chat"),
        (404, "This is not a chat model and thus not supported in the v1/chat/completions endpoint.", "no-chat"),
        (400, "This model does not support image input in a chat", "refused"),
        (400, "This model's maximum context length is 4096 tokens.", "too-long"),
        (400, "request (9031 tokens) exceeds the available context size (2048 tokens)", "too-long"),
        (413, "Payload too large", "too-long"),
        (400, "Logprobs is not supported for this model.", "no-logprobs"),
        (400, "The response was filtered due to the prompt triggering content management policy", "filtered"),
        (400, "cannot read: 'the Django model was not found, so I wrote this passage'", "refused"),
    ],
)
def test_every_error_has_its_kind_of_failure(status, message, failure):
    found = error_of(status, message)
    assert found.failure == failure
    assert f"HTTP {status}" in found.detail


def test_a_detail_holds_the_code_and_the_start_of_the_message_but_no_run_of_the_key():
    found = error_of(400, {"code": "odd_request", "message": "x" * 1000})
    assert found.detail.startswith("HTTP 400: odd_request: xxx")
    assert len(found.detail) <= len("HTTP 400: ") + 200
    dropped = refusal(400, {}, {"error": {"code": KEY[3:15], "message": "too many tokens"}}, Secret(KEY))
    assert (dropped.failure, dropped.detail) == ("too-long", f"HTTP 400: {STAND_IN}")


def spellings(text):
    """A text as servers repeat it: plain, escaped for JSON and addresses, in hex, and in base64 at every alignment."""
    codes = [f"{ord(letter):02x}" for letter in text]
    encoded = [base64.b64encode(f"{before}{text}".encode()) for before in ("", "u:", "us:", "use:")]
    encoded += [base64.urlsafe_b64encode(f"{before}?>~{text}??>".encode()) for before in ("", "a", "ab")]
    return [
        *(text, json.dumps(text)[1:-1], quote(text, safe=""), "".join(codes)),
        *(mark + mark.join(codes) for mark in ("\\u00", "%")),
        *(letters.decode().rstrip("=") for letters in encoded),
    ]


@given(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=RUN, max_size=60),
    st.data(),
    st.sampled_from([str, str.upper, str.lower]),
)
def test_a_run_of_the_key_drops_a_text_and_a_shorter_part_or_a_placeholder_does_not(key, data, case):
    start = data.draw(st.integers(0, len(key) - RUN))
    for spelled in spellings(key[start : start + RUN]):
        assert Secret(key).keep(f"it was {case(spelled)}, said the server") == STAND_IN
    assert Secret(key).keep(key[: RUN - 1]) == key[: RUN - 1]
    assert Secret("EMPTY").keep("EMPTY") == "EMPTY"


@pytest.mark.parametrize("body", [{"error": {"message": "m"}}, {"error": "m"}, {"detail": "m"}, {"message": "m"}, "m"])
def test_messages_of_errors_of_every_server(body):
    assert error_message(body) == "m"


@pytest.mark.parametrize(
    ("wait", "seconds"), [("2", 2.0), ("-1", 0.0), ("soon", None), ("", None), ("nan", None), ("date", 1000.0)]
)
def test_a_server_that_names_a_time_is_busy_for_so_long(wait, seconds):
    headers = {"retry-after": formatdate(time.time() + 1000) if wait == "date" else wait}
    out_of_money = {"code": "insufficient_quota", "message": "3 requests per minute"}
    failures = [error_of(429, "slow down", headers), error_of(503, "loading", headers)]
    failures += [error_of(429, out_of_money, headers)] if seconds else []
    assert all(failure.retry_after == pytest.approx(seconds, abs=60) for failure in failures if seconds)
    assert all(failure.retry_after == seconds for failure in failures if not seconds)
    assert {failure.failure for failure in failures} == ({"busy"} if seconds is not None else {"busy", "away"})


@pytest.mark.parametrize(
    ("text", "api"),
    [
        ("http://localhost:8000/", "http://localhost:8000/v1"),
        ("http://localhost:8000/v1/", "http://localhost:8000/v1"),
        ("http://h/v1/chat/completions", "http://h/v1"),
        ("https://api.groq.com/openai/v1", "https://api.groq.com/openai/v1"),
        ("http://[::1]:8080", "http://[::1]:8080/v1"),
        ("http://h/proxy", "http://h/proxy/v1"),
        (
            "https://h.openai.azure.com/openai/deployments/my-gpt/chat/completions?api-version=2024-10-21",
            "https://h.openai.azure.com/openai/deployments/my-gpt?api-version=2024-10-21",
        ),
        (
            "https://h.openai.azure.com/openai/v1?api-version=preview",
            "https://h.openai.azure.com/openai/v1?api-version=preview",
        ),
    ],
)
def test_addresses_with_and_without_v1(text, api):
    assert parse_address(text) == api


@pytest.mark.parametrize(
    "text",
    ["", "localhost:8000", "ftp://h", "http://", "http://h:99999999", "http://h:x", "http://me:hunter2@h",
     "http://hunter2@h/v1", "http://h/v1?key=hunter2", "me:hunter2@h", "http://h/v1?api-version=1&key=hunter2",
     "http://h/v1?api-version=1#hunter2"],
)  # fmt: skip
def test_an_invalid_address_is_refused_without_repeating_a_secret_in_it(text):
    with pytest.raises(InputError, match="endpoint: got") as caught:
        parse_address(text)
    assert "hunter2" not in str(caught.value)


PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture
def proxies(monkeypatch):
    """Set the variables of proxies; the others are not there."""

    def set_to(**variables):
        for name in PROXY_VARIABLES:
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.lower(), raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    set_to()
    return set_to


def test_a_server_behind_a_proxy_is_asked_through_it(server, proxies):
    path = server.scenario().removeprefix(server.base)
    proxies(HTTP_PROXY=server.base.replace("://", "://me:hunter2@"))  # it answers whatever host is asked for
    with ServerJudge(f"http://judge.example.invalid{path}", RUBRIC) as judge:
        assert ask_one(judge).status == "graded"
    assert server.stats(f"/{path}")["counts"]["chat"] > 2
    proxies(HTTP_PROXY=server.base, NO_PROXY="example.invalid")
    with pytest.raises(ServerDownError):
        ServerJudge(f"http://judge.example.invalid{path}", RUBRIC)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.8.9.1", "[::1]", "a.localhost", "0.0.0.0", "[::]"])
def test_the_own_machine_is_never_asked_through_a_proxy(proxies, host):
    proxies(http_proxy="http://127.0.0.1:9", no_proxy="")
    assert proxy_of(f"http://{host}:8000/v1") is None
    assert proxy_of("http://192.168.0.7:8000/v1") == ("http://127.0.0.1:9", "", "")


def test_a_proxy_keeps_its_password_apart_and_an_unusable_one_is_refused_without_it(proxies):
    proxies(HTTPS_PROXY="me:hunter%402@proxy:3128", HTTP_PROXY="socks5://me:hunter2@proxy:1")
    assert proxy_of("https://h/v1") == ("http://proxy:3128", "me", "hunter@2")
    with pytest.raises(InputError) as caught:
        proxy_of("http://h/v1")
    assert caught.value.where == "HTTP_PROXY" and "hunter2" not in str(caught.value)
    proxies(ALL_PROXY="socks5://proxy:1080", HTTP_PROXY="")
    assert proxy_of("http://h/v1") is None, "a proxy for everything that HTTP clients pass by"


def test_headers_are_sent_from_the_environment_and_the_value_is_never_repeated(server, monkeypatch):
    monkeypatch.setenv("AZURE_KEY", KEY)
    address = server.scenario(header=["api-key", KEY])
    with ServerJudge(address, RUBRIC, JudgeOptions(headers={"API-Key": "${AZURE_KEY}"})) as judge:
        assert ask_one(judge).status == "graded"
        assert KEY not in repr(vars(judge)) + repr(vars(judge.client)) + repr(dict(judge.identity))
        plain = dict(judge.identity)
    with pytest.raises(InputError) as caught:  # the server repeats the header in its message
        ServerJudge(
            server.scenario(header=["api-key", "another"]), RUBRIC, JudgeOptions(headers={"api-key": "$AZURE_KEY"})
        )
    assert KEY not in str(caught.value) and STAND_IN in str(caught.value)
    with ServerJudge(server.scenario(), RUBRIC) as judge:
        assert dict(judge.identity) == plain, "headers do not decide an answer"
    for headers, variable in (({"api-key": "$NOT_SET"}, None), ({"a b": "c"}, None), ({"a": "$ODD"}, "two\nlines")):
        if variable:
            monkeypatch.setenv("ODD", variable)
        with pytest.raises(InputError) as caught:
            ChatClient(address, ServerSettings(headers=headers))
        assert caught.value.where == "headers" and "lines" not in str(caught.value)


def test_neither_key_nor_headers_follow_a_redirect(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    other = server.scenario()
    address = server.scenario(redirect=f"{other}/v1/chat/completions")
    with pytest.raises(InputError):
        ServerJudge(address, RUBRIC, JudgeOptions(headers={"api-key": KEY}))
    assert server.stats(address)["counts"]["chat"] > 0
    assert server.stats(other)["counts"] == {}


def test_a_plain_header_hides_no_answer(server):
    headers = {"X-Title": "capital cities of the world"}
    judge = server.scenario(prefix="Of the capital cities of the world.\n", header=["X-Title", headers["X-Title"]])
    with ServerJudge(judge, RUBRIC, JudgeOptions(headers=headers, max_tokens=64)) as judge:
        assert "capital cities" in ask_one(judge).text


def test_a_header_of_the_user_takes_the_place_of_ours(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "not-this-one")
    with ServerJudge(
        server.scenario(key=KEY), RUBRIC, JudgeOptions(headers={"authorization": f"Bearer {KEY}"})
    ) as judge:
        assert ask_one(judge).status == "graded"


def test_fields_of_the_user_are_sent_and_are_part_of_the_judge(server):
    address, body = server.scenario(), {"reasoning_effort": "low", "provider": {"order": ["a"]}}
    options, identities = JudgeOptions(body=body), []
    for model in (ServerJudge(address, RUBRIC, options), ServerTextModel(address, options)):
        with model:
            list((model.answers if isinstance(model, ServerJudge) else model.complete)([planted_question("a")]))
            identities.append(dict(model.identity))
        sent = server.stats(address)["body"]
        assert sent.items() >= body.items() and sent["stream"] is False
    for identity, model in zip(identities, (ServerJudge(address, RUBRIC), ServerTextModel(address)), strict=True):
        with model:
            assert identity.pop("body") == body
            assert dict(model.identity) == identity, "without fields, ledgers keep their keys"


def test_headers_and_fields_on_the_command_line():
    words = {"headers": ["api-key=$KEY", "x=a=b"], "body": ["n_probs=3", "effort=low", 'p={"a": 1}']}
    found = ServerSettings.load(None, words)
    assert found.headers == {"api-key": "$KEY", "x": "a=b"}
    assert found.body == {"n_probs": 3, "effort": "low", "p": {"a": 1}}
    for wrong in ({"headers": ["api-key"]}, {"body": ["stream=1"]}, {"body": {"messages": []}}, {"headers": {"a": 1}}):
        with pytest.raises(ConfigError):
            ServerSettings.load(None, wrong)


def test_a_server_that_streams_unless_told_otherwise_answers(server):
    with ServerJudge(server.scenario(streams="unless told"), RUBRIC) as judge:
        assert ask_one(judge).status == "graded"


def test_an_address_without_a_chat_server_is_named_with_a_way_that_works(server):
    address = f"{server.base}/no/such/place/v1"
    with pytest.raises(InputError) as caught:
        ServerJudge(address, RUBRIC, JudgeOptions(model="m"))
    assert caught.value.where == address and "cross-encoder:" in caught.value.fix


@pytest.mark.parametrize(
    "name",
    ["batch:requests.jsonl", "cross-encoder:http://h/v1", "openai:gpt-4", "qwen2.5:7b", "cross-encoder:https://h"],
)
def test_a_name_of_no_judge_is_refused_before_the_hub_is_asked(name):
    with pytest.raises(InputError) as caught:
        JudgeConfig(judge={"name": name}).open()
    ways = ("--judge http", "cross-encoder:FOLDER")
    assert name in caught.value.got and any(way in caught.value.fix for way in ways)


def test_models():
    listed = models_in({"data": [{"id": "/m/a.gguf", "owned_by": "llamacpp", "aliases": ["a"]}]})
    assert choose_model(listed, None, "x").name == "a.gguf"
    assert choose_model(listed, "a", "x").id == "/m/a.gguf"
    assert choose_model(listed, "a.gguf", "x").kind == "llama.cpp"
    with pytest.raises(InputError, match=r"expected a\.gguf, the model it serves"):
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
