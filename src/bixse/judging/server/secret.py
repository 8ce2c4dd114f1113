"""Keeping the API key out of what is stored and shown, where a server repeats it."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

RUN = 12
"""Characters of the key in a row that a text may not hold; shorter keys ("EMPTY") are placeholders, not secrets."""
STAND_IN = "[not kept: it holds a part of the key]"


class Secret:
    """A key, ASCII, that must not be kept or shown.

    Known are these forms of `RUN` characters of it, in upper and lower case: plain, quoted for addresses, escaped for
    JSON, in hexadecimal digits, and in base64, also as a part of a longer text ("user:key").

    Example:
        >>> Secret("sk-very-secret").keep("the key SK-VERY-SECRET is wrong")
        '[not kept: it holds a part of the key]'
    """

    def __init__(self, key: str) -> None:
        runs = (key[start : start + RUN] for start in range(len(key) - RUN + 1))
        self._forms = {form.lower() for run in runs for form in _forms(run)}

    def keep(self, text: str) -> str:
        """The text, or in its place `STAND_IN` where it holds a run of the key."""
        lowered = text.lower()
        return STAND_IN if any(form in lowered for form in self._forms) else text


def _forms(run: str) -> list[str]:
    """A run of the key as servers repeat it; of base64 the letters that depend on the run alone."""
    codes = [f"{ord(letter):02x}" for letter in run]
    forms = [run, quote(run, safe=""), json.dumps(run)[1:-1], json.dumps(run)[1:-1].replace("/", "\\/"), "".join(codes)]
    forms += [mark + mark.join(codes) for mark in ("%", "\\u00")]
    for before in range(3):
        whole = base64.b64encode(b"\0" * before + run.encode("ascii")).decode("ascii")
        letters = whole[-(-8 * before // 6) : 8 * (before + len(run)) // 6]
        forms += [letters, letters.replace("+", "-").replace("/", "_")]
    return forms
