"""What an HTTP error means for a request: every kind of answer of real servers."""

import time
from email.utils import formatdate

import pytest

from bixse.judging.judges.endpoints import STAND_IN, Secret, error_message, refusal

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
