"""Batch: the matrix of one training batch, and the assumed zeros that the encoder doubts most, to be graded."""

from __future__ import annotations

import secrets
import shlex
import time
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from bixse.errors import InputError, shorten
from bixse.files.parquet import read_table
from bixse.training.config import REGRADE_FOLDER
from bixse.ui.cards import event_of, options
from bixse.ui.ui_page import Page

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from bixse.ui.runs.train_batch import BatchMatrix
    from bixse.ui.ui_page import Visit
    from bixse.ui.workspace import Workspace

RELEVANCE_EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
SIGMA_EDGES = (0.0, 0.02, 0.1, 0.25, 0.5, 1.0)
"""Between two shades; most zeros have a small sigma."""
DOUBTED = 10
"""Assumed zeros of the batch that are listed."""
AT_ONCE = 20
"""Suspicious zeros on one page."""


def show(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The batch that the address names, counted from 1, and the suspicious zeros of the run."""
    batches = workspace.batches
    found = batches.batch(visit.number("epoch") - 1, visit.number("batch") - 1)
    values: dict[str, Any] = {"loading": None, "error": batches.error, **_asked(workspace, visit)}
    if batches.error is None and found is None:
        values["loading"] = batches.doing
    if found is None or batches.pairs is None:
        return {**values, "matrix": None}
    pairs = batches.pairs
    zeros = [
        {"sigma": sigma, "query": pairs.texts("query", [found.query_rows[row]])[0],
         "document": pairs.texts("document", [found.document_rows[column]])[0], "row": row + 1, "column": column + 1}
        for sigma, row, column in found.highest_zeros(DOUBTED)
    ]  # fmt: skip
    return {**values, "matrix": found, "shades": _shades(found), "zeros": zeros}


def _shades(matrix: BatchMatrix) -> list[dict[str, Any]]:
    """Every kind of entry with its count and the path that draws it."""
    known, assumed = matrix.known, matrix.assumed
    sigma = matrix.sigma if matrix.sigma is not None else np.zeros_like(known)
    found = [("masked", "masked: counts neither way", np.isnan(known))]
    for level, (low, high) in enumerate(pairwise(RELEVANCE_EDGES)):
        inside = (known >= low) & ((known < high) | (high == 1))
        found.append((f"known-{level}", f"known, relevance {low:g} to {high:g}", inside))
    for level, (low, high) in enumerate(pairwise(SIGMA_EDGES)):
        inside = assumed & (sigma >= low) & ((sigma < high) | (high == 1))
        said = f"assumed zero, sigma {low:g} to {high:g}" if matrix.sigma is not None else "assumed zero"
        found.append((f"zero-{level}", said, inside))
    found.sort(key=lambda entry: entry[0].partition("-")[0])
    return [
        {"style": style, "words": words, "count": int(mask.sum()), "path": _path(mask)}
        for style, words, mask in found
        if mask.any()
    ]


def _path(mask: NDArray[np.bool_]) -> str:
    """Rectangles of height 1 for the runs of a (B, N) mask."""
    padded = np.pad(mask, ((0, 0), (1, 1))).astype(np.int8)
    steps = np.diff(padded, axis=1)
    (rows, starts), (_, ends) = np.nonzero(steps == 1), np.nonzero(steps == -1)
    return "".join(f"M{x} {y}h{end - x}v1h{x - end}z" for y, x, end in zip(rows, starts, ends, strict=True))


def _suspects(workspace: Workspace) -> list[dict[str, Any]]:
    """What was asked after the last epoch that asked, with the judge's relevance where it answered."""
    folder = workspace.run / REGRADE_FOLDER
    files = {int(number): path for path in folder.glob("epoch-*.asked.parquet")
             if (number := path.name[6:].partition(".")[0]).isdecimal()}  # fmt: skip
    if not files:
        return []
    epoch = max(files)
    answers = folder / f"epoch-{epoch}" / "pairs.parquet"
    changed = tuple(path.stat().st_mtime_ns for path in (files[epoch], answers) if path.is_file())
    return _read(files[epoch], answers, changed, epoch)


@lru_cache(maxsize=1)
def _read(asked: Path, answers: Path, changed: tuple[int, ...], epoch: int) -> list[dict[str, Any]]:
    """Read again when a file changed."""
    found = read_table(asked, ["query_id", "query", "document_id", "document", "logit"]).to_pylist()
    rows = read_table(answers, ["query_id", "document_id", "relevance"]).to_pylist() if len(changed) > 1 else []
    judged = {(row["query_id"], row["document_id"]): row["relevance"] for row in rows}
    return [{**row, "epoch": epoch, "judge": judged.get((row["query_id"], row["document_id"]))} for row in found]


def _asked(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    suspects = _suspects(workspace)
    start = min(visit.number("start"), max(0, len(suspects) - 1))
    words = workspace.labels.words
    shown = []
    for row in suspects[start : start + AT_ONCE]:
        own = words.get((row["query_id"], row["document_id"]), {}).get(visit.person)
        sigma = 1 / (1 + np.exp(-row["logit"]))
        shown.append({**row, "own": own.grade if own is not None else None, "sigma": float(sigma)})
    labels = ["--human", str(workspace.settings.labels_path)]
    judged = (
        workspace.run / REGRADE_FOLDER / f"epoch-{suspects[0]['epoch']}" / "judgements.parquet" if suspects else None
    )
    return {
        "suspects": shown,
        "number": len(suspects),
        "start": start,
        "step": AT_ONCE,
        "options": options(workspace),
        "event": secrets.token_hex(8),
        "shown_at": time.time(),
        "command": shlex.join(["bixse", "grade", "audit", "--judge", str(judged), *labels]) if judged else None,
    }


def grade(workspace: Workspace, visit: Visit) -> str:
    """Write a person's grade of a suspicious zero."""
    back = f"/batch?start={visit.number('start')}#suspects"
    if not visit.person:
        visit.session.said.append("Nothing is saved: give your name first.")
        return back
    pair = (visit.form.get("query_id", ""), visit.form.get("document_id", ""))
    if pair not in {(row["query_id"], row["document_id"]) for row in _suspects(workspace)}:
        raise InputError(f"label: got the pair {shorten(pair)}; expected one that was asked; fix: load the page again")
    if workspace.labels.add(replace(event_of(workspace, visit, chosen=True), shows="judge")):
        visit.session.said.append(f"Saved: {visit.form.get('answer', '')} for {pair[1]}.")
    return back


def fits(workspace: Workspace) -> bool:
    """In the folder of a training run."""
    return workspace.record.get("command") == "train"


PAGE = Page("batch", "Batch", show, {"grade": grade}, fits=fits)
