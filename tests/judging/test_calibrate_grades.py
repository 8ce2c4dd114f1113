"""Maps from grades to probabilities: what is refused, what is guaranteed, what is measured."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from bixse.errors import InputError
from bixse.judging.audit.calibrate_grades import GradeMap, fit_grade_map


def judged(seed, pairs=600, queries=60):
    """A judge whose z claims too much: people find a share z^2 * 0.8 relevant."""
    generator = np.random.default_rng(seed)
    z = generator.integers(0, 4, pairs) / 3
    relevant = (generator.random(pairs) < 0.8 * z**2).astype(float)
    return z, relevant, [f"q{i % queries}" for i in range(pairs)]


def test_a_judge_that_knows_nothing_gets_no_map():
    generator = np.random.default_rng(3)
    z, relevant = generator.integers(0, 4, 400) / 3, (generator.random(400) < 0.3).astype(float)
    fitted = fit_grade_map(z, relevant, [f"q{i % 40}" for i in range(400)], seed=1)
    found = fitted.held_out
    assert found.brier_after < found.brier_before, "it is better than the grades, by forgetting them"
    assert fitted.helps is False
    z, relevant, ids = judged(0)
    fitted = fit_grade_map(1 - z, relevant, ids)  # grades the wrong way
    assert fitted.slope == 0 and fitted.helps is False


def test_a_judge_that_is_calibrated_is_left_alone():
    generator = np.random.default_rng(5)
    z = generator.random(4000)
    relevant = (generator.random(4000) < z).astype(float)
    fitted = fit_grade_map(z, relevant, [f"q{i % 20}" for i in range(4000)])
    assert fitted.held_out.brier_after > fitted.held_out.brier_before and fitted.helps is False


def test_a_judge_that_claims_too_much_is_helped():
    z, relevant, ids = judged(0)
    fitted = fit_grade_map(z, relevant, ids)
    found = fitted.held_out
    assert fitted.helps and found.change_high < 0
    assert found.brier_after < found.brier_before and found.ece_after < found.ece_before
    assert fitted.apply([0.0, 1 / 3, 2 / 3, 1.0]) == pytest.approx([0.0, 0.09, 0.36, 0.8], abs=0.1)
    assert (fitted.labels, fitted.queries) == (600, 60)
    assert GradeMap.model_validate_json(fitted.model_dump_json()) == fitted


def test_held_out_queries_are_never_fitted_on():
    """Only the last query is relevant, at a z of its own: a fit that saw it maps it towards 1, another to 0."""
    ids = [f"q{i // 10}" for i in range(100)]
    z = np.arange(100) // 10 / 9
    fitted = fit_grade_map(z, (z == 1).astype(float), ids)
    fitted_on = np.mean((fitted.apply(z) - (z == 1)) ** 2)
    assert fitted.apply(1.0) > 0.6 and fitted.held_out.brier_after > 3 * fitted_on


def test_wrong_input_is_refused():
    with pytest.raises(InputError, match="of 3 queries; expected at least 4"):
        fit_grade_map([0, 1, 0.5], [0, 1, 1], ["a", "b", "c"])
    with pytest.raises(InputError, match="expected 0 to 1"):
        fit_grade_map([0, 3, 1, 0], [0, 1, 1, 0], ["a", "b", "c", "d"])
    with pytest.raises(InputError, match=r"got 1\.5; expected 0 to 1"):
        GradeMap(slope=1.0, intercept=0.0).apply([0.5, 1.5])
    with pytest.raises(InputError, match="got nan"):
        GradeMap(slope=1.0, intercept=0.0).apply(float("nan"))


@pytest.mark.parametrize(
    "broken",
    [
        {"kind": "isotonic", "slope": 1.0, "intercept": 0.0},
        {"slope": -1.0, "intercept": 0.0},
        {"slope": float("nan"), "intercept": 0.0},
        {"slope": 1.0},
    ],
)
def test_maps_that_may_fall_or_are_incomplete_are_refused(broken):
    with pytest.raises(ValidationError):
        GradeMap.model_validate(broken)


def test_a_logistic_map_of_an_earlier_version_is_read():
    earlier = {"kind": "platt", "knots": [], "slope": 2.0, "intercept": -1.0, "judge": "j", "labels": 9}
    assert GradeMap.model_validate(earlier) == GradeMap(slope=2.0, intercept=-1.0, judge="j", labels=9)


@given(st.floats(0, 1e6), st.floats(-1e6, 1e6), st.lists(st.floats(0, 1), min_size=2, max_size=20))
def test_a_map_never_falls_nor_leaves_the_range(slope, intercept, points):
    mapped = GradeMap(slope=slope, intercept=intercept).apply(sorted(points))
    assert (np.diff(mapped) >= 0).all() and mapped.min() >= 0 and mapped.max() <= 1
