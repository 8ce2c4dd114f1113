"""What a suite gave: figures by system and task, means, comparisons; and its file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bixse.data.io.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from bixse.evaluation.evaluate import Evaluation
    from bixse.evaluation.suites.suite_verdict import SuiteDifference, TestedDifference

RESULTS_FILE = "results.json"
"""Name of the table's file in the output folder."""


@dataclass(frozen=True)
class SuiteResult:
    """One suite, several systems."""

    suite: str
    headline: str
    """Metric of the table: ndcg@10, or main for mteb's suites."""
    scores: Mapping[str, Mapping[str, Evaluation]]
    """System -> task -> evaluation."""
    means: Mapping[str, Mapping[str, float]]
    """System -> name of the mean -> mean of the headline, every group of tasks counting as much."""
    comparisons: Sequence[SuiteDifference] = ()
    """Every pair of systems."""
    notes: Sequence[str] = ()
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
            "comparisons": [
                {"a": found.a, "b": found.b, **_plain(found), "tasks": {own.task: _plain(own) for own in found.tasks}}
                for found in self.comparisons
            ],
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


def _plain(found: TestedDifference) -> dict[str, Any]:
    return {
        "mean": found.difference.mean,
        "low": found.difference.low,
        "high": found.difference.high,
        "bootstrap_p": found.difference.p_value,
        "randomisation_p": found.randomisation_p,
        "holm_p": found.holm_p,
        "verdict": found.verdict,
    }
