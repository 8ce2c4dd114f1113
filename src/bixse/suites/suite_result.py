"""The result of a suite and its tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bixse.evaluation.compare_evaluations import COLUMNS, EvaluatedSystems, difference_cells
from bixse.rendering.table import Cell, format_number, format_table

if TYPE_CHECKING:
    from bixse.results import TestedDifference


@dataclass(frozen=True)
class SuiteResult(EvaluatedSystems):
    """The result of one suite for several systems."""

    def text(self) -> str:
        """Return tables and notes for a terminal."""
        parts = [_scores(self)]
        if self.comparisons:
            parts.append(self.comparisons.text())
            if len(self.comparisons) == 1 and len(self.comparisons[0].tasks) > 1:
                parts.append(_by_task(self.comparisons[0]))
        parts += [f"Precision: {self.precision}."] if self.precision else []
        parts += [f"Note: {note}." for note in self.notes]
        parts += [f"Failed: {name}: {why}" for name, why in self.failures.items()]
        return "\n\n".join(parts)


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


def _by_task(pair: TestedDifference) -> str:
    rows = [[task.task, *difference_cells(task)] for task in pair.tasks]
    table = format_table(rows, ["task", f"{pair.system} − {pair.baseline}", *COLUMNS])
    significant = sum(task.holm_p < 0.05 for task in pair.tasks)
    return f"{table}\n\n{len(rows)} tasks are tested: after Holm's correction {significant} of them remain below 0.05."
