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
_ROUNDING = 0.02
"""How far a sum of returned probabilities may pass 1 before they are no probabilities."""


@dataclass(frozen=True)
class OptionProbabilities:
    """Probabilities of the options at the answer position, as far as the judge gave them."""

    probabilities: tuple[float, ...]
    """Raw probability of each label, summed over its spellings ("3" and " 3"), from 0 to 1."""
    hidden: tuple[float, ...] = ()
    """For each label the most that spellings which were not returned can add; empty: nothing is hidden."""
    unseen: float = 0.0
    """Probability of everything that was not returned, shared by all hidden spellings."""

    @property
    def mass(self) -> float:
        """Probability that the answer is one of the options, as far as returned."""
        return min(1.0, sum(self.probabilities))

    @property
    def normalised(self) -> tuple[float, ...]:
        """The probabilities divided by their sum; all 0 where none was returned."""
        total = sum(self.probabilities)
        return tuple(value / total if total > 0 else 0.0 for value in self.probabilities)


@dataclass(frozen=True)
class ExpectedGrade:
    """An expected grade and what missing options could make of it."""

    grade: float
    """sum s p(s) / sum p(s) over the returned options."""
    low: float
    """The lowest it can be given what was not returned."""
    high: float
    """The highest."""


def spellings(label: str) -> tuple[str, str]:
    """The token texts that count as one option: with and without the space that stands before a word."""
    return label, f" {label}"


def option_probabilities(
    labels: Sequence[str], alternatives: Sequence[tuple[str, float | None]], complete: bool = False
) -> OptionProbabilities | None:
    """Collect the options' probabilities from the alternatives a judge returned for one position.

    A token counts as an option when it spells the label apart from white space. What was not returned cannot be more
    probable than the least probable token that was, nor all of it together than the rest up to 1.

    Args:
        labels: L labels.
        alternatives: (token text, natural log-probability) of the tokens returned; the same twice counts once.
        complete: every spelling of every option was returned (or asked for by its id): nothing is hidden.

    Returns:
        None where these are no probabilities: none returned, "not available" (-9999) for all, positive
        log-probabilities, or a sum above 1 (servers that accept the request and answer 0 for every token).

    Example:
        >>> returned = [("1", math.log(0.6)), (" 1", math.log(0.1)), ("No", math.log(0.05))]
        >>> found = option_probabilities(["0", "1"], returned)
        >>> [round(p, 3) for p in found.probabilities], [round(p, 3) for p in found.hidden]
        ([0.0, 0.7], [0.1, 0.0])
    """
    returned = {(token, value) for token, value in alternatives if value is not None and value > NOT_AVAILABLE}
    if not returned or any(math.isnan(value) or value > 1e-3 for _, value in returned):
        return None
    total = math.fsum(math.exp(value) for _, value in returned)
    if total > 1 + _ROUNDING:
        return None
    found = dict.fromkeys(labels, 0.0)
    for token, value in sorted(returned):
        if token.strip() in found:
            found[token.strip()] += math.exp(value)
    raw = tuple(found.values())
    unseen = max(0.0, 1.0 - total)
    if complete or unseen <= 1e-9:
        return OptionProbabilities(raw)
    least = math.exp(min(value for _, value in returned))
    tokens = {token for token, _ in returned}
    hidden = tuple(
        min(unseen, least * sum(spelling not in tokens for spelling in spellings(label))) for label in labels
    )
    return OptionProbabilities(raw, hidden, unseen)


def expected_grade(values: Sequence[float], options: OptionProbabilities) -> ExpectedGrade:
    """The expected grade over the options, renormalised, with the bounds of what was not returned.

    The highest mean that hidden probability allows takes hidden spellings from the highest value down, as long as
    they lie above the mean and there is unseen probability left; the lowest one the other way round.

    Args:
        values: L grades, rising.
        options: probabilities of the L options.

    Raises:
        InputError: no option has any probability.

    Example:
        >>> expected_grade([0, 1, 2, 3], OptionProbabilities((0.0, 0.1, 0.2, 0.2)))
        ExpectedGrade(grade=2.2, low=2.2, high=2.2)
    """
    total = math.fsum(options.probabilities)
    if not total > 0:
        raise InputError("expected grade: got no probability on any option; expected some; to mend: check the status")
    weighted = math.fsum(value * share for value, share in zip(values, options.probabilities, strict=True))
    grade = weighted / total
    if not options.hidden:
        return ExpectedGrade(grade, grade, grade)
    bounds = []
    for sign in (-1.0, 1.0):
        mass, top, left = total, weighted, options.unseen
        for value, most in sorted(zip(values, options.hidden, strict=True), reverse=sign > 0):
            take = min(most, left)
            if sign * (value - top / mass) <= 0:
                break
            mass, top, left = mass + take, top + take * value, left - take
        bounds.append(top / mass)
    return ExpectedGrade(grade, min(bounds[0], grade), max(bounds[1], grade))
