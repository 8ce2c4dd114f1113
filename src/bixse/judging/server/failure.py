"""Why a request to a chat server has no reply."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Literal

from bixse.errors import BixseError
from bixse.judging.judge import TEXT_WIDTH, Answer, Mode, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bixse.judging.server.secret import Secret

Failure = Literal[
    "busy", "away", "broken", "key", "quota", "model", "too-long", "too-large", "filtered", "no-logprobs", "refused"
]
"""busy: ask later (429, or a 503 that says when); away: no connection, or a gateway that finds nobody; broken: an error
of the server, half a reply, a time-out; key, quota, model: an invalid key, an account without quota, a model that is
not there; too-large: a reply beyond the limit; the others are about this request alone."""
TRANSIENT: tuple[Failure, ...] = ("busy", "away", "broken")
"""Failures after which another try makes sense."""
SHARED: tuple[Failure, ...] = ("key", "quota", "model")
"""Failures that every further request may share, or that one request has for its own text (a web firewall's 403)."""
DETAIL_WIDTH = 200
"""Characters of a server's message that are kept."""
_READ_WIDTH = 20_000
"""Characters of a message in which the kind of failure is looked for."""
_TOO_LONG = re.compile(
    r"context.{0,12}(?:length|size|window)|maximum.{0,20}(?:input|prompt|sequence) length|too many (?:input )?tokens"
    r"|prompt is too long|exceed_context|(?:string|input is) too long|longer than the (?:model|maximum)",
    re.IGNORECASE,
)
_NO_LOGPROBS = re.compile(r"log_?probs?\b|n_probs", re.IGNORECASE)
_FILTERED = re.compile(r"content.?(?:filter|management|policy)|moderation|flagged|safety", re.IGNORECASE)


class ServerDownError(BixseError):
    """No endpoint has answered for long; answers that came before are kept."""


@dataclass
class RequestError(Exception):
    """No reply after all tries."""

    failure: Failure
    detail: str
    """What the server said, for people; holds no key."""
    retry_after: float | None = None
    """Seconds the server asked to wait, where it did."""
    tries: int = 1
    seconds: float = 0.0

    def answer(self, mode: Mode) -> Answer:
        known: dict[Failure, Status] = {
            "too-long": "too-long",
            "filtered": "filtered",
            "no-logprobs": "no-probabilities",
        }
        status = known.get(self.failure, "failed")
        return Answer(status, mode, detail=self.detail[:TEXT_WIDTH], seconds=self.seconds, tries=self.tries)


def refusal(status: int, headers: Mapping[str, str], content: Any, secret: Secret) -> RequestError:
    """What an HTTP status other than success means for the request and its endpoint.

    `content` is the parsed JSON of the body, or its text.
    """
    message = error_message(content)[:_READ_WIDTH]
    inner = content.get("error") if isinstance(content, dict) else None
    code = inner.get("code") if isinstance(inner, dict) else None
    wait = _seconds_to_wait(headers.get("retry-after", ""))
    shown = f"{code}: {message}" if isinstance(code, str) and code else message
    detail = f"HTTP {status}: {secret.keep(shown[:DETAIL_WIDTH])}"
    return RequestError(_kind(status, code, message, wait), detail, wait)


def error_message(content: Any) -> str:
    """The message of an error body, whatever its shape; the text itself where it is no JSON.

    Example:
        >>> error_message({"error": {"message": "no such model"}}), error_message("<html>"), error_message(None)
        ('no such model', '<html>', '')
    """
    if isinstance(content, dict):
        for key in ("error", "detail", "message"):
            if content.get(key):
                return error_message(content[key]) if isinstance(content[key], dict) else str(content[key])
    return str(content or "")


def _kind(status: int, code: object, message: str, wait: float | None) -> Failure:
    """The kind of failure; servers that give no code of their own are known by their message."""
    if status == 429:
        return "quota" if code == "insufficient_quota" and wait is None else "busy"
    if status >= 500 or status in (408, 409, 425):
        busy = status == 529 or (status == 503 and wait is not None)
        return "busy" if busy else "away" if status in (502, 503, 504, 521, 522, 523) else "broken"
    if status in (400, 403, 413, 422):
        if status == 413 or code == "context_length_exceeded" or _TOO_LONG.search(message):
            return "too-long"
        if _NO_LOGPROBS.search(message):
            return "no-logprobs"
        if code == "content_filter" or _FILTERED.search(message):
            return "filtered"
    shared: dict[int, Failure] = {401: "key", 402: "quota", 403: "key", 404: "model"}
    return shared.get(status, "refused")


def _seconds_to_wait(told: str) -> float | None:
    """What a Retry-After header says, a number or a date; None where it is neither."""
    try:
        seconds = float(told)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(told).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if seconds == seconds else None  # NaN is no number of seconds
