"""Search a task with a system and score the answers; every result is stored with its run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from bixse.data.joined import QueryCounts, unanswered, warn_of, without_relevant
from bixse.data.run import Run, open_run
from bixse.data.trec import read_run, write_run
from bixse.encoders.loading.build import model_path_settings
from bixse.encoders.loading.kinds import is_encoder
from bixse.errors import InputError, first_fault
from bixse.evaluation.collection_task import CollectionSource, collection_task
from bixse.evaluation.metrics import METRICS, PerQuery, evaluate_run, ir_name, mean
from bixse.evaluation.systems import RUN_NAME, System, SystemSource, open_system
from bixse.files.files import read_text, write_atomically
from bixse.progress import progress_bar
from bixse.relevance import DEPTH, Ranking
from bixse.rendering.table import Cell, Table
from bixse.search.tasks import QuerySet, Task

if TYPE_CHECKING:
    import pandas

    from bixse.progress import ProgressBars

PER_QUERY_NAME = "per_query.json"
PARTIAL_NAME = "best_so_far.npz"


@dataclass(frozen=True)
class Evaluation(Mapping[str, float], Table):
    """The figures of one system on one query set: a mapping of ir_measures' names to means, printed as a table.

    Example:
        >>> evaluation = Evaluation("toy", {"ndcg@10": 0.75}, {"ndcg@10": {"q1": 1.0, "q2": 0.5}}, {}, 0.0)
        >>> evaluation["nDCG@10"], evaluation.per_query.loc["q2", "nDCG@10"].item()
        (0.75, 0.5)
    """

    task: str
    metrics: Mapping[str, float]
    by_query: PerQuery = field(repr=False)
    """Metric -> query id -> value; empty if a task of mteb's suites is not retrieval."""
    run: Ranking = field(repr=False)
    """Ranking per query; empty in the results of a suite, whose runs are on disk."""
    seconds: float
    reused: bool = False
    """True if the evaluation was read from an output folder."""
    warnings: tuple[str, ...] = ()
    precision: str | None = None
    group: str = ""
    """Name of a group; the query sets of a group count as one in the mean of a suite."""
    queries: QueryCounts = field(default_factory=QueryCounts)
    """The number of queries that the means count, and of queries that they leave out."""
    system: str = ""
    """Name of the system."""

    def __getitem__(self, metric: str) -> float:
        return {**self.metrics, **{ir_name(name): value for name, value in self.metrics.items()}}[metric]

    def __iter__(self) -> Iterator[str]:
        return map(ir_name, self.metrics)

    def __len__(self) -> int:
        return len(self.metrics)

    def cells(self) -> tuple[Sequence[str], Sequence[Sequence[Cell]]]:
        return ["metric", self.system or "mean"], [list(row) for row in self.items()]

    @property
    def per_query(self) -> pandas.DataFrame:
        """The values as a frame: one row per query, one column per metric."""
        import pandas

        return pandas.DataFrame({ir_name(name): values for name, values in self.by_query.items()}).rename_axis("query")

    def save(self, path: str | Path) -> None:
        """Write the evaluation as JSON, values per query and the ranking included."""
        write_atomically(Path(path), TypeAdapter(Evaluation).dump_json(self, indent=1).decode() + "\n")

    @staticmethod
    def load(path: str | Path) -> Evaluation:
        """Read a file of `save`; raise InputError for any other file."""
        try:
            return TypeAdapter(Evaluation).validate_json(read_text(Path(path)))
        except ValueError as error:
            raise InputError(
                f"{path}: got no evaluation ({first_fault(error)}); expected a file of Evaluation.save; fix: evaluate "
                "again, and save the result"
            ) from error


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
    record = open_evaluation(system, task, out) if out is not None else None
    reused = record is not None and record.status == "finished"
    doubts = system.check_answers(task, refuse=not reused)
    if record is not None and reused:
        runs: Mapping[str, Ranking] = {
            query_set.name: read_run(_folder(record, task, query_set) / RUN_NAME) for query_set in task.query_sets
        }
        seconds, searched = float(record.results.get("seconds", 0.0)), record.results.get("warnings", ())
    else:
        runs, seconds = _search(system, task, record, progress)
        searched = system.notes
        _refuse_no_hits(system, runs)
    results = {}
    for query_set in task.query_sets:
        run = runs[query_set.name]
        per_query = evaluate_run(query_set.qrels, run, METRICS, task.min_relevant_grade)
        left_out, silent = without_relevant(query_set.qrels), unanswered(next(iter(per_query.values())), run)
        notes = warn_of(query_set.name, left_out)
        why = system.why_unanswered and f": {system.why_unanswered}"
        notes += [f"{system.label}: {silent.warning}{why}"] if silent.count else []
        results[query_set.name] = Evaluation(
            query_set.name, mean(per_query), per_query, run, seconds, reused,
            (*task.joined, *task.warnings, *searched, *doubts, *notes), system.precision,
            query_set.group or query_set.name, QueryCounts(silent.total, left_out.count, silent.count), system.label,
        )  # fmt: skip
    if record is not None:
        files = [_folder(record, task, query_set) / PER_QUERY_NAME for query_set in task.query_sets]
        if not (reused and all(file.is_file() for file in files)):
            _write(record, system, task, results, seconds)
    return results


def open_evaluation(system: System, task: Task, out: Path) -> Run:
    """Return the record of a new, interrupted or finished evaluation; nothing is written yet."""
    scoring = {"exclude_self": task.exclude_self, "min_relevant_grade": task.min_relevant_grade}
    config = {**system.settings, **task.settings, **scoring}
    paths = ("collection", "rerank", *model_path_settings(system.settings.get("model", "")))
    return open_run(out, "evaluate", config, {**task.inputs, **system.inputs}, paths)


def _search(
    system: System, task: Task, record: Run | None, progress: ProgressBars | None
) -> tuple[Mapping[str, Ranking], float]:
    system.check(task.instructions)
    if record is not None:
        record.save("running")
    partial = record.folder / PARTIAL_NAME if record is not None else None
    step = progress(f"{system.label}: {task.name}", task.count) if progress is not None else None
    started = time.perf_counter()
    return system.search(task, DEPTH, partial, step), time.perf_counter() - started


def _refuse_no_hits(system: System, runs: Mapping[str, Ranking]) -> None:
    """Refuse a finished search without a document: 0 would be the figure of a system, not of a broken input."""
    for name, run in runs.items():
        if system.complete and not any(run.values()):
            raise InputError(
                f"{system.label}: got no document for any query of {name}; expected some; fix: check that its index, "
                "run or words are those of this collection"
            )


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
