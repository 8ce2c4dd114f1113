"""The home page: the state of the folder, the next step, and the reports and runs below, with the cost of grading."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bixse.errors import BixseError, InputError
from bixse.judging.grade import ledger_of
from bixse.judging.ledgers.segments import answers_by_status
from bixse.ui.workspace import Page, Visit, Workspace, read_record, runs_below

MOST_RUNS = 200  # maximum number of listed runs, and of listed reports


@dataclass(frozen=True)
class RunState:
    """The state of one run folder."""

    name: str  # path below the root; "." for the root itself
    folder: Path
    command: str
    status: str
    written: str
    grading: GradingState | None


@dataclass(frozen=True)
class GradingState:
    """The progress of one grading run."""

    answers: Mapping[str, int]  # status -> number of answers in the ledger, which other runs may share
    pairs: int | None  # number of pairs to grade; None until the run stops or ends and records it
    statuses: Mapping[str, int]  # status -> number of pairs; empty until the run stops or ends
    usd: float | None

    @property
    def left(self) -> int | None:
        """Number of pairs without a grade: pending, or to be asked again."""
        return None if self.pairs is None else self.pairs - self.statuses.get("graded", 0)

    @property
    def usd_to_come(self) -> float | None:
        """The price of the remaining pairs, at the mean price of the pairs so far."""
        asked = sum(self.statuses.values())
        return None if self.usd is None or self.left is None or not asked else self.usd / asked * self.left


def list_runs(root: Path) -> list[RunState]:
    """The state of each run, the last written first; a damaged record is a status of its own."""
    return sorted((_state(root, folder) for folder in runs_below(root)), key=lambda run: run.written, reverse=True)


def _state(root: Path, folder: Path) -> RunState:
    try:
        record = read_record(folder)
    except InputError:
        record = {"status": "damaged record"}
    command, status, written = (str(record.get(name) or "") for name in ("command", "status", "written"))
    grading = _grading(folder, record.get("results") or {}) if command == "grade" else None
    return RunState(folder.relative_to(root).as_posix(), folder, command, status, written, grading)


def _grading(folder: Path, results: Mapping[str, Any]) -> GradingState:
    summary = results.get("summary") or {}
    try:
        answers = answers_by_status(ledger_of(folder, results))
    except BixseError:
        answers = {}
    pairs = summary["pairs"] + summary["not_asked"] if "pairs" in summary and "not_asked" in summary else None
    return GradingState(answers, pairs, summary.get("statuses") or {}, summary.get("usd"))


def list_reports(root: Path) -> dict[str, Path]:
    """Path below a folder -> file, of its reports and those up to two levels below; no link leads out of the folder."""
    files = [path for pattern in ("", "*/", "*/*/") for path in sorted(root.glob(f"{pattern}*.html"))]
    inside = [path for path in files if path.resolve().is_relative_to(root.resolve())]
    return {path.relative_to(root).as_posix(): path for path in inside[:MOST_RUNS]}


def home(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The counts of the folder, its reports, and the table of runs with their total cost in dollars."""
    index, plan = workspace.index, workspace.plan
    states = list_runs(workspace.run)
    gradings = [run.grading for run in states if run.grading is not None]
    return {
        "queries": len(set(index.query_ids)),
        "statuses": index.status.fillna("not judged").value_counts().to_dict().items(),
        "is_open": workspace.assignment.next_query(visit.person) is not None,
        "answered": sum(not workspace.assignment.is_open(row, visit.person) for row in plan.rows),
        "reports": list_reports(workspace.run),
        "runs": states,
        "most_runs": MOST_RUNS,
        "usd": sum(prices) if (prices := [grading.usd for grading in gradings if grading.usd is not None]) else None,
        "usd_to_come": sum(grading.usd_to_come or 0 for grading in gradings),
        "folders": {run.name: shlex.join(["bixse", "ui", str(run.folder)]) for run in states if run.name != "."},
    }


PAGES = (Page("overview", "Home", home, lambda workspace: True),)
