"""Rubric: edit it, see what a trial costs, grade the same labelled pairs again, keep or drop what changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bixse.errors import InputError
from bixse.ui.pages.disagreements import has_judge
from bixse.ui.rubric_trials import (
    Trial,
    change_of,
    commands,
    current_rubric,
    decide,
    find_version,
    price,
    save_version,
    trial_pairs,
    versions,
)
from bixse.ui.ui_page import Page

if TYPE_CHECKING:
    from bixse.ui.ui_page import Visit
    from bixse.ui.workspace import Workspace


def show(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The text in use, and every version with what it changed."""
    found = [
        {
            "version": version,
            "change": change_of(workspace, version) if version.is_tried else None,
            "commands": commands(workspace, version),
        }
        for version in versions(workspace)
    ]
    return {
        "rubric": current_rubric(workspace),
        "found": found,
        "trial": workspace.jobs.get("rubric"),
        "labels": len(workspace.labels.grades()),
        "has_judge": bool(workspace.settings.judge),
    }


def save(workspace: Workspace, visit: Visit) -> str:
    """Write the edited text as a new version."""
    version = save_version(workspace, visit.form)
    visit.session.said.append(f"Saved as {version.path.name}.")
    return f"/rubric#version-{version.number}"


def say_price(workspace: Workspace, visit: Visit) -> str:
    """What a trial would take."""
    version = find_version(workspace, visit.form.get("version", ""))
    _check_judge(workspace)
    visit.session.said.extend(price(workspace, version).splitlines())
    return f"/rubric#version-{version.number}"


def try_version(workspace: Workspace, visit: Visit) -> str:
    """Begin to grade the labelled pairs again; one trial at a time."""
    version = find_version(workspace, visit.form.get("version", ""))
    _check_judge(workspace)
    trial_pairs(workspace)
    with workspace.lock:
        under_way = workspace.jobs.get("rubric")
        if under_way is None or not under_way.is_running:
            workspace.jobs["rubric"] = Trial(workspace, version)
    return "/rubric#trial"


def keep_or_drop(workspace: Workspace, visit: Visit) -> str:
    """Write what was decided."""
    version, decision = find_version(workspace, visit.form.get("version", "")), visit.form.get("decision", "")
    decide(workspace, version, decision, visit.person)
    visit.session.said.append(f"Version {version.number}: {decision}.")
    return f"/rubric#version-{version.number}"


def progress(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """How far the trial is."""
    return {"trial": workspace.jobs.get("rubric")}


def _check_judge(workspace: Workspace) -> None:
    if not workspace.settings.judge:
        raise InputError("--judge: got none; expected the judge to ask; fix: start bixse ui with --judge JUDGE")


ACTIONS = {"save": save, "price": say_price, "try": try_version, "decide": keep_or_drop}
PAGE = Page("rubric", "Rubric", show, ACTIONS, {"progress": progress}, has_judge)
