"""Run mteb's benchmarks through mteb itself: its tasks, its search, its scores, with our models and results folder."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from bixse.data.io.files import file_hash, read_text, write_atomically
from bixse.data.run_record import open_run
from bixse.errors import BixseError, InputError
from bixse.evaluation.metrics import evaluate_run
from bixse.evaluation.mteb.mteb_tasks import (
    hub_offline,
    local_folders,
    parts_of_task,
    quiet_data_sets,
    with_local_data,
)
from bixse.evaluation.suites.suite_result import HEADLINE, SUITE_METRICS, TaskScore
from bixse.evaluation.suites.task_run import PER_QUERY_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from mteb.abstasks import AbsTask

    from bixse.evaluation.metrics import PerQuery
    from bixse.evaluation.suites.suite_systems import EncoderSystem, System

MAIN = "main"
"""Name of the metric by which mteb ranks a task."""
CACHE_FOLDER = "mteb"
"""Folder of mteb's own results, inside a system's folder: never shared."""
PREDICTIONS_FOLDER = "predictions"
"""Folder of mteb's rankings, inside a task's folder."""
RANKED_BY = "ndcg_at_10"
"""mteb's name of the metric whose values we have query by query."""


def run_mteb(
    system: System,
    tasks: Sequence[AbsTask],
    out: Path,
    data: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    download: bool = False,
    progress: Callable[[str], None] | None = None,
) -> tuple[dict[str, TaskScore], dict[str, str]]:
    """Run a system through mteb, one task after the other.

    A finished task is read from its folder. A task that fails is noted and the others go on.

    Args:
        system: an encoder, or BM25 for tasks of retrieval.
        tasks: mteb's tasks.
        out: folder of the whole evaluation.
        data: folder with a collection folder for each task that is to be read from there.
        settings: all that changes the scores, for the record.
        download: let mteb fetch data from the hub.
        progress: called with the name of each task that begins.

    Returns:
        Task -> score, and task -> why it failed.

    Raises:
        OutputExistsError: a folder holds another evaluation.
        StorageError: the folder cannot be written.
        ModelError: the model cannot be loaded.
    """
    scores: dict[str, TaskScore] = {}
    failures: dict[str, str] = {}
    for task in tasks:
        name = task.metadata.name
        if progress is not None:
            progress(name)
        try:
            scores[name] = _run_task(system, task, out, data, settings or {}, download)
        except (BixseError, MemoryError):
            raise
        except Exception as error:  # a fault of one task's data or of mteb is not one of the others
            failures[name] = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    return scores, failures


def _run_task(
    system: System, task: AbsTask, out: Path, data: Path | None, settings: Mapping[str, Any], download: bool
) -> TaskScore:
    import mteb

    name = task.metadata.name
    record = open_run(
        out / system.name / name,
        "evaluate",
        {**system.settings, "task": name, "mteb": mteb.__version__, **settings},
        {**_inputs(task, data), **system.inputs},
        paths=system.path_settings,
    )
    if record.status == "finished":
        return _read(record.folder, name, record.results)
    record.save("running")
    parts = [_with_data(part, data) for part in parts_of_task(task)]
    model = _mteb_model(system, parts)
    cache = mteb.ResultCache(out / system.name / CACHE_FOLDER)
    started = time.perf_counter()
    per_query: PerQuery = {}
    mains = []
    metrics: dict[str, float] = {}
    with hub_offline(not download), quiet_data_sets():
        for part in parts:
            part.load_data()
            result = mteb.evaluate(
                model,
                part,
                cache=cache,
                prediction_folder=record.folder / PREDICTIONS_FOLDER,
                co2_tracker=False,
                show_progress_bar=False,
            )
            score = result.task_results[0]
            mains.append(float(score.get_score()))
            if part.metadata.main_score == RANKED_BY:
                _add_queries(per_query, part, record.folder / PREDICTIONS_FOLDER)
            part.unload_data()
    metrics = {MAIN: sum(mains) / len(mains)}
    if task.metadata.main_score == RANKED_BY:
        metrics[HEADLINE] = metrics[MAIN]
    seconds = time.perf_counter() - started
    write_atomically(record.folder / PER_QUERY_FILE, json.dumps(per_query) + "\n")
    record.results = {
        "metrics": metrics,
        "main_score": task.metadata.main_score,
        "type": task.metadata.type,
        "seconds": seconds,
        "prompts": getattr(model, "used", {}),
        "model_name": model.mteb_model_meta.name,
        "model_revision": model.mteb_model_meta.revision,
    }
    record.timings["mteb"] = seconds
    record.save("finished")
    return TaskScore(name, metrics, per_query, str(task.metadata.type), seconds)


def _with_data(task: AbsTask, data: Path | None) -> Any:
    """A task that reads its local folders where they are there."""
    folders = local_folders(task, data)
    return task if folders is None else with_local_data(task, folders)  # type: ignore[arg-type]


def _inputs(task: AbsTask, data: Path | None) -> dict[str, str]:
    """Hashes of the local files of a task, and the revisions of what comes from the hub."""
    found: dict[str, str] = {}
    for part in parts_of_task(task):
        folders = local_folders(part, data)
        if folders is None:
            found[part.metadata.name] = str(part.metadata.dataset.get("revision"))
            continue
        for subset, folder in folders.items():
            for file in ("corpus.jsonl", "queries.jsonl", *(f"qrels/{split}.tsv" for split in part.eval_splits)):
                found[f"{part.metadata.name}/{subset}/{file}"] = file_hash(folder / file)
    return found


def _mteb_model(system: System, tasks: Sequence[AbsTask]) -> Any:
    """The system as mteb takes it."""
    from bixse.evaluation.mteb.mteb_model import MtebBm25, MtebEncoder, mteb_prompts

    if not system.encodes:
        return MtebBm25()
    own: EncoderSystem = system  # type: ignore[assignment]
    return MtebEncoder(own.encoder, own.label, mteb_prompts(own.encoder, tasks, own.task), own.weights)


def _add_queries(per_query: PerQuery, task: Any, folder: Path) -> None:
    """The values of every query, from the rankings that mteb wrote; ids of several parts are told apart."""
    path = folder / task.prediction_file_name
    if not path.is_file():  # mteb took the score from its cache of an interrupted run that had no rankings yet
        return
    predictions = json.loads(read_text(path))
    for subset in task.hf_subsets:
        for split in task.eval_splits:
            qrels = task.dataset[subset][split]["relevant_docs"]
            run = {
                query_id: {name: score for name, score in found.items()
                           if not (task.ignore_identical_ids and name == query_id)}
                for query_id, found in predictions[subset][split].items()
            }  # fmt: skip
            for metric, values in evaluate_run(qrels, run, SUITE_METRICS).items():
                place = f"{task.metadata.name} {subset} {split}"
                per_query.setdefault(metric, {}).update({f"{place} {name}": value for name, value in values.items()})


def _read(folder: Path, name: str, results: Mapping[str, Any]) -> TaskScore:
    """The score of a finished task."""
    try:
        per_query = {metric: dict(values) for metric, values in json.loads(read_text(folder / PER_QUERY_FILE)).items()}
        metrics = {str(metric): float(value) for metric, value in results["metrics"].items()}
        return TaskScore(name, metrics, per_query, str(results["type"]), float(results["seconds"]), reused=True)
    except (InputError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{folder}: got missing or damaged results; expected those of a finished task; fix: delete the folder "
            "and evaluate again"
        ) from error
