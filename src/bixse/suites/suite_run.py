"""Evaluate systems on a suite: list missing data, read finished tasks, run the rest, and compare."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bixse.data.corpus import files_of_split
from bixse.data.draws import PASSAGES, QUERIES, cut_collection
from bixse.data.run import open_run
from bixse.errors import BixseError, InputError, check_known, needs_extra
from bixse.evaluation.collection_task import collection_task
from bixse.evaluation.compare_evaluations import (
    COLUMNS,
    Comparisons,
    EvaluatedSystems,
    check_distinct,
    compare_tasks,
    difference_cells,
    precision_of,
    shown_names,
)
from bixse.evaluation.evaluate_files import evaluate_query_sets
from bixse.evaluation.metrics import PRIMARY_METRIC
from bixse.evaluation.open_system import open_system
from bixse.rendering.table import Cell, format_number, format_table
from bixse.suites.known_suites import Suite, SuiteTask, suite_named
from bixse.suites.trec_dl import (
    INSTRUCTION_NAMES,
    WITHOUT,
    candidate_lists,
    chosen_years,
    judged_pool,
    missing_files,
    trec_means,
    trec_notes,
)

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.evaluation.evaluate import Evaluation
    from bixse.evaluation.systems import System
    from bixse.progress import ProgressBars
    from bixse.search.tasks import Task


OUT_FOLDER = Path("runs") / "evaluation"
"""The default folder of mteb's suites, because mteb needs a folder."""
ZERO_SHOT_EXCEPT = "MSMARCO"
"""The task of BEIR that its zero-shot mean leaves out."""
MTEB_METRIC = "main"
"""The metric by which mteb ranks a task."""


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


def evaluate_suite(
    systems: Sequence[str | SentenceTransformer | System],
    suite: str,
    data: str | Path | None = None,
    out: str | Path | None = None,
    tasks: Sequence[str] | None = None,
    download: bool = False,
    progress: ProgressBars | None = None,
) -> SuiteResult:
    """Evaluate systems on a suite, with a verdict for every pair of systems.

    All missing data sets are listed with their download commands before a model is loaded. Finished tasks are kept in
    `out`: a second call, also with more systems, runs only the missing tasks.

    Args:
        systems: each as for `bixse.evaluate`.
        suite: a name in `bixse.SUITES`.
        data: folder with a collection folder per task, or with the official TREC files.
        out: folder for results; None writes nothing (mteb's suites: runs/evaluation/<suite>).
        tasks: run only these; years for TREC.
        download: download missing data from the hub.
        progress: as for `bixse.evaluate`.

    Raises:
        InputError: unknown suite or task, missing or unusable data, or the same model twice.
        ModelError: a model cannot be used.
        OutputExistsError: `out` holds another evaluation.
        StorageError: `out` cannot be written.
    """
    chosen = suite_named(suite)
    folder = Path(data) if data is not None else None
    target = Path(out) if out is not None else (OUT_FOLDER / suite if chosen.engine == "mteb" else None)
    if not systems:
        raise InputError("models: got none; expected at least one; fix: name a model folder, a hub name or bm25")
    plan = make_plan(chosen, folder, tasks, download)
    settings = {"suite": suite}
    root = open_run(target, "evaluate", settings, {}) if target is not None else None
    opened = [open_system(system) for system in systems]
    check_distinct(opened)
    _check_systems(opened, plan)
    if root is not None:
        root.save("running")
    scores: dict[str, dict[str, Evaluation]] = {}
    failures: dict[str, str] = {}
    for system, shown in zip(opened, shown_names(opened), strict=True):
        if chosen.engine == "mteb" and target is not None:
            scores[shown], failed = _mteb_suite().run_mteb(system, plan.tasks, target, settings, download, progress)
            failures |= {f"{system.label}: {name}": why for name, why in failed.items()}
        else:
            scores[shown] = _run_tasks(system, plan, target, settings, progress)
        system.release()
    notes = [chosen.note] if chosen.note else []
    each_task = [(name, each) for tasks_of in scores.values() for name, each in tasks_of.items()]
    notes += dict.fromkeys(f"{name}: {line}" for name, each in each_task for line in each.warnings)
    notes += plan.notes
    comparisons = Comparisons()
    try:  # a comparison that fails must not lose the figures of a long evaluation
        comparisons = _compare(scores, grouped=chosen.engine != "mteb")
    except BixseError as error:
        notes.append(f"systems are not compared: {error}")
    headline = MTEB_METRIC if chosen.engine == "mteb" else PRIMARY_METRIC
    means = {shown: _means(chosen, tasks_of) for shown, tasks_of in scores.items()}
    result = SuiteResult(scores, means, comparisons, precision_of(opened), suite, headline, notes, failures)
    if root is not None:
        root.results = result.plain()
        result.write(root.folder)
        root.save("failed" if failures else "finished")
    return result


def _check_systems(systems: Sequence[System], plan: Plan) -> None:
    """Refuse wrong models and tasks without instructions before the first task runs."""
    for system in systems:
        for _, instructions in plan.sources:
            system.check(instructions)
        if plan.tasks:
            _mteb_suite().MtebEncoder(system, plan.tasks)
        if len(systems) > 1:  # keep one model in memory at a time
            system.release()


def _run_tasks(
    system: System, plan: Plan, out: Path | None, settings: Mapping[str, Any], progress: ProgressBars | None
) -> dict[str, Evaluation]:
    scores: dict[str, Evaluation] = {}
    for read, instructions in plan.sources:
        task = read()
        task = replace(task, instructions=instructions, settings={**task.settings, **settings})
        folder = out / system.name / task.name if out is not None else None
        evaluations = evaluate_query_sets(system, task, folder, progress)
        # the rankings of all tasks and systems would fill the memory
        scores |= {name: replace(evaluation, run={}) for name, evaluation in evaluations.items()}
    return scores


def _means(suite: Suite, scores: Mapping[str, Evaluation]) -> dict[str, float]:
    if not scores:
        return {}
    if suite.engine in ("trec-dl", "trec-dl-rerank"):
        return trec_means(scores)
    metric = MTEB_METRIC if suite.engine == "mteb" else PRIMARY_METRIC
    by_group: dict[str, list[float]] = {}
    for score in scores.values():
        by_group.setdefault(score.group, []).append(score.metrics[metric])
    groups = {group: sum(values) / len(values) for group, values in by_group.items()}
    over_groups = sum(groups.values()) / len(groups)
    if suite.engine == "mteb":
        over_tasks = sum(score.metrics[metric] for score in scores.values()) / len(scores)
        return {"mean over tasks": over_tasks, "mean over types": over_groups}
    zero_shot = [value for group, value in groups.items() if group != ZERO_SHOT_EXCEPT]
    if zero_shot and len(zero_shot) < len(groups):  # MSMARCO is among the tasks, and others are
        return {"mean over tasks": over_groups, "mean, zero-shot": sum(zero_shot) / len(zero_shot)}
    return {"mean over tasks": over_groups}


def _compare(scores: Mapping[str, Mapping[str, Evaluation]], grouped: bool = True) -> Comparisons:
    """Compare on the tasks that all systems have. A group counts as one task if the suite's mean does so."""
    first = next(iter(scores.values()))
    shared = [task for task in first if all(task in tasks for tasks in scores.values()) and not task.endswith(WITHOUT)]
    common = [task for task in shared if all(PRIMARY_METRIC in tasks[task].by_query for tasks in scores.values())]
    if len(scores) < 2 or not common:
        return Comparisons()
    parts = {shown: {task: tasks[task] for task in common} for shown, tasks in scores.items()}
    return compare_tasks(parts, grouped=grouped)


@dataclass(frozen=True)
class Plan:
    """The tasks of a suite with all data present."""

    sources: Sequence[tuple[Callable[[], Task], tuple[str, ...]]] = ()
    """A function that reads the task, and the names of its instructions."""
    tasks: Sequence[Any] = ()
    """The tasks that mteb runs. Other tasks are `sources`."""
    notes: Sequence[str] = ()


def make_plan(suite: Suite, data: Path | None, names: Sequence[str] | None, download: bool) -> Plan:
    """Find the data of a suite. One InputError lists all missing data with the download commands."""
    if download and os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise InputError(
            "--download: got HF_HUB_OFFLINE set, which forbids it; expected it unset; fix: unset it, or fetch the "
            "data by hand"
        )
    if suite.engine == "mteb":
        if data is not None:
            raise InputError(
                f"--data: got {data} for {suite.name}, which mteb reads from the hub's cache; expected none; fix: "
                "leave it out, and evaluate collection folders with --collection or --suite beir"
            )
        mteb_suite = _mteb_suite()
        parts = mteb_suite.benchmark_tasks(suite.benchmark or "", names)
        if not download:
            _refuse_missing(suite, "in the hub's cache on this machine", mteb_suite.missing_data(parts))
        return Plan(tasks=parts)
    if data is None:
        raise InputError(
            f"suite {suite.name}: got no --data; expected the folder that holds its data; fix: --data DIR (a new "
            "folder lists what is needed)"
        )
    if suite.engine in ("trec-dl", "trec-dl-rerank"):
        if download:
            raise InputError(
                f"--download: got it for {suite.name}, whose files are not on the hub; expected the official files; "
                "fix: leave it out, what is missing is then listed with its address"
            )
        years = chosen_years(names)
        rerank = suite.engine == "trec-dl-rerank"
        _refuse_missing(suite, f"below {data}", missing_files(data, years, rerank))
        reads = (
            [partial(candidate_lists, data, year) for year in years] if rerank else [partial(judged_pool, data, years)]
        )
        return Plan([(read, INSTRUCTION_NAMES) for read in reads], notes=trec_notes(data, years, rerank))
    wanted = _chosen_tasks(suite, data, names)
    missing = [task for task in wanted if _find(task, data) is None]
    if download:
        for task in missing:
            if task.hub is not None:
                _mteb_suite().download_collection(task.name, data / task.name, task.splits[:1])  # `_find` accepts any
        missing = [task for task in missing if task.hub is None]  # the others are there now
    commands: dict[str, list[str]] = {}
    for task in missing:
        commands.setdefault(task.fetch, []).append(" or ".join(task.folders))
    _refuse_missing(suite, f"below {data}", [f"{', '.join(names)}: {fetch}" for fetch, names in commands.items()])
    return Plan([(partial(_read_task, suite, task, data), task.instructions) for task in wanted])


def _mteb_suite() -> ModuleType:
    with needs_extra("mteb", "this suite"):
        return import_module("bixse.suites.mteb_suite")


def _find(task: SuiteTask, data: Path) -> tuple[Path, str] | None:
    """Return the folder and split of a task. None if a file is missing."""
    places = [(data / name, split) for name in task.folders for split in task.splits]
    return next((pair for pair in places if all(p.is_file() for p in files_of_split(*pair).values())), None)


def _chosen_tasks(suite: Suite, data: Path, names: Sequence[str] | None) -> list[SuiteTask]:
    """Return the named tasks (also by group), or all tasks plus the optional ones that exist."""
    tasks = (*suite.tasks, *suite.optional)
    if names is None:
        return [task for task in tasks if task in suite.tasks or _find(task, data) is not None]
    known = sorted({name for task in tasks for name in (task.name, task.group) if name is not None})
    for name in names:
        check_known(f"task of {suite.name}", name, known)
    return [task for task in tasks if task.name in names or task.group in names]


def _refuse_missing(suite: Suite, where: str, missing: Sequence[str]) -> None:
    if missing:
        lines = "\n".join(f"  {line}" for line in missing)
        raise InputError(
            f"suite {suite.name}: got none of these data {where}; expected all of the suite:\n{lines}\n"
            "fix: fetch them there, or name with --tasks those you have"
        )


def _read_task(suite: Suite, task: SuiteTask, data: Path) -> Task:
    location = _find(task, data)
    if location is None:
        raise InputError(f"{data / task.name}: got no data; expected the data of the start; fix: restore them")
    result = collection_task(*location, exclude_self=task.exclude_self)
    if suite.engine == "short":
        result = short_task(result, task.name)
    (queries,) = result.query_sets
    named = replace(queries, name=task.name, group=task.group)
    return replace(result, name=task.name, query_sets=(named,), settings={"task": task.name}, warnings=())


def short_task(task: Task, name: str, queries: int = QUERIES, passages: int = PASSAGES) -> Task:
    """Return a task with one query set, cut short: the same queries and passages on every machine."""
    (complete,) = task.query_sets
    cut = cut_collection(name, complete.qrels, (document for document, _ in task.documents()), queries, passages)
    remaining = frozenset(cut.documents)
    shortened = replace(
        complete,
        queries={query: complete.queries[query] for query in cut.queries},
        qrels={query: complete.qrels[query] for query in cut.queries},
    )
    return replace(
        task,
        documents=lambda: ((document, text) for document, text in task.documents() if document in remaining),
        count=len(cut.documents),
        query_sets=(shortened,),
        is_part=True,
    )
