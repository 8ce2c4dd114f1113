"""Why a request to a chat server has no reply."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import httpx2
import openai

from bixse.errors import BixseError
from bixse.grading.judge import TEXT_WIDTH, Answer

if TYPE_CHECKING:
    from bixse.grading.judge import Mode, Status
    from bixse.grading.server.secret import Secret

Failure = Literal["busy", "away", "broken", "key", "quota", "model", "too-long", "filtered", "no-logprobs", "refused"]
"""busy: ask later (429); away: no connection, or a gateway that finds nobody; broken: an error of the server, half
a reply, a time-out; key, quota, model: a key that does not count, an account without money, a model that is not there;
the others are about this request alone."""
TRANSIENT: tuple[Failure, ...] = ("busy", "away", "broken")
"""Failures after which another try makes sense."""
SHARED: tuple[Failure, ...] = ("key", "quota", "model")
"""Failures that every further request may share, or that one request has for its own text (a web firewall's 403)."""
DETAIL_WIDTH = 300
"""Characters of a server's message that are kept."""
_READ_WIDTH = 20_000
"""Characters of a message that the key is looked for in before it is cut."""
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
    """A request that has no reply after its tries."""

    failure: Failure
    """The kind."""
    detail: str
    """What the server said, for people; holds no key."""
    tries: int = 1
    """Requests made."""
    seconds: float = 0.0
    """Wall time of all of them."""
    retry_after: float | None = None
    """Seconds the server asked to wait, where it did."""

    def answer(self, mode: Mode) -> Answer:
        """The answer that a question has without a reply."""
        known: dict[Failure, Status] = {
            "too-long": "too-long",
            "filtered": "filtered",
            "no-logprobs": "no-probabilities",
        }
        status = known.get(self.failure, "failed")
        return Answer(status, mode, detail=self.detail[:TEXT_WIDTH], seconds=self.seconds, tries=self.tries)


def request_error(error: openai.APIError, secret: Secret) -> RequestError:
    """What an error of the openai package means for the request and its endpoint."""
    tries = tries_of(error.request)
    if isinstance(error, openai.APIStatusError):
        message = secret.redact(error_message(error.body)[:_READ_WIDTH])
        detail = f"HTTP {error.status_code}: {message}"[:DETAIL_WIDTH]
        return RequestError(_of_status(error, message), detail, tries, retry_after=_retry_after(error.response))
    cause = error.__cause__
    late = isinstance(cause, httpx2.TimeoutException) and not isinstance(cause, httpx2.ConnectTimeout)
    what = "no reply in time" if late else "no connection"
    detail = secret.redact(f"{what} ({type(cause).__name__}: {cause})"[:_READ_WIDTH])
    return RequestError("broken" if late else "away", detail[:DETAIL_WIDTH], tries)


def tries_of(request: httpx2.Request) -> int:
    """How often openai sent a request."""
    return int(request.headers.get("x-stainless-retry-count", 0)) + 1


def error_message(body: Any) -> str:
    """The message of an error body, whatever its shape; the text itself where it is no JSON.

    Example:
        >>> error_message({"error": {"message": "no such model"}}), error_message("<html>"), error_message(None)
        ('no such model', '<html>', '')
    """
    if isinstance(body, dict):
        for key in ("error", "detail", "message"):
            if body.get(key):
                return error_message(body[key]) if isinstance(body[key], dict) else str(body[key])
    return str(body or "")


def _of_status(error: openai.APIStatusError, message: str) -> Failure:
    """The kind of failure; servers that give no code of their own are known by their message."""
    status = error.status_code
    if isinstance(error, openai.RateLimitError):
        spent = error.code == "insufficient_quota" and _retry_after(error.response) is None
        return "quota" if spent else "busy"
    if status >= 500 or status in (408, 409, 425):
        return "busy" if status == 529 else "away" if status in (502, 503, 504, 521, 522, 523) else "broken"
    if status in (400, 403, 413, 422):
        if status == 413 or error.code == "context_length_exceeded" or _TOO_LONG.search(message):
            return "too-long"
        if _NO_LOGPROBS.search(message):
            return "no-logprobs"
        if error.code == "content_filter" or _FILTERED.search(message):
            return "filtered"
    shared: dict[int, Failure] = {401: "key", 402: "quota", 403: "key", 404: "model"}
    return shared.get(status, "refused")


def _retry_after(response: httpx2.Response) -> float | None:
    """Seconds a server asks to wait where it says so in seconds."""
    try:
        return float(response.headers["retry-after"])
    except (KeyError, ValueError):
        return None
