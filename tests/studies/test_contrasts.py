"""Contrasts of cells: figures, intervals that cover seeds and queries, and what they say of a claim."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from bixse.errors import InputError
from bixse.studies.findings.contrasts import ClaimResult, Contrast, crossed_interval, interval_of, key_of, measure


def table(seeds: int, queries: int, shift: float = 0.0, seed: int = 0) -> dict[int, dict[str, float]]:
    values = np.random.default_rng(seed).uniform(0.2, 0.6, (seeds, queries)) + shift
    return {number: {f"c/q{q}": float(values[number, q]) for q in range(queries)} for number in range(seeds)}


def pair(a: str, b: str) -> Contrast:
    return Contrast(f"{a} above {b}", (({"loss": a}, 1.0), ({"loss": b}, -1.0)))


class TestMeasure:
    def test_the_mean_is_that_of_the_differences(self) -> None:
        cells = {key_of({"loss": "a"}): table(3, 40, 0.1), key_of({"loss": "b"}): table(3, 40, 0.0, seed=1)}
        found = measure(pair("a", "b"), cells)
        means = [np.mean([list(row.values()) for row in figures.values()]) for figures in cells.values()]
        assert found.difference is not None
        assert found.difference.mean == pytest.approx(means[0] - means[1])
        assert found.seeds == 3

    @pytest.mark.parametrize(("shift", "finding"), [(0.3, "reproduced"), (-0.3, "contradicted"), (0.0, "not shown")])
    def test_what_it_says(self, shift: float, finding: str) -> None:
        cells = {key_of({"loss": "a"}): table(4, 50, shift), key_of({"loss": "b"}): table(4, 50, seed=1)}
        assert measure(pair("a", "b"), cells).finding == finding

    def test_a_system_without_seeds_stands_beside_every_seed(self) -> None:
        cells = {key_of({"loss": "a"}): table(3, 30, 0.2), key_of({"loss": "b"}): {7: table(1, 30)[0]}}
        found = measure(pair("a", "b"), cells, {key_of({"loss": "b"})})
        assert found.difference is not None and found.seeds == 3

    def test_a_trained_cell_with_one_seed_left_does_not_stand_for_all(self) -> None:
        cells = {key_of({"loss": "a"}): table(3, 30, 0.2), key_of({"loss": "b"}): {2: table(3, 30)[2]}}
        found = measure(pair("a", "b"), cells)
        assert found.seeds == 1 and found.finding == "not shown"
        other = {key_of({"loss": "a"}): {0: table(1, 30)[0]}, key_of({"loss": "b"}): {2: table(3, 30)[2]}}
        assert measure(pair("a", "b"), other).difference is None

    def test_two_seeds_show_nothing(self) -> None:
        cells = {key_of({"loss": "a"}): table(2, 50, 0.5), key_of({"loss": "b"}): table(2, 50, seed=1)}
        assert measure(pair("a", "b"), cells).finding == "not shown"

    def test_only_seeds_that_all_have(self) -> None:
        first = table(4, 30)
        second = {seed: row for seed, row in table(4, 30, seed=2).items() if seed != 1}
        found = measure(pair("a", "b"), {key_of({"loss": "a"}): first, key_of({"loss": "b"}): second})
        assert found.seeds == 3

    def test_a_cell_without_figures_gives_no_figures(self) -> None:
        found = measure(pair("a", "b"), {key_of({"loss": "a"}): table(2, 30)})
        assert found == ClaimResult("a above b", None, 0)
        assert found.finding == "no figures"

    def test_cells_on_other_queries_are_refused(self) -> None:
        cells = {key_of({"loss": "a"}): table(2, 30), key_of({"loss": "b"}): table(2, 31)}
        with pytest.raises(InputError, match="expected the same queries; fix: "):
            measure(pair("a", "b"), cells)

    def test_a_difference_of_differences(self) -> None:
        cells = {key_of({"loss": loss, "noise": p}): table(2, 40, shift) for loss, p, shift in
                 (("a", 0, 0.3), ("a", 1, 0.2), ("b", 0, 0.3), ("b", 1, 0.0))}  # fmt: skip
        terms = (
            ({"loss": "a", "noise": 1}, 1.0),
            ({"loss": "a", "noise": 0}, -1.0),
            ({"loss": "b", "noise": 1}, -1.0),
            ({"loss": "b", "noise": 0}, 1.0),
        )
        found = measure(Contrast("a loses less", terms), cells)
        assert found.difference is not None
        assert found.difference.mean == pytest.approx(0.2)


class TestCrossedInterval:
    @pytest.mark.parametrize("seeds", [3, 5, 8])
    @pytest.mark.parametrize("chance", ["seeds", "queries", "both"])
    def test_it_covers_the_truth_with_few_seeds(self, seeds: int, chance: str) -> None:
        """Truth 0; intervals of 95 % over one side alone cover far less where the other side varies."""
        generator = np.random.default_rng(seeds)
        by_seed, by_query = {"seeds": (0.5, 0.1), "queries": (0.02, 1.0), "both": (0.15, 1.0)}[chance]
        covered = 0
        for _ in range(400):
            values = generator.normal(0, by_seed, (seeds, 1)) + generator.normal(0, by_query, (1, 50))
            found = crossed_interval(values + generator.normal(0, 0.5, (seeds, 50)), [0] * 50)
            covered += found.low <= 0 <= found.high
        assert covered / 400 >= 0.92

    def test_the_interval_over_queries_alone_would_not(self) -> None:
        generator = np.random.default_rng(0)
        covered = 0
        for _ in range(200):
            values = generator.normal(0, 0.5, (3, 1)) + generator.normal(0, 0.1, (1, 50))
            found = crossed_interval(values.mean(axis=0, keepdims=True), [0] * 50)
            covered += found.low <= 0 <= found.high
        assert covered / 200 < 0.5

    def test_one_seed_is_students_t_over_queries(self) -> None:
        values = np.random.default_rng(1).normal(0.1, 1, (1, 40))
        found = crossed_interval(values, [0] * 40)
        expected = stats.ttest_1samp(values[0], 0)
        assert found.p_value == pytest.approx(expected.pvalue)
        assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))

    def test_collections_count_alike(self) -> None:
        values = np.array([[1.0] * 30 + [0.0] * 3])
        found = crossed_interval(values, [0] * 30 + [1] * 3)
        assert found.mean == pytest.approx(0.5)
        assert found.low == found.high == pytest.approx(0.5)
        assert found.p_value == 0.0

    def test_the_order_of_seeds_does_not_count(self) -> None:
        values = np.random.default_rng(3).normal(size=(3, 20))
        one, other = (crossed_interval(given, [0] * 20) for given in (values, values[::-1]))
        assert (one.low, one.high) == pytest.approx((other.low, other.high))

    @pytest.mark.parametrize("values", [np.zeros((0, 3)), np.zeros((2, 1)), np.array([[0.1, math.nan]]), np.zeros(4)])
    def test_what_cannot_be_resampled_is_refused(self, values: np.ndarray) -> None:
        with pytest.raises(InputError, match="interval: got a table of shape"):
            crossed_interval(values, [0] * values.shape[-1])

    def test_a_cells_own_interval(self) -> None:
        found = interval_of(table(3, 60))
        assert found.low < found.mean < found.high
