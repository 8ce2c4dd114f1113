"""Names of models: without the folders of a path, and when two of them are the same model."""

from __future__ import annotations

import re
from pathlib import PurePosixPath, PureWindowsPath

_VERSION = re.compile(r"[-@_](?:latest|v?\d{3,4}|\d{8}|\d{4}-\d\d-\d\d|\d\d-\d\d(?:-\d{4})?)$")
"""Dates and numbers of a release at the end of a name, not sizes ("70b") or kinds ("mini")."""


def model_name(identifier: str) -> str:
    """A model's id without the folders where it is a path of the server's disk.

    Example:
        >>> model_name("/models/Qwen2.5-7B-Instruct"), model_name("Qwen/Qwen2.5-7B-Instruct")
        ('Qwen2.5-7B-Instruct', 'Qwen/Qwen2.5-7B-Instruct')
    """
    if identifier.startswith(("/", "./", "~")):
        return PurePosixPath(identifier).name or identifier
    return PureWindowsPath(identifier).name if identifier[1:3] in (":\\", ":/") else identifier


def same_model(asked: str, answered: str) -> bool:
    """Whether an answer came from the model that was asked for, as far as the two names tell.

    Compared are the last parts of the names (after "/"), without upper case and the ending ".gguf". A release ("-0613",
    "-2024-08-06", "-latest") and a tag (":8b") count only where both names have one; "latest" is any.

    Args:
        asked: the name that was asked for.
        answered: what the server says; empty: it does not say, which counts as the same.

    Example:
        >>> same_model("gpt-4o", "gpt-4o-2024-08-06"), same_model("gpt-4o", "gpt-4o-mini")
        (True, False)
        >>> same_model("Qwen/Qwen2.5-7B-Instruct", "/models/Qwen2.5-7B-Instruct")
        True
    """
    if not answered or asked == answered:
        return True
    (name, *one), (other, *two) = _parts(asked), _parts(answered)
    return name == other and all(a == b or not (a and b) for a, b in zip(one, two, strict=True))


def _parts(name: str) -> tuple[str, str, str]:
    """Name, release and tag; the last two are empty where there is none, or it says "latest"."""
    bare = re.split(r"[/\\]", name.strip().rstrip("/\\").lower())[-1].removesuffix(".gguf")
    bare, _, tag = bare.partition(":")
    found = _VERSION.search(bare)
    release = re.sub(r"\W|_|v", "", found[0]) if found else ""
    return bare[: found.start()] if found else bare, release.replace("latest", ""), tag.replace("latest", "")
