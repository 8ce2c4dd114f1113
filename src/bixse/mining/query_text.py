"""From what a model wrote to queries: cleaned, refused where they are none, each kept once."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

import Stemmer

LONGEST = 40
"""Words beyond which a text is no query."""
COPIED = 8
"""Words in a row that a query may not share with its document: a copied sentence is found by any search."""
_LABEL = re.compile(r"^(?:(?:search )?quer(?:y|ies)|question|q|answer)\s*\d*\s*[:\-]\s*", re.IGNORECASE)
_MARKS = re.compile(r"^(?:[-*•]\s+|\d+[.)]\s+)")
_THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)
_WORDS = re.compile(r"\w+")

Refusal: TypeAlias = Literal["empty", "too long", "copied"]
"""Why a text is no query."""


def clean_query(text: str) -> str:
    r"""The query in what a model wrote: its first line, without reasoning, labels, list marks and quotes.

    Example:
        >>> clean_query('<think>hm</think>\n1. Query: "how to copy a folder"\nThis query is good.')
        'how to copy a folder'
    """
    answer = _THOUGHT.sub("", text)
    if "<think>" in answer:
        return ""  # the reasoning did not end
    line = next((line.strip() for line in answer.split("\n") if line.strip()), "")
    before = None
    while before != line:
        before = line
        line = _LABEL.sub("", _MARKS.sub("", line)).strip().strip("`*").strip()
        if len(line) > 1 and (line[0], line[-1]) in {('"', '"'), ("'", "'"), ("“", "”"), ("«", "»")}:
            line = line[1:-1].strip()
    return " ".join(line.split())


def refusal(query: str, document: str) -> Refusal | None:
    """Why a cleaned text is not taken as a query of this document, or None.

    Example:
        >>> refusal("", "a page"), refusal("how to copy a folder", "shutil.copytree copies a tree")
        ('empty', None)
    """
    words = _words(query)
    if not words:
        return "empty"
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
