"""The rubric page: edit a rubric, estimate a trial, grade the same labelled pairs again, keep or drop the edit."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bixse.audit.agreement import cohen_kappa, counts_by_query, nearest_level
from bixse.audit.audit import first_relevant
from bixse.data.pairs_files import save_graded_pairs
from bixse.errors import InputError, shorten
from bixse.evaluation.intervals import few_of_classes, jackknife_estimate
from bixse.files.files import append_line, write_atomically
from bixse.files.parquet import read_table
from bixse.files.rows import read_rows
from bixse.files.values import FileColumn
from bixse.judging.grade import JUDGEMENTS_NAME, estimate, grade_into, ledger_of, spending_of
from bixse.judging.rubrics import Rubric, field_fault, load_rubric, rubric_toml
from bixse.ui.label_plan import share_of
from bixse.ui.ui_settings import SEED
from bixse.ui.workspace import BackgroundJob, Page, RefusedFormError, Visit, Workspace

if TYPE_CHECKING:
    import pandas as pd

    from bixse.judging.judge import AnyJudge
    from bixse.judging.open_judge import GradeConfig

DECISIONS_FILE = "rubrics.jsonl"
FILE_NAME = re.compile(r"rubric-(\d+)\.toml")
PAIR_IDS = ["query_id", "document_id"]
DECISION_COLUMNS = (FileColumn("version", "integer"), FileColumn("decision"))
LONGEST_COMPARED = 2000  # number of words; the time of a comparison grows with its square
PAIRS_FILE = "rubric-pairs.parquet"
TRIED = 100
"""Maximum number of labelled pairs that an edited rubric is tried on: cents at most, and enough to see a change."""


@dataclass(frozen=True)
class Version:
    """An edited rubric, from version 2 on; version 1 is the rubric that the folder was graded with."""

    number: int
    path: Path
    rubric: Rubric
    decision: str | None
    """The decision "keep" or "drop", if there is one."""

    @property
    def out(self) -> Path:
        """Output folder of the trial."""
        return self.path.with_suffix("")

    @property
    def is_tried(self) -> bool:
        return (self.out / JUDGEMENTS_NAME).is_file()


def versions(workspace: Workspace) -> list[Version]:
    """The versions in the folder, newest first; the last decision about a version counts."""
    files = {int(match[1]): path for path in workspace.run.iterdir() if (match := FILE_NAME.fullmatch(path.name))}
    log = workspace.run / DECISIONS_FILE
    rows = read_rows(log, DECISION_COLUMNS) if log.is_file() and log.stat().st_size else ()
    decided = {row["version"]: row["decision"] for _, row in rows}
    return [
        Version(number, path, load_rubric(path), decided.get(number))
        for number, path in sorted(files.items(), reverse=True)
    ]


def current_rubric(workspace: Workspace) -> Rubric:
    """The newest kept version, or the rubric of the folder if no version is kept."""
    return next((version.rubric for version in versions(workspace) if version.decision == "keep"), workspace.rubric)


def levels_of(rubric: Rubric) -> list[tuple[str, str]]:
    """Return label and meaning of each level for people: from the judge's text if it lists them, else `meanings`.

    Example:
        >>> from bixse.judging.rubrics import load_rubric
        >>> levels_of(load_rubric("binary-0-1"))
        [('0', 'Irrelevant'), ('1', 'Perfectly relevant, exact answer')]
    """
    text, spans = rubric.variants[0].system or rubric.variants[0].user, list[tuple[int, int]]()
    for label in rubric.labels:
        start = re.compile(rf"(?<![\w-]){re.escape(label)}\s*(?:[:=]|[-–]\s|meaning\s|means\s)\s*")
        if (match := start.search(text, spans[-1][1] if spans else 0)) is None:
            return list(zip(rubric.labels, rubric.meanings, strict=False))
        spans.append(match.span())
    ends = [start for start, _ in spans[1:]] + [len(text)]
    parts = [text[start:end] for (_, start), end in zip(spans, ends, strict=True)]
    parts[-1] = re.split(r"\.\s|\n", parts[-1])[0]  # what follows the last level is for the judge
    return [
        (label, re.sub(r"[\s,;.]*(?:\band)?\s*$", "", part)) for label, part in zip(rubric.labels, parts, strict=True)
    ]


def save_version(workspace: Workspace, texts: Mapping[str, str]) -> Version:
    """Write an edited rubric as the next version.

    Raises:
        RefusedFormError: a prompt lacks `{query}` or `{document}`, or the text is that of the newest version.
    """
    base = next((version.rubric for version in versions(workspace)), workspace.rubric)
    variants = [  # labels and values stay, so that people's labels stay comparable; forms send lines that end in CRLF
        {"name": variant.name}
        | {key: texts.get(f"{key}-{position}", "").replace("\r\n", "\n") for key in ("system", "user")}
        for position, variant in enumerate(base.variants)
    ]
    if fault := next(filter(None, (field_fault(variant["user"]) for variant in variants)), None):
        raise RefusedFormError(f"The text must contain {{query}} and {{document}} once each. {fault}.")
    rubric = Rubric.model_validate(base.model_dump() | {"variants": variants})
    if rubric.content_hash == base.content_hash:
        raise RefusedFormError("Nothing was changed: the text is that of the newest version.")
    with workspace.lock:  # two saves must not take the same number
        number = max((version.number for version in versions(workspace)), default=1) + 1
        rubric = rubric.model_copy(update={"name": f"{workspace.rubric.name}-version-{number}"})
        path = workspace.run / f"rubric-{number}.toml"
        write_atomically(path, rubric_toml(rubric))
    return Version(number, path, rubric, None)


def changed_words(before: Rubric, after: Rubric) -> list[tuple[str, str]]:
    """Split the prompts of two rubrics into pieces (kind, words): "del" is in `before` alone, "ins" in `after`."""
    prompts = ([(each.system, each.user) for each in rubric.variants] for rubric in (before, after))
    old, new = (re.findall(r"\S+\s*", "\n\n".join(filter(None, itertools.chain(*texts)))) for texts in prompts)
    pieces = [("del", old), ("ins", new)]
    if max(len(old), len(new)) <= LONGEST_COMPARED:
        pieces = []
        first, second = ([word.rstrip() for word in side] for side in (old, new))
        for kind, i, j, k, m in SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
            pieces += [("", new[k:m])] if kind == "equal" else [("del", old[i:j]), ("ins", new[k:m])]
    return [(kind, "".join(words)) for kind, words in pieces if words]


def changed_grades(workspace: Workspace, version: Version) -> list[dict[str, Any]]:
    """The pairs whose nearest grade differs between the folder and a tried version, the largest change first.

    Each has its `pair` and the grades `before`, `after` and of `people`; None for no grade.
    """
    index, scale, people = workspace.index, workspace.rubric.scale, workspace.labels.grades()
    levels = np.array(workspace.rubric.values)
    changed = []
    for query_id, document_id, relevance in _tried(version).itertuples(index=False):
        row = index.row_of.get((query_id, document_id))
        before = None if row is None else index.grade(row, scale)
        after = None if np.isnan(relevance) else scale.to_grade(relevance)
        nearest = [None if grade is None else int(nearest_level(np.array(grade), levels)) for grade in (before, after)]
        if row is not None and nearest[0] != nearest[1]:
            grade = people.get((query_id, document_id))
            changed.append({"pair": index.pair(row), "before": before, "after": after, "people": grade})
    return sorted(changed, key=lambda pair: -abs((pair["after"] or 0.0) - (pair["before"] or 0.0)))


def _tried(version: Version) -> pd.DataFrame:
    """The ids of the pairs that a trial asked for, and their relevance; NaN for no grade."""
    return read_table(version.out / JUDGEMENTS_NAME, [*PAIR_IDS, "relevance"]).to_pandas()


def change_of(workspace: Workspace, version: Version) -> dict[str, Any] | None:
    """The quadratic kappa of judge and people before and after a tried version, and its difference after - before.

    All are of the number of `pairs` that were graded with both rubrics; None for an untried version, or fewer than two
    queries.
    """
    if not version.is_tried:
        return None
    tried = _tried(version)
    tried = tried[tried["relevance"].notna()]
    graded = workspace.graded_by_both(independent=True).merge(tried, on=PAIR_IDS)
    if graded["query_id"].nunique() < 2:
        return None
    human, before = graded["human"].to_numpy(np.float64), graded["judge"].to_numpy(np.float64)
    after = graded["relevance"].map(workspace.rubric.scale.to_grade).to_numpy(np.float64)
    query_ids, levels = list(graded["query_id"]), np.array(workspace.rubric.values, dtype=np.float64)
    counts = [counts_by_query(human, side, query_ids, levels) for side in (before, after)]
    measure = {"kappa": cohen_kappa(2)}
    values = [side.values(measure)["kappa"] for side in counts]
    left_out = [side.left_out(measure)["kappa"] for side in counts]
    few = few_of_classes(human >= first_relevant(levels, None), query_ids)
    first, second = (jackknife_estimate(value, without, few) for value, without in zip(values, left_out, strict=True))
    difference = jackknife_estimate(values[1] - values[0], left_out[1] - left_out[0], few)
    return {"pairs": len(graded), "before": first, "after": second, "difference": difference}


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
    """Append the decision about a version to rubrics.jsonl, with the person, the time and the measured change."""
    version, decision = _version_of(workspace, visit), visit.form.get("decision", "")
    if decision not in ("keep", "drop"):
        raise InputError(
            f"rubric: got the decision {shorten(decision)}; expected keep or drop; fix: load the page again"
        )
    now = datetime.now(UTC).isoformat(timespec="seconds")
    row = {"version": version.number, "decision": decision, "person": visit.person or None, "time": now}
    row |= change_of(workspace, version) or {}
    append_line(workspace.run / DECISIONS_FILE, json.dumps(row, default=asdict))
    visit.session.messages.append(f"Version {version.number}: {decision}.")
    return f"/rubric#version-{version.number}"


def has_judge(workspace: Workspace) -> bool:
    """Return True if the judge graded a pair."""
    return bool((workspace.index.status == "graded").any())


ACTIONS = {"save": save, "price": say_price, "try": try_version, "decide": keep_or_drop}
PAGES = (Page("rubric", "Rubric", rubric, has_judge, ACTIONS, {"progress": progress}),)
