"""The runs under one folder: what their records and ledgers say of progress and money."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.run import RUN_FILE
from bixse.errors import BixseError, InputError
from bixse.files.files import read_text
from bixse.judging.grade import LEDGER_NAME
from bixse.judging.ledgers.ledger_files import answers_by_status

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MOST_RUNS = 200
"""That are listed."""


@dataclass(frozen=True)
class RunState:
    """One run folder."""

    name: str
    """Below the root; "." for the root itself."""
    folder: Path
    command: str
    status: str
    written: str
    grading: GradingState | None
    """Of a run of grading."""


@dataclass(frozen=True)
class GradingState:
    """How far a run of grading is."""

    answers: Mapping[str, int]
    """Status -> answers in its ledger, which other runs may share."""
    pairs: int | None
    """To grade, as its record says when it stops or ends."""
    statuses: Mapping[str, int]
    """Status -> pairs, likewise."""
    usd: float | None
    """So far."""

    @property
    def left(self) -> int | None:
        """Pairs without a grade: not asked yet, or to be asked again."""
        return None if self.pairs is None else self.pairs - self.statuses.get("graded", 0)

    @property
    def usd_to_come(self) -> float | None:
        """For what is left, at the mean price of the pairs so far."""
        asked = sum(self.statuses.values())
        return None if self.usd is None or self.left is None or not asked else self.usd / asked * self.left


def runs_below(root: Path) -> Iterator[Path]:
    """Folders with a record: the root, its folders, and theirs."""
    for pattern in (RUN_FILE, f"*/{RUN_FILE}", f"*/*/{RUN_FILE}"):
        yield from (path.parent for path in sorted(root.glob(pattern)))


def read_record(folder: Path) -> dict[str, Any]:
    """What run.json of a folder says; nothing where there is none.

    Raises:
        InputError: it is damaged, or cannot be read.
    """
    path = folder / RUN_FILE
    try:
        found = json.loads(read_text(path)) if path.is_file() else {}
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InputError(f"{path}: got a damaged record; expected the JSON that bixse wrote; fix: fetch it again")
    return found


def list_runs(root: Path) -> list[RunState]:
    """The state of each, the last written first; a damaged record is a run with that status."""
    found = []
    for folder in list(runs_below(root))[:MOST_RUNS]:
        record = _record(folder, (folder / RUN_FILE).stat().st_mtime_ns)
        grading = _grading(folder, record) if record.get("command") == "grade" else None
        command, status, written = (str(record.get(name) or "") for name in ("command", "status", "written"))
        found.append(RunState(folder.relative_to(root).as_posix(), folder, command, status, written, grading))
    return sorted(found, key=lambda run: run.written, reverse=True)


@lru_cache(MOST_RUNS)
def _record(folder: Path, changed: int) -> dict[str, Any]:
    """Read again when it changed; without what is long."""
    try:
        found = read_record(folder)
    except InputError:
        return {"status": "damaged record"}
    results = found.get("results") if isinstance(found.get("results"), dict) else {}
    kept = {name: found.get(name) for name in ("command", "status", "written")}
    return {**kept, "ledger": (results or {}).get("ledger"), "summary": (results or {}).get("summary") or {}}


def _grading(folder: Path, record: Mapping[str, Any]) -> GradingState:
    ledger, summary = Path(record["ledger"] or folder / LEDGER_NAME), record["summary"]
    try:
        answers = answers_by_status(ledger if ledger.exists() else folder / LEDGER_NAME)  # it may have moved along
    except BixseError:
        answers = {}
    pairs = summary["pairs"] + summary["not_asked"] if "pairs" in summary and "not_asked" in summary else None
    return GradingState(answers, pairs, summary.get("statuses") or {}, summary.get("usd"))
