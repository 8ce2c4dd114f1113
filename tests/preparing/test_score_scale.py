"""Maps of a teacher's scores to relevance, and what scores look like."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from bixse.errors import InputError
from bixse.preparing.score_scale import ScoreMap, check_scores, map_scores, parse_score_map, summarise_scores


@pytest.mark.parametrize(
    "text",
    ["minmax", "min-max", "MinMax", "auto", "", "sigmoid", "precent", "percent:2", "platt", "platt:", "platt:1",
     "platt:1,2,3", "platt:a,b", "platt:0,1", "platt:-1,0", "platt:nan,0", "platt:inf,0", "platt:1,inf"],
)  # fmt: skip
def test_other_words_are_refused(text):
    with pytest.raises(InputError, match="; fix: "):
        parse_score_map(text)


@pytest.mark.parametrize("text", ["prob", "percent", "logit", "platt:0.25,-3.5", "binary"])
def test_a_map_reads_as_it_is_written(text):
    assert str(parse_score_map(text)) == text


@settings(max_examples=200, deadline=None)
@given(st.floats(-1e308, 1e308), st.floats(0.01, 50), st.floats(-50, 50))
def test_sigmoids_agree_with_scipy_at_every_size(score, slope, intercept):
    with np.errstate(over="ignore"):
        argument = slope * np.array([score]) + intercept
    assert map_scores(np.array([score]), ScoreMap("platt", slope, intercept)) == pytest.approx(
        expit(argument), rel=1e-12
    )
    assert map_scores(np.array([score]), ScoreMap("logit")) == pytest.approx(expit(score), rel=1e-12)


def test_scores_out_of_range_are_not_taken_apart_from_rounding():
    low, high = ScoreMap("prob").range
    assert -0.01 < low < 0 and 1.0000001 < high < 1.01
    assert map_scores(np.array([1.0000001, 0.5]), ScoreMap("prob")).tolist() == [1.0, 0.5]


@pytest.mark.parametrize(
    ("positive", "negative", "looks"),
    [
        ([0.99, 0.7], [0.0, 0.3], "prob"),
        ([1.0, 1.0], [0.0, 0.0], "binary"),
        ([0.8, 0.6], [-0.1, 0.2], "unknown"),  # cosines
        ([98.0, 77.5], [3.0, 41.0], "percent"),
        ([96.6875, 103.5], [83.1875, 90.5], "unknown"),  # seen in the project's own examples: not 0 to 100
        ([17.25, 9.0], [-0.59, 4.0], "logit"),
        ([500.0], [-500.0], "unknown"),
        ([3.0], [3.0], "unknown"),
    ],
)
def test_what_scores_look_like(positive, negative, looks):
    assert summarise_scores(positive, negative).looks_like == looks


@pytest.mark.parametrize(
    ("positive", "negative", "score_map"),
    [([0.5, 0.5], [0.5], "prob"), ([1.0], [0.0], "prob"), ([103.5, 96.0], [83.2], "logit")],
)
def test_scores_without_grades_are_refused(positive, negative, score_map):
    with pytest.raises(InputError):
        check_scores(np.array(positive), np.array(negative), ScoreMap(score_map))


@pytest.mark.parametrize(
    ("positive", "negative", "score_map", "warned"),
    [
        ([103.5, 96.0], [83.2], ScoreMap("platt", 0.5, -46.0), []),
        ([0.9, 0.8], [0.1, 0.2], ScoreMap("logit"), ["look like prob"]),
        ([0.1, 0.3], [0.9, 0.2], ScoreMap("prob"), ["in only 25% of the pairs"]),
    ],
)
def test_what_is_strange_about_scores_is_a_warning(positive, negative, score_map, warned):
    found = check_scores(np.array(positive), np.array(negative), score_map)
    assert len(found) == len(warned) and all(part in text for part, text in zip(warned, found, strict=True))


def test_the_summary_agrees_with_numpy_and_scikit_learn():
    generator = np.random.default_rng(3)
    positive, negative = generator.normal(2, 2, 300).round(1), generator.normal(0, 2, 700).round(1)  # with ties
    scores = np.concatenate([positive, negative])
    found = summarise_scores(positive, negative)
    assert (found.count, found.lowest, found.highest) == (1000, scores.min(), scores.max())
    assert found.distinct == len(set(scores.tolist()))
    assert found.above == pytest.approx(roc_auc_score([1] * 300 + [0] * 700, scores))
    assert summarise_scores([1.0], []).above is None
    with pytest.raises(InputError):
        summarise_scores([], [])
