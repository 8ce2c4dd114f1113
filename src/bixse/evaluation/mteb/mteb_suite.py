"""Run mteb's benchmarks through mteb itself: its tasks, its search, its scores, with our models and results folder."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from bixse.data.io.files import read_text, write_atomically
from bixse.data.run_record import open_run
from bixse.encoders.identity import model_path_settings
from bixse.errors import BixseError, InputError
from bixse.evaluation.evaluate import PER_QUERY_NAME, Evaluation
from bixse.evaluation.metrics import PRIMARY_METRIC, evaluate_run
from bixse.evaluation.mteb.mteb_model import mteb_model
from bixse.evaluation.mteb.mteb_tasks import parts_of_task, quiet_hub

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from mteb.abstasks import AbsTask

    from bixse.data.run_record import RunRecord
    from bixse.evaluation.metrics import PerQuery
    from bixse.evaluation.systems import System

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
    settings: Mapping[str, Any],
    download: bool = False,
    progress: Callable[[int], None] | None = None,
) -> tuple[dict[str, Evaluation], dict[str, str]]:
    """Run a system through mteb, one task after the other.

    A finished task is read from its folder. A task that fails is noted and the others go on.

    Args:
        system: an encoder, or BM25 for tasks of retrieval.
        tasks: mteb's tasks.
        out: folder of the whole evaluation.
        settings: all that changes the scores, for the record.
        download: let mteb fetch data from the hub.
        progress: called with 1 after each task.

    Returns:
        Task -> evaluation, and task -> why it failed.

    Raises:
        OutputExistsError: a folder holds another evaluation.
        StorageError: the folder cannot be written.
        ModelError: the model cannot be loaded.
    """
    scores: dict[str, Evaluation] = {}
    failures: dict[str, str] = {}
    for task in tasks:
        name = task.metadata.name
        try:
            scores[name] = _run_task(system, task, out, settings, download)
        except (BixseError, MemoryError):
            raise
        except Exception as error:  # whatever mteb raises for one task: the others stand
            failures[name] = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        if progress is not None:
            progress(1)
    return scores, failures


def _run_task(system: System, task: AbsTask, out: Path, settings: Mapping[str, Any], download: bool) -> Evaluation:
    import mteb

    name = task.metadata.name
    parts: list[Any] = parts_of_task(task)
    record = open_run(
        out / system.name / name,
        "evaluate",
        {**system.settings, "task": name, "mteb": mteb.__version__, **settings},
        {**{part.metadata.name: str(part.metadata.dataset.get("revision")) for part in parts}, **system.inputs},
        paths=model_path_settings(system.settings["model"]),
    )
    if record.status == "finished":
        return _read(record, name, system)
    record.save("running")
    model = mteb_model(system, parts)
    cache = mteb.ResultCache(out / system.name / CACHE_FOLDER)
    predictions = record.folder / PREDICTIONS_FOLDER
    started = time.perf_counter()
    per_query: PerQuery = {}
    mains = []
    with quiet_hub(not download):
        for part in parts:
            part.load_data()
            result = mteb.evaluate(
                model, part, cache=cache, prediction_folder=predictions, co2_tracker=False, show_progress_bar=False
            )
            mains.append(float(result.task_results[0].get_score()))
            if part.metadata.main_score == RANKED_BY:
                _add_queries(per_query, part, predictions)
            part.unload_data()
    main = sum(mains) / len(mains)
    seconds = time.perf_counter() - started
    write_atomically(record.folder / PER_QUERY_NAME, json.dumps(per_query) + "\n")
    record.results = {
        "metrics": {"main": main, **({PRIMARY_METRIC: main} if task.metadata.main_score == RANKED_BY else {})},
        "main_score": task.metadata.main_score,
        "type": task.metadata.type,
        "seconds": seconds,
        "prompts": getattr(model, "used", {}),
        "model_name": model.mteb_model_meta.name,
        "model_revision": model.mteb_model_meta.revision,
    }
    record.timings["mteb"] = seconds
    record.save("finished")
    return _evaluation(record, name, system, per_query)


def _evaluation(record: RunRecord, name: str, system: System, per_query: PerQuery, reused: bool = False) -> Evaluation:
    results = record.results
    metrics = {str(metric): float(value) for metric, value in results["metrics"].items()}
    seconds, kind = float(results["seconds"]), str(results["type"])
    return Evaluation(name, metrics, per_query, {}, seconds, reused, precision=system.precision, group=kind)


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
            for metric, values in evaluate_run(qrels, run).items():
                place = f"{task.metadata.name} {subset} {split}"
                per_query.setdefault(metric, {}).update({f"{place} {name}": value for name, value in values.items()})


def _read(record: RunRecord, name: str, system: System) -> Evaluation:
    """The scores of a finished task."""
    try:
        stored = json.loads(read_text(record.folder / PER_QUERY_NAME))
        per_query = {metric: dict(values) for metric, values in stored.items()}
        return _evaluation(record, name, system, per_query, reused=True)
    except (InputError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{record.folder}: got missing or damaged results; expected those of a finished task; fix: delete the "
            "folder and evaluate again"
        ) from error
