"""What a suite gave: figures by system and task, means, comparisons; and its file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bixse.data.io.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from bixse.evaluation.metrics import PerQuery
    from bixse.evaluation.suites.suite_verdict import SuiteDifference, Values

HEADLINE = "ndcg@10"
"""The metric by which systems are compared."""
SUITE_METRICS = (HEADLINE, "map@100", "mrr@10", "recall@100")
"""What every task of our own evaluator is measured by; answers are 100 documents long."""
RESULTS_FILE = "results.json"
"""Name of the table's file in the output folder."""


@dataclass(frozen=True)
class TaskScore:
    """One system on one task."""

    task: str
    """The task, or the set of queries of it."""
    metrics: Mapping[str, float]
    """Metric -> mean over the judged queries; "main" is the metric mteb ranks by, where mteb ran it."""
    per_query: PerQuery
    """Metric -> query id -> value; empty where the task is no retrieval."""
    group: str
    """The group it is averaged in."""
    seconds: float
    """Wall time of encoding and search of its corpus."""
    reused: bool = False
    """Read from the output folder."""


@dataclass(frozen=True)
class SuiteResult:
    """One suite, several systems."""

    suite: str
    """The suite."""
    headline: str
    """Metric of the table: ndcg@10, or main for mteb's suites."""
    scores: Mapping[str, Mapping[str, TaskScore]]
    """System -> task -> score."""
    means: Mapping[str, Mapping[str, float]]
    """System -> name of the mean -> mean of the headline, every group of tasks counting as much."""
    comparisons: tuple[SuiteDifference, ...] = ()
    """Every pair of systems."""
    notes: tuple[str, ...] = ()
    """What a reader of the figures has to know."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """System and task that could not be run -> why."""
    precision: str | None = None
    """What the encoders computed in; None where there is none."""

    def plain(self) -> dict[str, Any]:
        """Everything but the values of single queries, as JSON can hold it."""
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
            "comparisons": [_plain_difference(found) for found in self.comparisons],
            "notes": list(self.notes),
            "failures": dict(self.failures),
        }

    def write(self, folder: Path) -> Path:
        """Write the table into a folder; returns the file.

        Raises:
            StorageError: the folder cannot be written.
        """
        path = folder / RESULTS_FILE
        write_atomically(path, json.dumps(self.plain(), indent=2) + "\n")
        return path


def group_means(scores: Mapping[str, TaskScore], metric: str = HEADLINE) -> dict[str, float]:
    """The mean of one metric over the tasks of each group, groups in order of appearance.

    Example:
        >>> a = TaskScore("android", {"ndcg@10": 0.2}, {}, "cqadupstack", 1.0)
        >>> b = TaskScore("tex", {"ndcg@10": 0.4}, {}, "cqadupstack", 1.0)
        >>> {group: round(value, 3) for group, value in group_means({"android": a, "tex": b}).items()}
        {'cqadupstack': 0.3}
    """
    values: dict[str, list[float]] = {}
    for score in scores.values():
        if metric in score.metrics:
            values.setdefault(score.group, []).append(score.metrics[metric])
    return {group: sum(found) / len(found) for group, found in values.items()}


def mean_of(values: Mapping[str, float]) -> float:
    """The mean of some figures.

    Example:
        >>> mean_of({"a": 0.25, "b": 0.75})
        0.5
    """
    return sum(values.values()) / len(values)


def headline_values(scores: Mapping[str, TaskScore], metric: str = HEADLINE) -> Values:
    """Task -> query id -> value of one metric, of the tasks that have it."""
    return {task: score.per_query[metric] for task, score in scores.items() if metric in score.per_query}


def _plain_difference(found: SuiteDifference) -> dict[str, Any]:
    return {
        "a": found.a,
        "b": found.b,
        "mean": found.difference.mean,
        "low": found.difference.low,
        "high": found.difference.high,
        "bootstrap_p": found.difference.p_value,
        "randomisation_p": found.randomisation_p,
        "holm_p": found.holm_p,
        "verdict": found.verdict,
        "tasks": {
            task.task: {
                "mean": task.difference.mean,
                "low": task.difference.low,
                "high": task.difference.high,
                "bootstrap_p": task.difference.p_value,
                "randomisation_p": task.randomisation_p,
                "holm_p": task.holm_p,
                "verdict": task.verdict,
            }
            for task in found.tasks
        },
    }
