"""Search a task with a system, and score the answers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from bixse.data.joined import QueryCounts, unanswered, warn_of, without_relevant
from bixse.errors import InputError, first_fault
from bixse.evaluation.metrics import METRICS, PerQuery, evaluate_run, ir_name, mean
from bixse.files.files import read_text, write_atomically
from bixse.relevance import DEPTH, Ranking
from bixse.rendering.table import Cell, Table

if TYPE_CHECKING:
    import pandas

    from bixse.evaluation.systems import System
    from bixse.progress import ProgressBars
    from bixse.search.tasks import Task


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


def evaluate_task(system: System, task: Task, progress: ProgressBars | None = None) -> dict[str, Evaluation]:
    """Return name of the query set -> evaluation, the corpus encoded once and nothing written."""
    doubts = system.check_answers(task, refuse=True)
    system.check(task.instructions)
    runs, seconds = search_task(system, task, None, progress)
    return score_runs(system, task, runs, seconds, [*system.notes, *doubts])


def search_task(
    system: System, task: Task, partial: Path | None, progress: ProgressBars | None
) -> tuple[Mapping[str, Ranking], float]:
    """Return name of the query set -> run, and the seconds of the search.

    `partial` is the file of `search_blocks` for a search that may be killed. A finished search without a document
    raises InputError: 0 would be the figure of a system, not of a broken input.
    """
    step = progress(f"{system.label}: {task.name}", task.count) if progress is not None else None
    started = time.perf_counter()
    runs = system.search(task, DEPTH, partial, step)
    for name, run in runs.items():
        if system.complete and not any(run.values()):
            raise InputError(
                f"{system.label}: got no document for any query of {name}; expected some; fix: check that its index, "
                "run or words are those of this collection"
            )
    return runs, time.perf_counter() - started


def score_runs(
    system: System,
    task: Task,
    runs: Mapping[str, Ranking],
    seconds: float,
    notes: Sequence[str],
    reused: bool = False,
) -> dict[str, Evaluation]:
    """Return name of the query set -> evaluation of its run; `notes` are warnings of the search."""
    results = {}
    for query_set in task.query_sets:
        run = runs[query_set.name]
        per_query = evaluate_run(query_set.qrels, run, METRICS, task.min_relevant_grade)
        left_out, silent = without_relevant(query_set.qrels), unanswered(next(iter(per_query.values())), run)
        why = system.why_unanswered and f": {system.why_unanswered}"
        warnings = [*task.joined, *task.warnings, *notes, *warn_of(query_set.name, left_out)]
        warnings += [f"{system.label}: {silent.warning}{why}"] if silent.count else []
        results[query_set.name] = Evaluation(
            query_set.name, mean(per_query), per_query, run, seconds, reused, tuple(warnings), system.precision,
            query_set.group or query_set.name, QueryCounts(silent.total, left_out.count, silent.count), system.label,
        )  # fmt: skip
    return results
