"""The evaluation suites, as `suites.toml` lists them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from bixse.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

SuiteEngine: TypeAlias = Literal["folders", "short", "trec-dl", "trec-dl-rerank", "mteb"]
"""The evaluator: ours on collection folders (all or a part of each) or on TREC files, or mteb itself."""
LOCAL = "local"
BEIR_URL = "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets"


@dataclass(frozen=True)
class SuiteTask:
    """One task of a suite that our own evaluator runs on a collection folder; see `suites.toml`."""

    name: str
    folder: str
    hub: str | None = None
    splits: Sequence[str] = ("test",)
    exclude_self: bool = False
    group: str | None = None
    archive: str | None = None

    @property
    def folders(self) -> tuple[str, ...]:
        """Names a local folder may have, in the order they are looked for."""
        return tuple(dict.fromkeys((self.name, self.folder)))

    @property
    def instructions(self) -> tuple[str, ...]:
        """Names under which a model's table of instructions may hold the task."""
        return tuple(dict.fromkeys((self.name, INSTRUCTIONS.get(self.name, self.name))))

    @property
    def fetch(self) -> str:
        """The command that brings the data into the folder below which tasks lie."""
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
    """Tasks of an engine that reads collection folders."""
    optional: tuple[SuiteTask, ...] = ()
    """Tasks that take part if their folders are there."""
    benchmark: str | None = None
    """mteb's name of the suite, for the engine "mteb"."""
    note: str | None = None
    """A note for the reader of the figures."""


def suite_named(name: str) -> Suite:
    """Return a suite by its name; an unknown one raises InputError."""
    if name in SUITES:
        return SUITES[name]
    raise InputError(
        f"suite: got {name!r}; expected one of {', '.join((LOCAL, *SUITES))}; fix: {did_you_mean(name, SUITES)}"
    )


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


TABLES: dict[str, Any] = tomllib.loads(
    (resources.files("bixse.lab.suites") / "suites.toml").read_text(encoding="utf-8")
)
SUITES = _read_suites(TABLES["suites"])
"""Suite by name; beside these, `local` is any one collection folder."""
INSTRUCTIONS: dict[str, str] = TABLES["instructions"]
"""Task -> its name in the paper's table of instructions (`bixse.data.task_instructions`)."""
