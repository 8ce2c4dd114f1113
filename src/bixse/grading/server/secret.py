"""Taking the key out of what a server says, in whatever spelling it repeats it."""

from __future__ import annotations

import base64
import html
import re

SHORTEST_SECRET = 6
"""Shorter keys ("EMPTY") are placeholders of servers without keys, and would hide words."""
STAND_IN = "[key]"
_BREAK = r"(?:\s|\\+[rn])*"
"""Between the letters of base64, which is broken into lines."""


class Secret:
    """A key that must not be kept or shown.

    Found are the key itself, its letters escaped as JSON, Python, HTML and addresses do (also several times over, and
    each letter in its own way), its hexadecimal digits, and its base64, also as a part of a longer text ("user:key").
    Upper and lower case count as the same. The key is ASCII; one shorter than `SHORTEST_SECRET` is no secret.

    Example:
        >>> Secret("sk-very-secret").redact("sk%2Dvery%2dsecret or dXNlcjpzay12ZXJ5LXNlY3JldA==")
        '[key] or dXNlcjp[key]A=='
    """

    def __init__(self, key: str) -> None:
        self._shortest = len(key)
        self._pattern = re.compile("|".join(_spellings(key)), re.IGNORECASE) if len(key) >= SHORTEST_SECRET else None

    def redact(self, text: str) -> str:
        short = len(text) < self._shortest  # as most answers are
        return text if short or self._pattern is None else self._pattern.sub(STAND_IN, text)


def _spellings(key: str) -> list[str]:
    """Patterns of the key, of its hexadecimal digits, and of its base64 after 0, 1 and 2 other bytes."""
    found = ["".join(map(_letter, key)), key.encode("ascii").hex()]
    for before in range(3):
        whole = base64.b64encode(b"\0" * before + key.encode("ascii")).decode("ascii")
        first, last = -(-8 * before // 6), 8 * (before + len(key)) // 6  # letters that depend on the key alone
        found.append(_BREAK.join(_BASE64.get(letter, letter) for letter in whole[first:last]))
    return found


def _letter(letter: str) -> str:
    code, plain = f"{ord(letter):02x}", re.escape(letter)
    ways = [plain, rf"(?:%(?:25)*|\\+(?:u00|x)|&#x0*){code};?", f"&#0*{ord(letter)};?"]
    if not letter.isalnum():
        ways = [re.escape(html.escape(letter)), rf"\\+{plain}", *ways]
    return f"(?:{'|'.join(ways)})"


_BASE64 = {"+": f"(?:{_letter('+')}|-)", "/": f"(?:{_letter('/')}|_)"}
"""Letters that are others in addresses, or escaped."""
