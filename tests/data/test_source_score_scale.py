from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from bixse.data.sources.score_scale import (
    ScoreMap,
    check_scores,
    histogram,
    map_scores,
    parse_score_map,
    summarise_scores,
)
from bixse.errors import InputError


@pytest.mark.parametrize("text", ["minmax", "min-max", "MinMax"])
def test_min_max_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(InputError, match=r"each query's best document relevance 1.*an absolute scale is needed"):
        parse_score_map(text)


def test_a_guess_is_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match=r"scales look alike .* a wrong guess is noise"):
        parse_score_map("auto")


@pytest.mark.parametrize("text", ["platt", "platt:", "platt:1", "platt:1,2,3", "platt:a,b", "platt:0,1", "platt:-1,0"])
def test_platt_needs_two_numbers_and_a_slope_above_0(text: str) -> None:
    with pytest.raises(InputError, match=r"expected platt:SLOPE,INTERCEPT with a slope above 0"):
        parse_score_map(text)


@pytest.mark.parametrize("text", ["platt:nan,0", "platt:inf,0", "platt:1,inf", "percent:2", "", "sigmoid"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="; fix: "):
        parse_score_map(text)
    with pytest.raises(InputError, match="did you mean 'percent'"):
        parse_score_map("precent")


@pytest.mark.parametrize("text", ["prob", "percent", "logit", "platt:0.25,-3.5", "binary"])
def test_a_map_reads_as_it_is_written(text: str) -> None:
    assert str(parse_score_map(text)) == text
    assert parse_score_map(str(parse_score_map(text))) == parse_score_map(text)


@settings(max_examples=200, deadline=None)
@given(st.floats(-1e308, 1e308), st.floats(0.01, 50), st.floats(-50, 50))
def test_sigmoids_agree_with_scipy_at_every_size(score: float, slope: float, intercept: float) -> None:
    with np.errstate(over="ignore"):
        argument = slope * score + intercept
        assert ScoreMap("platt", slope, intercept).relevance(score) == pytest.approx(expit(argument), rel=1e-12)
    assert ScoreMap("logit").relevance(score) == pytest.approx(expit(score), rel=1e-12)


def test_scores_out_of_range_are_never_clipped_apart_from_rounding() -> None:
    assert ScoreMap("prob").relevance(1.0000001) == 1.0
    assert not ScoreMap("prob").takes(1.01)
    for score_map, score in (("prob", 1.01), ("prob", -0.01), ("percent", 103.5), ("percent", math.nan)):
        with pytest.raises(InputError, match="state the map of your scores"):
            parse_score_map(score_map).relevance(score)


@pytest.mark.parametrize(
    ("positive", "negative", "looks"),
    [
        ([0.99, 0.7], [0.0, 0.3], "prob"),
        ([1.0, 1.0], [0.0, 0.0], "binary"),
        ([0.8, 0.6], [-0.1, 0.2], "unknown"),  # cosines
        ([98.0, 77.5], [3.0, 41.0], "percent"),
        ([96.6875, 103.5], [83.1875, 90.5], "unknown"),  # seen in the project's own examples: not 0 to 100
        ([17.25, 9.0], [-0.59, 4.0], "logit"),
        ([5.0, 7.5], [1.5, 2.0], "logit"),
        ([500.0], [-500.0], "unknown"),
        ([3.0], [3.0], "unknown"),
    ],
)
def test_what_scores_look_like(positive: list[float], negative: list[float], looks: str) -> None:
    assert summarise_scores(positive, negative).looks_like == looks


def test_the_summary_agrees_with_numpy_and_scikit_learn() -> None:
    generator = np.random.default_rng(3)
    positive, negative = generator.normal(2, 2, 300).round(1), generator.normal(0, 2, 700).round(1)  # with ties
    scores = np.concatenate([positive, negative])
    found = summarise_scores(positive, negative)
    assert (found.count, found.lowest, found.highest) == (1000, scores.min(), scores.max())
    assert found.distinct == len(set(scores.tolist()))
    assert found.spread == pytest.approx(np.std(scores))
    assert found.in_unit == pytest.approx(sum(0 <= score <= 1 for score in scores) / 1000)
    assert found.above == pytest.approx(roc_auc_score([1] * 300 + [0] * 700, scores))
    assert "looks like: logit" in found.describe()
    assert summarise_scores([1.0], []).above is None
    with pytest.raises(InputError, match="scores: got none"):
        summarise_scores([], [])


def test_scores_without_grades_are_refused() -> None:
    with pytest.raises(InputError, match=r"3 that are all 0.5; expected grades that differ"):
        check_scores(np.array([0.5, 0.5]), np.array([0.5]), ScoreMap("prob"))
    with pytest.raises(InputError, match=r"within 0.001 of 0 or 1 for all 2 under the map prob"):
        check_scores(np.array([1.0]), np.array([0.0]), ScoreMap("prob"))
    with pytest.raises(InputError, match=r"for all 3 under the map logit \(scores from 83.2 to 103.5\)"):
        check_scores(np.array([103.5, 96.0]), np.array([83.2]), ScoreMap("logit"))
    assert check_scores(np.array([103.5, 96.0]), np.array([83.2]), ScoreMap("platt", 0.5, -46.0)) == []


def test_a_map_that_does_not_fit_the_looks_is_a_warning() -> None:
    (warning,) = check_scores(np.array([0.9, 0.8]), np.array([0.1, 0.2]), ScoreMap("logit"))
    assert warning.startswith("the map is logit, but the scores look like prob: ")
    (warning,) = check_scores(np.array([0.1, 0.3]), np.array([0.9, 0.2]), ScoreMap("prob"))
    assert warning == "a positive lies above a negative in only 25% of the pairs of the file"


def test_many_scores_are_mapped_as_one() -> None:
    scores = np.array([0.0, 0.25, 1.0])
    for score_map in (ScoreMap("prob"), ScoreMap("percent"), ScoreMap("logit"), ScoreMap("platt", 2.0, -1.0)):
        assert map_scores(scores, score_map).tolist() == [score_map.relevance(score) for score in scores]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=50), st.integers(1, 15))
def test_a_histogram_counts_every_value_once(values: list[float], bins: int) -> None:
    lines = histogram(values, bins=bins).splitlines()
    assert len(lines) == bins
    assert sum(int(line.split()[-1]) for line in lines) == len(values)
    assert max(line.count("#") for line in lines) == 40


def test_a_histogram_agrees_with_numpy() -> None:
    values = np.random.default_rng(0).normal(size=1000)
    found = [int(re.findall(r"\d+$", line)[0]) for line in histogram(values).splitlines()]
    assert found == np.histogram(values, bins=12)[0].tolist()
