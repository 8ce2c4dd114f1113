"""The rubric page: edit a rubric, estimate a trial, grade the same labelled pairs again, keep or drop the edit."""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.errors import InputError, shorten
from bixse.judging.grade import JUDGEMENTS_NAME, LEDGER_NAME, estimate, grade
from bixse.judging.open_judge import GradeConfig
from bixse.ui.background import BackgroundJob
from bixse.ui.label_plan import share_of
from bixse.ui.rubric_versions import change_of, current_rubric, decide, save_version, versions
from bixse.ui.workspace import Page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bixse.judging.judge import Judge
    from bixse.ui.rubric_versions import Version
    from bixse.ui.workspace import Visit, Workspace

PAIRS_FILE = "rubric-pairs.parquet"


def _version_of(workspace: Workspace, visit: Visit) -> Version:
    number = visit.form.get("version", "")
    for version in versions(workspace):
        if str(version.number) == number:
            return version
    raise InputError(f"rubric: got version {number!r}; expected one of this folder; fix: load the page again")


def trial_pairs(workspace: Workspace) -> Path:
    """The file of the labelled pairs that every version is tried on; the pairs are drawn once."""
    path = workspace.run / PAIRS_FILE
    if path.is_file():
        return path
    index, grades = workspace.index, workspace.labels.grades()
    known = [pair for pair in grades if pair in index.row_of]
    drawn = sorted(known, key=lambda pair: share_of(workspace.settings.seed, "try", *pair))[: workspace.settings.tried]
    if len({query_id for query_id, _ in drawn}) < 2:
        raise InputError(f"rubric: got labels of {len(drawn)} pairs; expected of two queries or more; fix: label first")
    scale, rows = workspace.rubric.scale, []
    for pair in drawn:
        own = {"relevance": scale.to_relevance(grades[pair]), "grade": grades[pair], "judge": "people"}
        rows.append(asdict(index.pair(index.row_of[pair])) | own)
    save_graded_pairs(GradedPairs.from_rows(rows), path)
    return path


def _ledger(workspace: Workspace) -> Path:
    own = workspace.run / LEDGER_NAME
    named = Path((workspace.record.get("results") or {}).get("ledger") or own)
    return own if own.is_file() else named


def commands(workspace: Workspace, version: Version) -> list[str]:
    """The commands behind the buttons: price, grade, compare."""
    settings = workspace.settings
    words = ["bixse", "grade", "--pairs", workspace.run / PAIRS_FILE, "--rubric", version.path, "--out", version.out]
    words += ["--ledger", _ledger(workspace)]
    given = {} if settings.judge is None else settings.judge.model_dump(exclude_unset=True)
    given = {"judge": given.pop("names", ()), **given}
    given |= {"prices": settings.prices.per_million, "max_usd": settings.prices.max_usd}
    for name, value in given.items():
        if value not in (None, False, ()):
            values = [] if value is True else value if isinstance(value, (list, tuple)) else [value]
            words += [f"--{name.replace('_', '-')}", *values]
    grading = [shlex.join(map(str, line)) for line in ([*words, "--dry-run"], words)]
    return [*grading, workspace.audit_command(version.out / JUDGEMENTS_NAME)]


@contextmanager
def _trial(workspace: Workspace, version: Version) -> Iterator[tuple[GradeConfig, Judge]]:
    """Yield the settings of a trial and its judge; answers go to the folder's ledger."""
    path, settings = trial_pairs(workspace), workspace.settings
    if settings.judge is None:
        raise InputError("--judge: got none; expected the judge to ask; fix: start bixse ui with --judge JUDGE")
    config = GradeConfig(
        judge=settings.judge, rubric=version.rubric, prices=settings.prices, pairs=path, ledger=_ledger(workspace)
    )
    judge = config.open()
    try:
        yield config, judge
    finally:
        judge.close()


def try_now(workspace: Workspace, version: Version, job: BackgroundJob) -> None:
    """Grade the pairs with one version; a killed trial resumes where it stopped."""
    job.note = "opening the judge"
    with _trial(workspace, version) as (config, judge):
        grade(config, judge, version.out, progress=job.begin)


def rubric(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The current rubric, and every version with its change."""
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
        "trial": workspace.trial,
        "labels": len(workspace.labels.grades()),
        "has_judge": bool(workspace.settings.judge),
    }


def progress(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The trial and its progress."""
    return {"trial": workspace.trial}


def save(workspace: Workspace, visit: Visit) -> str:
    """Write the edited text as a new version."""
    version = save_version(workspace, visit.form)
    visit.session.said.append(f"Saved as {version.path.name}.")
    return f"/rubric#version-{version.number}"


def say_price(workspace: Workspace, visit: Visit) -> str:
    """Estimate a trial, without asking any of its questions."""
    version = _version_of(workspace, visit)
    _check_judge(workspace)
    with _trial(workspace, version) as (config, judge):
        visit.session.said.extend(estimate(config, judge, version.out).text(judge.name).splitlines())
    return f"/rubric#version-{version.number}"


def try_version(workspace: Workspace, visit: Visit) -> str:
    """Begin to grade the labelled pairs again, unless a trial is running."""
    version = _version_of(workspace, visit)
    _check_judge(workspace)
    trial_pairs(workspace)
    with workspace.lock:  # two clicks must not start two trials
        if workspace.trial is None or not workspace.trial[1].is_running:
            job = BackgroundJob(f"trial of rubric {version.number}", partial(try_now, workspace, version))
            workspace.trial = (version, job)
    return "/rubric#trial"


def _check_judge(workspace: Workspace) -> None:
    if not workspace.settings.judge:
        raise InputError("--judge: got none; expected the judge to ask; fix: start bixse ui with --judge JUDGE")


def keep_or_drop(workspace: Workspace, visit: Visit) -> str:
    """Write the decision about a version."""
    version, decision = _version_of(workspace, visit), visit.form.get("decision", "")
    if decision not in ("keep", "drop"):
        raise InputError(
            f"rubric: got the decision {shorten(decision)}; expected keep or drop; fix: load the page again"
        )
    decide(workspace, version, decision, visit.person)
    visit.session.said.append(f"Version {version.number}: {decision}.")
    return f"/rubric#version-{version.number}"


def has_judge(workspace: Workspace) -> bool:
    """Return True if the judge graded a pair."""
    return any(status == "graded" for status in workspace.index.status)


ACTIONS = {"save": save, "price": say_price, "try": try_version, "decide": keep_or_drop}
PAGES = (Page("rubric", "Rubric", rubric, has_judge, ACTIONS, {"progress": progress}),)
