"""Systems under human and judge labels."""

import numpy as np
import pytest
import scipy.stats

from bixse.errors import InputError
from bixse.judging.audit.agreement import _tau_b, rank_systems, tau_ap

HUMAN = {("q1", "a"): 1.0, ("q1", "b"): 0.0, ("q2", "a"): 0.0, ("q2", "b"): 1 / 3, ("q3", "a"): 0.0}
GOOD = {"q1": {"a": 2.0, "b": 1.0}, "q2": {"b": 2.0, "a": 1.0}}
BAD = {"q1": {"a": 1.0, "b": 2.0}, "q2": {"b": 1.0, "a": 2.0}}


def test_what_cannot_be_ranked_is_refused():
    nothing = {pair: 0.0 if pair[0] == "q2" else relevance for pair, relevance in HUMAN.items()}
    for judged, runs, said in (
        (HUMAN, {"good": GOOD}, "got 1; expected at least 2"),
        (nothing, {"good": GOOD, "bad": BAD}, "got 1 queries with a relevant document by both sides"),
        (HUMAN, {"good": GOOD, "other": {"q9": {"a": 1.0}}}, "expected judged ones"),
    ):
        with pytest.raises(InputError, match=said):
            rank_systems(HUMAN, judged, runs)


def test_a_judge_that_turns_labels_around_turns_the_order_around():
    turned = {pair: 1.0 - relevance for pair, relevance in HUMAN.items()}
    runs = {"bad": BAD, "good": GOOD}
    same, other = rank_systems(HUMAN, HUMAN, runs, samples=50), rank_systems(HUMAN, turned, runs, samples=50)
    assert [system.name for system in same.systems] == ["good", "bad"]
    assert same.systems[0].human == same.systems[0].judge == 1.0
    assert same.systems[1].human == pytest.approx(1 / np.log2(3))
    assert (same.tau.value, same.tau_ap, same.queries) == (1.0, 1.0, 2)
    assert (other.tau.value, other.tau_ap) == (-1.0, -1.0)


def test_pairs_of_one_side_only_do_not_count():
    judged = {**HUMAN, ("q1", "c"): 1.0}
    runs = {"bad": BAD, "good": {**GOOD, "q1": {"c": 9.0, **GOOD["q1"]}}}
    ranking = rank_systems(HUMAN, judged, runs, samples=50)
    assert all(system.human == pytest.approx(system.judge) for system in ranking.systems)


@pytest.mark.parametrize("seed", range(4))
def test_tau_b_equals_scipy_with_ties(seed):
    first, second = np.random.default_rng(seed).integers(0, 5, (2, 8)) / 10
    assert float(_tau_b(first, second)) == pytest.approx(scipy.stats.kendalltau(first, second).statistic)


def test_tau_ap_by_hand():
    """Reference a > b > c > d; the estimate a, c, b, d has one mistake at rank 3: 2/3 (1 + 1/2 + 1) - 1."""
    assert tau_ap([4, 3, 2, 1], [9, 7, 8, 1]) == pytest.approx(2 / 3 * 2.5 - 1)
    assert tau_ap([4, 3, 2, 1], [8, 9, 7, 1]) < tau_ap([4, 3, 2, 1], [9, 8, 1, 7])  # a mistake at the top weighs more
    assert tau_ap([2, 1], [5, 5]) == -1.0  # what is not told apart is a mistake
