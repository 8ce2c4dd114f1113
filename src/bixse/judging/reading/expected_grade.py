"""From the probabilities of option tokens to an expected grade with bounds (BiXSE paper, section 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bixse.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

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
