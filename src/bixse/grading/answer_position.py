"""Where in a judge's text the answer stands: the one token that spells an option, or why there is none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bixse.grading.judge import Status

CUE_REACH = 200
"""How many characters before a number a sentence may say that it is the rating."""
_REASONING_END = re.compile(r"</(?:think|thinking|thought|reasoning)>|\[/THINK\]|<\|channel\|>final<\|message\|>")
_REASONING_START = re.compile(r"<(?:think|thinking|thought|reasoning)>|\[THINK\]|<\|channel\|>analysis")
_DECORATION = r"""(?:[\s"'\u201c\u201d\u2018\u2019`*_\#>(\[{$|]|-\s|\\boxed|\\text)*"""
_CHAT_PREFIX = r"(?:(?:<\|[^|>]*\|>|<s>|\[/INST\]|assistant\b:?|AI:)\s*)*"
_CUE = r"(?:answer|rating|score|grade|relevance|relatedness|label|judge?ment|level|output|response|result)"
_CUES = rf"(?:the\s+)?(?:(?:final|overall|relevance|my)\s+)*{_CUE}(?:\s+(?:score|level|rating|grade))?"
_PREFIX = re.compile(
    rf"{_CHAT_PREFIX}{_DECORATION}(?:{_CUES}{_DECORATION}(?:is\b)?\s*[:=]?{_DECORATION})?", re.IGNORECASE
)
_LINE_BEGIN = re.compile(rf"{_DECORATION}(?:{_CUES}{_DECORATION}(?:is\b\s*:?|[:=]){_DECORATION})?\Z", re.IGNORECASE)
_FILLER = (
    r"(?:is|be|as|a|an|of|the|this|that|it|at|with|to|for|passage|document|text|query|score|rating|grade|relevance)"
)
_PROSE_CUE = re.compile(
    rf"\b(?:rate|rated|rating|score|scored|grade|graded|relevance|answer|label|give|say|assign)"
    rf"(?:[\s:=*\"'`(]+{_FILLER})*[\s:=*\"'`(]*$",
    re.IGNORECASE,
)
_LINE_END = re.compile(r"""["'\u201d\u2019`*_)\]}|$.,;:!]*[^\S\n]*(?:\Z|\n|<\||</s>)""")
_NUMBERS_TOGETHER = re.compile(r"(?<![\w.])\d+\s*(?:[-–—,]|to|or|and|through)\s*\d", re.IGNORECASE)
_CLAUSE_END = re.compile(r"""["'\u201d\u2019`*_)\]}]*[.,;!]""")
_REFUSAL = re.compile(
    r"\bI(?:.m| am) (?:very )?sorry\b|\bI(?:.m| am) unable\b|\bI (?:cannot|can.t|won.t|must decline)\b"
    r"|\bas an AI\b|\bunable to (?:assist|help|answer|comply|provide)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class TextAnswer:
    """What a judge's text answers."""

    status: Status
    """"graded" where exactly one option is answered."""
    label: str = ""
    """The option."""
    start: int = -1
    """Where it stands in the text, in characters."""
    detail: str = ""
    """Why there is none, for people."""


@dataclass(frozen=True)
class _Mention:
    """A number or an option that stands alone in the text."""

    label: str | None
    """The option, None for a number that is none."""
    start: int
    end: int


def find_answer(text: str, labels: Sequence[str], finish_reason: str = "stop", refusal: str = "") -> TextAnswer:
    r"""Find the one option a text answers with; never a guess where several are named.

    Reasoning is skipped. Accepted are an option that leads (after white space, quotes, markdown, "Answer:") and is
    followed by the end, a line end or punctuation; one on a line like "Score: 2"; and one that a sentence gives as the
    rating while the text names no other. "2/3" and "2 out of 3" name 2 where 3 is the highest option.

    Args:
        text: what the judge wrote, without separate reasoning.
        labels: options, the highest last.
        finish_reason: as the server gave it: "stop", "length", "content_filter".
        refusal: the server's own text of a refusal; empty for none.

    Example:
        >>> options = ["0", "1", "2", "3"]
        >>> find_answer("**2**\nIt gives 3 reasons.", options).label
        '2'
        >>> find_answer("On a scale of 0 to 3, I would rate this passage a 1.", options).status
        'ambiguous'
        >>> find_answer("3.5", options).status
        'off-scale'
    """
    if finish_reason == "content_filter":
        return TextAnswer("filtered", detail="the server's content filter stopped the answer")
    if refusal:
        return TextAnswer("refused", detail=refusal)
    begin = _after_reasoning(text)
    if begin is None:
        return TextAnswer("truncated", detail="the reasoning has no end")
    mentions = _mentions(text, begin, tuple(labels))
    leading, lines = _leading(text, begin, mentions), _on_lines(text, begin, mentions)
    chosen = [leading, *lines] if leading else lines
    if len({mention.label for mention in chosen}) > 1:
        return TextAnswer("ambiguous", detail="several ratings are given")
    if chosen:
        return _accepted(text, chosen[0])
    if finish_reason == "length":
        return TextAnswer("truncated", detail="the length limit came before an option; --max-tokens raises it")
    return _in_prose(text, begin, mentions)


def answer_token(tokens: Sequence[str], text: str, answer: TextAnswer) -> int | None:
    r"""Which token is the answer.

    Args:
        tokens: every token written, in order; may hold reasoning before the text and end tokens after it.
        text: the text the answer was found in.
        answer: the answer.

    Returns:
        Its index, or None where no token spells the option alone or the tokens do not spell the text.

    Example:
        >>> answer_token(["<think>", "3", "</think>", "\n", "2"], "2", find_answer("2", ["2", "3"]))
        4
    """
    joined = "".join(tokens)
    shift = joined.rfind(text)
    if shift < 0:
        shift = joined.rfind(text.strip())
        if shift < 0:
            return None
        shift -= len(text) - len(text.lstrip())
    place = shift + answer.start
    end = 0
    for index, token in enumerate(tokens):
        end += len(token)
        if end > place:
            return index if token.strip() == answer.label else None
    return None


def _after_reasoning(text: str) -> int | None:
    """Where the text after the reasoning begins; None where the reasoning has no end."""
    begin = 0
    for match in _REASONING_END.finditer(text):
        begin = match.end()
    return None if _REASONING_START.search(text, begin) else begin


@lru_cache(maxsize=64)
def _mention_pattern(labels: tuple[str, ...]) -> re.Pattern[str]:
    """Options in the text; where all are whole numbers, every number, so that 10, 3.5 and -1 are not taken for 1."""
    if all(label.isdecimal() for label in labels):
        return re.compile(
            r"(?<![\w.])(?<![A-Za-z]-)(?P<number>[-−+]?\d+(?:[.,]\d+)*)"
            r"(?:\s*(?:/|out\s+of)\s*(?P<most>\d+(?:\.\d+)?))?(?![\w%])"
        )
    words = "|".join(re.escape(label) for label in sorted(labels, key=len, reverse=True))
    return re.compile(rf"(?<![\w.-])(?P<number>{words})(?P<most>\b\B)?(?![\w-])")


def _mentions(text: str, begin: int, labels: tuple[str, ...]) -> list[_Mention]:
    found = []
    for match in _mention_pattern(labels).finditer(text, begin):
        named = match["number"] in labels and match["most"] in (None, labels[-1])
        found.append(_Mention(match["number"] if named else None, match.start(), match.end()))
    return found


def _leading(text: str, begin: int, mentions: list[_Mention]) -> _Mention | None:
    """The mention a text begins with, where what follows it leaves it alone."""
    prefix = _PREFIX.match(text, begin)
    first = mentions[0] if mentions else None
    if first is None or prefix is None or first.start != prefix.end():
        return None
    if _LINE_END.match(text, first.end):
        return first
    line = text[first.end :].partition("\n")[0]
    if re.match(r"\s*(?:[,:(]|[-–—]\s)", line):
        others = {mention.label for mention in mentions if first.end <= mention.start < first.end + len(line)}
        alone = not others - {first.label, None}
    else:
        alone = re.match(r"""["'\u201d\u2019`*_)\]}]*[.!;](?!\d)""", line) is not None
    return first if alone and not _numbered_list(text, first) else None


def _numbered_list(text: str, first: _Mention) -> bool:
    """Whether the number only counts: "1. ..." and later a line "2. ..."."""
    number = text[first.start : first.end]
    mark = text[first.end : first.end + 1]
    if not number.isdecimal() or mark not in (".", ")", ":"):
        return False
    following = rf"^\W*{int(number) + 1}{re.escape(mark)}"
    return re.search(following, text[first.end :], re.MULTILINE) is not None


def _on_lines(text: str, begin: int, mentions: list[_Mention]) -> list[_Mention]:
    r"""Mentions on a line of their own or one that says what they are: "Score: 2", "\boxed{2}"."""
    found = []
    for mention in mentions:
        line_start = max(text.rfind("\n", 0, mention.start) + 1, begin)
        before = text[line_start : mention.start]
        boxed = before.endswith(("\\boxed{", "\\boxed{\\text{"))
        if boxed or (_LINE_BEGIN.match(before) and _LINE_END.match(text, mention.end)):
            found.append(mention)
    return found


def _in_prose(text: str, begin: int, mentions: list[_Mention]) -> TextAnswer:
    """The answer inside a sentence, only where it is the one option named and named as the rating."""
    named = {mention.label for mention in mentions} - {None}
    together = _NUMBERS_TOGETHER.search(text, begin) if mentions else None
    if len(named) > 1 or (named and together):
        return TextAnswer("ambiguous", detail="several options are named")
    rated = [
        m for m in mentions if _PROSE_CUE.search(text, max(begin, m.start - CUE_REACH), m.start) and _ends(text, m)
    ]
    chosen = [m for m in rated if m.label is not None] or rated
    if chosen:
        return _accepted(text, chosen[0])
    if _REFUSAL.search(text, begin):
        return TextAnswer("refused", detail="the judge declined")
    return TextAnswer("no-option", detail="no option is given as the answer")


def _ends(text: str, mention: _Mention) -> bool:
    """Whether a mention ends its clause: "a 2." does, "2 reasons" does not."""
    return bool(
        _LINE_END.match(text, mention.end) or re.match(r"""["'\u201d\u2019`*_)\]}]*[.,;!]""", text[mention.end :])
    )


def _accepted(text: str, mention: _Mention) -> TextAnswer:
    if mention.label is None:
        return TextAnswer("off-scale", detail=f"{text[mention.start : mention.end]!r} is no option")
    return TextAnswer("graded", mention.label, mention.start)
