import math

import numpy as np
import pytest
from sklearn.metrics import precision_recall_curve

from bixse.calibration.calibrate_head import operating_point, threshold_at_precision
from bixse.errors import InputError
from bixse.evaluation.statistics import wilson_interval


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
    place = reaching[thresholds[reaching].argmin()]
    assert found.threshold == thresholds[place]
    assert (found.precision, found.recall) == pytest.approx((shares[place], recalls[place]))
    assert found.pairs == (scores >= found.threshold).sum()


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
