"""Contrasts of cells: figures, intervals that cover seeds and queries, and what they say of a claim."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bixse.errors import InputError
from bixse.studies.contrasts import Contrast, Found, crossed_bootstrap, interval_of, key_of, measure


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
        found = measure(pair("a", "b"), cells)
        assert found.difference is not None and found.seeds == 3

    def test_only_seeds_that_all_have(self) -> None:
        first = table(4, 30)
        second = {seed: row for seed, row in table(4, 30, seed=2).items() if seed != 1}
        found = measure(pair("a", "b"), {key_of({"loss": "a"}): first, key_of({"loss": "b"}): second})
        assert found.seeds == 3

    def test_a_cell_without_figures_gives_no_figures(self) -> None:
        found = measure(pair("a", "b"), {key_of({"loss": "a"}): table(2, 30)})
        assert found == Found("a above b", None, 0)
        assert found.finding == "no figures"

    def test_cells_on_other_queries_are_refused(self) -> None:
        cells = {key_of({"loss": "a"}): table(2, 30), key_of({"loss": "b"}): table(2, 31)}
        with pytest.raises(InputError, match="expected the same queries; to mend: "):
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


class TestCrossedBootstrap:
    def test_it_covers_the_truth_where_seeds_and_queries_vary(self) -> None:
        """Truth 0; seeds, queries and cells each add chance; an interval over queries alone covers far less."""
        generator = np.random.default_rng(0)
        covered = alone = 0
        for trial in range(120):
            values = (
                generator.normal(0, 0.3, (8, 1)) + generator.normal(0, 1, (1, 40)) + generator.normal(0, 1, (8, 40))
            )
            found = crossed_bootstrap(values, [0] * 40, samples=400, seed=trial)
            covered += found.low <= 0 <= found.high
            one = crossed_bootstrap(values.mean(axis=0, keepdims=True), [0] * 40, samples=400, seed=trial)
            alone += one.low <= 0 <= one.high
        assert covered >= 108  # 95 % of 120 is 114
        assert alone < covered

    def test_one_seed_is_the_plain_bootstrap_over_queries(self) -> None:
        values = np.random.default_rng(1).normal(0, 1, (1, 400))
        found = crossed_bootstrap(values, [0] * 400)
        error = values.std() / math.sqrt(400)
        assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.06)

    def test_collections_count_alike(self) -> None:
        values = np.array([[1.0] * 30 + [0.0] * 3])
        found = crossed_bootstrap(values, [0] * 30 + [1] * 3)
        assert found.mean == pytest.approx(0.5)
        assert found.low == found.high == pytest.approx(0.5)

    def test_the_same_seed_gives_the_same_interval(self) -> None:
        values = np.random.default_rng(3).normal(size=(3, 20))
        assert crossed_bootstrap(values, [0] * 20, 500) == crossed_bootstrap(values, [0] * 20, 500)

    @pytest.mark.parametrize("values", [np.zeros((0, 3)), np.zeros((2, 1)), np.array([[0.1, math.nan]]), np.zeros(4)])
    def test_what_cannot_be_resampled_is_refused(self, values: np.ndarray) -> None:
        with pytest.raises(InputError, match="crossed bootstrap: got a table of shape"):
            crossed_bootstrap(values, [0] * values.shape[-1])

    def test_a_cells_own_interval(self) -> None:
        found = interval_of(table(3, 60))
        assert found.low < found.mean < found.high
