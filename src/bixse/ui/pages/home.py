"""The home page: the state of the folder, the next step, and the reports and runs below, with the cost of grading."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

from bixse.data.run import read_record
from bixse.errors import BixseError, InputError
from bixse.files.run_folder import RUN_FILE
from bixse.judging.grade import ledger_of
from bixse.judging.ledgers.segments import answers_by_status
from bixse.ui.workspace import Page, Visit, Workspace, runs_below

MOST_RUNS = 200  # maximum number of listed runs, and of listed reports


def list_runs(root: Path) -> list[dict[str, Any]]:
    """The state of each run, the last written first; a damaged record is a status of its own."""
    return sorted((_state(root, folder) for folder in runs_below(root)), key=lambda run: run["written"], reverse=True)


def _state(root: Path, folder: Path) -> dict[str, Any]:
    """The state of one run: its `name` is the path below the root; a run of grading alone has `answers` and prices."""
    state: dict[str, Any] = {"name": folder.relative_to(root).as_posix(), "folder": folder}
    state |= dict.fromkeys(("answers", "pairs", "left", "usd", "usd_to_come"))
    try:
        record = read_record(folder / RUN_FILE)
    except InputError:
        return state | {"command": "", "status": "damaged record", "written": ""}
    state |= {"command": record["command"], "status": record["status"], "written": str(record.get("written") or "")}
    if record["command"] != "grade":
        return state
    state["answers"] = {}
    with suppress(BixseError):  # the answers of the ledger, which other runs may share
        state["answers"] = answers_by_status(ledger_of(folder, record["results"]))
    summary = record["results"].get("summary") or {}  # empty until the run stops or ends
    statuses, usd = summary.get("statuses") or {}, summary.get("usd")
    state |= {"statuses": statuses, "usd": usd}
    if {"pairs", "not_asked"} <= summary.keys():
        state["pairs"] = summary["pairs"] + summary["not_asked"]
        state["left"] = state["pairs"] - statuses.get("graded", 0)  # pending, or to be asked again
        if usd is not None and (asked := sum(statuses.values())):  # at the mean price of the pairs so far
            state["usd_to_come"] = usd / asked * state["left"]
    return state


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
        "usd": sum(prices) if (prices := [run["usd"] for run in states if run["usd"] is not None]) else None,
        "usd_to_come": sum(run["usd_to_come"] or 0 for run in states),
        "commands": [shlex.join(["bixse", "ui", str(run["folder"])]) for run in states if run["name"] != "."],
    }


PAGES = (Page("overview", "Home", home, lambda workspace: True),)
