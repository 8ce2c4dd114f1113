"""The server behind an address: its models, its failures, and the key that must not be repeated."""

from __future__ import annotations

import base64
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from typing import Any, Literal, NamedTuple
from urllib.parse import quote, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from bixse.errors import BixseError, InputError, shorten
from bixse.judging.judge import NOTHING, TEXT_WIDTH, Answer, Mode, Status, Usage, model_name

_VERSION = re.compile(r"v\d+(?:(?:alpha|beta)\d*)?", re.ASCII)
_KINDS = {"vllm": "vllm", "llamacpp": "llama.cpp", "sglang": "sglang", "library": "ollama"}  # by `owned_by`
UNKNOWN_KIND = "openai-compatible"
_AZURE_QUERY = re.compile(r"api-version=[\w.-]+", re.ASCII)
_DEPLOYMENT = re.compile(r"/openai/deployments/([^/?]+)")


def parse_address(text: str) -> str:
    """Return the address before `/chat/completions`; raise InputError for a user or a query, which could hold a key.

    Azure's query `?api-version=...` is kept.

    Example:
        >>> parse_address("http://localhost:8000"), parse_address("https://host/v1beta/openai/")
        ('http://localhost:8000/v1', 'https://host/v1beta/openai')
    """
    text, mark, query = text.strip().partition("?")
    if "@" in text or "#" in text or (mark and not _AZURE_QUERY.fullmatch(query)):
        raise InputError(
            "endpoint: got an address with a user, a password or a query; expected a bare one like "
            "http://localhost:8000/v1, or Azure's with ?api-version=DATE; fix: give keys in an environment variable, "
            "such as --headers 'api-key=$NAME'"
        )
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise InputError(
            f"endpoint: got {shorten(text)}; expected an address like http://localhost:8000/v1; "
            "fix: begin with http:// or https://"
        )
    path = parts.path.rstrip("/").removesuffix("/completions").removesuffix("/chat")
    version = "" if any(map(_VERSION.fullmatch, path.split("/"))) or _DEPLOYMENT.search(path) else "/v1"
    return f"{parts.scheme}://{parts.netloc}{path}{version}{mark}{query}"


def proxy_of(address: str) -> tuple[str, str, str] | None:
    """Return the proxy for an address from HTTP_PROXY, HTTPS_PROXY and NO_PROXY, with user and password, or None.

    The own machine is never asked through a proxy.
    """
    parts, proxies = urlsplit(address), getproxies()
    host = (parts.hostname or "").rstrip(".")
    is_local = host == "localhost" or host.endswith(".localhost")
    with suppress(ValueError):
        is_local = ip_address(host).is_loopback or ip_address(host).is_unspecified  # vLLM prints 0.0.0.0
    for_all = proxies.get("all", "")
    proxy = proxies.get(parts.scheme) or (None if for_all.startswith("socks") else for_all)  # not for HTTP alone
    if not proxy or is_local or proxy_bypass(parts.netloc):
        return None
    with suppress(ValueError):
        way = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        if way.scheme in ("http", "https") and way.hostname and way.port != 0:
            bare = f"{way.scheme}://{way.netloc.rpartition('@')[2]}"
            return bare, unquote(way.username or ""), unquote(way.password or "")
    raise InputError(  # without the value, which may hold a password
        f"{parts.scheme.upper()}_PROXY: got no address of an HTTP proxy; expected http://HOST:PORT; fix: correct it, "
        "or name the server's host in NO_PROXY"
    )


_HEADER_NAME = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
_SECRET_NAME = re.compile(r"key|auth|token|secret|cookie", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{?(\w+)\}?", re.ASCII)


def filled_headers(headers: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return headers with the values of the environment variables that they name, and the values to keep secret."""
    filled = {}
    for name, value in headers.items():
        unset = [variable for variable in _VARIABLE.findall(value) if not os.environ.get(variable, "").strip()]
        filled[name] = text = _VARIABLE.sub(lambda match: os.environ.get(match[1], "").strip(), value)
        if unset or not (_HEADER_NAME.fullmatch(name) and text.isascii() and text.isprintable()):
            raise InputError(
                f"headers: got {shorten(name)} with {unset or 'special characters'}; expected a name such as api-key, "
                "a value in ASCII and set variables; fix: correct it, or set the environment variable that it names"
            )
    secrets = [filled[name] for name in headers if filled[name] != headers[name] or _SECRET_NAME.search(name)]
    return filled, secrets


class ServedModel(NamedTuple):
    """A model in the list of a server."""

    id: str
    kind: str  # of the server: a value of `_KINDS`, or `UNKNOWN_KIND`
    aliases: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return model_name(self.id)


def models_in(content: Any) -> list[ServedModel]:
    """Return the models that `/models` lists; raise ValueError without a list."""
    listed = content.get("data") if isinstance(content, dict) else content
    if not isinstance(listed, list):
        raise ValueError("no list of models")
    models = []
    for entry in listed:
        if isinstance(entry, dict) and isinstance(entry.get("id"), str):
            aliases = entry.get("aliases")
            kind = _KINDS.get(str(entry.get("owned_by")), UNKNOWN_KIND)
            models.append(ServedModel(entry["id"], kind, tuple(map(str, aliases)) if isinstance(aliases, list) else ()))
    return models


def choose_model(listed: Sequence[ServedModel] | None, wanted: str | None, address: str) -> ServedModel:
    """Return the wanted model, or the only listed model."""
    models = listed or ()
    if wanted is None and not models and (match := _DEPLOYMENT.search(address)):  # Azure lists no models there
        wanted = match[1]
    if wanted is None:
        if len(models) == 1:
            return models[0]
        names = ", ".join(model.name for model in models[:20])
        got = f"{len(models)} models ({names})" if models else "no list of models"
        raise InputError(f"{address}: got {got}; expected one model; fix: name it with --model")
    for model in models:
        if wanted in (model.id, model.name, *model.aliases):
            return model
    if len(models) == 1:
        expected = f"{models[0].name}, the model it serves"
        raise InputError(f"{address}: got {shorten(wanted)}; expected {expected}; fix: leave --model out")
    # hosted services accept names that they do not list, and refuse wrong names
    return ServedModel(wanted, models[0].kind if models else UNKNOWN_KIND)


RUN = 12
"""Number of consecutive characters of a key that no text may hold. Shorter keys ("EMPTY") are placeholders."""
STAND_IN = "[not kept: it holds a part of the key]"


class Secret:
    """ASCII keys that must not be kept or shown.

    Texts are searched for runs of `RUN` characters, in upper and lower case: plain, quoted for addresses, escaped for
    JSON, in hexadecimal digits, and in base64, also as a part of a longer text ("user:key").
    """

    def __init__(self, *keys: str) -> None:
        runs = (key[start : start + RUN] for key in keys for start in range(len(key) - RUN + 1))
        self._forms = {form.lower() for run in runs for form in _forms(run)}

    def keep(self, text: str) -> str:
        """Return the text, or `STAND_IN` if the text holds a run of the key."""
        lowered = text.lower()
        return STAND_IN if any(form in lowered for form in self._forms) else text


def _forms(run: str) -> list[str]:
    """Return spellings of a run of the key; in base64 only the letters that depend on the run alone."""
    codes = [f"{ord(letter):02x}" for letter in run]
    forms = [run, quote(run, safe=""), json.dumps(run)[1:-1], json.dumps(run)[1:-1].replace("/", "\\/"), "".join(codes)]
    forms += [mark + mark.join(codes) for mark in ("%", "\\u00")]
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + run.encode("ascii")).decode("ascii")
        letters = encoded[-(-8 * before // 6) : 8 * (before + len(run)) // 6]
        forms += [letters, letters.replace("+", "-").replace("/", "_")]
    return forms


Failure = Literal[
    "busy", "away", "broken", "key", "quota", "model", "no-chat", "too-long", "too-large", "filtered", "no-logprobs",
    "refused",
]  # fmt: skip
"""busy: ask later; away: no connection, or a gateway without a server; broken: an error of the server, half a reply, a
time-out; key, quota, model, no-chat: an invalid key, an account without quota, a missing model, an address that is no
chat server's; others concern one request."""
TRANSIENT: tuple[Failure, ...] = ("busy", "away", "broken")
SHARED: tuple[Failure, ...] = ("key", "quota", "model", "no-chat")
"""Failures of all further requests, or of one request because of its text (403 of a web firewall)."""
_READ_WIDTH = 20_000  # characters of a message that decide the kind of failure: servers quote whole prompts
_TOO_LONG = re.compile(
    r"context.{0,12}(?:length|size|window)|maximum.{0,20}(?:input|prompt|sequence) length|too many (?:input )?tokens"
    r"|prompt is too long|exceed_context|(?:string|input is) too long|longer than the (?:model|maximum)",
    re.IGNORECASE,
)
_NO_LOGPROBS = re.compile(r"log_?probs?\b|n_probs", re.IGNORECASE)
_NO_CHAT = re.compile(r"not support\w*\s(?:\w+\s){0,3}?(?:chat|completions?)\b|not a chat model", re.IGNORECASE)
_FILTERED = re.compile(r"content.?(?:filter|management|policy)|moderation|flagged|safety", re.IGNORECASE)


class ServerDownError(BixseError):
    """An error after a long time without an answer of any endpoint; earlier answers are kept."""


@dataclass
class RequestError(Exception):
    """An error of a request without a reply after all tries."""

    failure: Failure
    detail: str  # message of the server, without the key
    retry_after: float | None = None  # seconds
    tries: int = 1
    seconds: float = 0.0
    usage: Usage | None = NOTHING  # None: it may have cost something, and the server did not report how much

    def answer(self, mode: Mode) -> Answer:
        known: dict[Failure, Status] = {
            "too-long": "too-long",
            "filtered": "filtered",
            "no-logprobs": "no-probabilities",
        }
        status = known.get(self.failure, "failed")
        return Answer(status, mode, detail=self.detail[:TEXT_WIDTH], seconds=self.seconds, tries=self.tries)


def refusal(status: int, headers: Mapping[str, str], content: Any, secret: Secret) -> RequestError:
    """Return the error of an HTTP status; `content` is the body as parsed JSON, or as text."""
    message = error_message(content)[:_READ_WIDTH]
    inner = content.get("error") if isinstance(content, dict) else None
    code = inner.get("code") if isinstance(inner, dict) else None
    wait = _seconds_to_wait(headers.get("retry-after", ""))
    shown = f"{code}: {message}" if isinstance(code, str) and code else message
    detail = f"HTTP {status}: {secret.keep(shown[:TEXT_WIDTH])}"
    kind = _kind(status, code, message, wait)
    usage = reported_usage(content)
    return RequestError(kind, detail, wait, usage=usage if usage.prompt or kind not in ("away", "broken") else None)


def error_message(content: Any) -> str:
    """Return the message in an error body of any shape, or the text of the body."""
    if isinstance(content, dict):
        for key in ("error", "detail", "message"):
            if content.get(key):
                return error_message(content[key]) if isinstance(content[key], dict) else str(content[key])
    return str(content or "")


def reported_usage(content: Any) -> Usage:
    """Return the tokens that a server counted in a body, whatever else is in it."""
    usage = content.get("usage") if isinstance(content, dict) else None
    if not isinstance(usage, dict):
        return NOTHING
    details = [usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")]
    read, written = (detail if isinstance(detail, dict) else {} for detail in details)
    cached = read.get("cached_tokens", usage.get("prompt_cache_hit_tokens"))
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return Usage.reported(prompt, cached, completion, written.get("reasoning_tokens"))


_NEVER_COMPLETE = re.compile(r"\s*(?:(?:data|event|id|retry)?:|<|\{.*\}\n\s*\{)")


def never_complete(text: str) -> bool:
    """Return whether no chat server means a body as a complete reply: JSON without choices, a stream, a web page."""
    with suppress(ValueError, RecursionError):
        content = json.loads(text)
        return not (isinstance(content, dict) and {"choices", "error", "detail", "message"} & set(content))
    return _NEVER_COMPLETE.match(text) is not None


def _kind(status: int, code: object, message: str, wait: float | None) -> Failure:
    """Return the kind of failure, from the message if the server gives no code."""
    if status == 429:  # with Retry-After, a "quota" is the limit of a minute and not of the account
        return "quota" if code == "insufficient_quota" and wait is None else "busy"
    if status in (400, 404, 405, 422, 501) and _NO_CHAT.search(message):
        return "no-chat"
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
    is_of_model = re.search("model|deployment", message, re.IGNORECASE)  # a deployment is a model of Azure
    if status in (404, 405) and not is_of_model:  # a server without /chat/completions
        return "no-chat"
    shared: dict[int, Failure] = {401: "key", 402: "quota", 403: "key", 404: "model"}
    return shared.get(status, "refused")


def _seconds_to_wait(header: str) -> float | None:
    """Return the seconds of a Retry-After header, a number or a date; None for neither."""
    for read in (float, lambda date: parsedate_to_datetime(date).timestamp() - time.time()):
        with suppress(ValueError):
            seconds = read(header)
            return max(0.0, seconds) if seconds == seconds else None  # NaN is no number of seconds
    return None
