"""Where in a judge's text the answer stands: the one token that spells an option, or why there is none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bixse.grading.judge import Status

CUE_REACH = 400
"""How many characters before a number its sentence may begin."""
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
_DECORATION = r"""(?:[\s"'\u201c\u201d\u2018\u2019`*_\#(\[{$|]|-\s|\\boxed|\\text)*"""
_CHAT_PREFIX = r"(?:(?:<\|[^|>]*\|>|<s>|\[/INST\]|assistant\b:?|AI:)\s*)*"
_CUE = r"(?:answer|rating|score|grade|relevance|relatedness|label|judge?ment|level|output|response|result)"
_CUES = rf"(?:the\s+)?(?:(?:final|overall|relevance|my)[\s_]+)*{_CUE}(?:[\s_]+(?:score|level|rating|grade))?"
_PREFIX = re.compile(
    rf"{_CHAT_PREFIX}{_DECORATION}(?P<cue>{_CUES}{_DECORATION}(?:is\b)?\s*[:=]?{_DECORATION}|<{_CUE}>\s*)?",
    re.IGNORECASE,
)
_LINE_BEGIN = re.compile(
    rf"{_DECORATION}(?P<cue>{_CUES}{_DECORATION}(?:is\b\s*:?|[:=]){_DECORATION}|<{_CUE}>\s*)?\Z", re.IGNORECASE
)
_CLOSING = r"""["'\u201d\u2019`*_)\]}|$]"""
_LINE_END = re.compile(rf"{_CLOSING[:-1]}.,;:!]*[^\S\n]*(?:\Z|\n|<\||</)")
_TAIL = re.compile(rf"{_CLOSING}*\s*(?:(?P<mark>[.,:;!(])|[-–—]\s)(?!\W*\d)")
_REASON = re.compile(rf"{_CLOSING}*\s+(?:because|since|due\s+to)\b", re.IGNORECASE)
_HEDGE = re.compile(
    r"\W*(?:or|but\s+only|only\s+(?:if|when)|at\s+(?:the\s+)?(?:very\s+)?(?:most|least|best|worst)|maybe|perhaps|if|unless"
    r"|up\s+to|more\s+or\s+less|(?:no|not)\s+(?:more|less|higher|lower)|provided|assuming|depending|tops|plus|minus)\b",
    re.IGNORECASE,
)
"""Words after a number that leave open whether it is the rating."""
_NUMBERS_TOGETHER = re.compile(r"(?<![\w.])\d+\s*(?:[-–—,]|to|or|and|through)\s*\d", re.IGNORECASE)
_CLOSED = re.compile(rf"{_CLOSING}+|[.,;:!]*[^\S\n]*\n|<\||</")
_TAKEN_BACK = re.compile(
    r"(?:\n|[.!?]\s)\W*(?:wait|hmm|scratch\s+that|on\s+second\s+thought|correction)\b", re.IGNORECASE
)

# A sentence gives a rating only in one of these forms: what negates, compares or asks does not fit them.
_SENTENCE_END = re.compile(r"""[.!?]["'\u201d\u2019)\]*]*\s+(?=[^a-z])|\n""")
_FILLER = (
    r"(?:is|be|as|an?|of|the|this|that|it|its|at|with|to|for|my|final|overall|given|passage|document|text|article|pair"
    r"|query|question|score|rating|grade|relevance|level|label|mark)"
)
_FILLERS = rf"""(?:[\s:=*"'`(]+{_FILLER})*[\s:=*"'`(]*\Z"""
_OPENING = (
    r"(?:(?:so|therefore|thus|hence|and|but|then|overall|finally|consequently|accordingly|ultimately|actually|rather"
    r"|instead|no(?=,)|in\s+(?:conclusion|summary|short)|in\s+my\s+(?:opinion|view|judge?ment)"
    r"|on\s+(?:second\s+thought|reflection)|I\s+(?:think|believe|feel|conclude|find)(?:\s+that)?)[\s,:]+)*"
)
_JUDGE_SAYS = (
    r"I(?:['\u2019](?:d|ll)|\s+(?:would|will|must))?(?:\s+(?:therefore|thus|hence))?\s+(?:rated?|scored?|graded?|give|gave"
    r"|assign(?:ed)?|label|judge|choose|chose|say|answer|pick|select|mark|go\s+with)"
)
_TEXT_GETS = (
    r"(?:(?:it|this)['\u2019]s\s+an?\b|(?:it|this|(?:the|this)\s+(?:given\s+)?(?:passage|document|text|article|pair"
    r"|result))\s+(?:(?:should|must|will)\s+)?"
    r"(?:gets?|deserves?|receives?|earns?|merits?|warrants?|scores?|rates?|(?:is|be)\s+(?:an?\b|rated|scored|graded"
    r"|labell?ed|judged|given|assigned)))"
)
_RATING_IS = (
    r"(?:(?:the|my|its|an?)\s+)?(?:(?:final|overall|relevance|relatedness|own)\s+)*"
    rf"{_CUE}(?:\s+(?:score|rating|grade|level|label))?(?:\s+(?:of|for|to)(?:\s+{_FILLER})+)?"
    r"""[\s*"'`]*(?:(?:is|would\s+be|will\s+be|should\s+be|of)\b|[:=])"""
)
_GIVEN = re.compile(
    rf"(?:^[\s\"'*_\#(-]*|[,;:–—]\s*|\b(?:so|therefore|thus|hence)\s+){_OPENING}"
    rf"(?:{_JUDGE_SAYS}|{_TEXT_GETS}|{_RATING_IS}){_FILLERS}",
    re.IGNORECASE,
)
_DOUBT = re.compile(
    r"\b(?:if|unless|whether|otherwise|until|suppos(?:e|ing)|assuming|imagine|without|except|nobody|no\s+one|doubt|deny)\b"
    r"|^\W*(?:had|were|should)\b|(?:\bnot|n['\u2019]t|\bnever|\bhardly)\s+(?:think|believe|say|agree|feel|mean|find|see)\b",
    re.IGNORECASE,
)
"""Words before a rating in its sentence that make it a condition, or somebody else's."""
_JSON_KEY = re.compile(rf"""[{{,]\s*["']{_CUES}["']\s*:\s*["']?\Z""", re.IGNORECASE)
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
    start: int = -1
    """Where the option stands in the text, in characters."""
    detail: str = ""
    """Why there is none, for people."""


@dataclass(frozen=True)
class _Mention:
    """A number or an option that stands alone in the text."""

    label: str | None
    """None for a number that is no option."""
    start: int
    end: int


def find_answer(
    text: str, labels: Sequence[str], finish_reason: str = "stop", refusal: str = "", place: bool = False
) -> TextAnswer:
    r"""Find the one option a text answers with; never a guess where several are named.

    Reasoning is skipped. Accepted are an option that leads (after white space, quotes, markdown, "Answer:") and is
    followed by the end, a line end or punctuation; one on a line like "Score: 2"; and one that a sentence gives as the
    rating ("I would rate it a 2.") while the text names no other. "2/3" and "2 out of 3" name 2 where 3 is the highest
    option. A number that is negated, compared, asked for or supposed is no answer, and neither is one that may count
    ("2. The passage ...") or one in a text that was cut off before the answer was whole.

    Args:
        text: what the judge wrote, without separate reasoning.
        labels: options, the highest last.
        finish_reason: "stop", "length" or "content_filter".
        refusal: the server's own text of a refusal.
        place: only the place of the option is looked for, whose probabilities are the grade: what comes after it does
            not matter as much, so that "2. The passage" is one, cut off or not.

    Example:
        >>> options = ["0", "1", "2", "3"]
        >>> find_answer("**2**\nIt gives 3 reasons.", options).label
        '2'
        >>> find_answer("On a scale of 0 to 3, I would rate this passage a 1.", options).status
        'ambiguous'
        >>> find_answer("I would not give it a 3.", options).status
        'no-option'
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
    leading, lines = _leading(text, begin, mentions, place), _on_lines(text, begin, mentions)
    stated = [leading, *lines] if leading else lines
    rated = [mention for mention in mentions if _is_rated(text, begin, mention, mentions)]
    if len({mention.label for mention in [*stated, *rated]}) > 1:
        return TextAnswer("ambiguous", detail="several ratings are given")
    cut = finish_reason == "length"
    if cut and not (stated and (place or _is_whole(text, begin, stated[0], leading is not None))):
        return TextAnswer("truncated", detail="the length limit came before a whole answer; --max-tokens raises it")
    if stated:
        if _TAKEN_BACK.search(text, stated[0].end):
            return TextAnswer("ambiguous", detail="the rating may be taken back")
        return _accepted(text, stated[0])
    return _in_prose(text, begin, mentions, rated)


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


def _leading(text: str, begin: int, mentions: list[_Mention], place: bool) -> _Mention | None:
    """The mention a text begins with, where what follows it leaves it alone."""
    prefix = _PREFIX.match(text, begin)
    first = mentions[0] if mentions else None
    if first is None or prefix is None or first.start != prefix.end():
        return None
    if _LINE_END.match(text, first.end):
        return first
    counts = (
        not place and not prefix["cue"] and (first.label is None or first.label.isdecimal() or len(first.label) == 1)
    )
    alone = _is_left_alone(text, first, mentions, may_count=counts)
    return first if alone and not _numbered_list(text, first) else None


def _is_left_alone(text: str, mention: _Mention, mentions: list[_Mention], may_count: bool = False) -> bool:
    """Whether what follows a mention on its line leaves it as it is: no other option, no "or", no "at most".

    Where nothing says that it is a rating it may count: "2. The passage" may be the number of a list.
    """
    tail = _TAIL.match(text, mention.end)
    if tail is None or _HEDGE.match(text, tail.end()):
        return False
    if tail["mark"] == ".":
        return not may_count
    line_end = text.find("\n", mention.end)
    until = _SENTENCE_END.search(text, tail.end(), line_end if line_end >= 0 else len(text))
    end = until.start() if until else line_end if line_end >= 0 else len(text)
    return not {m.label for m in mentions if mention.end <= m.start < end} - {mention.label, None}


def _numbered_list(text: str, first: _Mention) -> bool:
    """Whether the number only counts: "1. ..." and later a line "2. ..."."""
    number = text[first.start : first.end]
    mark = text[first.end : first.end + 1]
    if not number.isdecimal() or mark not in (".", ")", ":"):
        return False
    following = rf"^\W*{int(number) + 1}{re.escape(mark)}"
    return re.search(following, text[first.end :], re.MULTILINE) is not None


def _on_lines(text: str, begin: int, mentions: list[_Mention]) -> list[_Mention]:
    r"""Mentions that stand alone on a line or behind what they are: "Score: 2", "\boxed{2}"."""
    found = []
    for mention in mentions:
        line_start = max(text.rfind("\n", 0, mention.start) + 1, begin)
        before = text[line_start : mention.start]
        line = _LINE_BEGIN.match(before)
        ends = line is not None and (
            _LINE_END.match(text, mention.end) or (line["cue"] and _is_left_alone(text, mention, mentions))
        )
        if ends or before.endswith(("\\boxed{", "\\boxed{\\text{")):
            found.append(mention)
    return found


def _is_rated(text: str, begin: int, mention: _Mention, mentions: list[_Mention]) -> bool:
    """Whether a sentence, or a key of JSON, gives a mention as the rating."""
    reach = max(begin, mention.start - CUE_REACH)
    before = text[reach : mention.start]
    if _JSON_KEY.search(before):
        return True
    ends = list(_SENTENCE_END.finditer(before))
    if not ends and reach > begin:
        return False
    sentence = before[ends[-1].end() :] if ends else before
    given = _GIVEN.search(sentence)
    if given is None or _DOUBT.search(sentence, 0, given.start()):
        return False
    return bool(
        _LINE_END.match(text, mention.end)
        or _REASON.match(text, mention.end)
        or _is_left_alone(text, mention, mentions)
    )


def _is_whole(text: str, begin: int, mention: _Mention, leads: bool) -> bool:
    """Whether the answer of a text that was cut off is whole: the option alone, or closed by a mark or a line end.

    Where it does not lead, nothing may follow: the judge may still have been thinking.
    """
    if text[begin:].strip() == mention.label:
        return True
    closed = _CLOSED.match(text, mention.end)
    if closed is None or (closed[0].startswith(")") and not text[: mention.start].rstrip("\"'`*_").endswith("(")):
        return False
    return leads or not re.search(r"\w", text[closed.end() :])


def _in_prose(text: str, begin: int, mentions: list[_Mention], rated: list[_Mention]) -> TextAnswer:
    """The answer inside a sentence, where it is the only option named."""
    named = {mention.label for mention in mentions} - {None}
    together = _NUMBERS_TOGETHER.search(text, begin) if mentions else None
    if len(named) > 1 or (named and together):
        return TextAnswer("ambiguous", detail="several options are named")
    if rated:
        return _accepted(text, rated[0])
    if _REFUSAL.search(text, begin):
        return TextAnswer("refused", detail="the judge declined")
    return TextAnswer("no-option", detail="no option is given as the answer")


def _accepted(text: str, mention: _Mention) -> TextAnswer:
    if mention.label is None:
        return TextAnswer("off-scale", detail=f"{text[mention.start : mention.end]!r} is no option")
    return TextAnswer("graded", mention.label, mention.start)
