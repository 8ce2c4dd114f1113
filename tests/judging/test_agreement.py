"""Measures against scikit-learn, scipy and the package krippendorff; intervals against plain resampling."""

import krippendorff
import numpy as np
import pytest
import scipy.stats
from sklearn.metrics import cohen_kappa_score

from bixse.evaluation.statistics import mean_estimate, query_draws
from bixse.judging.audit import agreement
from bixse.judging.audit.agreement import counts_by_query, nearest_level
from bixse.results import IntervalEstimate

LEVELS = np.arange(4.0)


def grades(seed, pairs=200):
    """Human grades, a judge's that follow them loosely, and uneven queries."""
    generator = np.random.default_rng(seed)
    human = generator.integers(0, 4, pairs).astype(float)
    judged = np.clip(human + generator.integers(-2, 3, pairs), 0, 3)
    return human, judged, [f"q{i}" for i in (generator.random(pairs) ** 2 * 12).astype(int)]


def value(measure, human, judged, query_ids, levels=LEVELS):
    return float(measure(counts_by_query(np.array(human), np.array(judged), query_ids, levels).total))


def test_kappa_is_not_defined_where_both_sides_use_one_grade():
    counts = counts_by_query(np.ones(4), np.ones(4), ["a", "a", "b", "b"], LEVELS)
    found = counts.estimates({"kappa": agreement.cohen_kappa(), "exact": agreement.agreement_within(0)}, 50, 0)
    assert found["kappa"] == IntervalEstimate(None)
    assert found["exact"].value == 1.0


def test_resamples_without_a_value_are_left_out_of_the_interval():
    human, judged, ids = np.array([0.0, 0, 3, 3]), np.array([0.0, 0, 3, 0]), ["a", "a", "b", "b"]
    counts = counts_by_query(human, judged, ids, LEVELS)
    found = counts.estimates({"kappa": agreement.cohen_kappa()}, 200, 0)["kappa"]
    assert found.value == pytest.approx(0.5)
    assert found.low is not None and found.low <= 0.5 <= found.high


def test_weights_count_a_pair_as_if_it_were_there_so_often():
    human, judged, ids = grades(0, pairs=50)
    times = np.random.default_rng(1).integers(1, 4, 50)
    weighted = counts_by_query(human, judged, ids, LEVELS, times.astype(float))
    repeated = counts_by_query(np.repeat(human, times), np.repeat(judged, times), np.repeat(ids, times), LEVELS)
    assert (weighted.counts != repeated.counts).nnz == 0


@pytest.mark.parametrize("seed", range(3))
def test_measures_equal_scikit_learn_scipy_and_krippendorff(seed):
    human, judged, ids = grades(seed)
    human[human == 2] = 1  # a level that one side never uses
    for power, weights in enumerate((None, "linear", "quadratic")):
        oracle = cohen_kappa_score(human, judged, labels=LEVELS, weights=weights)
        assert value(agreement.cohen_kappa(power), human, judged, ids) == pytest.approx(oracle, abs=1e-12)
    oracle = cohen_kappa_score(human >= seed + 1, judged >= seed + 1)
    assert value(agreement.binary_kappa(seed + 1), human, judged, ids) == pytest.approx(oracle, abs=1e-12)
    oracle = krippendorff.alpha([human, judged], level_of_measurement="ordinal", value_domain=list(LEVELS))
    assert value(agreement.krippendorff_alpha, human, judged, ids) == pytest.approx(oracle, abs=1e-12)
    judged = judged + np.random.default_rng(seed).choice([0.0, 0.25, 0.3], len(judged))
    rho = value(agreement.spearman, human, judged, ids, None)
    tau = value(agreement.kendall_tau_b, human, judged, ids, None)
    assert rho == pytest.approx(scipy.stats.spearmanr(human, judged).statistic, abs=1e-12)
    assert tau == pytest.approx(scipy.stats.kendalltau(human, judged).statistic, abs=1e-12)


def test_shares_by_distance():
    human, judged, ids = [0, 1, 2, 3, 3], [0, 2, 0, 3, 0], list("aabbb")
    shares = [value(agreement.agreement_within(steps), human, judged, ids) for steps in (0, 1, -1)]
    assert shares == pytest.approx([0.4, 0.2, 0.4])


def test_a_grade_between_two_levels_counts_as_the_nearest():
    assert nearest_level(np.array([-0.0, 0.49, 0.5, 2.51, 3.0]), LEVELS).tolist() == [0, 0, 1, 3, 3]
    assert nearest_level(np.array([0.0, 0.3, 0.9]), np.array([0.0, 0.5, 1.0])).tolist() == [0, 1, 2]


def test_intervals_equal_plain_resampling_of_whole_queries():
    human, judged, ids = grades(3, pairs=60)
    found = counts_by_query(human, judged, ids, LEVELS).estimates({"k": agreement.cohen_kappa()}, 300, seed=5)["k"]
    names = sorted(set(ids))
    members = [np.flatnonzero(np.array(ids) == name) for name in names]
    drawn = []
    for block in query_draws(len(names), 300, 5):
        for times in block.astype(int):
            rows = np.concatenate([np.repeat(pairs, count) for pairs, count in zip(members, times, strict=True)])
            drawn.append(cohen_kappa_score(human[rows], judged[rows], labels=LEVELS))
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=1e-12)


def test_blocks_do_not_change_the_draws(monkeypatch):
    human, judged, ids = grades(1)
    counts = counts_by_query(human, judged, ids, None)
    whole = counts.draws(agreement.OF_RANKS, 100, seed=2)["kendall"]
    monkeypatch.setattr(agreement, "_BLOCK_SIZE", 50)
    assert np.array_equal(counts.draws(agreement.OF_RANKS, 100, seed=2)["kendall"], whole)


def test_the_mean_counts_every_pair_once():
    values, ids = np.array([1.0, 1.0, 1.0, 0.0]), ["a", "a", "a", "b"]
    found = mean_estimate(values, ids, samples=400, seed=0)
    assert found.value == 0.75  # not 0.5, the mean of the queries' means
    assert (found.low, found.high) == (0.0, 1.0)
    assert found.side == "across"
    assert mean_estimate(-1 - values, ids, samples=50, seed=0).side == "below"
