"""Read a judge's text as one option, or its option probabilities as an expected grade (BiXSE paper, section 3)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from bixse.errors import InputError

if TYPE_CHECKING:
    from bixse.judging.judge import Status


NOT_AVAILABLE = -9000.0
"""Log-probabilities up to this value (servers write -9999) mean "not available", not "impossible"."""
SAME = 0.05
"""Maximum difference of two log-probabilities of one token, from rounding or a second pass of the model."""
_ROUNDING = 0.02  # a sum of returned probabilities may pass 1


@dataclass(frozen=True)
class OptionProbabilities:
    """The returned probabilities of the options at the position of the answer."""

    probabilities: tuple[float, ...]  # of each label, summed over its spellings ("3" and " 3")
    hidden: tuple[float, ...] = ()  # missing at most, per label (spellings not returned, names that may be two tokens)
    unseen: float = 0.0  # probability outside the returned tokens; all hidden probabilities share it

    @property
    def mass(self) -> float:
        """The returned probability that the answer is one of the options."""
        return min(1.0, sum(self.probabilities))


def spellings(label: str) -> tuple[str, str]:
    """Return the token texts of one option, without and with a leading space."""
    return label, f" {label}"


@dataclass
class SeenToken:
    """A returned token, possibly named several times: highest log-probability and lowest probability given.

    `more` is the probability of its other names, in case they are other tokens.
    """

    text: str
    top: float
    least: float
    more: float = 0.0

    @property
    def hidden(self) -> float:
        """The maximum that can be missing from the lowest probability."""
        return math.exp(self.top) - self.least + self.more


def distinct_tokens(returned: Sequence[tuple[str, float]]) -> list[SeenToken]:
    """Return the distinct tokens of a list of (token text, natural log-probability).

    Entries with equal texts are one token. So are "3" and "▁3", which differ in white space alone, if their values
    agree (`SAME`); `more` is for the case of two tokens.
    """
    tokens: dict[str, list[SeenToken]] = {}
    for text, value in sorted(returned, key=lambda entry: -entry[1]):
        alike, share = tokens.setdefault(text.strip(), []), math.exp(value)
        same = next((token for token in alike if token.top - value <= SAME or token.text == text), None)
        if same is None:
            alike.append(SeenToken(text, value, share))
        elif same.top - value <= SAME:
            same.least, same.more = share, same.more + share * (same.text != text)
        else:
            same.more += share
    return [token for alike in tokens.values() for token in alike]


def option_probabilities(
    labels: Sequence[str],
    alternatives: Sequence[tuple[str, float | None]],
    written: str | None = None,
    forced: bool = False,
) -> OptionProbabilities | None:
    """Return the options' probabilities from a judge's alternatives (token text, natural log-probability).

    A token counts as an option if it spells the label apart from white space. All missing tokens share the rest up
    to 1, and a token without a usable value can have all of that rest. `forced`: the written token was the most
    probable label under a constraint, even if other tokens are more probable.

    Return None without entries, and without a usable value of the written token. Return None also for NaN, positive
    log-probabilities, or a sum above 1 (some servers answer 0 for every token).
    """
    usable = [(token, value) for token, value in alternatives if value is not None and not value <= NOT_AVAILABLE]
    unusable = {token for token, value in alternatives if value is None or value <= NOT_AVAILABLE}
    if not usable or written in unusable or any(math.isnan(value) or value > 1e-3 for _, value in usable):
        return None
    tokens = distinct_tokens(usable)
    total = math.fsum(token.least for token in tokens)
    if total > 1 + _ROUNDING:
        return None
    unseen = max(0.0, 1.0 - total)
    # a missing token is at most as probable as the least probable one returned; servers may add the written one
    others = [token.top for token in tokens if token.text != written] or [token.top for token in tokens]
    most = math.exp(min(others))
    under = min([math.exp(token.top) for token in tokens if forced and token.text == written] + [most])
    named = {token for token, _ in alternatives}
    raw, hidden = [], []
    for label in labels:
        spelled = [token for token in tokens if token.text.strip() == label]
        missing = [under if text == label else most for text in spellings(label) if text not in named]
        raw.append(math.fsum(token.least for token in spelled))
        more = math.fsum([*(token.hidden for token in spelled), *missing])
        hidden.append(min(unseen, more) if label not in {text.strip() for text in unusable} else unseen)
    if unseen <= 1e-9 or not any(hidden):
        return OptionProbabilities(tuple(raw))
    return OptionProbabilities(tuple(raw), tuple(hidden), unseen)


def expected_grade(values: Sequence[float], options: OptionProbabilities) -> tuple[float, float, float]:
    """Return the expected grade sum s p(s) / sum p(s) over the returned options, and its lowest and highest value.

    `values` are L rising grades. Raise InputError if no option has any probability.
    """
    total = math.fsum(options.probabilities)
    if not total > 0:
        raise InputError("expected grade: got no probability on any option; expected some; fix: check the status first")
    weighted = math.fsum(value * share for value, share in zip(values, options.probabilities, strict=True))
    grade = weighted / total
    if not options.hidden:
        return grade, grade, grade
    bounds = []
    for sign in (-1.0, 1.0):
        mass, top, left = total, weighted, options.unseen
        # hidden spellings move the mean outwards: from the extreme value inwards, while unseen probability is left
        for value, most in sorted(zip(values, options.hidden, strict=True), reverse=sign > 0):
            take = min(most, left)
            if sign * (value - top / mass) <= 0:
                break
            mass, top, left = mass + take, top + take * value, left - take
        bounds.append(top / mass)
    return grade, min(bounds[0], grade), max(bounds[1], grade)


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
    """Return True if a text declines to answer in a form that docs/reference/mining.md lists."""
    return _REFUSAL.match(text) is not None


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
# servers leave special tokens in the text; these tokens and code fences count as the end of a line
_MARKUP = re.compile(r"<\|[^|<>]*\|>|<(?:/?s|eos|end_of_turn)>|```\w*")

# Possessive repetitions (`*+`) where two could match the same characters: hostile texts take linear time.
_MARK = r"""["'\u201c\u201d\u2018\u2019`*_#()\[\]{}$|]"""
_OPENING = rf"(?:{_MARK}|[^\S\n])*+"
_NAME = r"(?i:(?:(?:final|overall|relevance)[ _]++)?(?:answer|score|rating|grade|relevance|label))"
_LABEL = rf"{_NAME}{_MARK}*+[^\S\n]*+[:=]{_OPENING}"
_LAST_KEY = rf"""\{{[^\n]*,\s*+["']{_LABEL}"""  # of a one-line JSON object; a single key fits `_LABEL`
_AFTER = rf"(?:{_MARK}|\s)*+[.!]?(?:{_MARK}|\s)*+\Z"
_LEFT_ALONE = rf"(?![.,]\d)(?={_MARK}*+[^\S\n]*+(?:[.,:;!(<\n]|[-–—]\s|\Z))"
# not `(?:[.,]\d+)*+`: before 3.11.5 Python takes the full stop of "2." for a part of the number
_NUMBER = r"(?<![\w.])[-−+]?\d+(?:[.,]\d+)*(?![\w%]|[.,]\d)"


@dataclass(frozen=True)
class TextAnswer:
    """The option in a judge's text, or the reason why there is none."""

    status: Status
    label: str = ""
    start: int = -1  # of the option in the text
    detail: str = ""


class _Patterns(NamedTuple):
    """The patterns of the options of one rubric."""

    last_line: re.Pattern[str]
    first_line: re.Pattern[str]
    after_first: re.Pattern[str]  # the rest of the first line, and beginnings of later lines: a list has options there
    ratings: re.Pattern[str]  # stretches of text in which a number is a rating
    number: re.Pattern[str]  # every number, so that 10, 3.5 and -1 are not read as 1; or the options, if they are words

    def numbers_in(self, stretches: re.Pattern[str], text: str) -> set[str]:
        return {number for match in stretches.finditer(text) for number in self.number.findall(match[0])}


def find_answer(
    text: str, labels: Sequence[str], finish_reason: str = "stop", refusal: str = "", position_only: bool = False
) -> TextAnswer:
    r"""Read the option of a text in the requested form.

    The form is the option alone on the last line, possibly in quotes or marks of emphasis, after a name ("Score: 2"),
    or as the last key of a JSON object (`{"score": 2}`). No other number may be alone on a line, in a tag, right after
    a colon, or after "score", "rating" or "grade" in a line. Reasoning is skipped. A truncated text has no answer.

    With `position_only`, the probabilities at the position are the grade. Then an option at the beginning counts too
    ("2. The passage is"), unless its line names another option.
    `finish_reason` is "stop", "length" or "content_filter"; `refusal` is the server's own text.

    Example:
        >>> find_answer("It names Paris.\n**Score: 2**", ["0", "1", "2", "3"]).label
        '2'
    """
    if finish_reason == "content_filter":
        return TextAnswer("filtered", detail="the server's content filter stopped the answer")
    if refusal:
        return TextAnswer("refused", detail=refusal)
    begin = max((match.end() for match in _REASONING_END.finditer(text)), default=0)
    if _REASONING_START.search(text, begin):
        return TextAnswer("truncated", detail="the reasoning has no end")
    visible = "\n" * begin + _MARKUP.sub(lambda match: "\n" * len(match[0]), text[begin:])  # keeps all indices
    patterns, cut = _patterns(tuple(labels)), finish_reason == "length"
    match = patterns.first_line.match(visible, len(visible) - len(visible.lstrip())) if position_only else None
    if match is not None:
        others = patterns.numbers_in(patterns.after_first, visible[match.end() :]) - {match["option"]}
        match = None if others & set(labels) else match
    if match is None and not cut:
        match = patterns.last_line.search(visible)
    if match is not None:
        rated = patterns.numbers_in(patterns.ratings, visible)
        if rated <= {match["option"]}:
            return TextAnswer("graded", match["option"], match.start("option"))
        return TextAnswer("no-option", detail=f"several numbers are ratings: {', '.join(sorted(rated))}")
    if cut:
        return TextAnswer("truncated", detail="the length limit came before the end; --max-tokens raises it")
    if is_refusal(visible):
        return TextAnswer("refused", detail="the judge declined")
    return TextAnswer("no-option", detail=f"the last line is not one of {', '.join(labels)} alone")


def answer_token(tokens: Sequence[str], text: str, answer: TextAnswer) -> int | None:
    """Return the index of the answer's token; None if no token spells it alone or the tokens do not end with the text.

    The tokens may hold reasoning before the text and end tokens after it.
    """
    joined, core = "".join(tokens), text.strip()
    shift = joined.rfind(core)
    if shift < 0 or not _END_TOKENS.fullmatch(joined, shift + len(core)):
        return None
    position = shift + answer.start - (len(text) - len(text.lstrip()))
    end = 0
    for index, token in enumerate(tokens):
        end += len(token)
        if end > position:
            return index if token.strip() == answer.label else None
    return None


@lru_cache(maxsize=64)
def _patterns(labels: tuple[str, ...]) -> _Patterns:
    options = "|".join(re.escape(label) for label in sorted(labels, key=len, reverse=True))
    numbers = all(re.fullmatch(_NUMBER, label) for label in labels)
    number = _NUMBER if numbers else rf"(?<![\w-])(?:{options})(?![\w-])"
    line_begin = rf"^[^\w\n]*+{number}"
    behind_word = r"(?i:(?<![a-z])(?:scor|rat|grad)(?:e|ing)[^\n]*)"
    at_mark = rf"(?:>\s*+|[:=<{{])[^\w\n:=<>{{]*+{number}|{number}\s*+<"
    return _Patterns(
        re.compile(rf"^(?:{_OPENING}(?:{_LABEL})?|{_LAST_KEY})(?P<option>{options}){_AFTER}", re.MULTILINE),
        re.compile(rf"{_OPENING}(?:{_LABEL})?(?P<option>{options}){_LEFT_ALONE}"),
        re.compile(rf"\A[^\n]*|{line_begin}", re.MULTILINE),
        re.compile(rf"{line_begin}[^\w\n]*+$|{behind_word}|{at_mark}", re.MULTILINE),
        re.compile(number),
    )
