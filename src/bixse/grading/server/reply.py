"""What a chat server answered, whatever its dialect: texts, tokens with their alternatives, usage, kinds of failure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from bixse.grading.judge import Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Failure = Literal[
    "overloaded",
    "unavailable",
    "disconnected",
    "strained",
    "again",
    "unauthorised",
    "no-quota",
    "unknown-model",
    "too-long",
    "filtered",
    "no-logprobs",
    "refused",
]
"""Why a request has no answer.

overloaded: ask later; unavailable: a gateway says that nobody is there; disconnected: no connection, or it was closed;
strained: an error of the server or a time-out; again: this try broke. The others are final: a key that does not count,
an account without money, a model that is not there, a prompt that does not fit, a content filter, no probabilities, a
request the server does not take.
"""

SHARED: tuple[Failure, ...] = ("unauthorised", "no-quota", "unknown-model")
"""Failures that every further request may share, or that one request has for its own text (a web firewall's 403)."""

PASSING: tuple[Failure, ...] = ("overloaded", "unavailable", "disconnected", "strained", "again")
"""Failures after which another try makes sense."""

_TOO_LONG = re.compile(
    r"context.{0,12}(?:length|size|window)|maximum.{0,20}(?:input|prompt|sequence) length|too many (?:input )?tokens"
    r"|prompt is too long|exceed_context|string too long|input is too long|longer than the (?:model|maximum)",
    re.IGNORECASE,
)
_NO_LOGPROBS = re.compile(r"log_?probs?\b|n_probs", re.IGNORECASE)
_FILTERED = re.compile(r"content.?(?:filter|management|policy)|moderation|flagged|safety", re.IGNORECASE)
_NO_MONEY = re.compile(r"insufficient_quota|exceeded your current quota")
_TEMPLATE = re.compile(r"system role|system message|roles must alternate|chat template|jinja", re.IGNORECASE)
_UNKNOWN_MODEL = re.compile(
    r"model\b.{0,100}(?:not found|does(?: not|n't) exist)|model_not_found|(?:unknown|invalid) model", re.IGNORECASE
)


@dataclass(frozen=True)
class Position:
    """One token written, with what else could have been written there."""

    token: str
    """Text of the token."""
    alternatives: tuple[tuple[str, float | None], ...]
    """(token text, natural log-probability) of the tokens returned; the written one stands first if it was not one."""


@dataclass(frozen=True)
class Choice:
    """One answer of a reply."""

    text: str
    """What was written, without separate reasoning."""
    finish_reason: str = "stop"
    """"stop", "length" or "content_filter", whatever the server calls them."""
    positions: tuple[Position, ...] = ()
    """Tokens in order; empty where the server gave none."""
    refusal: str = ""
    """The server's own text of a refusal."""
    reasoned: bool = False
    """Separate reasoning came with it."""


@dataclass(frozen=True)
class Reply:
    """A whole reply."""

    choices: tuple[Choice, ...]
    """At least one."""
    usage: Usage = field(default_factory=Usage)
    """Tokens of all choices together."""
    model: str = ""
    """Model that answered, as the server says."""


def parse_reply(content: Any) -> Reply:
    """Read a reply of any dialect.

    Known are OpenAI's chat and completion shapes (also with dictionaries of alternatives), Together's, and llama.cpp's
    own `completion_probabilities` in three generations.

    Raises:
        ValueError: this is no reply; half of one, or something else.

    Example:
        >>> reply = parse_reply({"choices": [{"message": {"content": "3"}, "finish_reason": "stop", "logprobs":
        ...     {"content": [{"token": "3", "logprob": -0.1, "top_logprobs": [{"token": "3", "logprob": -0.1}]}]}}]})
        >>> reply.choices[0].positions[0].alternatives
        (('3', -0.1),)
    """
    if not isinstance(content, dict):
        raise ValueError("no JSON object")
    native = content.get("completion_probabilities")
    raw = content.get("choices")
    if isinstance(raw, list) and raw:
        choices = tuple(_choice(choice, native) for choice in raw)
    elif isinstance(content.get("content"), str):
        finish = "length" if content.get("stop_type") == "limit" or content.get("stopped_limit") else "stop"
        choices = (Choice(content["content"], finish, _native_positions(native)),)
    else:
        raise ValueError("no choices")
    return Reply(choices, _usage(content), str(content.get("model") or ""))


def _choice(choice: Any, native: Any) -> Choice:
    if not isinstance(choice, dict) or choice.get("error"):
        raise ValueError("a choice that is no object, or holds an error")
    message = choice.get("message")
    if isinstance(message, dict):
        text, refusal = _text(message.get("content")), _text(message.get("refusal"))
        reasoned = bool(message.get("reasoning_content") or message.get("reasoning"))
    elif isinstance(choice.get("text"), str):
        text, refusal, reasoned = choice["text"], "", False
    else:
        raise ValueError("a choice without a message")
    positions = _positions(choice.get("logprobs")) or _native_positions(native)
    finish = {"max_tokens": "length"}.get(str(choice.get("finish_reason")), str(choice.get("finish_reason") or "stop"))
    return Choice(text, finish, positions, refusal, reasoned)


def _text(content: Any) -> str:
    """Text of a message: a string, or the text parts of a list."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _positions(logprobs: Any) -> tuple[Position, ...]:
    """Positions of the chat shape (`content`) or the completion shape (`tokens`)."""
    if not isinstance(logprobs, dict):
        return ()
    if isinstance(logprobs.get("content"), list):
        return tuple(
            _position(entry.get("token"), entry.get("logprob"), entry.get("top_logprobs"))
            for entry in logprobs["content"]
            if isinstance(entry, dict)
        )
    tokens = logprobs.get("tokens")
    if not isinstance(tokens, list):
        return ()
    columns = [logprobs.get(name) for name in ("token_logprobs", "top_logprobs")]
    values, tops = ([*column] if isinstance(column, list) else [] for column in columns)
    missing = [None] * len(tokens)
    return tuple(map(_position, tokens, values + missing, tops + missing))


def _position(token: Any, value: Any, top: Any) -> Position:
    text = _token_text(token)
    alternatives: Iterable[tuple[str, float | None]] = ()
    if isinstance(top, dict):
        alternatives = [(_token_text(key), _number(logprob)) for key, logprob in top.items()]
    elif isinstance(top, list):
        alternatives = [
            (_token_text(entry.get("token")), _number(entry.get("logprob"))) for entry in top if type(entry) is dict
        ]
    found = tuple(alternatives)
    if text not in [known for known, _ in found]:
        found = ((text, _number(value)), *found)
    return Position(text, found)


def _native_positions(probabilities: Any) -> tuple[Position, ...]:
    """Positions of llama.cpp's own shapes: `top_logprobs`, `top_probs`, and the older `probs`."""
    if not isinstance(probabilities, list):
        return ()
    positions = []
    for entry in probabilities:
        if not isinstance(entry, dict):
            continue
        if isinstance(entry.get("top_logprobs"), list):
            positions.append(_position(entry.get("token"), entry.get("logprob"), entry["top_logprobs"]))
            continue
        listed = entry.get("top_probs") or entry.get("probs") or []
        top = [
            {"token": item.get("token", item.get("tok_str")), "logprob": _logarithm(item.get("prob"))}
            for item in listed
            if isinstance(item, dict)
        ]
        token = entry.get("token", entry.get("content"))
        positions.append(_position(token, _logarithm(entry.get("prob")), top))
    return tuple(positions)


def _token_text(token: Any) -> str:
    """Text of a token; the marks that some servers leave in stand for a space and a newline."""
    if type(token) is not str:
        return ""
    return token if token.isascii() else token.replace("Ġ", " ").replace("▁", " ").replace("Ċ", "\n")


def _number(value: Any) -> float | None:
    if type(value) is float:
        return value
    return float(value) if type(value) is int else None


def _logarithm(probability: Any) -> float | None:
    value = _number(probability)
    return math.log(value) if value is not None and value > 0 else None


def _usage(content: Mapping[str, Any]) -> Usage:
    """Tokens as OpenAI, DeepSeek (cache hits) and llama.cpp (its own names) count them."""
    usage = content.get("usage")
    if not isinstance(usage, dict):
        counted = {
            "prompt_tokens": content.get("tokens_evaluated"),
            "completion_tokens": content.get("tokens_predicted"),
        }
        usage = counted if isinstance(content.get("content"), str) else {}
    details = [usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")]
    read, written = (detail if isinstance(detail, dict) else {} for detail in details)
    cached = read.get("cached_tokens", usage.get("prompt_cache_hit_tokens"))
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return Usage.reported(prompt, cached, completion, written.get("reasoning_tokens"))


def error_message(content: Any) -> str:
    """The message of an error body, whatever its shape; the text itself where it is no JSON."""
    if isinstance(content, dict):
        for key in ("error", "detail", "message"):
            if content.get(key):
                inner = content[key]
                return error_message(inner) if isinstance(inner, dict) else str(inner)
        return str(content) if content else ""
    return str(content or "")


def classify_failure(status: int, message: str, wait: bool = False) -> Failure:
    """What kind of failure an HTTP status with its message is.

    Args:
        status: HTTP status, or the code inside the error of a reply that came with 200.
        message: the server's message.
        wait: it says when to ask again.

    Example:
        >>> classify_failure(429, "slow down"), classify_failure(400, "maximum context length is 2048 tokens")
        ('overloaded', 'too-long')
    """
    if status == 403 and _NO_LOGPROBS.search(message):
        return "no-logprobs"  # OpenAI, for models that reason
    if status == 403 and _FILTERED.search(message):
        return "filtered"
    if status in (401, 403):
        return "unauthorised"
    if status == 402 or (status == 429 and not wait and _NO_MONEY.search(message)):
        return "no-quota"
    if status in (429, 529):
        return "overloaded"
    if status in (502, 503, 504, 521, 522, 523):
        return "unavailable"
    if status >= 500:
        return "refused" if _TEMPLATE.search(message) else "strained"
    if status in (408, 409, 425):
        return "strained"
    if status == 404 or (status == 400 and _UNKNOWN_MODEL.search(message)):
        return "unknown-model"
    if status == 413 or _TOO_LONG.search(message):
        return "too-long"
    if _NO_LOGPROBS.search(message):
        return "no-logprobs"
    return "filtered" if _FILTERED.search(message) else "refused"
