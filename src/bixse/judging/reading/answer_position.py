"""The option that a judge's text answers with, and its position in the text; a text in any other form has none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from bixse.judging.reading.refusals import is_refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bixse.judging.judge import Status

_TAGS = "think|thinking|thoughts?|reason|reasoning|reflection|analysis|scratchpad|seed:think"
_REASONING_END = re.compile(
    rf"</(?:{_TAGS})>|\[/THINK\]|\u25c1/think\u25b7|<\|(?:END_THINKING|end_of_thought)\|>|<\|channel\|>final<\|message\|>",
    re.IGNORECASE,
)
_REASONING_START = re.compile(
    rf"<(?:{_TAGS})>|\[THINK\]|\u25c1think\u25b7|<\|(?:START_THINKING|begin_of_thought)\|>|<\|channel\|>analysis",
    re.IGNORECASE,
)
_END_TOKENS = re.compile(r"(?:\s|<[^<>]*>|\[/?[A-Z_]+\])*")
_MARKUP = re.compile(r"<\|[^|<>]*\|>|<(?:/?s|eos|end_of_turn)>|```\w*")
"""Special tokens that a server leaves in its text, and fences of code: as good as the end of a line."""

# Repetitions are possessive (`*+`) where two could match the same characters: hostile texts take linear time.
_OPENING = r"""(?:[^\S\n]|["'\u201c\u2018`*_\#(\[{$|]|-[^\S\n]|\\boxed|\\text)*+"""
_CLOSING = r"""["'\u201d\u2019`*_)\]}|$]"""
_KIND = r"(?:answer|rating|score|grade|relevance|relatedness|label|judge?ment|level|output|response|result)"
_NAME = rf"(?i:(?:(?:the|my|final|overall)[ _]++)*+{_KIND}(?:[ _]++{_KIND})?)"
_LABEL = rf"{_NAME}{_CLOSING}*+[^\S\n]*+(?:is\b|[:=]|[-–—][^\S\n]){_OPENING}"
_BEFORE = rf"{_OPENING}(?:{_LABEL}|<{_NAME}>\s*+)?"
_LAST_KEY = rf"""\{{[^\n]*,\s*+["']{_LABEL}"""
"""The last key of an object of JSON on one line; one with a single key, or with a line for each, fits `_BEFORE`."""
_AFTER = rf"(?:{_CLOSING}|\s|</{_NAME}>)*+[.!]?(?:{_CLOSING}|\s)*+\Z"
_LEFT_ALONE = rf"(?![.,]\d)(?={_CLOSING}*+[^\S\n]*+(?:[.,:;!(<\n]|[-–—]\s|\Z))"
_NUMBER = r"(?<![\w.])[-−+]?\d+(?:[.,]\d+)*+(?![\w%])"


@dataclass(frozen=True)
class TextAnswer:
    """The option that a judge's text answers with, or why there is none."""

    status: Status
    """"graded" where exactly one option is answered."""
    label: str = ""
    start: int = -1
    """Position of the option in the text, in characters."""
    detail: str = ""
    """Why there is none, for people."""


class _Patterns(NamedTuple):
    """Compiled for the options of one rubric."""

    last_line: re.Pattern[str]
    """The option alone at the end of the text."""
    first_line: re.Pattern[str]
    """The option at the beginning, followed by a mark or the end of the line."""
    after_first: re.Pattern[str]
    """What follows on that line, and beginnings of later lines: another option there makes it a list."""
    ratings: re.Pattern[str]
    """Stretches of text in which a number is a rating."""
    number: re.Pattern[str]
    """Every number, so that 10, 3.5 and -1 are not taken for 1; the options where they are words."""

    def numbers_in(self, stretches: re.Pattern[str], text: str) -> set[str]:
        return {number for found in stretches.finditer(text) for number in self.number.findall(found[0])}


def find_answer(
    text: str, labels: Sequence[str], finish_reason: str = "stop", refusal: str = "", place: bool = False
) -> TextAnswer:
    r"""Read the option of a text that answers in the form that was asked for.

    The form is the option alone on the last line, perhaps in quotes or marks of emphasis, behind a name ("Score: 2"),
    in a tag (`<score>2</score>`) or as the last key of an object of JSON (`{"score": 2}`). No other number may stand on
    a line of its own, in a tag, right after a colon, or behind "score", "rating" or "grade" in a line. Reasoning is
    skipped. A text that was cut off has no answer.

    Args:
        text: what the judge wrote, without separate reasoning.
        labels: options, the highest last.
        finish_reason: "stop", "length" or "content_filter".
        refusal: the server's own text of a refusal.
        place: look only for the position of the option, whose probabilities are the grade. Then an option that the text
            begins with counts too, whatever comes after it ("2. The passage is"), unless its line names another one.

    Example:
        >>> options = ["0", "1", "2", "3"]
        >>> find_answer("It names Paris.\n**Score: 2**", options).label
        '2'
        >>> find_answer("Score: 3\nAdjusted score: 1", options).status
        'no-option'
        >>> find_answer("3\n\nToo high.", options).status
        'no-option'
    """
    if finish_reason == "content_filter":
        return TextAnswer("filtered", detail="the server's content filter stopped the answer")
    if refusal:
        return TextAnswer("refused", detail=refusal)
    begin = _after_reasoning(text)
    if begin is None:
        return TextAnswer("truncated", detail="the reasoning has no end")
    visible = "\n" * begin + _MARKUP.sub(lambda match: "\n" * len(match[0]), text[begin:])  # positions stay the same
    patterns, cut = _patterns(tuple(labels)), finish_reason == "length"
    match = patterns.first_line.match(visible, len(visible) - len(visible.lstrip())) if place else None
    if match is not None:
        others = patterns.numbers_in(patterns.after_first, visible[match.end() :]) - {match["option"]}
        match = None if others & set(labels) else match
    if match is None and not cut:
        match = patterns.last_line.search(visible)
    if match is not None:
        rated = patterns.numbers_in(patterns.ratings, visible)
        if rated <= {match["option"]}:
            return TextAnswer("graded", match["option"], match.start("option"))
        return TextAnswer("no-option", detail=f"several numbers stand as ratings: {', '.join(sorted(rated))}")
    if cut:
        return TextAnswer("truncated", detail="the length limit came before the end; --max-tokens raises it")
    if is_refusal(visible):
        return TextAnswer("refused", detail="the judge declined")
    return TextAnswer("no-option", detail=f"the last line is not one of {', '.join(labels)} alone")


def answer_token(tokens: Sequence[str], text: str, answer: TextAnswer) -> int | None:
    r"""Index of the token that is the answer; None where none spells it alone or they do not end with the text.

    The tokens may hold reasoning before the text and end tokens after it.

    Example:
        >>> answer_token(["<think>", "3", "</think>", "\n", "2"], "2", find_answer("2", ["2", "3"]))
        4
    """
    joined, core = "".join(tokens), text.strip()
    shift = joined.rfind(core)
    if shift < 0 or not _END_TOKENS.fullmatch(joined, shift + len(core)):
        return None
    place = shift + answer.start - (len(text) - len(text.lstrip()))
    end = 0
    for index, token in enumerate(tokens):
        end += len(token)
        if end > place:
            return index if token.strip() == answer.label else None
    return None


def _after_reasoning(text: str) -> int | None:
    """Where the reasoning ends; None where it has no end."""
    begin = 0
    for match in _REASONING_END.finditer(text):
        begin = match.end()
    return None if _REASONING_START.search(text, begin) else begin


@lru_cache(maxsize=64)
def _patterns(labels: tuple[str, ...]) -> _Patterns:
    options = "|".join(re.escape(label) for label in sorted(labels, key=len, reverse=True))
    numbers = all(re.fullmatch(_NUMBER, label) for label in labels)
    number = _NUMBER if numbers else rf"(?<![\w-])(?:{options})(?![\w-])"
    line_begin = rf"^[^\w\n]*+{number}"
    behind_word = r"(?i:(?<![a-z])(?:scor|rat|grad)(?:e|ing)[^\n]*)"
    at_mark = rf"(?:>\s*+|[:=<{{])[^\w\n:=<>{{]*+{number}|{number}\s*+<"
    return _Patterns(
        re.compile(rf"^(?:{_BEFORE}|{_LAST_KEY})(?P<option>{options}){_AFTER}", re.MULTILINE),
        re.compile(rf"{_BEFORE}(?P<option>{options}){_LEFT_ALONE}"),
        re.compile(rf"\A[^\n]*|{line_begin}", re.MULTILINE),
        re.compile(rf"{line_begin}[^\w\n]*+$|{behind_word}|{at_mark}", re.MULTILINE),
        re.compile(number),
    )
