"""Texts in which a model declines to answer, whatever it was asked for."""

from __future__ import annotations

import re

_TASKS = "help|assist|answer|provide|comply|judge|rate|grade|score|write|create|generate|produce|fulfill?|do that"
_REFUSAL = re.compile(
    r"\W*(?:unfortunately\W+)?(?:"
    r"I(?:['\u2019]m|\s+am)\s+(?:very\s+|so\s+)?sorry\b\s*(?:[^\w\s]|but\b|I\b|\Z)"
    r"|(?:I\s+apologi[sz]e|sorry)\W+(?:but\s+)?I\b"
    r"|as\s+an?\s+(?:AI|(?:large\s+)?language\s+model)\b"
    r"|I(?:['\u2019]m|\s+am|\s+must)?\s+(?:can['\u2019]?t|cannot|won['\u2019]?t|(?:unable|not\s+able|decline)\s+to)\s+"
    rf"(?:{_TASKS})\b)",
    re.IGNORECASE,
)


def is_refusal(text: str) -> bool:
    """Return True where a text begins with one of the forms that docs/mining.md lists.

    Example:
        >>> is_refusal("I'm sorry, but I can't help with that."), is_refusal("I can't open a file in Python")
        (True, False)
    """
    return _REFUSAL.match(text) is not None
