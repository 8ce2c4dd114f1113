"""Addresses of chat servers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bixse.errors import InputError, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

_VERSION = re.compile(r"v\d+(?:(?:alpha|beta)\d*)?", re.ASCII)


@dataclass(frozen=True)
class Address:
    """Where a server answers."""

    api: str
    """Address that `/chat/completions` follows, without a slash at the end."""
    root: str
    """Address that `/tokenize` follows."""

    @classmethod
    def parse(cls, text: str) -> Address:
        """An address with or without `/v1`.

        Raises:
            InputError: no http address, or one that holds a password or a query (which could hold a key).

        Example:
            >>> Address.parse("http://localhost:8000")
            Address(api='http://localhost:8000/v1', root='http://localhost:8000')
        """
        try:
            parts = urlsplit(text.strip())
            whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            whole = False
        if "@" in text or "?" in text or "#" in text:
            raise InputError(
                "endpoint: got an address with a user, a password or a query; expected a bare one like "
                "http://localhost:8000/v1; fix: give keys in an environment variable"
            )
        if not whole:
            raise InputError(
                f"endpoint: got {shorten(text)}; expected an address like http://localhost:8000/v1; "
                "fix: begin with http:// or https://"
            )
        segments = [segment for segment in parts.path.split("/") if segment]
        for ending in (["chat", "completions"], ["completions"]):
            if segments[-len(ending) :] == ending:
                segments = segments[: -len(ending)]
        version = next((index for index, segment in enumerate(segments) if _VERSION.fullmatch(segment)), None)
        root = "/".join([f"{parts.scheme}://{parts.netloc}", *segments[:version]])
        return cls("/".join([root, *(segments[version:] if version is not None else ["v1"])]), root)


def parse_addresses(texts: Sequence[str]) -> list[Address]:
    """One or more addresses, each once.

    Raises:
        InputError: none, one twice, or one that cannot be used.
    """
    found = [Address.parse(text) for text in texts]
    if not found or len(set(found)) != len(found):
        what = "one twice" if found else "none"
        raise InputError(f"endpoints: got {what}; expected one or more, each once; fix: correct the list")
    return found
