"""A gate for continuous integration: is a system worse than an earlier evaluation on the same queries?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.errors import InputError, shorten
from bixse.evaluation.evaluate import PER_QUERY_NAME, Evaluation, check_comparable, read_figures
from bixse.evaluation.metrics import PRIMARY_METRIC
from bixse.evaluation.statistics import paired_difference
from bixse.results import VERDICT_IN_A_SENTENCE, Difference

if TYPE_CHECKING:
    from bixse.evaluation.tasks import Task


@dataclass(frozen=True)
class GateResult:
    """The difference of a system to its baseline, and the loss that is allowed."""

    baseline: str
    difference: Difference
    """Mean nDCG@10 of the system minus that of the baseline, paired by query."""
    by: float

    @property
    def passed(self) -> bool:
        """Return False if the whole interval lies below 0, and the mean below -by; too few queries pass."""
        return self.difference.verdict != "worse" or self.difference.mean >= -self.by

    def plain(self) -> dict[str, Any]:
        """Return the result as JSON data."""
        gap = self.difference
        figures = {"mean": gap.mean, "low": gap.low, "high": gap.high, "p": gap.p_value, "queries": gap.queries}
        facts = {"baseline": self.baseline, "metric": PRIMARY_METRIC, "by": self.by, **figures}
        return {**facts, "verdict": gap.verdict, "few": gap.few, "passed": self.passed}

    def text(self) -> str:
        gap = self.difference
        hidden = ""
        if gap.verdict == "no difference" and gap.low is not None and gap.low < 0:
            hidden = f"; a loss of {-gap.low:.3f} is possible"
        return f"{VERDICT_IN_A_SENTENCE[gap.verdict]} {self.baseline} ({gap.figures()}){hidden}"


def read_baseline(path: Path, task: Task) -> dict[str, float]:
    """Return nDCG@10 per query of an earlier evaluation of `task`, from its folder or a file in it.

    Raises InputError unless `read_figures` reads it, and for another corpus, other queries or judgements, or other
    settings of the scores.
    """
    folder = path if path.is_dir() else path.parent
    record, per_query = read_figures(folder)
    scoring = {"exclude_self": task.exclude_self, "min_relevant_grade": task.min_relevant_grade}
    now = {"config": {**task.settings, **scoring}, "inputs": task.inputs}
    check_comparable(folder, "now", record, now)
    if PRIMARY_METRIC not in per_query:
        raise InputError(
            f"{folder / PER_QUERY_NAME}: got the metrics {shorten(list(per_query))}; expected {PRIMARY_METRIC}; fix: "
            "evaluate the baseline with this version"
        )
    return per_query[PRIMARY_METRIC]


def gate(evaluation: Evaluation, baseline: Mapping[str, float], name: str, by: float = 0.0) -> GateResult:
    """Compare nDCG@10 of an evaluation with that of `read_baseline`; `by` is the loss that is allowed, from 0 on.

    Raises InputError for other queries.
    """
    return GateResult(name, paired_difference(evaluation.by_query[PRIMARY_METRIC], baseline), by)
