"""What an HTTP error means for a request: every kind of answer of real servers."""

import time
from email.utils import formatdate

import pytest

from bixse.errors import InputError
from bixse.judging.judges.endpoints import (
    STAND_IN,
    Secret,
    choose_model,
    error_message,
    models_in,
    parse_address,
    refusal,
)

KEY = "sk-very-secret-0123456789"


def error_of(status, told, headers=None):
    return refusal(status, headers or {}, {"error": told}, Secret(""))


@pytest.mark.parametrize(
    ("status", "message", "failure"),
    [
        (429, "Rate limit reached", "busy"),
        (429, {"code": "insufficient_quota", "message": "You exceeded your current quota"}, "quota"),
        (400, {"code": "context_length_exceeded", "message": "no"}, "too-long"),
        (402, "Insufficient credits", "quota"),
        (529, "overloaded_error", "busy"),
        (500, "Internal Server Error", "broken"),
        (502, "<html>", "away"),
        (503, "Loading model", "away"),
        (504, "gateway time-out", "away"),
        (408, "", "broken"),
        (401, "Incorrect API key", "key"),
        (403, "forbidden", "key"),
        (403, "You are not allowed to request logprobs from this model", "no-logprobs"),
        (400, "This model's template: system role not supported", "refused"),
        (403, "Your chosen model requires moderation and your input was flagged", "filtered"),
        (404, "The model `x` does not exist.", "model"),
        (404, "Not Found", "model"),
        (400, "This model's maximum context length is 4096 tokens.", "too-long"),
        (400, "You passed 1015 input tokens. However, the model's context length is only 1024 tokens", "too-long"),
        (400, "request (9031 tokens) exceeds the available context size (2048 tokens)", "too-long"),
        (413, "Payload too large", "too-long"),
        (400, "Logprobs is not supported for this model.", "no-logprobs"),
        (400, "5 is greater than the maximum of 1 - 'logprobs'", "no-logprobs"),
        (400, "The response was filtered due to the prompt triggering content management policy", "filtered"),
        (400, "something else", "refused"),
        (422, "unprocessable", "refused"),
    ],
)
def test_kinds_of_failure(status, message, failure):
    found = error_of(status, message)
    assert found.failure == failure
    assert f"HTTP {status}" in found.detail


def test_of_a_body_its_code_and_beginning_are_kept():
    found = error_of(400, {"code": "odd_request", "message": "x" * 1000})
    assert found.detail.startswith("HTTP 400: odd_request: xxx")
    assert len(found.detail) <= len("HTTP 400: ") + 200


@pytest.mark.parametrize("part", [KEY, KEY[3:15], KEY[-12:], KEY.upper()])
def test_a_body_that_holds_a_run_of_the_key_is_dropped(part):
    """The kind of failure is still known."""
    body = {"error": {"code": part, "message": f"too many tokens for {part}"}}
    found = refusal(400, {}, body, Secret(KEY))
    assert (found.failure, found.detail) == ("too-long", f"HTTP 400: {STAND_IN}")
    few = refusal(400, {}, {"error": {"message": f"too many tokens for {KEY[:11]}"}}, Secret(KEY))
    assert few.detail == f"HTTP 400: too many tokens for {KEY[:11]}"


def test_a_503_that_says_when_to_come_back_is_busy_and_not_away():
    assert error_of(503, "loading", {"retry-after": "30"}).failure == "busy"


def test_a_server_that_says_when_to_come_back_does_not_lack_money():
    told = {"code": "insufficient_quota", "message": "3 requests per minute"}
    found = error_of(429, told, {"retry-after": "2"})
    assert (found.failure, found.retry_after) == ("busy", 2.0)


@pytest.mark.parametrize(
    ("told", "seconds"),
    [("2", 2.0), ("-1", 0.0), ("soon", None), ("", None), ("nan", None)],
)
def test_how_long_to_wait(told, seconds):
    assert error_of(429, "slow down", {"retry-after": told}).retry_after == seconds


def test_a_date_to_wait_for():
    told = formatdate(time.time() + 1000)
    assert error_of(429, "slow down", {"retry-after": told}).retry_after == pytest.approx(1000, abs=60)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"error": {"message": "m", "code": 1}}, "m"),
        ({"error": "m"}, "m"),
        ({"detail": "m"}, "m"),
        ({"object": "error", "message": "m"}, "m"),
        ("<html>m</html>", "<html>m</html>"),
        (None, ""),
        ({}, ""),
    ],
)
def test_messages_of_errors(content, message):
    assert error_message(content) == message


@pytest.mark.parametrize(
    ("text", "api"),
    [
        ("http://localhost:8000", "http://localhost:8000/v1"),
        ("http://localhost:8000/", "http://localhost:8000/v1"),
        ("http://localhost:8000/v1/", "http://localhost:8000/v1"),
        ("http://h/v1/chat/completions", "http://h/v1"),
        ("https://api.groq.com/openai/v1", "https://api.groq.com/openai/v1"),
        ("https://g.com/v1beta/openai/", "https://g.com/v1beta/openai"),
        ("http://[::1]:8080", "http://[::1]:8080/v1"),
        ("http://h/proxy", "http://h/proxy/v1"),
    ],
)
def test_addresses_with_and_without_v1(text, api):
    assert parse_address(text) == api


@pytest.mark.parametrize("text", ["", "localhost:8000", "ftp://h", "http://", "http://h:99999999", "http://h:x"])
def test_what_is_no_address(text):
    with pytest.raises(InputError, match="endpoint: got"):
        parse_address(text)


@pytest.mark.parametrize(
    "text", ["http://me:hunter2@h", "http://hunter2@h/v1", "http://h/v1?key=hunter2", "me:hunter2@h"]
)
def test_addresses_that_hold_secrets_are_refused_without_repeating_them(text):
    with pytest.raises(InputError) as caught:
        parse_address(text)
    assert "hunter2" not in str(caught.value)


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
