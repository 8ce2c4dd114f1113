"""Expected grades and their bounds, against exhaustive search and the arithmetic by hand."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bixse.errors import InputError
from bixse.judging.judges.reading import OptionProbabilities, expected_grade, option_probabilities

LABELS = ("0", "1", "2", "3")
VALUES = (0.0, 1.0, 2.0, 3.0)


def test_the_expected_grade_is_renormalised_over_the_options():
    found = option_probabilities(LABELS, [("2", math.log(0.3)), ("3", math.log(0.1)), ("The", math.log(0.6))])
    assert found.mass == pytest.approx(0.4)
    assert expected_grade(VALUES, found)[0] == pytest.approx(2.25)


def test_tokens_that_only_begin_like_an_option_are_none():
    found = option_probabilities(LABELS, [("3.", -1.0), ("13", -2.0), ("30", -2.5), ("1", -2.0)])
    assert found.probabilities == pytest.approx((0, math.exp(-2.0), 0, 0))


@pytest.mark.parametrize(
    "alternatives",
    [
        [],
        [("3", -9999.0), ("2", -9999.0)],
        [("3", None)],
        [("3", 0.0), ("2", 0.0)],  # accepted and ignored: every token certain
        [("3", 0.7)],
        [("3", math.nan)],
    ],
)
def test_what_is_no_probability_is_none(alternatives):
    assert option_probabilities(LABELS, alternatives) is None


def test_an_entry_that_is_not_available_leaves_the_others():
    assert option_probabilities(LABELS, [("3", math.log(0.5)), ("2", -9999.0)]).probabilities == (0, 0, 0, 0.5)


def test_without_any_option_there_is_no_grade():
    found = option_probabilities(LABELS, [("The", -0.1)])
    assert found.mass == 0
    with pytest.raises(InputError, match="no probability on any option"):
        expected_grade(VALUES, found)


def test_missing_options_are_bounded_by_the_least_probable_token_returned():
    # 0 and 1 are missing; the least returned has 0.05, each missing spelling at most that, 0.1 is left in all
    found = option_probabilities(LABELS, [("3", math.log(0.6)), ("2", math.log(0.25)), ("x", math.log(0.05))])
    assert found.unseen == pytest.approx(0.1)
    assert found.hidden == pytest.approx((0.1, 0.1, 0.05, 0.05))  # the spelling " 3" may be hidden too
    grade, low, high = expected_grade(VALUES, found)
    assert grade == pytest.approx((3 * 0.6 + 2 * 0.25) / 0.85)
    assert low == pytest.approx((3 * 0.6 + 2 * 0.25 + 0 * 0.1) / 0.95)  # all that is left on the lowest option
    assert high == pytest.approx((3 * 0.65 + 2 * 0.25) / 0.9)


def test_a_complete_answer_has_no_bounds_to_give():
    found = option_probabilities(LABELS, [("3", math.log(0.6)), ("2", math.log(0.2))], complete=True)
    grade, low, high = expected_grade(VALUES, found)
    assert low == grade == high


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3), st.lists(st.floats(0.0, 0.3), min_size=3, max_size=3),
       st.floats(0.0, 0.5))  # fmt: skip
def test_bounds_equal_those_of_exhaustive_search(raw, hidden, unseen):
    total = sum(raw)
    if total < 1e-3:
        return
    raw = [p / total * (1 - unseen) for p in raw]
    options = OptionProbabilities(tuple(raw), tuple(min(h, unseen) for h in hidden), unseen)
    values = (1.0, 2.0, 5.0)
    _, low, high = expected_grade(values, options)
    # the mean is a ratio of linear functions, so its extremes lie at corners: each hidden share at 0, at its most, or
    # at what the others leave of the total
    means = []
    for order in itertools.permutations(range(3)):
        for taken in itertools.product((0, 1), repeat=3):
            left, added = unseen, [0.0, 0.0, 0.0]
            for option in order:
                added[option] = taken[option] * min(options.hidden[option], left)
                left -= added[option]
            weights = np.array(raw) + added
            means.append(float(weights @ values / weights.sum()))
    assert low == pytest.approx(min(means), abs=1e-9)
    assert high == pytest.approx(max(means), abs=1e-9)
