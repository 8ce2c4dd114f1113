"""The result of a suite and its tables."""

from __future__ import annotations

from dataclasses import dataclass

from bixse.evaluation.compare_evaluations import COLUMNS, EvaluatedSystems, difference_cells
from bixse.rendering.table import Cell, format_number, format_table


@dataclass(frozen=True)
class SuiteResult(EvaluatedSystems):
    """The result of one suite for several systems."""

    def text(self) -> str:
        """Return tables and notes for a terminal."""
        rows: list[list[Cell]] = []  # of the tasks, with the means below
        for task in dict.fromkeys(task for scores in self.scores.values() for task in scores):
            row = [scores.get(task) for scores in self.scores.values()]
            rows.append([task, *(format_number(score.metrics[self.headline] if score else None) for score in row)])
        for mean in dict.fromkeys(name for means in self.means.values() for name in means):
            rows.append([mean, *(format_number(means.get(mean)) for means in self.means.values())])
        headline = "main score" if self.headline == "main" else self.headline
        parts = [f"{self.suite}, {headline}", format_table(rows, ["task", *self.scores])]
        if self.comparisons:
            parts.append(self.comparisons.text())
            if len(self.comparisons) == 1 and len(self.comparisons[0].tasks) > 1:
                pair = self.comparisons[0]
                rows = [[result.task, *difference_cells(result)] for result in pair.tasks]
                parts.append(format_table(rows, ["task", f"{pair.system} − {pair.baseline}", *COLUMNS]))
                below = sum(result.holm_p < 0.05 for result in pair.tasks)
                parts.append(
                    f"{len(rows)} tasks are tested: after Holm's correction {below} of them remain below 0.05."
                )
        parts += [f"Precision: {self.precision}."] if self.precision else []
        parts += [f"Note: {note}." for note in self.notes]
        parts += [f"Failed: {name}: {why}" for name, why in self.failures.items()]
        return "\n\n".join(parts)
