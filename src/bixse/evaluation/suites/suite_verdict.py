"""Are the differences of a whole suite real? Every pair of systems over all tasks, and task by task."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from bixse.errors import InputError
from bixse.evaluation.significance import bootstrap_mean, paired_bootstrap, randomisation_test, sign_flip_test
from bixse.evaluation.statistics import holm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bixse.evaluation.statistics import Floats
    from bixse.results import Difference, Verdict

Values: TypeAlias = "Mapping[str, Mapping[str, float]]"
"""Task -> query id -> value of one metric."""
FEWEST_QUERIES = 2
"""A task of fewer queries has no interval of its own."""


@dataclass(frozen=True)
class TaskDifference:
    """Two systems on one task."""

    task: str
    """The task."""
    difference: Difference
    """Mean of a - b over its queries, with interval and p-value of the paired bootstrap."""
    randomisation_p: float
    """p-value of Fisher's randomisation test."""
    holm_p: float = 1.0
    """That p-value after Holm's correction for all tasks and pairs of the table."""

    @property
    def verdict(self) -> Verdict:
        """What the interval says, without correction."""
        return self.difference.verdict


@dataclass(frozen=True)
class SuiteDifference:
    """Two systems over a suite."""

    a: str
    """The first system."""
    b: str
    """The second."""
    difference: Difference
    """Mean over tasks of the mean of a - b over queries; the interval resamples queries within tasks."""
    randomisation_p: float
    """p-value of Fisher's randomisation test, a query counting as much as it does in the mean over tasks."""
    tasks: tuple[TaskDifference, ...]
    """Task by task, those with at least two queries."""
    holm_p: float = 1.0
    """`randomisation_p` after Holm's correction for all pairs of systems."""

    @property
    def verdict(self) -> Verdict:
        """What the interval says, without correction."""
        return self.difference.verdict


def compare_systems(
    values: Mapping[str, Values],
    group_of: Mapping[str, str] | None = None,
    samples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> list[SuiteDifference]:
    """Compare every pair of systems, the first named one as a.

    The intervals say how far the choice of queries reaches; the tasks are taken as they are.

    Args:
        values: system -> task -> query id -> value; all systems have the same tasks and queries.
        group_of: task -> group; the tasks of a group together count as one. None: each counts by itself.
        samples: resamples and random swaps.
        confidence: of the intervals, between 0 and 1.
        seed: of both.

    Raises:
        InputError: tasks or queries differ between systems, or fewer than 2 queries in all.

    Example:
        >>> one = {"first": {"q1": 0.9, "q2": 0.8}, "second": {"q1": 0.7, "q2": 0.9}}
        >>> other = {"first": {"q1": 0.5, "q2": 0.5}, "second": {"q1": 0.5, "q2": 0.5}}
        >>> (found,) = compare_systems({"one": one, "other": other})
        >>> round(found.difference.mean, 3), found.randomisation_p, found.verdict
        (0.325, 0.125, 'better')
    """
    found = [
        _compare(a, b, values[a], values[b], group_of, samples, confidence, seed) for a, b in combinations(values, 2)
    ]
    whole = holm([pair.randomisation_p for pair in found])
    by_task = iter(holm([task.randomisation_p for pair in found for task in pair.tasks]))
    return [
        replace(pair, holm_p=p_value, tasks=tuple(replace(task, holm_p=next(by_task)) for task in pair.tasks))
        for pair, p_value in zip(found, whole, strict=True)
    ]


def _compare(
    a: str,
    b: str,
    first: Values,
    second: Values,
    group_of: Mapping[str, str] | None,
    samples: int,
    confidence: float,
    seed: int,
) -> SuiteDifference:
    """One pair of systems, its p-values not yet corrected."""
    _check_same(a, first, b, second)
    weights = _weights(first, group_of)
    differences = {task: _differences(first[task], second[task]) for task in sorted(first)}
    total = sum(map(len, differences.values()))
    if total < FEWEST_QUERIES:
        raise InputError(f"systems {a!r} and {b!r}: got {total} query; expected at least 2; fix: evaluate on more")
    as_counted = [found * (total * weights[task] / len(found)) for task, found in differences.items()]
    return SuiteDifference(
        a,
        b,
        bootstrap_mean(list(differences.values()), [weights[task] for task in differences], samples, confidence, seed),
        sign_flip_test(np.concatenate(as_counted), samples, seed),
        tuple(
            TaskDifference(
                task,
                paired_bootstrap(first[task], second[task], samples, confidence, seed),
                randomisation_test(first[task], second[task], samples, seed),
            )
            for task in first
            if len(first[task]) >= FEWEST_QUERIES
        ),
    )


def _weights(tasks: Iterable[str], group_of: Mapping[str, str] | None) -> dict[str, float]:
    """Task -> its share of the mean: groups count alike, and so do the tasks of a group."""
    group = {task: (group_of or {}).get(task, task) for task in tasks}
    sizes = Counter(group.values())
    return {task: 1 / (len(sizes) * sizes[group[task]]) for task in group}


def _differences(a: Mapping[str, float], b: Mapping[str, float]) -> Floats:
    return np.array([a[query_id] - b[query_id] for query_id in sorted(a)], dtype=np.float64)


def _check_same(a: str, first: Values, b: str, second: Values) -> None:
    if first.keys() != second.keys():
        other = sorted(first.keys() ^ second.keys())
        raise InputError(
            f"systems {a!r} and {b!r}: got tasks that only one of them has ({', '.join(other)}); expected the same "
            "tasks; fix: evaluate both on them"
        )
    for task in first:
        if first[task].keys() != second[task].keys():
            raise InputError(
                f"systems {a!r} and {b!r}: got other queries of task {task!r}; expected the same; fix: evaluate "
                "both with the same judgements"
            )
