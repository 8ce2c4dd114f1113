"""Are the differences of a whole suite real? Every pair of systems over all tasks, and task by task."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from bixse.evaluation.statistics import bootstrap_mean, holm, paired_differences, sign_flip_test

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bixse.results import Difference, Verdict

Values: TypeAlias = "Mapping[str, Mapping[str, float]]"
"""Task -> query id -> value of one metric."""


@dataclass(frozen=True, kw_only=True)
class TestedDifference:
    """Two systems, the first minus the second."""

    difference: Difference
    """Mean of a - b, with interval and p-value of the paired bootstrap over queries."""
    randomisation_p: float
    """Of Fisher's randomisation test."""
    holm_p: float = 1.0
    """That p-value after Holm's correction for all that stand beside it in the table."""

    @property
    def verdict(self) -> Verdict:
        return self.difference.verdict


@dataclass(frozen=True, kw_only=True)
class TaskDifference(TestedDifference):
    """Two systems on one task; `holm_p` is corrected for all tasks and pairs."""

    task: str


@dataclass(frozen=True, kw_only=True)
class SuiteDifference(TestedDifference):
    """The system `a` less `b` over a suite, each query counting as much as it does in the mean over tasks."""

    a: str
    b: str
    tasks: tuple[TaskDifference, ...]
    """Those with at least two queries."""


def compare_systems(values: Mapping[str, Values], group_of: Mapping[str, str] | None = None) -> list[SuiteDifference]:
    """Compare every pair of systems, the first named one as a; queries are resampled within tasks.

    The intervals say how far the choice of queries reaches; the tasks are taken as they are. `values` is system -> task
    -> query id -> value, the same queries for all; `group_of` is task -> group, whose tasks together count as one.
    """
    found = [_compare(a, b, values[a], values[b], group_of or {}) for a, b in combinations(values, 2)]
    whole = holm([pair.randomisation_p for pair in found])
    by_task = iter(holm([task.randomisation_p for pair in found for task in pair.tasks]))
    return [
        replace(pair, holm_p=p_value, tasks=tuple(replace(task, holm_p=next(by_task)) for task in pair.tasks))
        for pair, p_value in zip(found, whole, strict=True)
    ]


def _compare(a: str, b: str, first: Values, second: Values, group_of: Mapping[str, str]) -> SuiteDifference:
    """Its p-values are not yet corrected."""
    differences = {task: paired_differences(first[task], second[task]) for task in first}
    group = {task: group_of.get(task, task) for task in sorted(first)}
    sizes = Counter(group.values())
    weights = {task: 1 / (len(sizes) * sizes[own]) for task, own in group.items()}
    total = sum(map(len, differences.values()))
    counted = [differences[task] * (total * weight / len(differences[task])) for task, weight in weights.items()]
    return SuiteDifference(
        a=a,
        b=b,
        difference=bootstrap_mean([differences[task] for task in weights], list(weights.values())),
        randomisation_p=sign_flip_test(np.concatenate(counted)),
        tasks=tuple(
            TaskDifference(
                task=task, difference=bootstrap_mean([values], [1.0]), randomisation_p=sign_flip_test(values)
            )
            for task, values in differences.items()
            if len(values) > 1
        ),
    )
