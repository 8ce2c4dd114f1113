"""What a suite runs: its tasks with the places of their data, after all missing data has been said."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bixse.errors import InputError, did_you_mean
from bixse.evaluation.suites.beir_short import short_task
from bixse.evaluation.suites.known_suites import INSTRUCTIONS, Suite, SuiteTask
from bixse.evaluation.tasks import Task, TaskSource, collection_task
from bixse.evaluation.trec_dl.protocols import chosen_years, full_sources, missing_files, pool_source, rerank_sources

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bixse.evaluation.trec_dl.protocols import Protocol
    from bixse.evaluation.trec_dl.trec_files import Year


@dataclass(frozen=True)
class Plan:
    """The tasks of a suite, all of whose data are there."""

    sources: tuple[TaskSource, ...] = ()
    """Tasks that our own evaluator runs."""
    tasks: tuple[Any, ...] = ()
    """Tasks that mteb runs."""
    years: tuple[Year, ...] = ()
    """Years of TREC."""


def make_plan(suite: Suite, data: Path | None, names: Sequence[str] | None, download: bool, protocol: Protocol) -> Plan:
    """Find the data of a suite.

    Args:
        suite: the suite.
        data: folder of the data, or None.
        names: tasks to run; None runs all.
        download: fetch from the hub what is missing.
        protocol: of the suite trec-dl.

    Raises:
        InputError: no such task, or missing data: all of it is listed with the command that brings it.
    """
    if download and os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise InputError(
            "--download: got HF_HUB_OFFLINE set, which forbids it; expected it unset; fix: unset it, or fetch the "
            "data by hand"
        )
    if suite.engine == "mteb":
        from bixse.evaluation.mteb.mteb_tasks import benchmark_tasks, missing_data

        if data is not None:
            raise InputError(
                f"--data: got {data} for {suite.name}, which mteb reads from the hub's cache; expected none; fix: "
                "leave it out, and evaluate collection folders with --collection or --suite beir"
            )
        found = benchmark_tasks(suite.benchmark or "", names)
        _refuse_missing(suite, "in the hub's cache on this machine", [] if download else missing_data(found))
        return Plan(tasks=tuple(found))
    if data is None:
        raise InputError(
            f"suite {suite.name}: got no --data; expected the folder that holds its data; fix: --data DIR (a new "
            "folder lists what is needed)"
        )
    if suite.engine in ("trec-dl", "trec-dl-rerank"):
        return _trec_plan(suite, data, names, download, protocol)
    wanted = _chosen_tasks(suite, data, names)
    missing = [task for task in wanted if find_folder(task, data) is None]
    if download:
        from bixse.evaluation.mteb.mteb_tasks import download_collection

        for task in missing:
            if task.hub_name is not None:
                download_collection(task.name, data / task.name, task.splits[:1])
        missing = [task for task in missing if task.hub_name is None]
    _refuse_missing(suite, f"below {data}", _commands(missing))
    return Plan(tuple(_source(suite, task, data) for task in wanted))


def find_folder(task: SuiteTask, data: Path) -> tuple[Path, str] | None:
    """The folder and split of a task below a folder of data sets, or None where a file is missing."""
    for folder in (data / name for name in task.folders):
        for split in task.splits:
            files = (folder / "corpus.jsonl", folder / "queries.jsonl", folder / "qrels" / f"{split}.tsv")
            if all(file.is_file() for file in files):
                return folder, split
    return None


def _trec_plan(suite: Suite, data: Path, names: Sequence[str] | None, download: bool, protocol: Protocol) -> Plan:
    if download:
        raise InputError(
            f"--download: got it for {suite.name}, whose files are not on the hub; expected the official files; "
            "fix: leave it out, what is missing is then listed with its address"
        )
    years = chosen_years(names)
    rerank = suite.engine == "trec-dl-rerank"
    _refuse_missing(suite, f"below {data}", missing_files(data, years, "rerank" if rerank else protocol))
    if rerank:
        sources = rerank_sources(data, years)
    else:
        sources = full_sources(data, years) if protocol == "full" else [pool_source(data, years)]
    return Plan(tuple(sources), years=tuple(years))


def _chosen_tasks(suite: Suite, data: Path, names: Sequence[str] | None) -> list[SuiteTask]:
    """The tasks to run: those named (a group by its name too), or all with the optional ones that are there."""
    if names is None:
        return [*suite.tasks, *(task for task in suite.optional if find_folder(task, data) is not None)]
    known = {name for task in (*suite.tasks, *suite.optional) for name in (task.name, task.group) if name is not None}
    for name in names:
        if name not in known:
            raise InputError(
                f"task: got {name!r}; expected one of {suite.name}: {', '.join(sorted(known))}; "
                f"fix: {did_you_mean(name, known)}"
            )
    return [task for task in (*suite.tasks, *suite.optional) if task.name in names or task.group in names]


def _refuse_missing(suite: Suite, where: str, missing: Sequence[str]) -> None:
    if missing:
        lines = "\n".join(f"  {line}" for line in missing)
        raise InputError(
            f"suite {suite.name}: got none of these data {where}; expected all of the suite:\n{lines}\n"
            "fix: fetch them there, or name with --tasks those you have"
        )


def _commands(tasks: Sequence[SuiteTask]) -> list[str]:
    """One line for each command: the folders it makes, and itself."""
    folders: dict[str, list[str]] = {}
    for task in tasks:
        folders.setdefault(task.fetch, []).append(" or ".join(task.folders))
    return [f"{', '.join(names)}: {command}" for command, names in folders.items()]


def _source(suite: Suite, task: SuiteTask, data: Path) -> TaskSource:
    """A task whose data are a collection folder."""

    def read() -> Task:
        place = find_folder(task, data)
        if place is None:
            raise InputError(f"{data / task.name}: got no data; expected those that were just there; fix: try again")
        found = collection_task(*place, exclude_self=task.exclude_self)
        if suite.engine == "short":
            found = short_task(found, task.name, data)
        (queries,) = found.query_sets
        named = replace(queries, name=task.name, group=task.group)
        return replace(found, name=task.name, query_sets=(named,), settings={"task": task.name}, warnings=())

    names = tuple(dict.fromkeys((task.name, INSTRUCTIONS.get(task.name, task.name))))
    return TaskSource(read, names)
