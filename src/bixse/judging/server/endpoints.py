"""What stands behind an address: where it answers, which models it lists, and what kind of server it is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from bixse.errors import InputError, did_you_mean, shorten
from bixse.judging.judge import model_name

if TYPE_CHECKING:
    from collections.abc import Sequence

_VERSION = re.compile(r"v\d+(?:(?:alpha|beta)\d*)?", re.ASCII)
_KINDS = {"vllm": "vllm", "llamacpp": "llama.cpp", "sglang": "sglang", "library": "ollama"}
"""How servers call themselves in `owned_by`."""
UNKNOWN_KIND = "openai-compatible"


class Address(NamedTuple):
    """Where a server answers: `/chat/completions` follows `api`, `/tokenize` follows `root`."""

    api: str
    root: str


def parse_address(text: str) -> Address:
    """An address with or without `/v1`; a password or a query, which could hold a key, is refused.

    Example:
        >>> parse_address("http://localhost:8000")
        Address(api='http://localhost:8000/v1', root='http://localhost:8000')
    """
    if "@" in text or "?" in text or "#" in text:
        raise InputError(
            "endpoint: got an address with a user, a password or a query; expected a bare one like "
            "http://localhost:8000/v1; fix: give keys in an environment variable"
        )
    try:
        parts = urlsplit(text.strip())
        whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        whole = False
    if not whole:
        raise InputError(
            f"endpoint: got {shorten(text)}; expected an address like http://localhost:8000/v1; "
            "fix: begin with http:// or https://"
        )
    segments = [segment for segment in parts.path.split("/") if segment]
    for ending in ("completions", "chat"):
        if segments[-1:] == [ending]:
            segments.pop()
    version = next((index for index, segment in enumerate(segments) if _VERSION.fullmatch(segment)), None)
    root = "/".join([f"{parts.scheme}://{parts.netloc}", *segments[:version]])
    return Address("/".join([root, *(segments[version:] if version is not None else ["v1"])]), root)


def parse_addresses(texts: Sequence[str]) -> list[Address]:
    """One or more addresses, each once."""
    found = [parse_address(text) for text in texts]
    if not found or len(set(found)) != len(found):
        what = "one twice" if found else "none"
        raise InputError(f"endpoints: got {what}; expected one or more, each once; fix: correct the list")
    return found


class ServedModel(NamedTuple):
    """A model as a server lists it."""

    id: str
    kind: str
    """Of server: "vllm", "llama.cpp", "sglang", "ollama" or "openai-compatible"."""
    aliases: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return model_name(self.id)

    @property
    def key(self) -> tuple[str, str]:
        """Equal where two servers serve the same; llama.cpp does not read the model of a request."""
        return (self.name if self.kind == "llama.cpp" else self.id, self.kind)


def models_in(content: Any) -> list[ServedModel]:
    """The models that `/models` lists; raises ValueError where it lists none."""
    listed = content.get("data") if isinstance(content, dict) else content
    if not isinstance(listed, list):
        raise ValueError("no list of models")
    found = []
    for entry in listed:
        if isinstance(entry, dict) and isinstance(entry.get("id"), str):
            aliases = entry.get("aliases")
            kind = _KINDS.get(str(entry.get("owned_by")), UNKNOWN_KIND)
            found.append(ServedModel(entry["id"], kind, tuple(map(str, aliases)) if isinstance(aliases, list) else ()))
    return found


def choose_model(listed: Sequence[ServedModel] | None, wanted: str | None, address: str) -> ServedModel:
    """The model to ask for: the one that is wanted, or the only one there is.

    A model that is wanted and not in a list of several is asked for all the same: hosted services have names that they
    do not list, and refuse one that is wrong.
    """
    models = listed or ()
    if wanted is None:
        if len(models) == 1:
            return models[0]
        names = ", ".join(model.name for model in models[:20])
        found = f"{len(models)} models ({names})" if models else "no list of models"
        raise InputError(f"{address}: got {found}; expected the name of one; fix: say which with --model")
    for model in models:
        if wanted in (model.id, model.name, *model.aliases):
            return model
    if len(models) == 1:
        raise InputError(
            f"{address}: got {shorten(wanted)}; expected {models[0].name}, the model it serves; fix: "
            f"{did_you_mean(wanted, [models[0].name], 'leave the name out')}"
        )
    return ServedModel(wanted, models[0].kind if models else UNKNOWN_KIND)
