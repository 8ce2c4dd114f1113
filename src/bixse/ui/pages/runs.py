"""Runs: what lies under the folder, how far grading is, what it cost and what it will."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from bixse.ui.runs.run_list import list_runs, runs_below
from bixse.ui.ui_page import Page

if TYPE_CHECKING:
    from bixse.ui.ui_page import Visit
    from bixse.ui.workspace import Workspace


def show(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The last written first."""
    runs = list_runs(workspace.run)
    spent = [run.grading.usd for run in runs if run.grading is not None and run.grading.usd is not None]
    to_come = [run.grading.usd_to_come for run in runs if run.grading is not None]
    return {
        "root": str(workspace.run),
        "runs": runs,
        "usd": sum(spent),
        "usd_to_come": sum(price for price in to_come if price is not None),
        "folders": {run.name: shlex.join(["bixse", "ui", str(run.folder)]) for run in runs if run.name != "."},
    }


def fits(workspace: Workspace) -> bool:
    """Where a run has left a record."""
    return any(runs_below(workspace.run))


PAGE = Page("runs", "Runs", show, fits=fits)
