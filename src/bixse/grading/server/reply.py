"""What a chat server answered, whatever its dialect: texts, tokens with their alternatives, usage."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bixse.grading.judge import Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


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


@dataclass(frozen=True)
class Reply:
    """A whole reply."""

    choices: tuple[Choice, ...]
    """At least one."""
    usage: Usage = field(default_factory=Usage)
    """Tokens of all choices together."""
    model: str = ""
    """Model that answered, as the server says."""
    tries: int = 1
    """Requests made for it."""
    seconds: float = 0.0
    """Wall time from the first wait for a free place to the end."""


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
    elif isinstance(choice.get("text"), str):
        text, refusal = choice["text"], ""
    else:
        raise ValueError("a choice without a message")
    positions = _positions(choice.get("logprobs")) or _native_positions(native)
    finish = {"max_tokens": "length"}.get(str(choice.get("finish_reason")), str(choice.get("finish_reason") or "stop"))
    return Choice(text, finish, positions, refusal)


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
