"""Are the differences of a whole suite real? Every pair of systems over all tasks, and task by task."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from bixse.errors import InputError
from bixse.evaluation.significance import (
    Difference,
    interval_bounds,
    paired_bootstrap,
    randomisation_test,
    resamples,
    verdict,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from bixse.evaluation.significance import Verdict

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
    holm_p: float
    """That p-value after Holm's correction for all tasks and pairs of the table."""
    verdict: Verdict
    """What the interval says, without correction."""


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
    holm_p: float
    """That p-value after Holm's correction for all pairs of systems."""
    verdict: Verdict
    """What the interval says, without correction."""
    tasks: tuple[TaskDifference, ...]
    """Task by task, those with at least two queries."""


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
    pairs = list(combinations(values, 2))
    for a, b in pairs:
        _check_same(a, values[a], b, values[b])
    single = {
        (a, b, task): (
            paired_bootstrap(values[a][task], values[b][task], samples, confidence, seed),
            randomisation_test(values[a][task], values[b][task], samples, seed),
        )
        for a, b in pairs
        for task in values[a]
        if len(values[a][task]) >= FEWEST_QUERIES
    }
    whole = {
        (a, b): (
            mean_over_tasks(values[a], values[b], group_of, samples, confidence, seed),
            _randomisation_over_tasks(values[a], values[b], group_of, samples, seed),
        )
        for a, b in pairs
    }
    single_holm = dict(zip(single, holm([p for _, p in single.values()]), strict=True))
    whole_holm = dict(zip(whole, holm([p for _, p in whole.values()]), strict=True))
    return [
        SuiteDifference(
            a,
            b,
            difference,
            p_value,
            whole_holm[a, b],
            verdict(difference),
            tuple(
                TaskDifference(task, single[a, b, task][0], single[a, b, task][1], single_holm[a, b, task],
                               verdict(single[a, b, task][0]))
                for task in values[a]
                if (a, b, task) in single
            ),
        )
        for (a, b), (difference, p_value) in whole.items()
    ]  # fmt: skip


def mean_over_tasks(
    a: Values,
    b: Values,
    group_of: Mapping[str, str] | None = None,
    samples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Difference:
    """The mean over tasks of the difference a - b, with a percentile interval that resamples queries within each task.

    Arguments are those of `compare_systems`.

    Raises:
        InputError: tasks or queries differ, or the confidence is out of range.
    """
    low, high = interval_bounds(confidence)
    weights = _weights(a, group_of)
    means = np.zeros(samples)
    centre = 0.0
    for number, task in enumerate(sorted(a)):
        differences = _differences(a[task], b[task])
        drawn = resamples(len(differences), samples, seed + number)
        means += np.concatenate([differences[block].mean(axis=1) for block in drawn]) * weights[task]
        centre += float(differences.mean()) * weights[task]
    tail = min(int((means <= 0).sum()), int((means >= 0).sum()))
    ends = np.quantile(means, [low, high])
    return Difference(
        mean=centre,
        low=float(ends[0]),
        high=float(ends[1]),
        p_value=min(1.0, 2 * (tail + 1) / (samples + 1)),
        queries=sum(map(len, a.values())),
        confidence=confidence,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number (Holm 1979): the chance of one false finding among all stays below each.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = highest
    return corrected


def _weights(tasks: Iterable[str], group_of: Mapping[str, str] | None) -> dict[str, float]:
    """Task -> its share of the mean: groups count alike, and so do the tasks of a group."""
    group = {task: (group_of or {}).get(task, task) for task in tasks}
    sizes = Counter(group.values())
    return {task: 1 / (len(sizes) * sizes[group[task]]) for task in group}


def _randomisation_over_tasks(
    a: Values, b: Values, group_of: Mapping[str, str] | None, samples: int, seed: int
) -> float:
    """The randomisation test on differences weighted as they count in the mean over tasks."""
    total, weights = sum(map(len, a.values())), _weights(a, group_of)
    weighted = {
        f"{task} {query_id}": (a[task][query_id] - b[task][query_id]) * total * weights[task] / len(a[task])
        for task in a
        for query_id in a[task]
    }
    return randomisation_test(weighted, dict.fromkeys(weighted, 0.0), samples, seed)


def _differences(a: Mapping[str, float], b: Mapping[str, float]) -> npt.NDArray[np.float64]:
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
