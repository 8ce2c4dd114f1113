"""The home page: the state of the folder, the next step, and the reports and runs below, with the cost of grading."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bixse.data.run import read_record
from bixse.errors import BixseError, InputError
from bixse.files.run_folder import RUN_FILE
from bixse.judging.grade import ledger_of
from bixse.judging.ledgers.segments import answers_by_status
from bixse.ui.workspace import Page, Visit, Workspace, runs_below

MOST_RUNS = 200  # maximum number of listed runs, and of listed reports


@dataclass(frozen=True)
class RunState:
    """The state of one run folder; only a run of grading has more than the first five."""

    name: str  # path below the root; "." for the root itself
    folder: Path
    command: str
    status: str
    written: str
    answers: Mapping[str, int] | None = None  # status -> number of answers in the ledger, which other runs may share
    pairs: int | None = None  # number of pairs to grade; None until the run stops or ends and records it
    statuses: Mapping[str, int] = field(default_factory=dict)  # status -> number of pairs; empty until then
    usd: float | None = None

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
    name = folder.relative_to(root).as_posix()
    try:
        record = read_record(folder / RUN_FILE)
    except InputError:
        return RunState(name, folder, "", "damaged record", "")
    facts = (name, folder, record["command"], record["status"], str(record.get("written") or ""))
    if record["command"] != "grade":
        return RunState(*facts)
    summary = record["results"].get("summary") or {}
    answers: Mapping[str, int] = {}
    with suppress(BixseError):
        answers = answers_by_status(ledger_of(folder, record["results"]))
    pairs = summary["pairs"] + summary["not_asked"] if {"pairs", "not_asked"} <= summary.keys() else None
    return RunState(*facts, answers, pairs, summary.get("statuses") or {}, summary.get("usd"))


def list_reports(root: Path) -> dict[str, Path]:
    """Path below a folder -> file, of its reports and those up to two levels below; no link leads out of the folder."""
    files = [path for pattern in ("", "*/", "*/*/") for path in sorted(root.glob(f"{pattern}*.html"))]
    inside = [path for path in files if path.resolve().is_relative_to(root.resolve())]
    return {path.relative_to(root).as_posix(): path for path in inside[:MOST_RUNS]}


def home(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The counts of the folder, its reports, and the table of runs with their total cost in dollars."""
    index, plan = workspace.index, workspace.plan
    states = list_runs(workspace.run)
    return {
        "queries": len(set(index.query_ids)),
        "statuses": index.status.fillna("not judged").value_counts().to_dict().items(),
        "is_open": workspace.assignment.next_query(visit.person) is not None,
        "answered": sum(not workspace.assignment.is_open(row, visit.person) for row in plan.rows),
        "reports": list_reports(workspace.run),
        "runs": states,
        "most_runs": MOST_RUNS,
        "usd": sum(prices) if (prices := [run.usd for run in states if run.usd is not None]) else None,
        "usd_to_come": sum(run.usd_to_come or 0 for run in states),
        "commands": [shlex.join(["bixse", "ui", str(run.folder)]) for run in states if run.name != "."],
    }


PAGES = (Page("overview", "Home", home, lambda workspace: True),)
