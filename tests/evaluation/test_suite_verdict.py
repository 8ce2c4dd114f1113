"""Comparing systems over a suite."""

from __future__ import annotations

import random

import numpy as np
import pytest

from bixse.errors import InputError
from bixse.evaluation.significance import paired_bootstrap, randomisation_test
from bixse.evaluation.statistics import holm
from bixse.evaluation.suites.suite_verdict import compare_systems


def values(seed, shift=0.0, tasks=(40, 15)):
    draw = random.Random(seed)
    return {
        f"task{number}": {f"q{query}": min(1.0, max(0.0, draw.random() + shift)) for query in range(count)}
        for number, count in enumerate(tasks)
    }


def test_systems_with_other_tasks_or_queries_are_refused():
    a, b = values(0), values(1)
    with pytest.raises(InputError, match=r"tasks that only one of them has \(task1\)"):
        compare_systems({"a": a, "b": {"task0": b["task0"]}})
    del b["task1"]["q3"]
    with pytest.raises(InputError, match="other queries of task 'task1'"):
        compare_systems({"a": a, "b": b})


def test_one_task_is_the_comparison_of_its_queries():
    a, b = values(0, tasks=(30,)), values(1, tasks=(30,))
    (found,) = compare_systems({"a": a, "b": b})
    plain = paired_bootstrap(a["task0"], b["task0"])
    assert found.tasks[0].difference == plain
    assert (found.difference.low, found.difference.high) == pytest.approx((plain.low, plain.high))
    assert found.difference.mean == pytest.approx(plain.mean)
    assert found.randomisation_p == randomisation_test(a["task0"], b["task0"])


def test_tasks_count_alike_whatever_their_size():
    a = {"large": {f"q{n}": 1.0 for n in range(100)}, "small": {"q1": 0.0, "q2": 0.0}}
    b = {"large": {f"q{n}": 0.0 for n in range(100)}, "small": {"q1": 1.0, "q2": 1.0}}
    (found,) = compare_systems({"a": a, "b": b})
    assert (found.difference.mean, found.difference.low, found.difference.high) == (0.0, 0.0, 0.0)
    assert found.verdict == "no difference"
    assert [task.verdict for task in found.tasks] == ["better", "worse"]


def test_the_tasks_of_a_group_together_count_as_one():
    a = {name: {"q1": value, "q2": value} for name, value in (("x1", 1.0), ("x2", 1.0), ("x3", 1.0), ("y", 0.0))}
    b = {name: {"q1": value, "q2": value} for name, value in (("x1", 0.0), ("x2", 0.0), ("x3", 0.0), ("y", 1.0))}
    assert compare_systems({"a": a, "b": b})[0].difference.mean == pytest.approx(0.5)
    (found,) = compare_systems({"a": a, "b": b}, {"x1": "x", "x2": "x", "x3": "x"})
    assert found.difference.mean == pytest.approx(0.0)
    assert found.randomisation_p > 0.8
    assert found.verdict == "no difference"


def test_the_interval_resamples_queries_within_tasks():
    a, b = values(2, 0.3), values(3)
    generator = np.random.default_rng(0)
    means = []
    for _ in range(4000):
        tasks = []
        for task in a:
            differences = np.array([a[task][query] - b[task][query] for query in a[task]])
            tasks.append(generator.choice(differences, len(differences)).mean())
        means.append(np.mean(tasks))
    difference = compare_systems({"a": a, "b": b})[0].difference
    assert np.quantile(means, [0.025, 0.975]) == pytest.approx([difference.low, difference.high], abs=0.01)


def test_every_pair_is_compared_and_corrected():
    systems = {"good": values(0, 0.4), "same": values(1), "other": values(2)}
    found = {(each.a, each.b): each for each in compare_systems(systems)}
    assert list(found) == [("good", "same"), ("good", "other"), ("same", "other")]
    assert [each.verdict for each in found.values()] == ["better", "better", "no difference"]
    assert [each.holm_p for each in found.values()] == holm([each.randomisation_p for each in found.values()])
    every = [task.randomisation_p for each in found.values() for task in each.tasks]
    assert [task.holm_p for each in found.values() for task in each.tasks] == holm(every)


def test_a_task_of_one_query_has_no_interval_but_counts():
    (found,) = compare_systems({"a": values(0, tasks=(20, 1)), "b": values(1, tasks=(20, 1))})
    assert [task.task for task in found.tasks] == ["task0"]
    assert found.difference.queries == 21


@pytest.mark.parametrize(
    ("given", "corrected"),
    [
        ([], []),
        ([0.2], [0.2]),
        ([0.01, 0.02, 0.03, 0.04], [0.04, 0.06, 0.06, 0.06]),
        ([0.5, 0.001, 0.6], [1.0, 0.003, 1.0]),
        # by hand: 0.008 * 5, 0.012 * 4, 0.03 * 3, 0.041 * 2 and 0.2 in rising order, none below the one before
        ([0.03, 0.008, 0.041, 0.012, 0.2], [0.09, 0.04, 0.09, 0.048, 0.2]),
    ],
)
def test_holm(given, corrected):
    assert holm(given) == pytest.approx(corrected)
