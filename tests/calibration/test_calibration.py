import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from sklearn.calibration import calibration_curve
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss

from bixse.calibration.reliability import brier, calibration_report, expected_calibration_error, reliability_curve
from bixse.encoders.platt import fit_platt
from bixse.errors import InputError


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def binary_pairs(seed, count=400, slope=1.0, intercept=0.0):
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=count) * 2 - 1
    return logits, (generator.random(count) < sigmoid(slope * logits + intercept)).astype(float)


def naive_ece(p, z, bins):
    total = 0.0
    for index in range(bins):
        low, high = index / bins, (index + 1) / bins
        members = [i for i in range(len(p)) if low <= p[i] < high or (index == bins - 1 and p[i] == 1.0)]
        if members:
            gap = abs(sum(p[i] for i in members) / len(members) - sum(z[i] for i in members) / len(members))
            total += len(members) / len(p) * gap
    return total


def weighted_logistic_regression(logits, targets):
    # a soft target is two weighted rows
    model = LogisticRegression(C=math.inf, tol=1e-10, max_iter=10_000)
    x = np.concatenate([logits, logits])[:, None]
    y = np.repeat([1, 0], len(logits))
    model.fit(x, y, sample_weight=np.concatenate([targets, 1 - targets]))
    return float(model.coef_[0, 0]), float(model.intercept_[0])


@pytest.mark.parametrize("bins", [1, 4, 10])
def test_calibration_error_equals_a_plain_loop(bins):
    generator = np.random.default_rng(bins)
    p = np.concatenate([generator.random(200), [0.0, 0.25, 0.5, 0.75, 1.0]])
    z = generator.random(205)
    assert expected_calibration_error(p, z, bins) == pytest.approx(naive_ece(p, z, bins), abs=1e-14)


def test_a_constant_has_little_calibration_error_and_only_brier_tells():
    logits, z = binary_pairs(0, count=2000, slope=2.0)
    ids = [f"q{i // 10}" for i in range(2000)]
    constant = calibration_report(np.full(2000, z.mean()), z, ids, samples=50)
    informed = calibration_report(sigmoid(2 * logits), z, ids, samples=50)
    assert informed.brier == pytest.approx(brier_score_loss(z, sigmoid(2 * logits)), abs=1e-15)
    assert constant.ece < 1e-12 < informed.ece
    assert constant.brier == pytest.approx(constant.base_rate_brier, abs=1e-12)
    assert informed.brier < 0.7 * informed.base_rate_brier


def test_brier_interval_agrees_with_scipy_over_queries():
    generator = np.random.default_rng(3)
    sizes = np.full(80, 5)
    ids = np.repeat([f"q{i}" for i in range(80)], sizes)
    p, z = generator.random(400), generator.random(400)
    ours = calibration_report(p, z, list(ids), samples=5000).brier_interval
    by_query = ((p - z) ** 2).reshape(80, 5).mean(axis=1)
    oracle = scipy.stats.bootstrap((by_query,), np.mean, n_resamples=5000, method="basic", rng=1).confidence_interval
    assert ours == pytest.approx((oracle.low, oracle.high), abs=0.06 * by_query.std() / math.sqrt(80) * 2)


def test_intervals_resample_whole_queries_of_unequal_size():
    p = np.array([0.5] * 6)
    z = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
    found = calibration_report(p, z, ["a", "a", "a", "a", "a", "b"], samples=400)
    assert found.brier_interval == (0.25, 0.25)
    ece = expected_calibration_error(p, z)
    possible = [0.5, ece]  # only query a or only b: .5; both: the whole sample
    assert found.ece_interval == pytest.approx((2 * ece - max(possible), 2 * ece - min(possible)), abs=1e-12)


def test_platt_on_graded_relevance_equals_weighted_sklearn():
    generator = np.random.default_rng(0)
    logits = 30 * generator.normal(size=300) + 500  # far from 0 and wide: conditioning must not matter
    z = np.round(np.clip(sigmoid((logits - 510) / 20) + 0.2 * generator.normal(size=300), 0, 1), 1)
    top, bottom = (z.sum() + 1) / (z.sum() + 2), 1 / ((1 - z).sum() + 2)
    slope, intercept = weighted_logistic_regression((logits - 500) / 30, bottom + (top - bottom) * z)
    assert fit_platt(logits, z) == pytest.approx((slope / 30, intercept - slope * 500 / 30), rel=1e-5)


def test_platt_never_reverses_a_ranking():
    logits, z = binary_pairs(1)
    slope, intercept = fit_platt(-logits, z)
    assert slope == 0.0
    assert sigmoid(intercept) == pytest.approx(z.mean(), abs=0.002)


def test_platt_on_separable_relevance_equals_the_minimum_under_the_prior():
    logits, z = np.array([-2.0, -1.0, 1.0, 3.0]), np.array([0.0, 0.0, 1.0, 1.0])
    targets = np.array([0.25, 0.25, 0.75, 0.75])

    def loss(weights):
        s = weights[0] * logits + weights[1]
        return np.sum(np.logaddexp(0, s) - targets * s)

    oracle = scipy.optimize.minimize(loss, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-14}).x
    assert fit_platt(logits, z) == pytest.approx(tuple(oracle), abs=1e-6)


@pytest.mark.parametrize(
    ("logits", "z", "expected"),
    [
        ([-1.0, 0.0, 3.0], [0.0, 0.0, 0.0], 1 / 5),
        ([-1.0, 0.0, 3.0], [0.5, 0.5, 0.5], 0.5),
        ([4.2] * 10, [0.0] * 7 + [1.0] * 3, (7 * 1 / 9 + 3 * 4 / 5) / 10),
    ],
)
def test_platt_on_constants_is_the_mean_of_his_targets(logits, z, expected):
    slope, intercept = fit_platt(logits, z)
    assert slope == pytest.approx(0.0, abs=1e-9)
    assert sigmoid(intercept) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("p", "z", "message"),
    [
        ([], [], "at least 1"),
        ([0.5], [0.5, 0.5], "one length"),
        ([[0.5]], [[0.5]], "two vectors"),
        ([1.1], [1.0], "predictions: got 1.1"),
        ([math.nan], [1.0], "predictions: got nan"),
        ([0.5], [-0.1], "relevance: got -0.1"),
    ],
)
def test_unusable_pairs_are_refused(p, z, message):
    for function in (brier, expected_calibration_error, reliability_curve):
        with pytest.raises(InputError, match=message):
            function(p, z)


@pytest.mark.parametrize(("logits", "z"), [([math.inf, 0.0], [1.0, 0.0]), ([1.0, 2.0], [1.0])])
def test_platt_refuses_unusable_logits(logits, z):
    with pytest.raises(InputError):
        fit_platt(logits, z)


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        (["q1"], {}, "got 1 for 2 pairs"),
        (["q1", "q1"], {}, "at least 2 queries"),
        (["q1", "q2"], {"bins": 0}, "bins: got 0"),
        (["q1", "q2"], {"samples": 0}, "samples: got 0"),
        *((["q1", "q2"], {"weights": w}, "weights: got") for w in ([1.0], [-1.0, 1.0], [math.nan, 1.0], [0.0, 0.0])),
    ],
)
def test_unusable_interval_arguments_are_refused(ids, options, message):
    with pytest.raises(InputError, match=message):
        calibration_report([0.5, 0.5], [0.0, 1.0], ids, **options)


def test_whole_weights_are_repeated_pairs():
    generator = np.random.default_rng(11)
    p, z, times = generator.random(60), generator.random(60), generator.integers(1, 4, 60)
    many_p, many_z = np.repeat(p, times), np.repeat(z, times)
    assert brier(p, z, times) == pytest.approx(brier(many_p, many_z), abs=1e-12)
    observed, predicted = calibration_curve(many_z > 0.5, many_p, n_bins=10)
    curve = reliability_curve(p, z > 0.5, 10, times)
    np.testing.assert_allclose([(one.predicted, one.observed) for one in curve], np.stack([predicted, observed], 1))
    assert expected_calibration_error(p, z, 5, times) == pytest.approx(
        expected_calibration_error(many_p, many_z, 5), abs=1e-12
    )
    ids = [f"q{i // 6}" for i in range(60)]
    ours = calibration_report(p, z, ids, weights=times)
    theirs = calibration_report(many_p, many_z, list(np.repeat(ids, times)))
    assert ours.brier_interval == pytest.approx(theirs.brier_interval, abs=1e-12)
    assert ours.ece_interval == pytest.approx(theirs.ece_interval, abs=1e-12)
    weighted = calibration_report(p, z, ids, weights=times, samples=10)
    assert weighted.base_rate_brier == pytest.approx(np.var(many_z), abs=1e-12)
