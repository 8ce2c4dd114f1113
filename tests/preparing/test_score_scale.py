"""Maps of a teacher's scores to relevance, and the shape of scores."""

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
def test_unknown_maps_are_refused(text):
    with pytest.raises(InputError):
        parse_score_map(text)


@pytest.mark.parametrize("text", ["prob", "percent", "logit", "platt:0.25,-3.5", "binary"])
def test_written_map_is_read_back(text):
    assert str(parse_score_map(text)) == text


@settings(max_examples=200, deadline=None)
@given(st.floats(-1e308, 1e308), st.floats(0.01, 50), st.floats(-50, 50))
def test_sigmoids_agree_with_scipy_at_every_size(score, slope, intercept):
    scores = np.array([score])
    with np.errstate(over="ignore"):
        expected = expit(slope * scores + intercept)
    assert map_scores(scores, ScoreMap("platt", slope, intercept)) == pytest.approx(expected, rel=1e-12)
    assert map_scores(scores, ScoreMap("logit")) == pytest.approx(expit(score), rel=1e-12)


def test_rounding_errors_beyond_the_range_are_clipped():
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
        ([96.6875, 103.5], [83.1875, 90.5], "unknown"),  # of FlagEmbedding's own examples: not 0 to 100
        ([17.25, 9.0], [-0.59, 4.0], "logit"),
        ([500.0], [-500.0], "unknown"),
        ([3.0], [3.0], "unknown"),
    ],
)
def test_scale_of_scores_is_recognised(positive, negative, looks):
    assert summarise_scores(positive, negative).looks_like == looks


REFUSED = object()


@pytest.mark.parametrize(
    ("positive", "negative", "score_map", "warned"),
    [
        ([0.5, 0.5], [0.5], ScoreMap("prob"), REFUSED),
        ([1.0], [0.0], ScoreMap("prob"), REFUSED),
        ([103.5, 96.0], [83.2], ScoreMap("logit"), REFUSED),
        ([103.5, 96.0], [83.2], ScoreMap("platt", 0.5, -46.0), []),
        ([0.9, 0.8], [0.1, 0.2], ScoreMap("logit"), ["look like prob"]),
        ([0.1, 0.3], [0.9, 0.2], ScoreMap("prob"), ["in only 25% of the pairs"]),
    ],
)
def test_scores_without_grades_are_refused_and_strange_scores_warned_of(positive, negative, score_map, warned):
    scores = np.array(positive), np.array(negative)
    if warned is REFUSED:
        with pytest.raises(InputError):
            check_scores(*scores, score_map)
        return
    assert all(part in text for part, text in zip(warned, check_scores(*scores, score_map), strict=True))


def test_summary_agrees_with_numpy_and_scikit_learn():
    generator = np.random.default_rng(3)
    positive, negative = generator.normal(2, 2, 300).round(1), generator.normal(0, 2, 700).round(1)  # with ties
    scores = np.concatenate([positive, negative])
    summary = summarise_scores(positive, negative)
    assert (summary.count, summary.lowest, summary.highest) == (1000, scores.min(), scores.max())
    assert summary.distinct == len(set(scores.tolist()))
    assert summary.above == pytest.approx(roc_auc_score([1] * 300 + [0] * 700, scores))
    assert summarise_scores([1.0], []).above is None
    with pytest.raises(InputError):
        summarise_scores([], [])
