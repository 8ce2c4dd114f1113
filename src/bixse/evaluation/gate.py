"""A gate for continuous integration: is a system worse than an earlier evaluation on the same queries?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.run import RUN_FILE, read_record
from bixse.errors import InputError, first_fault, shorten
from bixse.evaluation.evaluate import PER_QUERY_NAME, Evaluation
from bixse.evaluation.metrics import PRIMARY_METRIC, STORED_PER_QUERY
from bixse.evaluation.statistics import paired_difference
from bixse.files.files import read_text
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

    Raises InputError unless run.json and per_query.json are those of a finished evaluation of one system, on the same
    corpus, queries and judgements, scored with the same settings.
    """
    folder = path if path.is_dir() else path.parent
    missing = [name for name in (RUN_FILE, PER_QUERY_NAME) if not (folder / name).is_file()]
    if missing:
        raise InputError(
            f"{path}: got no {' and no '.join(missing)} there; expected the --out folder of an evaluation of one "
            "model; fix: run `bixse evaluate MODEL --collection DIR --out DIR` with the model to compare with"
        )
    record = read_record(folder / RUN_FILE)
    if (record["command"], record["status"]) != ("evaluate", "finished"):
        raise InputError(
            f"{folder}: got a run of `bixse {record['command']}` that is {record['status']}; expected a finished "
            "evaluation; fix: run the command again, or name another folder"
        )
    scoring = {"exclude_self": task.exclude_self, "min_relevant_grade": task.min_relevant_grade}
    now = {**task.inputs, **{name: value for name, value in task.settings.items() if name != "collection"}, **scoring}
    before = {**record["config"], **record["inputs"]}
    changed = [name for name, value in now.items() if before.get(name) != value]
    if changed:
        raise InputError(
            f"{folder}: got an evaluation with another {', another '.join(changed)}; expected the same collection and "
            "settings of scores, since queries are compared one by one; fix: evaluate the baseline on them"
        )
    try:
        per_query = STORED_PER_QUERY.validate_json(read_text(folder / PER_QUERY_NAME), strict=True)
    except ValueError as error:
        raise InputError(
            f"{folder / PER_QUERY_NAME}: got no readable figures ({first_fault(error)}); expected the JSON that bixse "
            "wrote; fix: delete the folder and evaluate again"
        ) from error
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
