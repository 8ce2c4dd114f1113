"""Evaluate what a user names, and keep the result in a folder, from which the same call reads or continues it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from bixse.data.run import Run, open_run
from bixse.data.trec import read_run, write_run
from bixse.encoders.loading.build import model_path_settings
from bixse.encoders.loading.kinds import is_encoder
from bixse.errors import InputError
from bixse.evaluation.collection_task import CollectionSource, collection_task
from bixse.evaluation.evaluate import Evaluation, evaluate_task, score_runs, search_task
from bixse.evaluation.open_system import RUN_NAME, SystemSource, open_system
from bixse.files.files import write_atomically
from bixse.progress import progress_bar
from bixse.search.tasks import Task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bixse.evaluation.systems import System
    from bixse.progress import ProgressBars
    from bixse.relevance import Ranking
    from bixse.search.tasks import QuerySet

PER_QUERY_NAME = "per_query.json"
PARTIAL_NAME = "best_so_far.npz"


def evaluate(
    system: SystemSource,
    task: CollectionSource | Task,
    out: str | Path | None = None,
    verbose: bool = True,
) -> Evaluation:
    """Search a collection with a model and score the answers against its graded judgements.

    Args:
        system: model folder, hub name, "demo", "bm25", a loaded model, a run {query: {document: score}}, a function
            as in `mine`, or an `EncoderSystem(...)` with options.
        task: a collection folder, whose split "test" is read, three dictionaries (queries, corpus, qrels), a data set
            of ir_datasets or its name ("irds:vaswani"), or a task such as `collection_task("my-collection", "dev",
            min_relevant_grade=2)`.
        out: folder for run.json, run.trec and per_query.json. The same call reads finished results from it, and
            continues an interrupted search of the corpus. None writes nothing, not even embeddings of objects into
            the cache.
        verbose: show progress.

    Raises:
        InputError: collection, split or model cannot be used, or the task has several query sets.
        OutputExistsError: `out` holds another run.
        StorageError: `out` cannot be written.

    Example:
        >>> corpus = {"d1": "shutil.copytree: copy a tree", "d2": {"title": "os", "text": "remove a file"}}
        >>> evaluate("bm25", ({"q1": "copy a tree"}, corpus, {"q1": {"d1": 3}}))["nDCG@10"]
        1.0
    """
    objects = out is None and (not isinstance(task, str | Path | Task) or is_encoder(system))
    opened = open_system(system, cache="none" if objects else None)
    task = task if isinstance(task, Task) else collection_task(task)
    if len(task.query_sets) > 1:
        names = ", ".join(query_set.name for query_set in task.query_sets)
        raise InputError(f"task {task.name}: got the query sets {names}; expected one; fix: call evaluate_query_sets")
    folder, progress = None if out is None else Path(out), progress_bar if verbose else None
    return evaluate_query_sets(opened, task, folder, progress)[task.name]


def evaluate_query_sets(
    system: System, task: Task, out: Path | None = None, progress: ProgressBars | None = None
) -> dict[str, Evaluation]:
    """Return name of the query set -> `evaluate`, the corpus encoded once; several sets get subfolders of `out`."""
    if out is None:
        return evaluate_task(system, task, progress=progress)
    scoring = {"exclude_self": task.exclude_self, "min_relevant_grade": task.min_relevant_grade}
    config = {**system.settings, **task.settings, **scoring}
    paths = ("collection", "rerank", *model_path_settings(system.settings.get("model", "")))
    record = open_run(out, "evaluate", config, {**task.inputs, **system.inputs}, paths)
    reused = record.status == "finished"
    doubts = system.check_answers(task, refuse=not reused)
    if reused:
        runs: Mapping[str, Ranking] = {
            part.name: read_run(_folder(record, task, part) / RUN_NAME) for part in task.query_sets
        }
        seconds, notes = float(record.results.get("seconds", 0.0)), record.results.get("warnings", ())
    else:
        system.check(task.instructions)
        record.save("running")
        runs, seconds = search_task(system, task, record.folder / PARTIAL_NAME, progress)
        notes = system.notes
    results = score_runs(system, task, runs, seconds, [*notes, *doubts], reused)
    files = [_folder(record, task, part) / PER_QUERY_NAME for part in task.query_sets]
    if not (reused and all(file.is_file() for file in files)):
        _write(record, system, task, results, seconds)
    return results


def _write(record: Run, system: System, task: Task, results: Mapping[str, Evaluation], seconds: float) -> None:
    for query_set in task.query_sets:
        folder, run = _folder(record, task, query_set), results[query_set.name].run
        if any(run.values()):
            write_run(folder / RUN_NAME, run, tag="-".join(Path(system.label).name.split()) or "model")
        else:
            write_atomically(folder / RUN_NAME, "")  # write_run refuses a run without documents
        write_atomically(folder / PER_QUERY_NAME, json.dumps(results[query_set.name].by_query, indent=1) + "\n")
    metrics = {name: evaluation.metrics for name, evaluation in results.items()}
    record.results = {"metrics": metrics if len(metrics) > 1 else next(iter(metrics.values())), "seconds": seconds}
    if system.notes:
        record.results["warnings"] = list(system.notes)
    if system.prompts_hash is not None:
        record.results["prompts_hash"] = system.prompts_hash
    record.timings["search"] = seconds
    record.save("finished" if system.complete else "interrupted")
    (record.folder / PARTIAL_NAME).unlink(missing_ok=True)


def _folder(record: Run, task: Task, query_set: QuerySet) -> Path:
    return record.folder if len(task.query_sets) == 1 else record.folder / "-".join(query_set.name.split())
