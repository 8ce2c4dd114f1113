"""The result of a suite: figures per system and task, means, comparisons of every pair, its file and its tables."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from bixse.evaluation.metrics import PRIMARY_METRIC
from bixse.evaluation.statistics import holm, mean_difference, paired_differences, sign_flip_test
from bixse.files.files import write_atomically
from bixse.report.table import (
    format_difference,
    format_interval,
    format_number,
    format_p_value,
    format_table,
    format_verdict,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from bixse.evaluation.evaluate import Evaluation
    from bixse.report.table import Cell
    from bixse.results import Difference, Verdict


Values: TypeAlias = "Mapping[str, Mapping[str, float]]"
"""Task -> query id -> value of one metric."""


@dataclass(frozen=True, kw_only=True)
class TestedDifference:
    """The system `a` minus `b`, on one task or over a suite, where each query counts as in the mean over tasks."""

    a: str
    b: str
    difference: Difference
    """Mean of a - b, with interval and p-value over queries."""
    randomisation_p: float
    """The p-value of Fisher's randomisation test."""
    holm_p: float = 1.0
    """`randomisation_p` after Holm's correction, over all pairs, and over all pairs and tasks."""
    task: str = ""
    """Name of the task; empty for the suite."""
    tasks: tuple[TestedDifference, ...] = ()
    """The tasks of a suite."""

    @property
    def verdict(self) -> Verdict:
        return self.difference.verdict


def compare_systems(values: Mapping[str, Values], group_of: Mapping[str, str] | None = None) -> list[TestedDifference]:
    """Compare every pair of systems on the same queries. Tasks of one group in `group_of` count as one task."""
    # each task has the scatter of its own queries: the intervals cover the choice of queries, not the choice of tasks
    pairs = [_compare(a, b, values[a], values[b], group_of or {}) for a, b in combinations(values, 2)]
    p_values = holm([pair.randomisation_p for pair in pairs])
    by_task = iter(holm([task.randomisation_p for pair in pairs for task in pair.tasks]))
    return [
        replace(pair, holm_p=p_value, tasks=tuple(replace(task, holm_p=next(by_task)) for task in pair.tasks))
        for pair, p_value in zip(pairs, p_values, strict=True)
    ]


def _compare(a: str, b: str, first: Values, second: Values, group_of: Mapping[str, str]) -> TestedDifference:
    """Compare two systems, without correction of the p-values."""
    differences = {task: paired_differences(first[task], second[task]) for task in first}
    group = {task: group_of.get(task, task) for task in sorted(first)}
    sizes = Counter(group.values())
    weights = {task: 1 / (len(sizes) * sizes[name]) for task, name in group.items()}
    total = sum(map(len, differences.values()))
    counted = [differences[task] * (total * weight / len(differences[task])) for task, weight in weights.items()]
    return TestedDifference(
        a=a,
        b=b,
        difference=mean_difference([differences[task] for task in weights], list(weights.values())),
        randomisation_p=sign_flip_test(np.concatenate(counted)),
        tasks=tuple(
            TestedDifference(
                a=a, b=b, task=task, difference=mean_difference([values], [1.0]), randomisation_p=sign_flip_test(values)
            )
            for task, values in differences.items()
        ),
    )


RESULTS_FILE = "results.json"
COLUMNS = ("95 % interval", "p", "p (Holm)", "verdict")


@dataclass(frozen=True)
class SuiteResult:
    """The result of one suite for several systems."""

    suite: str
    headline: str
    """The metric of the table: ndcg@10, or main for mteb's suites."""
    scores: Mapping[str, Mapping[str, Evaluation]]
    """System -> task -> evaluation."""
    means: Mapping[str, Mapping[str, float]]
    """System -> name of the mean -> mean of the headline metric, with equal weight per group of tasks."""
    comparisons: Sequence[TestedDifference] = ()
    notes: Sequence[str] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    """System and task -> reason of the failure."""
    precision: str | None = None

    def plain(self) -> dict[str, Any]:
        """Return all figures as JSON data, without the values per query."""
        return {
            "suite": self.suite,
            "headline": self.headline,
            "precision": self.precision,
            "systems": {
                system: {
                    "means": dict(self.means[system]),
                    "tasks": {
                        task: {**score.metrics, "queries": len(next(iter(score.per_query.values()), {}))}
                        for task, score in scores.items()
                    },
                }
                for system, scores in self.scores.items()
            },
            "comparisons": [
                {"a": pair.a, "b": pair.b, **_plain(pair), "tasks": {task.task: _plain(task) for task in pair.tasks}}
                for pair in self.comparisons
            ],
            "notes": list(self.notes),
            "failures": dict(self.failures),
        }

    def write(self, folder: Path) -> None:
        write_atomically(folder / RESULTS_FILE, json.dumps(self.plain(), indent=2) + "\n")

    def text(self) -> str:
        """Return tables and notes for a terminal."""
        parts = [_scores(self)]
        if self.comparisons:
            parts.append(_comparisons(self))
            if len(self.comparisons) == 1 and len(self.comparisons[0].tasks) > 1:
                parts.append(_by_task(self.comparisons[0]))
        parts += [f"Precision: {self.precision}."] if self.precision else []
        parts += [f"Note: {note}." for note in self.notes]
        parts += [f"Failed: {name}: {why}" for name, why in self.failures.items()]
        return "\n\n".join(parts)

    def collection_text(self) -> str:
        """Return the tables of one or more systems on one collection, with all metrics."""
        scores = {system: next(iter(scores_of.values())) for system, scores_of in self.scores.items()}
        metrics = list(next(iter(scores.values())).metrics)
        if len(scores) == 1:
            return format_table(
                [list(row) for score in scores.values() for row in score.metrics.items()], ["metric", "mean"]
            )
        rows: list[list[Cell]] = [
            [system, *(score.metrics[name] for name in metrics)] for system, score in scores.items()
        ]
        parts = [format_table(rows, ["system", *metrics]), *([_comparisons(self)] if self.comparisons else [])]
        return "\n\n".join([*parts, *([f"Precision: {self.precision}."] if self.precision else [])])


def _plain(tested: TestedDifference) -> dict[str, Any]:
    return {
        "mean": tested.difference.mean,
        "low": tested.difference.low,
        "high": tested.difference.high,
        "bootstrap_p": tested.difference.p_value,
        "randomisation_p": tested.randomisation_p,
        "holm_p": tested.holm_p,
        "verdict": tested.verdict,
    }


def _scores(result: SuiteResult) -> str:
    """Return a table of tasks by systems, with the means below."""
    tasks = list(dict.fromkeys(task for row in result.scores.values() for task in row))
    rows: list[list[Cell]] = []
    for task in tasks:
        row = [tasks_of.get(task) for tasks_of in result.scores.values()]
        rows.append([task, *(format_number(score.metrics[result.headline] if score else None) for score in row)])
    for mean in dict.fromkeys(name for means in result.means.values() for name in means):
        rows.append([mean, *(format_number(means.get(mean)) for means in result.means.values())])
    headline = "main score" if result.headline == "main" else result.headline
    return f"{result.suite}, {headline}\n\n{format_table(rows, ['task', *result.scores])}"


def _comparisons(result: SuiteResult) -> str:
    rows = [[f"{pair.a} − {pair.b}", *_difference(pair)] for pair in result.comparisons]
    table = format_table(rows, ["difference", PRIMARY_METRIC, *COLUMNS])
    pairs = len(result.comparisons)
    several = f" {pairs} pairs are compared: each verdict is for one pair alone, p (Holm) corrects for all pairs."
    end = several if pairs > 1 else ""
    how = "Intervals: Student's t, widened for skewed differences, over queries within tasks; "
    shown = any(pair.difference.low is not None for pair in result.comparisons)
    return f"{table}\n\n{how if shown else ''}p: randomisation test.{end}"


def _by_task(pair: TestedDifference) -> str:
    rows = [[task.task, *_difference(task)] for task in pair.tasks]
    table = format_table(rows, ["task", f"{pair.a} − {pair.b}", *COLUMNS])
    significant = sum(task.holm_p < 0.05 for task in pair.tasks)
    return f"{table}\n\n{len(rows)} tasks are tested: after Holm's correction {significant} of them remain below 0.05."


def _difference(tested: TestedDifference) -> list[Cell]:
    return [
        format_difference(tested.difference.mean),
        format_interval(tested.difference.low, tested.difference.high, signed=True),
        format_p_value(tested.randomisation_p),
        format_p_value(tested.holm_p),
        format_verdict(tested.difference),
    ]
