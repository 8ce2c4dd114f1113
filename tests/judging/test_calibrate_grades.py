"""Maps from grades to probabilities: what is refused, what is guaranteed, what is measured."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from sklearn.isotonic import IsotonicRegression

from bixse.errors import InputError
from bixse.judging.audit.calibrate_grades import GradeMap, fit_grade_map


def judged(seed, pairs=600, queries=60):
    """A judge whose z claims too much: people find a share z^2 * 0.8 relevant."""
    generator = np.random.default_rng(seed)
    z = generator.integers(0, 4, pairs) / 3
    relevant = (generator.random(pairs) < 0.8 * z**2).astype(float)
    return z, relevant, [f"q{i % queries}" for i in range(pairs)]


@pytest.mark.parametrize("kind", ["isotonic", "platt"])
def test_a_judge_that_knows_nothing_gets_no_map(kind):
    generator = np.random.default_rng(3)
    z, relevant = generator.integers(0, 4, 400) / 3, (generator.random(400) < 0.3).astype(float)
    fitted = fit_grade_map(z, relevant, [f"q{i % 40}" for i in range(400)], kind, seed=1)
    found = fitted.held_out
    assert found.brier_after < found.brier_before, "it is better than the grades, by forgetting them"
    assert fitted.helps is False
    z, relevant, ids = judged(0)
    fitted = fit_grade_map(1 - z, relevant, ids, kind)  # grades the wrong way
    assert fitted.is_constant and fitted.helps is False


def test_a_judge_that_is_calibrated_is_left_alone():
    generator = np.random.default_rng(5)
    z = generator.random(80)
    relevant = (generator.random(80) < z).astype(float)
    fitted = fit_grade_map(z, relevant, [f"q{i % 20}" for i in range(80)], "isotonic")
    assert fitted.held_out.brier_after > fitted.held_out.brier_before and fitted.helps is False


@pytest.mark.parametrize("kind", ["isotonic", "platt"])
def test_a_judge_that_claims_too_much_is_helped(kind):
    z, relevant, ids = judged(0)
    fitted = fit_grade_map(z, relevant, ids, kind)
    found = fitted.held_out
    assert fitted.helps and found.change_high < 0
    assert found.brier_after < found.brier_before and found.ece_after < found.ece_before
    assert fitted.apply([0.0, 1 / 3, 2 / 3, 1.0]) == pytest.approx([0.0, 0.09, 0.36, 0.8], abs=0.1)
    assert (fitted.labels, fitted.queries) == (600, 60)
    assert GradeMap.model_validate_json(fitted.model_dump_json()) == fitted


def test_held_out_queries_are_never_fitted_on():
    """Only the last query is relevant, at a z of its own: a fit that saw it maps it to 1, another to 0."""
    ids = [f"q{i // 10}" for i in range(100)]
    z = np.arange(100) // 10 / 9
    fitted = fit_grade_map(z, (z == 1).astype(float), ids, "isotonic")
    assert fitted.apply(1.0) == 1.0 and fitted.held_out.brier_after >= 0.1


def test_pairs_beyond_the_sample_only_measure():
    z, relevant, ids = judged(1)
    sample = np.arange(600) < 100
    fitted = fit_grade_map(z, relevant, ids, "isotonic", sample)
    alone = fit_grade_map(z[sample], relevant[sample], ids[:100], "isotonic")
    assert fitted.knots == alone.knots and (fitted.labels, fitted.held_out.pairs) == (100, 600)


def test_the_isotonic_map_is_scikit_learns():
    z, relevant, ids = judged(2)
    fitted = fit_grade_map(z, relevant, ids, "isotonic")
    at = np.linspace(0, 1, 101)
    assert fitted.apply(at) == pytest.approx(IsotonicRegression().fit(z, relevant).predict(at), abs=1e-12)


def test_wrong_input_is_refused():
    with pytest.raises(InputError, match="of 3 queries; expected at least 4"):
        fit_grade_map([0, 1, 0.5], [0, 1, 1], ["a", "b", "c"])
    with pytest.raises(InputError, match="expected 0 to 1"):
        fit_grade_map([0, 3, 1, 0], [0, 1, 1, 0], ["a", "b", "c", "d"])
    with pytest.raises(InputError, match=r"got 1\.5; expected 0 to 1"):
        GradeMap(kind="platt", slope=1.0).apply([0.5, 1.5])
    with pytest.raises(InputError, match="got nan"):
        GradeMap(kind="platt", slope=1.0).apply(float("nan"))


@pytest.mark.parametrize(
    "broken",
    [
        {"kind": "isotonic"},
        {"kind": "isotonic", "knots": [[0, 0.5], [1, 0.4]]},
        {"kind": "isotonic", "knots": [[0.5, 0.1], [0.5, 0.4]]},
        {"kind": "isotonic", "knots": [[0, 0.5], [1, 1.4]]},
        {"kind": "platt", "slope": -1.0},
        {"kind": "platt", "slope": float("nan")},
        {"kind": "spline"},
        {"kind": "platt", "colour": "red"},
    ],
)
def test_maps_that_may_fall_or_leave_the_range_are_refused(broken):
    with pytest.raises(ValidationError):
        GradeMap.model_validate(broken)


shares = st.floats(0, 1)


@given(
    st.lists(shares, min_size=1, max_size=6, unique=True),
    st.lists(shares, min_size=6, max_size=6),
    st.lists(shares, min_size=2, max_size=20),
)
def test_an_isotonic_map_never_falls_nor_leaves_the_range(inputs, outputs, points):
    fitted = GradeMap(kind="isotonic", knots=tuple(zip(sorted(inputs), sorted(outputs), strict=False)))
    mapped = fitted.apply(sorted([*points, *inputs]))
    assert (np.diff(mapped) >= 0).all() and mapped.min() >= 0 and mapped.max() <= 1


@given(st.floats(0, 1e6), st.floats(-1e6, 1e6), st.lists(shares, min_size=2, max_size=20))
def test_a_logistic_map_never_falls_nor_leaves_the_range(slope, intercept, points):
    mapped = GradeMap(kind="platt", slope=slope, intercept=intercept).apply(sorted(points))
    assert (np.diff(mapped) >= 0).all() and mapped.min() >= 0 and mapped.max() <= 1
