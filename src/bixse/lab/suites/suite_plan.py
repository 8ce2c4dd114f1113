"""What a suite runs: its tasks with the places of their data, after all missing data has been said."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from bixse.data.collection import files_of_split
from bixse.errors import InputError, did_you_mean
from bixse.evaluation.tasks import Task, TaskSource, collection_task, short_task
from bixse.lab.suites.trec_dl import chosen_years, missing_files, trec_sources

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import ModuleType

    from bixse.lab.suites.known_suites import Suite, SuiteTask
    from bixse.lab.suites.trec_dl import Protocol, Year


@dataclass(frozen=True)
class Plan:
    """The tasks of a suite, all of whose data are there."""

    sources: Sequence[TaskSource] = ()
    tasks: Sequence[Any] = ()
    """Tasks that mteb runs; all others are `sources`."""
    years: Sequence[Year] = ()
    """Years of TREC."""


def make_plan(suite: Suite, data: Path | None, names: Sequence[str] | None, download: bool, protocol: Protocol) -> Plan:
    """Find the data of a suite; all missing data are listed in one InputError with the command that brings them."""
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
        found = mteb_suite.benchmark_tasks(suite.benchmark or "", names)
        if not download:
            _refuse_missing(suite, "in the hub's cache on this machine", mteb_suite.missing_data(found))
        return Plan(tasks=found)
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
        _refuse_missing(suite, f"below {data}", missing_files(data, years, protocol))
        return Plan(trec_sources(data, years, protocol), years=years)
    wanted = _chosen_tasks(suite, data, names)
    missing = [task for task in wanted if _find(task, data) is None]
    if download:
        for task in missing:
            if task.hub is not None:
                _mteb_suite().download_collection(task.name, data / task.name, task.splits[:1])
        missing = [task for task in missing if task.hub is None]
    commands: dict[str, list[str]] = {}
    for task in missing:
        commands.setdefault(task.fetch, []).append(" or ".join(task.folders))
    _refuse_missing(suite, f"below {data}", [f"{', '.join(names)}: {fetch}" for fetch, names in commands.items()])
    return Plan([_source(suite, task, data) for task in wanted])


def _mteb_suite() -> ModuleType:
    try:
        return import_module("bixse.lab.suites.mteb_suite")
    except ImportError as error:
        raise InputError(
            f"mteb: got no usable package ({error}); expected mteb, which runs this suite; fix: "
            "pip install 'bixse[mteb]'"
        ) from error


def _find(task: SuiteTask, data: Path) -> tuple[Path, str] | None:
    """None where a file is missing."""
    for folder in (data / name for name in task.folders):
        for split in task.splits:
            if all(path.is_file() for path in files_of_split(folder, split).values()):
                return folder, split
    return None


def _chosen_tasks(suite: Suite, data: Path, names: Sequence[str] | None) -> list[SuiteTask]:
    """Those named (a group by its name too), or all with the optional ones that are there."""
    if names is None:
        return [*suite.tasks, *(task for task in suite.optional if _find(task, data) is not None)]
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


def _source(suite: Suite, task: SuiteTask, data: Path) -> TaskSource:
    def read() -> Task:
        place = _find(task, data)
        if place is None:
            raise InputError(f"{data / task.name}: got no data; expected those that were just there; fix: try again")
        found = collection_task(*place, exclude_self=task.exclude_self)
        if suite.engine == "short":
            found = short_task(found, task.name, data)
        (queries,) = found.query_sets
        named = replace(queries, name=task.name, group=task.group)
        return replace(found, name=task.name, query_sets=(named,), settings={"task": task.name}, warnings=())

    return TaskSource(read, task.instructions)
