"""Comparing systems over a suite."""

import random

import numpy as np
import pytest

from bixse.errors import InputError
from bixse.evaluation.statistics import holm, paired_bootstrap, randomisation_test
from bixse.lab.suites.suite_result import compare_systems


def values(seed, shift=0.0, tasks=(40, 15)):
    draw = random.Random(seed)
    return {
        f"task{number}": {f"q{query}": min(1.0, max(0.0, draw.random() + shift)) for query in range(count)}
        for number, count in enumerate(tasks)
    }


def test_systems_with_other_queries_are_refused():
    a, b = values(0), values(1)
    del b["task1"]["q3"]
    with pytest.raises(InputError, match="such as 'q3'"):
        compare_systems({"a": a, "b": b})


def test_a_task_of_one_query_has_no_interval_but_counts():
    (pair,) = compare_systems({"a": values(0, tasks=(20, 1)), "b": values(1, tasks=(20, 1))})
    assert ([task.task for task in pair.tasks], pair.difference.queries) == (["task0"], 21)


def test_one_task_is_the_comparison_of_its_queries():
    a, b = values(0, tasks=(30,)), values(1, tasks=(30,))
    (pair,) = compare_systems({"a": a, "b": b})
    assert pair.difference == pair.tasks[0].difference == paired_bootstrap(a["task0"], b["task0"])
    assert pair.randomisation_p == randomisation_test(a["task0"], b["task0"])


def test_tasks_count_alike_whatever_their_size():
    a = {"large": {f"q{n}": 1.0 for n in range(100)}, "small": {"q1": 0.0, "q2": 0.0}}
    b = {"large": {f"q{n}": 0.0 for n in range(100)}, "small": {"q1": 1.0, "q2": 1.0}}
    (pair,) = compare_systems({"a": a, "b": b})
    assert (pair.difference.mean, pair.difference.low, pair.difference.high) == (0.0, 0.0, 0.0)
    assert [task.verdict for task in pair.tasks] == ["better", "worse"]


def test_the_tasks_of_a_group_together_count_as_one():
    a = {name: {"q1": value, "q2": value} for name, value in (("x1", 1.0), ("x2", 1.0), ("x3", 1.0), ("y", 0.0))}
    b = {name: {"q1": value, "q2": value} for name, value in (("x1", 0.0), ("x2", 0.0), ("x3", 0.0), ("y", 1.0))}
    assert compare_systems({"a": a, "b": b})[0].difference.mean == pytest.approx(0.5)
    (pair,) = compare_systems({"a": a, "b": b}, {"x1": "x", "x2": "x", "x3": "x"})
    assert pair.difference.mean == pytest.approx(0.0)
    assert pair.randomisation_p > 0.8


def test_the_interval_resamples_queries_within_tasks():
    a, b = values(2, 0.3), values(3)
    generator = np.random.default_rng(0)
    differences = [np.array([a[task][query] - b[task][query] for query in a[task]]) for task in a]
    means = [np.mean([generator.choice(sample, len(sample)).mean() for sample in differences]) for _ in range(4000)]
    difference = compare_systems({"a": a, "b": b})[0].difference
    assert np.quantile(means, [0.025, 0.975]) == pytest.approx([difference.low, difference.high], abs=0.01)


def test_every_pair_is_compared_and_corrected():
    systems = {"good": values(0, 0.4), "same": values(1), "other": values(2)}
    pairs = {(each.a, each.b): each for each in compare_systems(systems)}
    assert list(pairs) == [("good", "same"), ("good", "other"), ("same", "other")]
    assert [each.verdict for each in pairs.values()] == ["better", "better", "no difference"]
    assert [each.holm_p for each in pairs.values()] == holm([each.randomisation_p for each in pairs.values()])
    every = [task.randomisation_p for each in pairs.values() for task in each.tasks]
    assert [task.holm_p for each in pairs.values() for task in each.tasks] == holm(every)
