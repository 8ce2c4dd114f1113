"""The rubric page: edit a rubric, estimate a trial, grade the same labelled pairs again, keep or drop the edit."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bixse.data.pairs_files import save_graded_pairs
from bixse.errors import InputError, shorten
from bixse.judging.grade import JUDGEMENTS_NAME, estimate, grade_into, ledger_of, spending_of
from bixse.ui.label_plan import share_of
from bixse.ui.rubric_versions import (
    Version,
    change_of,
    changed_grades,
    changed_words,
    current_rubric,
    decide,
    levels_of,
    save_version,
    versions,
)
from bixse.ui.ui_settings import SEED
from bixse.ui.workspace import BackgroundJob, Page, Visit, Workspace

if TYPE_CHECKING:
    from bixse.judging.judge import AnyJudge
    from bixse.judging.open_judge import GradeConfig

PAIRS_FILE = "rubric-pairs.parquet"
TRIED = 100
"""Maximum number of labelled pairs that an edited rubric is tried on: cents at most, and enough to see a change."""


def _version_of(workspace: Workspace, visit: Visit) -> Version:
    number = visit.form.get("version", "")
    for version in versions(workspace):
        if str(version.number) == number:
            return version
    raise InputError(f"rubric: got version {number!r}; expected a version of this folder; fix: load the page again")


def trial_pairs(workspace: Workspace) -> Path:
    """The file of the labelled pairs that every version is tried on; the pairs stay once a trial began."""
    path = workspace.run / PAIRS_FILE
    if path.is_file() and any(version.out.is_dir() for version in versions(workspace)):
        return path
    index, labels = workspace.index, workspace.labels.grades()
    known = [pair for pair in labels if pair in index.row_of]
    drawn = sorted(known, key=lambda pair: share_of(SEED, "try", *pair))[:TRIED]
    if len({query_id for query_id, _ in drawn}) < 2:
        raise InputError(
            f"rubric: got labels of {len(drawn)} pairs; expected labels of two or more queries; fix: label first"
        )
    grades, nothing = [labels[pair] for pair in drawn], [None] * len(drawn)
    relevance = [workspace.rubric.scale.to_relevance(grade) for grade in grades]
    pairs = index.pairs.select(np.array([index.row_of[pair] for pair in drawn]))
    people = {"relevance": relevance, "grade": grades, "grade_probs": nothing, "judge": ["people"] * len(drawn)}
    save_graded_pairs(pairs.with_columns(**people), path)
    return path


def _ledger(workspace: Workspace) -> Path:
    return ledger_of(workspace.run, workspace.record.get("results", {}))


def commands(workspace: Workspace, version: Version) -> list[str]:
    """The commands behind the buttons: price, grade, compare."""
    settings = workspace.settings
    words = ["bixse", "grade", "--pairs", workspace.run / PAIRS_FILE, "--rubric", version.path, "--out", version.out]
    words += ["--ledger", _ledger(workspace), "--config" if settings.judge_file else "--judge"]
    words += [settings.judge or "JUDGE"]
    grading = [shlex.join(map(str, line)) for line in ([*words, "--dry-run"], words)]
    return [*grading, workspace.audit_command(version.out / JUDGEMENTS_NAME)]


def _judge(workspace: Workspace) -> GradeConfig:
    if workspace.judge is None:
        raise InputError("--judge: got none; expected the judge of the trial; fix: start `bixse ui` with --judge JUDGE")
    return workspace.judge


@contextmanager
def _trial(workspace: Workspace, version: Version) -> Iterator[tuple[GradeConfig, AnyJudge]]:
    """Yield the settings of a trial and its judge; the folder's ledger stores the answers."""
    changes = {"rubric": version.rubric, "pairs": trial_pairs(workspace), "ledger": _ledger(workspace)}
    config = _judge(workspace).model_copy(update=changes)
    with closing(config.open(spending_of(version.out, config.ledger, config.prices))) as judge:
        yield config, judge


def try_now(workspace: Workspace, version: Version, job: BackgroundJob) -> None:
    """Grade the pairs with one version; a killed trial resumes where it stopped."""
    job.note = "opening the judge"
    with _trial(workspace, version) as (config, judge):
        grade_into(config, judge, version.out, progress=job.begin)


def rubric(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The text to edit, and every version with its change and the words that its edit changed."""
    edited = versions(workspace)
    rubrics = [*((version.number, version.rubric) for version in edited), (1, workspace.rubric)]
    entries = [  # an edit begins with the version before it
        {**_result(workspace, version), "older": older, "words": changed_words(text, version.rubric)}
        for version, (older, text) in zip(edited, rubrics[1:], strict=True)
    ]
    current = current_rubric(workspace)
    return {"rubric": rubrics[0][1], "entries": entries, "current": current, "levels": levels_of(current)}


def _result(workspace: Workspace, version: Version) -> dict[str, Any]:
    """The change by a version, known once its trial ended; `job` is its trial, if that is the last one."""
    tried, job = workspace.trial or (None, None)
    job = job if tried is not None and tried.number == version.number else None
    is_known = version.is_tried and not (job is not None and job.is_running)
    return {
        "version": version,
        "job": job,
        "change": change_of(workspace, version) if is_known else None,
        "changed": changed_grades(workspace, version) if is_known else [],
        "commands": commands(workspace, version) if (workspace.run / PAIRS_FILE).is_file() else [],
    }


def progress(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The result of the last trial, or how far it is."""
    number = None if workspace.trial is None else workspace.trial[0].number
    return {"entry": next((_result(workspace, each) for each in versions(workspace) if each.number == number), None)}


def save(workspace: Workspace, visit: Visit) -> str:
    """Write the edited text as a new version."""
    version = save_version(workspace, visit.form)
    with suppress(InputError):  # without labels there is nothing to try it on yet
        trial_pairs(workspace)
    visit.session.messages.append(f"Saved as {version.path.name}.")
    return f"/rubric#version-{version.number}"


def say_price(workspace: Workspace, visit: Visit) -> str:
    """Estimate a trial, without asking any of its questions."""
    version = _version_of(workspace, visit)
    with _trial(workspace, version) as (config, judge):
        visit.session.messages.extend(estimate(config, judge, version.out).text(judge.name).splitlines())
    return f"/rubric#version-{version.number}"


def try_version(workspace: Workspace, visit: Visit) -> str:
    """Begin to grade the labelled pairs again, unless a trial is running."""
    version = _version_of(workspace, visit)
    _judge(workspace)  # refused before the thread begins, as is a folder without labels
    trial_pairs(workspace)
    with workspace.lock:  # two clicks must not start two trials
        if workspace.trial is None or not workspace.trial[1].is_running:
            job = BackgroundJob(f"trial of rubric {version.number}", partial(try_now, workspace, version))
            workspace.trial = (version, job)
    return f"/rubric#version-{workspace.trial[0].number}"


def keep_or_drop(workspace: Workspace, visit: Visit) -> str:
    """Write the decision about a version."""
    version, decision = _version_of(workspace, visit), visit.form.get("decision", "")
    if decision not in ("keep", "drop"):
        raise InputError(
            f"rubric: got the decision {shorten(decision)}; expected keep or drop; fix: load the page again"
        )
    decide(workspace, version, decision, visit.person)
    visit.session.messages.append(f"Version {version.number}: {decision}.")
    return f"/rubric#version-{version.number}"


def has_judge(workspace: Workspace) -> bool:
    """Return True if the judge graded a pair."""
    return bool((workspace.index.status == "graded").any())


ACTIONS = {"save": save, "price": say_price, "try": try_version, "decide": keep_or_drop}
PAGES = (Page("rubric", "Rubric", rubric, has_judge, ACTIONS, {"progress": progress}),)
