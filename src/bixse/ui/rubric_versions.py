"""The versions of the rubric in a run folder, and what each version changes on the same labelled pairs."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from bixse.evaluation.statistics import percentile_estimate
from bixse.files.files import append_line, write_atomically
from bixse.files.parquet import read_table
from bixse.files.rows import read_rows
from bixse.files.values import FileColumn
from bixse.judging.audit.agreement import cohen_kappa, counts_by_query
from bixse.judging.grade import JUDGEMENTS_NAME
from bixse.judging.rubrics import Rubric, field_fault, load_rubric, rubric_toml
from bixse.ui.ui_settings import SEED
from bixse.ui.workspace import RefusedFormError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from bixse.ui.workspace import Workspace

DECISIONS_FILE = "rubrics.jsonl"
FILE_NAME = re.compile(r"rubric-(\d+)\.toml")
DECISION_COLUMNS = (FileColumn("version", "integer"), FileColumn("decision"))
SAMPLES = 1000  # number of resamples; that of `bixse grade audit`, so that the figures are equal


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


def newest_rubric(workspace: Workspace) -> Rubric:
    """The newest version, kept or not: an edit begins with its text."""
    return next((version.rubric for version in versions(workspace)), workspace.rubric)


def save_version(workspace: Workspace, texts: Mapping[str, str]) -> Version:
    """Write an edited rubric as the next version.

    Raises:
        RefusedFormError: a prompt lacks `{query}` or `{document}`, or the text is that of the newest version.
    """
    base = newest_rubric(workspace)
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


def change_of(workspace: Workspace, version: Version) -> dict[str, Any] | None:
    """The quadratic kappa of judge and people before and after a tried version, and its difference after - before.

    All are of the number of `pairs` that were graded with both rubrics; None for an untried version, or fewer than two
    queries.
    """
    if not version.is_tried:
        return None
    ids = ["query_id", "document_id"]
    tried = read_table(version.out / JUDGEMENTS_NAME, [*ids, "relevance"]).to_pandas()
    tried = tried[tried["relevance"].notna()]
    graded = workspace.graded_by_both(independent=True).merge(tried, on=ids)
    if graded["query_id"].nunique() < 2:
        return None
    human, before = graded["human"].to_numpy(np.float64), graded["judge"].to_numpy(np.float64)
    after = graded["relevance"].map(workspace.rubric.scale.to_grade).to_numpy(np.float64)
    query_ids, levels = list(graded["query_id"]), np.array(workspace.rubric.values)
    counts = [counts_by_query(human, side, query_ids, levels) for side in (before, after)]
    measure = {"kappa": cohen_kappa(2)}
    values = [side.values(measure)["kappa"] for side in counts]
    drawn = [side.draws(measure, SAMPLES, SEED)["kappa"] for side in counts]
    first, second = (percentile_estimate(value, draws) for value, draws in zip(values, drawn, strict=True))
    difference = percentile_estimate(values[1] - values[0], drawn[1] - drawn[0])
    return {"pairs": len(graded), "before": first, "after": second, "difference": difference}


def decide(workspace: Workspace, version: Version, decision: str, person: str) -> None:
    """Append a decision to rubrics.jsonl, with the person, the time and the measured change."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    row = {"version": version.number, "decision": decision, "person": person or None, "time": now}
    row |= change_of(workspace, version) or {}
    append_line(workspace.run / DECISIONS_FILE, json.dumps(row, default=asdict))
