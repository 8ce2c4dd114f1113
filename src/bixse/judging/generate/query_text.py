"""From what a model wrote to queries: cleaned, refused where they are none, each kept once."""

from __future__ import annotations

import re
from typing import Literal

import Stemmer

from bixse.judging.judges.reading import is_refusal

LONGEST = 40
"""Words beyond which a text is no query."""
COPIED = 8
"""Words in a row that a query may not share with its document: a copied sentence is found by any search."""
_LABEL = re.compile(r"^(?:(?:search )?quer(?:y|ies)|question|q|answer)\s*\d*\s*(?::\s*|-\s+)", re.IGNORECASE)
_LEAD = re.compile(
    r"^(?:(?:sure|certainly|of course|okay)\b[,.!:]*\s*)?(?:here(?:['\u2019]s| is| are)\b[^:]*:\s*|$)", re.IGNORECASE
)
"""Words with which a chat model leads up to the query: "Sure! Here is a query:"."""
_PLACEHOLDERS = {"null", "none", "n/a"}
_MARKS = re.compile(r"^(?:[-*•]\s+|\d+[.)]\s+)")
_PAIRS = ('""', "''", "``", "“”", "«»")
_WORDS = re.compile(r"\w+")


def clean_query(text: str) -> str:
    r"""The query in what a model wrote: its first line, without reasoning, leads, labels, list marks and quotes.

    Example:
        >>> clean_query('<think>hm</think>\n1. Query: "how to copy a folder"\nThis query is good.')
        'how to copy a folder'
    """
    answer = text.rpartition("</think>")[2]
    if "<think>" in answer:
        return ""  # the reasoning did not end
    return next(filter(None, map(_clean_line, answer.split("\n"))), "")


def _clean_line(line: str) -> str:
    before = None
    while before != line:
        before = line
        line = _LABEL.sub("", _MARKS.sub("", _LEAD.sub("", line.strip()))).strip()
        if line[:2] == line[-2:] == "**" and "*" not in line[2:-2]:
            line = line[2:-2].strip()
        inside = line[1:-1]
        if line[:1] + line[-1:] in _PAIRS and not set(inside) & {line[0], line[-1]}:
            line = inside.strip()
    return " ".join(line.split())


def refusal(query: str, document: str) -> Literal["empty", "declined", "placeholder", "too long", "copied"] | None:
    """Why a cleaned text is not taken as a query of this document, or None.

    Example:
        >>> refusal("", "a page"), refusal("how to copy a folder", "shutil.copytree copies a tree")
        ('empty', None)
    """
    words = _words(query)
    if not words:
        return "empty"
    if is_refusal(query):
        return "declined"
    if query.casefold().strip(" .()") in _PLACEHOLDERS:
        return "placeholder"
    if len(words) > LONGEST:
        return "too long"
    page = " " + " ".join(_words(document)) + " "
    runs = (" ".join(words[start : start + COPIED]) for start in range(len(words) - COPIED + 1))
    return "copied" if any(f" {run} " in page for run in runs) else None


def same_query(query: str) -> tuple[str, ...]:
    """Equal for queries that differ in case, punctuation, word order or endings (English stems) alone.

    Example:
        >>> same_query("How do I copy folders?") == same_query("copy folder: how do I")
        True
    """
    words = sorted(Stemmer.Stemmer("english").stemWords(_words(query)))
    return tuple(words) or (query.strip(),)


def _words(text: str) -> list[str]:
    return _WORDS.findall(text.casefold())
