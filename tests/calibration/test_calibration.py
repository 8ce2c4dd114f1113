import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, precision_recall_curve

from bixse.calibration.calibrate_head import operating_point, threshold_at_precision
from bixse.calibration.reliability import (
    brier,
    calibration_report,
    expected_calibration_error,
    reliability_curve,
    reweight_to_prevalence,
)
from bixse.encoders.head import RelevanceHead, log_odds
from bixse.encoders.platt import fit_platt
from bixse.errors import InputError
from bixse.evaluation.intervals import wilson_interval


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def binary_pairs(seed, count=400, slope=1.0, intercept=0.0):
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=count) * 2 - 1
    return logits, (generator.random(count) < sigmoid(slope * logits + intercept)).astype(float)


@pytest.mark.parametrize("bins", [1, 4, 10])
def test_calibration_error_is_the_sum_of_gaps_of_bins_that_hold_their_lower_end(bins):
    generator = np.random.default_rng(bins)
    p = np.concatenate([generator.random(200), [0.0, 0.25, 0.5, 0.75, 1.0]])
    z = generator.random(205)
    gaps = scipy.stats.binned_statistic(p, p - z, "sum", bins, (0.0, 1.0)).statistic
    assert expected_calibration_error(p, z, bins) == pytest.approx(np.abs(gaps).sum() / 205, abs=1e-14)


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
    ours = calibration_report(p, z, list(ids), samples=10).brier_interval
    by_query = ((p - z) ** 2).reshape(80, 5).mean(axis=1)
    oracle = scipy.stats.bootstrap((by_query,), np.mean, n_resamples=5000, method="BCa", rng=1).confidence_interval
    assert ours == pytest.approx((oracle.low, oracle.high), abs=0.15 * by_query.std() / math.sqrt(80) * 2)


@pytest.mark.parametrize(("queries", "graded"), [(19, False), (20, True), (20, False)])
def test_probabilities_have_intervals_and_a_verdict_from_twenty_queries_and_units_of_each_class(queries, graded):
    generator = np.random.default_rng(1)
    ids = [f"q{number // 6}" for number in range(6 * queries)]
    z = np.array([number % 6 == 0 for number in range(6 * queries)], dtype=float)
    if graded:
        z *= 0.9  # 18 units of relevance
    found = calibration_report(np.clip(0.1 + 0.8 * z - 0.1 * generator.random(len(z)), 0, 1), z, ids, samples=100)
    assert (found.brier_interval != (None, None)) == (found.ece_interval != (None, None)) == (queries == 20)
    assert found.brier_few == found.ece_few == ("" if queries == 20 else "19 queries; at least 20")
    assert found.against_base_rate == ("better" if queries == 20 and not graded else "cannot tell")


def test_probabilities_without_variance_have_no_interval():
    """Every query has one relevant document of four, and every prediction is the mean."""
    found = calibration_report([0.25] * 160, [1.0, 0.0, 0.0, 0.0] * 40, [f"q{n // 4}" for n in range(160)])
    assert (found.brier_interval, found.ece_interval) == ((None, None), (None, None))
    assert found.against_base_rate == "cannot tell"


@pytest.mark.parametrize("shift", [0.0, 0.001])
def test_a_calibration_error_below_its_noise_has_no_interval(shift):
    """Of 400 queries with one pair, exactly the predicted share is relevant."""
    p = np.repeat([0.25, 0.75], 200)
    z = np.concatenate([np.arange(200) < 50, np.arange(200) < 150]).astype(float)
    found = calibration_report(p + shift, z, [f"q{n}" for n in range(400)])
    assert found.ece == pytest.approx(shift) and found.ece_interval == (None, None) and found.ece_few


def test_the_interval_of_a_large_sample_has_a_width():
    z = np.tile([1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0], 2000)
    found = calibration_report(np.full(len(z), 0.95), z, [f"q{n // 4}" for n in range(len(z))], samples=100)
    assert found.ece_interval[0] < found.ece < found.ece_interval[1]


def test_intervals_lie_in_the_range_of_the_figure():
    """One of 40 queries holds every error, so that the scatter reaches below 0."""
    p = np.repeat([0.0, 1.0], [156, 4])
    found = calibration_report(p, np.zeros(160), [f"q{n // 4}" for n in range(160)])
    turned = calibration_report(1 - p, np.zeros(160), [f"q{n // 4}" for n in range(160)])
    for report in (found, turned):
        for low, high in (report.brier_interval, report.ece_interval):
            assert 0 <= low < high <= 1
    assert found.brier_interval[0] == 0 and turned.brier_interval[1] == 1


@pytest.mark.parametrize("wrong", [0.0, 0.1])
def test_the_interval_of_the_calibration_error_covers_it(wrong):
    """The estimate is far above an error of 0, which its interval must hold."""
    generator = np.random.default_rng(2)
    covered = 0
    for _ in range(40):
        truth = generator.beta(1.2, 2, 320) * 0.8
        z = (generator.random(320) < truth).astype(float)
        found = calibration_report(truth + wrong, z, [f"q{n // 8}" for n in range(320)], samples=200)
        low, high = found.ece_interval
        covered += low is not None and low <= wrong <= high  # some are below their noise
    assert covered >= 35


def test_platt_never_reverses_a_ranking():
    logits, z = binary_pairs(1)
    slope, intercept = fit_platt(-logits, z)
    assert slope == 0.0
    assert sigmoid(intercept) == pytest.approx(z.mean(), abs=0.002)


@pytest.mark.parametrize("graded", [False, True], ids=["separable", "graded"])
@pytest.mark.parametrize(("size", "shift"), [(1.0, 0.0), (30.0, 500.0)], ids=["near 0", "wide and far from 0"])
def test_platt_minimises_the_cross_entropy_of_his_targets(graded, size, shift):
    x, z = np.array([-2.0, -1.0, 1.0, 3.0]), np.array([0.0, 0.0, 1.0, 1.0])
    if graded:
        x, noise = np.random.default_rng(0).normal(size=(2, 300))
        z = np.round(np.clip(sigmoid(1.5 * x - 0.5) + 0.2 * noise, 0, 1), 1)
    targets = z * (z.sum() + 1) / (z.sum() + 2) + (1 - z) / ((1 - z).sum() + 2)

    def loss(weights):
        s = weights[0] * x + weights[1]
        return np.sum(np.logaddexp(0, s) - targets * s)

    options = {"xatol": 1e-9, "fatol": 1e-14}
    slope, intercept = scipy.optimize.minimize(loss, [0.0, 0.0], method="Nelder-Mead", options=options).x
    expected = slope / size, intercept - slope * shift / size
    assert fit_platt(size * x + shift, z) == pytest.approx(expected, rel=1e-5, abs=1e-6)


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


@pytest.mark.parametrize("prior", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_a_prior_out_of_range(prior):
    for refuse in (
        lambda: log_odds(prior, "prior"),
        lambda: reweight_to_prevalence([0.0, 1.0], prior),
        lambda: RelevanceHead(20.0, -10.0, prior=0.5).at_prior(prior),
    ):
        with pytest.raises(InputError, match=r"prior: got .*between 0 and 1"):
            refuse()


@pytest.mark.parametrize("z", [[], [0.0, 0.0], [1.0]])
def test_pairs_of_one_kind_cannot_be_weighted(z):
    with pytest.raises(InputError, match="expected relevant and irrelevant ones"):
        reweight_to_prevalence(z, 0.1)


def test_a_head_of_an_unknown_prior_cannot_be_moved():
    with pytest.raises(InputError, match="bixse calibrate"):
        RelevanceHead(20.0, -10.0).at_prior(0.1)


@pytest.mark.parametrize("prior", [0.001, 0.4375, 0.9])
def test_weights_have_mean_one_and_give_the_prior(prior):
    observed = np.array([0.0, 0.25, 1.0, 0.5])
    weights, relevance = reweight_to_prevalence(observed, prior)
    if prior == observed.mean():
        np.testing.assert_allclose((weights, relevance), (np.ones(4), observed))
    assert weights.mean() == pytest.approx(1.0, abs=1e-9)
    assert np.average(relevance, weights=weights) == pytest.approx(prior, abs=1e-9)
    assert ((relevance >= 0) & (relevance <= 1 + 1e-12)).all()


def population(prior, count, seed):
    """Cosines of relevant pairs about 0.7, of irrelevant ones about 0.4, in equal spread: logits are linear in them."""
    generator = np.random.default_rng(seed)
    z = (generator.random(count) < prior).astype(float)
    return 0.4 + 0.3 * z + 0.15 * generator.standard_normal(count), z


def bayes_head(prior):
    """The exact posterior of such a population: the log of the ratio of two normal densities, and the prior's odds."""
    scale = 0.3 / 0.15**2
    return RelevanceHead(scale, -scale * 0.55 + log_odds(prior), prior=prior)


@pytest.mark.parametrize("new", [0.5, 0.1, 0.01])
def test_a_moved_head_is_the_exact_posterior_and_calibrated_in_a_population_of_the_new_prior(new):
    cosines, z = population(new, 200_000, seed=1)
    moved = bayes_head(0.3).at_prior(new).probability(cosines)
    np.testing.assert_allclose(moved, bayes_head(new).probability(cosines), atol=1e-12)
    assert expected_calibration_error(moved, z, bins=20) < 0.004
    assert expected_calibration_error(bayes_head(0.3).probability(cosines), z, bins=20) > 0.02


def pairs(seed, count=600, queries=60):
    """Scores that are honest probabilities of relevance, with their queries."""
    generator = np.random.default_rng(seed)
    scores = generator.beta(0.8, 1.2, count)
    return scores, (generator.random(count) < scores).astype(float), [f"q{i % queries}" for i in range(count)]


SCORES, RELEVANT, IDS = pairs(0)


@pytest.mark.parametrize(
    ("labels", "ids", "precision", "fact"),
    [
        *((RELEVANT, IDS, precision, "precision: got") for precision in (0.0, -0.1, 1.01, math.nan)),
        (np.zeros(600), IDS, 0.9, "600 pairs, all irrelevant"),
        (np.ones(600), IDS, 0.9, "600 pairs, all relevant"),
        (np.full(600, 0.5), IDS, 0.9, "expected 0 or 1"),
        ([1, 0] * 4 + [1], IDS[:9], 0.9, "got 9 pairs"),
        (RELEVANT, ["q"] * 600, 0.9, "1 query"),
    ],
)
def test_unusable_pairs_and_precisions_are_refused(labels, ids, precision, fact):
    with pytest.raises(InputError, match=fact):
        threshold_at_precision(SCORES[: len(labels)], labels, ids, precision)


@pytest.mark.parametrize("precision", [0.99, 0.8, 0.5])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_threshold_is_that_of_sklearns_curve(precision, weighted):
    scores, relevant, ids = SCORES.round(2), RELEVANT, IDS  # with ties
    weights = np.random.default_rng(0).random(600) + 0.1 if weighted else None
    shares, recalls, thresholds = precision_recall_curve(relevant, scores, sample_weight=weights)
    found = threshold_at_precision(scores, relevant, ids, precision, weights, fewest=1)
    reaching = np.flatnonzero(shares[:-1] >= precision - 1e-12)
    assert found.is_reached == bool(len(reaching))
    if not len(reaching):
        assert found.precision == pytest.approx(shares[:-1].max())
        return
    best = recalls[reaching].max()
    place = reaching[np.isclose(recalls[reaching], best, rtol=0, atol=1e-12)][-1]  # the highest with this recall
    assert thresholds[place - 1] < found.threshold <= thresholds[place]
    assert (found.precision, found.recall) == pytest.approx((shares[place], recalls[place]))
    assert found.pairs == (scores >= found.threshold).sum()


@pytest.mark.parametrize("precision", [0.5, 0.9, 1.0])
def test_a_threshold_lies_in_the_middle_of_the_gap_that_has_its_recall_and_precision(precision):
    cosines = np.array([*np.linspace(0.62, 0.8, 20), *np.linspace(0.1, 0.42, 60)])
    relevant = np.arange(80) < 20
    head, ids = RelevanceHead(30.0, -12.0), [f"q{n % 20}" for n in range(80)]
    found = threshold_at_precision(head.probability(cosines), relevant, ids, precision)
    assert head.cosine_at(found.threshold) == pytest.approx(0.52)
    assert (found.precision, found.recall, found.pairs) == (1.0, 1.0, 20)
    assert found.interval == operating_point(head.probability(cosines), relevant, ids, found.threshold).interval


@pytest.mark.parametrize("ends", [(1.0, 0.0), (1.0, 1.0 - 1e-16), (1e-300, 0.0), (0.5, np.nextafter(0.5, 0))])
def test_a_threshold_between_probabilities_that_are_certain_or_next_to_each_other(ends):
    scores = np.repeat(ends, 20)
    relevant = np.repeat([1.0, 0.0], 20)
    found = threshold_at_precision(scores, relevant, [f"q{n % 20}" for n in range(40)], 0.5)
    assert 0 <= found.threshold <= 1
    assert found.precision == (1.0 if ends[0] > ends[1] else 0.5)


def test_no_other_threshold_has_the_recall_and_a_higher_precision():
    for seed in range(30):
        scores, relevant, ids = pairs(seed, 200, 20)
        found = threshold_at_precision(scores.round(2), relevant, ids, 0.6)
        others = [operating_point(scores.round(2), relevant, ids, cut) for cut in np.unique(scores.round(2))]
        reached = [o for o in others if o.pairs >= 10 and o.precision >= 0.6]
        assert found.recall == max(o.recall for o in reached)
        assert found.precision == max(o.precision for o in reached if o.recall == found.recall)


def test_few_lucky_pairs_at_the_top_are_no_threshold():
    scores = np.linspace(0.99, 0.01, 99)
    relevant = np.zeros(99)
    relevant[:3] = 1.0
    ids = [f"q{i % 20}" for i in range(99)]
    assert threshold_at_precision(scores, relevant, ids, 0.9, fewest=1).pairs == 3
    assert not threshold_at_precision(scores, relevant, ids, 0.9).is_reached


def test_where_all_are_relevant_the_interval_is_not_a_point():
    scores = np.append(np.full(40, 0.9), np.full(40, 0.1))
    relevant = np.append(np.ones(40), np.zeros(40))
    found = threshold_at_precision(scores, relevant, [f"q{i % 8}" for i in range(80)], 0.9)
    assert (found.precision, found.recall, found.queries) == (1.0, 1.0, 8)
    assert found.interval[0] == pytest.approx(0.676, abs=0.001)  # 8 of 8 by Wilson
    assert found.interval[1] == 1.0


@pytest.mark.parametrize(("taken", "known"), [(1, False), (9, False), (10, True)])
def test_a_few_pairs_have_no_interval(taken, known):
    """None of the pairs that are taken is relevant: resampling would show no doubt."""
    scores = np.append(np.full(taken, 0.9), np.full(40, 0.1))
    ids = [f"q{i % 20}" for i in range(taken + 40)]
    found = operating_point(scores, np.append(np.zeros(taken), np.arange(40) % 2), ids, 0.5)
    assert (found.precision, found.recall, found.pairs) == (0.0, 0.0, taken)
    if known:
        assert found.interval == pytest.approx(wilson_interval(0, 10))
    else:
        assert found.interval is None
    assert found.recall_interval[1] > 0.1
    assert operating_point(scores, np.append(np.zeros(taken + 31), np.ones(9)), ids, 0.5).recall_interval is None


def test_pairs_of_one_query_count_less_than_their_number():
    """Half of the queries are relevant throughout: as many trials as queries, whatever the pairs of each."""
    ids = [f"q{i % 12}" for i in range(120)]
    relevant = [float(i % 12 < 6) for i in range(120)]
    alike = operating_point([0.9] * 120, relevant, ids, 0.5).interval
    apart = operating_point([0.9] * 120, relevant, [f"q{i}" for i in range(120)], 0.5).interval
    assert alike == pytest.approx(wilson_interval(5.5, 11)) and apart == pytest.approx(wilson_interval(59.5, 119))


def test_the_interval_covers_the_true_precision_of_clustered_queries():
    # the true precision above a threshold is the mean of honest probabilities above it
    generator = np.random.default_rng(5)
    ids = np.repeat([f"q{i}" for i in range(80)], 10)
    covered = 0
    for _ in range(150):
        level = np.repeat(generator.normal(0, 0.8, 80), 10)
        logit = generator.normal(0, 1.5, 800)
        truth = 1 / (1 + np.exp(-(logit + level)))
        scores = 1 / (1 + np.exp(-logit))
        relevant = (generator.random(800) < truth).astype(float)
        found = threshold_at_precision(scores, relevant, list(ids), 0.8)
        reference = 1 / (1 + np.exp(-(logit[:, None] + 0.8 * np.linspace(-2, 2, 9))))
        mass = np.exp(-0.5 * np.linspace(-2, 2, 9) ** 2)
        expected = (reference @ mass / mass.sum())[scores >= found.threshold].mean()
        covered += found.interval[0] <= expected <= found.interval[1]
    assert covered / 150 > 0.85
