"""Earlier evaluations: read from their folders, compared, and as the baseline of a gate for continuous integration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.run import read_record
from bixse.data.trec import read_run
from bixse.errors import InputError, first_fault, shorten
from bixse.evaluation.evaluate import Evaluation
from bixse.evaluation.evaluate_files import PER_QUERY_NAME
from bixse.evaluation.metrics import PRIMARY_METRIC, STORED_PER_QUERY
from bixse.evaluation.open_system import RUN_NAME
from bixse.evaluation.statistics import paired_difference
from bixse.files.files import read_text
from bixse.files.run_folder import RUN_FILE
from bixse.relevance import MIN_RELEVANT_GRADE
from bixse.results import VERDICT_IN_A_SENTENCE, Difference

if TYPE_CHECKING:
    from bixse.search.tasks import Task

DATA_SUFFIXES = (".jsonl", ".tsv")
"""Suffixes of a collection's files among the inputs of an evaluation."""
SCORING: Mapping[str, Any] = {
    "split": "test", "exclude_self": False, "min_relevant_grade": MIN_RELEVANT_GRADE, "missing_documents": "refuse",
}  # fmt: skip
"""Setting of the scores -> its default, which a record of an earlier version may lack."""


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


def read_figures(folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """Return the record of a finished evaluation of one system, and its values: metric -> query id -> value.

    Raises InputError unless run.json and per_query.json of the folder are those of such an evaluation.
    """
    missing = [name for name in (RUN_FILE, PER_QUERY_NAME) if not (folder / name).is_file()]
    if missing:
        raise InputError(
            f"{folder}: got no {' and no '.join(missing)} there; expected the --out folder of an evaluation of one "
            "model; fix: run `bixse evaluate MODEL --collection DIR --out DIR` with the model to compare with"
        )
    record = read_record(folder / RUN_FILE)
    if (record["command"], record["status"]) != ("evaluate", "finished"):
        raise InputError(
            f"{folder}: got a run of `bixse {record['command']}` that is {record['status']}; expected a finished "
            "evaluation; fix: run the command again, or name another folder"
        )
    try:
        per_query = STORED_PER_QUERY.validate_json(read_text(folder / PER_QUERY_NAME), strict=True)
    except ValueError as error:
        raise InputError(
            f"{folder / PER_QUERY_NAME}: got no readable figures ({first_fault(error)}); expected the JSON that bixse "
            "wrote; fix: delete the folder and evaluate again"
        ) from error
    return record, per_query


def read_evaluation(folder: Path) -> Evaluation:
    """Return a finished evaluation of one system from its folder; raise InputError as `read_figures` does."""
    record, by_query = read_figures(folder)
    config, results = record["config"], record["results"]
    system = str(config["model"])
    system += f" at {config['dimensions']}" if config.get("dimensions") else ""
    system += f", reranked by {config['rerank']}" if config.get("rerank") else ""
    run = read_run(folder / RUN_NAME) if (folder / RUN_NAME).is_file() and (folder / RUN_NAME).stat().st_size else {}
    task = f"{Path(config.get('collection') or '').name}, split {config.get('split', '')}"
    return Evaluation(task, results["metrics"], by_query, run, results["seconds"], reused=True, system=system)


def check_comparable(where: str | Path, name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse evaluations, as `config` and `inputs` of their records, whose queries cannot be compared one by one.

    The inputs of a system, such as the hashes of a model, do not count.
    """
    (old, old_files), (new, new_files) = ((each["config"], each["inputs"]) for each in (before, now))
    files = [file for file in {**old_files, **new_files} if file == "collection" or file.endswith(DATA_SUFFIXES)]
    changed = [file for file in files if old_files.get(file) != new_files.get(file)]
    changed += [key for key, default in SCORING.items() if old.get(key, default) != new.get(key, default)]
    if changed:
        raise InputError(
            f"{where}: got an evaluation with another {', another '.join(changed)} than {name}; expected the same "
            "collection and settings of scores, since queries are compared one by one; fix: evaluate both on the same"
        )


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
