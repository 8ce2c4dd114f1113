"""The page of the runs below a folder: their progress, and the cost of grading so far and of the rest."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.run import RUN_FILE
from bixse.errors import BixseError, InputError
from bixse.judging.grade import LEDGER_NAME
from bixse.judging.ledgers.segments import answers_by_status
from bixse.ui.workspace import Page, read_record, runs_below

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bixse.ui.workspace import Visit, Workspace

MOST_RUNS = 200
"""Maximum number of listed runs."""


@dataclass(frozen=True)
class RunState:
    """The state of one run folder."""

    name: str
    """Path below the root; "." for the root itself."""
    folder: Path
    command: str
    status: str
    written: str
    grading: GradingState | None


@dataclass(frozen=True)
class GradingState:
    """The progress of one grading run."""

    answers: Mapping[str, int]
    """Status -> number of answers in the ledger, which other runs may share."""
    pairs: int | None
    """Number of pairs to grade; None until the run stops or ends and records it."""
    statuses: Mapping[str, int]
    """Status -> number of pairs; empty until the run stops or ends."""
    usd: float | None

    @property
    def left(self) -> int | None:
        """Number of pairs without a grade, not asked yet or to be asked again."""
        return None if self.pairs is None else self.pairs - self.statuses.get("graded", 0)

    @property
    def usd_to_come(self) -> float | None:
        """The price of the remaining pairs, at the mean price of the pairs so far."""
        asked = sum(self.statuses.values())
        return None if self.usd is None or self.left is None or not asked else self.usd / asked * self.left


def list_runs(root: Path) -> list[RunState]:
    """The state of each run, the last written first; a damaged record is a status of its own."""
    states = []
    for folder in list(runs_below(root))[:MOST_RUNS]:
        record = _record(folder, (folder / RUN_FILE).stat().st_mtime_ns)
        grading = _grading(folder, record) if record.get("command") == "grade" else None
        command, status, written = (str(record.get(name) or "") for name in ("command", "status", "written"))
        states.append(RunState(folder.relative_to(root).as_posix(), folder, command, status, written, grading))
    return sorted(states, key=lambda run: run.written, reverse=True)


@lru_cache(MOST_RUNS)
def _record(folder: Path, changed: int) -> dict[str, Any]:
    """The short parts of a record; `changed`, its time of change, makes the cache read it again."""
    try:
        record = read_record(folder)
    except InputError:
        return {"status": "damaged record"}
    results = record["results"] if isinstance(record.get("results"), dict) else {}
    kept = {name: record.get(name) for name in ("command", "status", "written")}
    return {**kept, "ledger": results.get("ledger"), "summary": results.get("summary") or {}}


def _grading(folder: Path, record: Mapping[str, Any]) -> GradingState:
    ledger, summary = Path(record["ledger"] or folder / LEDGER_NAME), record["summary"]
    try:
        answers = answers_by_status(ledger if ledger.exists() else folder / LEDGER_NAME)  # the folder may have moved
    except BixseError:
        answers = {}
    pairs = summary["pairs"] + summary["not_asked"] if "pairs" in summary and "not_asked" in summary else None
    return GradingState(answers, pairs, summary.get("statuses") or {}, summary.get("usd"))


def runs(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The table of runs, and their total cost in dollars."""
    states = list_runs(workspace.run)
    gradings = [run.grading for run in states if run.grading is not None]
    return {
        "runs": states,
        "usd": sum(grading.usd or 0 for grading in gradings),
        "usd_to_come": sum(grading.usd_to_come or 0 for grading in gradings),
        "folders": {run.name: shlex.join(["bixse", "ui", str(run.folder)]) for run in states if run.name != "."},
    }


PAGES = (Page("runs", "Runs", runs, lambda workspace: any(runs_below(workspace.run))),)
