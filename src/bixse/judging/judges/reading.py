"""From the probabilities of option tokens to an expected grade with bounds (BiXSE paper, section 3)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from bixse.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bixse.judging.judge import Status


NOT_AVAILABLE = -9000.0
"""Log-probabilities at or below this (servers write -9999) say "not available", not "impossible"."""
SAME = 0.05
"""How far two log-probabilities of one token may lie apart: rounding, or a second pass of the model."""
_ROUNDING = 0.02
"""How far a sum of returned probabilities may pass 1 before they are no probabilities."""


@dataclass(frozen=True)
class OptionProbabilities:
    """Probabilities of the options at the answer position, as far as the judge gave them."""

    probabilities: tuple[float, ...]
    """Raw probability of each label, summed over its spellings ("3" and " 3"), from 0 to 1."""
    hidden: tuple[float, ...] = ()
    """For each label the most that can come to it (spellings not returned, names of one token that may be two); empty:
    nothing is hidden."""
    unseen: float = 0.0
    """Probability of everything that was not counted, shared by all that is hidden."""

    @property
    def mass(self) -> float:
        """Probability that the answer is one of the options, as far as returned."""
        return min(1.0, sum(self.probabilities))


def spellings(label: str) -> tuple[str, str]:
    """The token texts that count as one option: with and without the space that stands before a word."""
    return label, f" {label}"


@dataclass
class SeenToken:
    """One token of those returned, which may have been named several times."""

    text: str
    top: float
    """Highest natural log-probability that it was given."""
    least: float
    """Lowest probability."""
    more: float = 0.0
    """Probability of the tokens that its other names may be."""

    @property
    def hidden(self) -> float:
        """What may come to the lowest probability."""
        return math.exp(self.top) - self.least + self.more


def distinct_tokens(returned: Sequence[tuple[str, float]], by_id: bool = False) -> list[SeenToken]:
    """The tokens that a list of names and values tells of: a name that comes again is counted once.

    A token is known by its text. The same text is the same token, and so is a text that differs in white space alone
    where the values agree (`SAME`): "3" and the same token's "▁3". Where they may be two after all, `more` says so. By
    id, each token comes once, so that only what has both the same text and the same value is a repetition.
    """
    found: dict[str, list[SeenToken]] = {}
    for text, value in sorted(returned, key=lambda entry: -entry[1]):
        alike, share = found.setdefault(text.strip(), []), math.exp(value)
        for token in alike:
            same = token.top - value <= SAME
            if (token.text == text or not by_id) and same:
                token.least, token.more = share, token.more + share * (token.text != text)
                break
            if token.text == text and not by_id:
                token.more += share
                break
        else:
            alike.append(SeenToken(text, value, share))
    return [token for alike in found.values() for token in alike]


def option_probabilities(
    labels: Sequence[str],
    alternatives: Sequence[tuple[str, float | None]],
    complete: bool = False,
    written: str | None = None,
    forced: bool = False,
) -> OptionProbabilities | None:
    """Collect the options' probabilities from the alternatives a judge returned for one position.

    A token counts as an option when it spells the label apart from white space. What was not returned cannot be more
    probable than the least probable token that was, the written one apart, which may have been added to the most
    probable ones; nor all of it together than the rest up to 1. A token that was returned without a usable value can
    have all of that rest.

    Args:
        labels: of the L options.
        alternatives: (token text, natural log-probability) of the tokens returned.
        complete: every spelling of every option was returned (or asked for by its id): nothing is hidden.
        written: the token that the judge wrote, one of those returned; None where it is not known.
        forced: it was the most probable one of the labels as they stand, whatever else is more probable.

    Returns:
        None where these are no probabilities: none returned, no usable value ("not available", NaN, none) of the
        written token or of one asked for by id, NaN anywhere, positive log-probabilities, or a sum above 1 (servers
        that accept the request and answer 0 for every token).

    Example:
        >>> returned = [("1", math.log(0.6)), (" 1", math.log(0.1)), ("No", math.log(0.05))]
        >>> found = option_probabilities(["0", "1"], returned)
        >>> [round(p, 3) for p in found.probabilities], [round(p, 3) for p in found.hidden]
        ([0.0, 0.7], [0.1, 0.0])
    """
    usable = [(token, value) for token, value in alternatives if value is not None and not value <= NOT_AVAILABLE]
    unusable = {token for token, value in alternatives if value is None or value <= NOT_AVAILABLE}
    if not usable or any(math.isnan(value) or value > 1e-3 for _, value in usable):
        return None
    if unusable and (complete or written in unusable):
        return None
    tokens = distinct_tokens(usable, by_id=complete)
    total = math.fsum(token.least for token in tokens)
    if total > 1 + _ROUNDING:
        return None
    unseen = max(0.0, 1.0 - total)
    others = [token.top for token in tokens if token.text != written] or [token.top for token in tokens]
    most = math.exp(min(others))
    under = min([math.exp(token.top) for token in tokens if forced and token.text == written] + [most])
    named = {token for token, _ in alternatives}
    raw, hidden = [], []
    for label in labels:
        own = [token for token in tokens if token.text.strip() == label]
        missing = [under if text == label else most for text in spellings(label) if text not in named]
        more = math.fsum([*(token.hidden for token in own), *(() if complete else missing)])
        raw.append(math.fsum(token.least for token in own))
        hidden.append(min(unseen, more) if label not in {text.strip() for text in unusable} else unseen)
    if unseen <= 1e-9 or not any(hidden):
        return OptionProbabilities(tuple(raw))
    return OptionProbabilities(tuple(raw), tuple(hidden), unseen)


def expected_grade(values: Sequence[float], options: OptionProbabilities) -> tuple[float, float, float]:
    """The expected grade sum s p(s) / sum p(s) over the options returned, and the least and most it can be.

    The highest mean that hidden probability allows takes hidden spellings from the highest value down, as long as
    they lie above the mean and there is unseen probability left; the lowest one the other way round.

    Args:
        values: L grades, rising.
        options: of the L labels.

    Raises:
        InputError: no option has any probability.

    Example:
        >>> expected_grade([0, 1, 2, 3], OptionProbabilities((0.0, 0.1, 0.2, 0.2)))
        (2.2, 2.2, 2.2)
    """
    total = math.fsum(options.probabilities)
    if not total > 0:
        raise InputError("expected grade: got no probability on any option; expected some; fix: check the status")
    weighted = math.fsum(value * share for value, share in zip(values, options.probabilities, strict=True))
    grade = weighted / total
    if not options.hidden:
        return grade, grade, grade
    bounds = []
    for sign in (-1.0, 1.0):
        mass, top, left = total, weighted, options.unseen
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
    """Return True where a text begins with one of the forms that docs/mining.md lists.

    Example:
        >>> is_refusal("I'm sorry, but I can't help with that."), is_refusal("I can't open a file in Python")
        (True, False)
    """
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
