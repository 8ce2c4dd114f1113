"""Versions of the rubric in the run folder, and what each changes on the same labelled pairs."""

from __future__ import annotations

import json
import re
import shlex
import threading
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import load_pairs, save_graded_pairs
from bixse.errors import InputError, shorten, thread_error
from bixse.evaluation.statistics import percentile_estimate
from bixse.files.files import append_line, file_hash, write_atomically
from bixse.files.parquet import read_table
from bixse.files.rows import read_rows
from bixse.files.values import FileColumn
from bixse.judging.ask import Budget
from bixse.judging.audit.agreement import cohen_kappa, counts_by_query
from bixse.judging.estimate import estimate
from bixse.judging.grade import JUDGEMENTS_NAME, LEDGER_NAME, grade
from bixse.judging.grade_settings import GradeSettings
from bixse.judging.open_judge import JudgeConfig
from bixse.judging.rubrics import Rubric, load_rubric, rubric_toml
from bixse.ui.drawing import share_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bixse.progress import Step
    from bixse.results import IntervalEstimate
    from bixse.ui.workspace import Workspace

PAIRS_FILE, DECISIONS_FILE = "rubric-pairs.parquet", "rubrics.jsonl"
FILE_NAME = re.compile(r"rubric-(\d+)\.toml")
DECISION_COLUMNS = (FileColumn("version", "integer"), FileColumn("decision"))
SAMPLES = 1000
"""As `bixse grade audit`, so that its figures are the same."""


@dataclass(frozen=True)
class RubricChange:
    """Quadratic kappa of judge and people on the pairs graded with both rubrics."""

    pairs: int
    before: IntervalEstimate
    after: IntervalEstimate
    difference: IntervalEstimate
    """After - before."""


@dataclass(frozen=True)
class Version:
    """One edited rubric: the first is version 2, the one the folder was graded with is version 1."""

    number: int
    path: Path
    rubric: Rubric
    decision: str | None
    """keep, drop, or none yet."""

    @property
    def out(self) -> Path:
        """The output folder of its trial."""
        return self.path.with_suffix("")

    @property
    def is_tried(self) -> bool:
        return (self.out / JUDGEMENTS_NAME).is_file()


def versions(workspace: Workspace) -> list[Version]:
    """Those in the folder, newest first."""
    found = {int(match[1]): path for path in workspace.run.iterdir() if (match := FILE_NAME.fullmatch(path.name))}
    decided = {row["version"]: row["decision"] for row in decisions(workspace)}
    return [Version(number, found[number], load_rubric(found[number]), decided.get(number))
            for number in sorted(found, reverse=True)]  # fmt: skip


def find_version(workspace: Workspace, number: str) -> Version:
    """Raises InputError where there is none."""
    found = next((version for version in versions(workspace) if str(version.number) == number), None)
    if found is None:
        raise InputError(f"rubric: got version {number!r}; expected one of this folder; fix: load the page again")
    return found


def current_rubric(workspace: Workspace) -> Rubric:
    """The newest version that is kept, else that of the folder."""
    return next((version.rubric for version in versions(workspace) if version.decision == "keep"), workspace.rubric)


def save_version(workspace: Workspace, texts: Mapping[str, str]) -> Version:
    """Write an edited rubric as the next version; none is ever overwritten.

    Args:
        workspace: whose rubric's labels and values it keeps: what people labelled stays comparable.
        texts: `system-0` and `user-0` of its first prompt variant, `system-1` and so on.

    Raises:
        InputError: a prompt lacks `{query}` or `{document}`.
    """
    base = current_rubric(workspace)
    variants = [
        {"name": variant.name}
        | {key: texts.get(f"{key}-{place}", "").replace("\r\n", "\n") for key in ("system", "user")}
        for place, variant in enumerate(base.variants)
    ]
    try:
        rubric = Rubric.model_validate(base.model_dump() | {"variants": variants})
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise InputError(f"rubric: {why}; fix: go back and correct it") from error
    with workspace.lock:
        number = max((version.number for version in versions(workspace)), default=1) + 1
        rubric = rubric.model_copy(update={"name": f"{workspace.rubric.name}-version-{number}"})
        path = workspace.run / f"rubric-{number}.toml"
        write_atomically(path, rubric_toml(rubric))
    return Version(number, path, rubric, None)


def trial_pairs(workspace: Workspace) -> Path:
    """The file of the pairs that every version is tried on: drawn among those with a label, once.

    Raises:
        InputError: fewer than two queries have a label.
    """
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


def grade_arguments(workspace: Workspace, version: Version) -> dict[str, Any]:
    """What `grade` and `estimate` are called with, apart from the judge; answers go to the folder's ledger."""
    path = trial_pairs(workspace)
    return {
        "pairs": load_pairs(path),
        "out": version.out,
        "settings": GradeSettings(rubric=version.rubric, document_characters=_document_characters(workspace)),
        "ledger": _ledger(workspace),
        "inputs": {"pairs": file_hash(path)},
    }


def _document_characters(workspace: Workspace) -> int | None:
    """As the folder was graded, unless something else is set."""
    return workspace.settings.document_characters or (workspace.record.get("config") or {}).get("document_characters")


def _ledger(workspace: Workspace) -> Path:
    own = workspace.run / LEDGER_NAME
    named = Path((workspace.record.get("results") or {}).get("ledger") or own)
    return own if own.is_file() else named


def commands(workspace: Workspace, version: Version) -> list[str]:
    """What does the same as the buttons: price, grade, compare."""
    settings = workspace.settings
    words = ["bixse", "grade", "--pairs", workspace.run / PAIRS_FILE, "--rubric", version.path, "--out", version.out]
    words += ["--ledger", _ledger(workspace)]
    given = settings.model_dump(include=settings.model_fields_set & (JudgeConfig.model_fields.keys() - {"rubric"}))
    given["document_characters"] = _document_characters(workspace)
    for name, value in given.items():
        if value not in (None, False, ()):
            values = [] if value is True else value if isinstance(value, (list, tuple)) else [value]
            words += [f"--{name.replace('_', '-')}", *values]
    grading = [shlex.join(map(str, line)) for line in ([*words, "--dry-run", "--pilot", "0"], words)]
    return [*grading, workspace.audit_command(version.out / JUDGEMENTS_NAME)]


def price(workspace: Workspace, version: Version) -> str:
    """What a trial would take, without asking any of its questions."""
    settings, arguments = workspace.settings, grade_arguments(workspace, version)
    judge = settings.model_copy(update={"rubric": version.rubric}).open()
    try:
        prices = settings.of(settings.model or judge.name)
        found = estimate(judge=judge, prices=prices, pilot=0, **arguments)
        return found.text(judge.name)
    finally:
        judge.close()


class Trial:
    """Grading the pairs with one version, in a thread of its own; killed, it goes on where it stopped."""

    def __init__(self, workspace: Workspace, version: Version) -> None:
        """Begin."""
        self.number, self.done, self.total, self.note, self.error = version.number, 0, 0, "opening the judge", ""
        self._thread = threading.Thread(target=self._run, args=(workspace, version), daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _run(self, workspace: Workspace, version: Version) -> None:
        settings = workspace.settings
        try:
            arguments = grade_arguments(workspace, version)
            judge = settings.model_copy(update={"rubric": version.rubric}).open()
            try:
                budget, prices = Budget(settings.max_usd), settings.of(settings.model or judge.name)
                grade(judge=judge, budget=budget, prices=prices, progress=self._begin, **arguments)
            finally:
                judge.close()
        except Exception as error:
            self.error = thread_error(error, f"trial of rubric {self.number}")

    def _begin(self, title: str, total: int) -> Step:
        self.total, self.note = total, ""

        def step(done: int, note: str = "", known: int = 0) -> None:
            self.done, self.note = self.done + done + known, note or self.note

        return step


def change_of(workspace: Workspace, version: Version) -> RubricChange | None:
    """What a tried version changed on the pairs that both rubrics gave a grade; None for fewer than two queries."""
    columns = ["query_id", "document_id", "relevance", "repeat"]
    rows = read_table(version.out / JUDGEMENTS_NAME, columns).to_pylist()
    index, scale, labels = workspace.index, workspace.rubric.scale, workspace.labels.grades(independent=True)
    found = [
        (pair[0], labels[pair], before, scale.to_grade(row["relevance"]))
        for row in rows
        if (pair := (row["query_id"], row["document_id"])) in labels
        and pair in index.row_of
        and row["relevance"] is not None
        and not row["repeat"]
        and (before := index.grade(index.row_of[pair], scale)) is not None
    ]
    if len({query_id for query_id, *_ in found}) < 2:
        return None
    query_ids, *grades = zip(*found, strict=True)
    human, *judged = (np.array(column, dtype=np.float64) for column in grades)
    counts = [counts_by_query(human, side, query_ids, np.array(workspace.rubric.values)) for side in judged]
    measure = {"kappa": cohen_kappa(2)}
    values = [side.values(measure)["kappa"] for side in counts]
    drawn = [side.draws(measure, SAMPLES, workspace.settings.seed)["kappa"] for side in counts]
    first, second = (percentile_estimate(value, draws) for value, draws in zip(values, drawn, strict=True))
    return RubricChange(len(found), first, second, percentile_estimate(values[1] - values[0], drawn[1] - drawn[0]))


def decisions(workspace: Workspace) -> list[dict[str, Any]]:
    """What was decided, one line each; of a version the last one counts."""
    path = workspace.run / DECISIONS_FILE
    return [row for _, row in read_rows(path, DECISION_COLUMNS)] if path.is_file() and path.stat().st_size else []


def decide(workspace: Workspace, version: Version, decision: str, person: str) -> None:
    """Add a line to rubrics.jsonl: keep or drop, by whom and on what grounds.

    Raises:
        InputError: another decision.
    """
    if decision not in ("keep", "drop"):
        raise InputError(
            f"rubric: got the decision {shorten(decision)}; expected keep or drop; fix: load the page again"
        )
    found = change_of(workspace, version) if version.is_tried else None
    now = datetime.now(UTC).isoformat(timespec="seconds")
    row = {"version": version.number, "decision": decision, "person": person or None, "time": now}
    row |= {} if found is None else asdict(found)
    append_line(workspace.run / DECISIONS_FILE, json.dumps(row))
