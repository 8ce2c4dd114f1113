"""Contrasts of arms: figures, intervals that cover seeds and queries, and what they say of a claim."""

import math

import numpy as np
import pytest
from scipy import stats

from bixse.errors import InputError
from bixse.lab.studies.study import ClaimResult, Contrast, above, crossed_interval, key_of, measure


def table(seeds, queries, shift=0.0, seed=0):
    values = np.random.default_rng(seed).uniform(0.2, 0.6, (seeds, queries)) + shift
    return {number: {f"c/q{q}": float(values[number, q]) for q in range(queries)} for number in range(seeds)}


A, B = key_of({"loss": "a"}), key_of({"loss": "b"})
A_ABOVE_B = above("a above b", {"loss": "a"}, {"loss": "b"})


class TestMeasure:
    def test_the_mean_is_that_of_the_differences_over_the_seeds_that_all_have(self):
        arms = {A: table(4, 40, 0.1), B: {seed: row for seed, row in table(4, 40, seed=1).items() if seed != 1}}
        claim = measure(A_ABOVE_B, arms)
        means = [np.mean([list(figures[seed].values()) for seed in (0, 2, 3)]) for figures in arms.values()]
        assert claim.difference.mean == pytest.approx(means[0] - means[1])
        assert claim.seeds == 3

    @pytest.mark.parametrize(
        ("seeds", "shift", "finding"),
        [(4, 0.3, "reproduced"), (4, -0.3, "contradicted"), (4, 0.0, "not shown"), (2, 0.5, "not shown")],
    )
    def test_the_finding_follows_from_interval_and_seeds(self, seeds, shift, finding):
        assert measure(A_ABOVE_B, {A: table(seeds, 50, shift), B: table(seeds, 50, seed=1)}).finding == finding

    def test_a_system_without_training_counts_for_every_seed(self):
        assert measure(A_ABOVE_B, {A: table(3, 30, 0.2), B: {7: table(1, 30)[0]}}, {B}).seeds == 3

    def test_a_trained_arm_with_one_seed_left_does_not_stand_for_all(self):
        claim = measure(A_ABOVE_B, {A: table(3, 30, 0.2), B: {2: table(3, 30)[2]}})
        assert (claim.seeds, claim.finding) == (1, "not shown")
        assert measure(A_ABOVE_B, {A: {0: table(1, 30)[0]}, B: {2: table(3, 30)[2]}}).difference is None

    def test_an_arm_without_figures_gives_no_figures(self):
        claim = measure(A_ABOVE_B, {A: table(2, 30)})
        assert claim == ClaimResult("a above b", None, 0)
        assert claim.finding == "no figures"

    def test_arms_on_other_queries_are_refused(self):
        with pytest.raises(InputError, match="expected the same queries"):
            measure(A_ABOVE_B, {A: table(2, 30), B: table(2, 31)})

    def test_a_difference_of_differences(self):
        shifts = {("a", 0): 0.3, ("a", 1): 0.2, ("b", 0): 0.3, ("b", 1): 0.0}
        arms = {key_of({"loss": loss, "noise": p}): table(2, 40, shift) for (loss, p), shift in shifts.items()}
        weights = {("a", 1): 1.0, ("a", 0): -1.0, ("b", 1): -1.0, ("b", 0): 1.0}
        terms = tuple(({"loss": loss, "noise": p}, weight) for (loss, p), weight in weights.items())
        assert measure(Contrast("a loses less", terms), arms).difference.mean == pytest.approx(0.2)


class TestCrossedInterval:
    @pytest.mark.parametrize("seeds", [3, 8])
    @pytest.mark.parametrize("chance", [(0.5, 0.1), (0.02, 1.0), (0.15, 1.0)])
    def test_it_covers_the_truth_with_few_seeds(self, seeds, chance):
        generator = np.random.default_rng(seeds)
        by_seed, by_query = chance
        covered = 0
        for _ in range(400):
            values = generator.normal(0, by_seed, (seeds, 1)) + generator.normal(0, by_query, (1, 50))
            interval = crossed_interval(values + generator.normal(0, 0.5, (seeds, 50)), [0] * 50)
            covered += interval.low <= 0 <= interval.high
        assert covered / 400 >= 0.92

    def test_the_interval_over_queries_alone_would_not(self):
        generator = np.random.default_rng(0)
        covered = 0
        for _ in range(200):
            values = generator.normal(0, 0.5, (3, 1)) + generator.normal(0, 0.1, (1, 50))
            interval = crossed_interval(values.mean(axis=0, keepdims=True), [0] * 50)
            covered += interval.low <= 0 <= interval.high
        assert covered / 200 < 0.5

    def test_one_seed_is_students_t_over_queries(self):
        values = np.random.default_rng(1).normal(0.1, 1, (1, 40))
        interval, expected = crossed_interval(values, [0] * 40), stats.ttest_1samp(values[0], 0)
        assert interval.p_value == pytest.approx(expected.pvalue)
        assert (interval.low, interval.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))

    def test_collections_count_alike(self):
        interval = crossed_interval(np.array([[1.0] * 30 + [0.0] * 3]), [0] * 30 + [1] * 3)
        assert (interval.low, interval.mean, interval.high, interval.p_value) == pytest.approx((0.5, 0.5, 0.5, 0.0))

    @pytest.mark.parametrize("values", [np.zeros((0, 3)), np.zeros((2, 1)), np.array([[0.1, math.nan]]), np.zeros(4)])
    def test_unusable_tables_are_refused(self, values):
        with pytest.raises(InputError, match="interval"):
            crossed_interval(values, [0] * values.shape[-1])
