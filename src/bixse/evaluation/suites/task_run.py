"""One system on one task, with everything on disk: a finished task is read, a killed one goes on."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from bixse.data.io.files import read_text, write_atomically
from bixse.data.run_record import open_run
from bixse.data.trec import write_run
from bixse.errors import InputError
from bixse.evaluation.baseline import DEPTH
from bixse.evaluation.metrics import evaluate_run, mean
from bixse.evaluation.suites.suite_result import SUITE_METRICS, TaskScore

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from bixse.data.run_record import RunRecord
    from bixse.evaluation.metrics import PerQuery
    from bixse.evaluation.suites.prepared import PreparedTask, TaskSource
    from bixse.evaluation.suites.suite_systems import System
    from bixse.progress import ProgressBars

PER_QUERY_FILE = "per_query.json"
"""Values of every query: set -> metric -> query id -> value."""
PARTIAL_FILE = "best_so_far.json"
"""The best documents of the blocks that are done, while a task runs."""


def run_task(
    system: System,
    source: TaskSource,
    out: Path | None,
    settings: Mapping[str, Any],
    progress: ProgressBars | None = None,
) -> list[TaskScore]:
    """Search a task's corpus with a system and score the answers, one score for each set of queries.

    Args:
        system: what answers.
        source: the task.
        out: folder of the whole evaluation; the files go to <out>/<system>/<task>. None writes nothing.
        settings: all that changes the answers, for the record.
        progress: makes a progress callback from a title and a total.

    Raises:
        InputError: the data or the model cannot be used, or finished results are damaged.
        OutputExistsError: the folder holds another evaluation.
        StorageError: the folder cannot be written.
    """
    task = source.prepare()
    record = None
    if out is not None:
        config = {
            **system.settings,
            "task": task.name,
            "exclude_self": task.exclude_self,
            "relevance_level": task.relevance_level,
            **settings,
        }
        inputs = {**task.inputs, **system.inputs}
        record = open_run(out / system.name / task.name, "evaluate", config, inputs, paths=system.path_settings)
        if record.status == "finished":
            return _read(record, task, source)
        record.save("running")
    partial = record.folder / PARTIAL_FILE if record is not None else None
    step = progress(f"{system.label}: {task.name}", task.count) if progress is not None else None
    started = time.perf_counter()
    runs = system.search(task, source.instruction_names, DEPTH, partial, step)
    seconds = time.perf_counter() - started
    per_query = {
        judged.name: evaluate_run(judged.qrels, runs[judged.name], SUITE_METRICS, task.relevance_level)
        for judged in task.sets
    }
    if record is not None:
        for name, run in runs.items():
            if any(run.values()):
                write_run(record.folder / f"{_file_name(name)}.trec", run, tag=system.name)
        write_atomically(record.folder / PER_QUERY_FILE, json.dumps(per_query) + "\n")
        record.results = {"metrics": {name: mean(found) for name, found in per_query.items()}, "seconds": seconds}
        record.timings["search"] = seconds
        record.save("finished")
        (record.folder / PARTIAL_FILE).unlink(missing_ok=True)
    return _scores(per_query, source, seconds, reused=False)


def _scores(per_query: Mapping[str, PerQuery], source: TaskSource, seconds: float, reused: bool) -> list[TaskScore]:
    return [
        TaskScore(name, mean(found), found, source.group_of.get(name, name), seconds, reused)
        for name, found in per_query.items()
    ]


def _read(record: RunRecord, task: PreparedTask, source: TaskSource) -> list[TaskScore]:
    """The scores of a finished task."""
    try:
        stored = json.loads(read_text(record.folder / PER_QUERY_FILE))
        per_query = {
            judged.name: {metric: dict(stored[judged.name][metric]) for metric in SUITE_METRICS} for judged in task.sets
        }
        return _scores(per_query, source, float(record.results["seconds"]), reused=True)
    except (InputError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise InputError(
            f"{record.folder}: got missing or damaged results; expected the {PER_QUERY_FILE} of a finished task; "
            "fix: delete the folder and evaluate again"
        ) from error


def _file_name(name: str) -> str:
    """A set's name as a file name."""
    return "-".join(name.replace(",", " ").split()).replace("/", "-")
