"""The evaluation suites that `suites.toml` lists."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal, TypeAlias

from bixse.errors import check_known
from bixse.results import LOCAL

SuiteEngine: TypeAlias = Literal["folders", "short", "trec-dl", "trec-dl-rerank", "mteb"]
"""The evaluator: bixse on collection folders (complete or cut short) or on TREC files, or mteb."""
BEIR_URL = "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets"


@dataclass(frozen=True)
class SuiteTask:
    """One task that bixse evaluates on a collection folder, as described in `suites.toml`."""

    name: str
    folder: str
    hub: str | None = None
    splits: Sequence[str] = ("test",)
    exclude_self: bool = False
    group: str | None = None
    archive: str | None = None

    @property
    def folders(self) -> tuple[str, ...]:
        """Names that a local folder may have, in search order."""
        return tuple(dict.fromkeys((self.name, self.folder)))

    @property
    def instructions(self) -> tuple[str, ...]:
        """Names of the task in a model's table of instructions."""
        return tuple(dict.fromkeys((self.name, INSTRUCTIONS.get(self.name, self.name))))

    @property
    def fetch(self) -> str:
        """The command that downloads the data into the folder of all tasks."""
        if self.hub is None:
            return "its licence lets nobody pass it on: see https://github.com/beir-cellar/beir/wiki/Datasets-available"
        if self.archive is None:
            return f"--download ({self.hub} on the hub)"
        return f"curl -LO {BEIR_URL}/{self.archive}.zip && unzip {self.archive}.zip, or --download"


@dataclass(frozen=True)
class Suite:
    """A named set of tasks."""

    name: str
    engine: SuiteEngine
    tasks: tuple[SuiteTask, ...] = ()
    optional: tuple[SuiteTask, ...] = ()
    """Tasks that take part if their folders exist."""
    benchmark: str | None = None
    note: str | None = None


def suite_named(name: str) -> Suite:
    """Return a suite by its name. An unknown name raises InputError."""
    check_known("suite", name, SUITES, f"choose one of these, or {LOCAL} for one collection")
    return SUITES[name]


def _read_suites(tables: dict[str, dict[str, Any]]) -> dict[str, Suite]:
    suites: dict[str, Suite] = {}
    for name, table in tables.items():
        tasks, optional = (
            tuple(SuiteTask(task, **row) for task, row in table.get(kind, {}).items()) for kind in ("tasks", "optional")
        )
        if "only" in table:
            tasks = tuple(task for task in suites[table["tasks_of"]].tasks if task.name in table["only"])
        suites[name] = Suite(name, table["engine"], tasks, optional, table.get("benchmark"), table.get("note"))
    return suites


TABLES: dict[str, Any] = tomllib.loads((resources.files("bixse.suites") / "suites.toml").read_text(encoding="utf-8"))
SUITES = _read_suites(TABLES["suites"])
"""Name -> suite. In addition, `local` is any one collection folder."""
INSTRUCTIONS: dict[str, str] = TABLES["instructions"]
"""Task -> its name in the paper's table of instructions (`bixse.data.task_instructions`)."""
