"""Pages for a training run: its curves, and one batch with its most likely false negatives."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from bixse.errors import InputError, shorten
from bixse.files.parquet import read_table
from bixse.training.config import LOG_FILE, REGRADE_FOLDER
from bixse.ui.pages.label import event_of, grading_form
from bixse.ui.workspace import Page

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from bixse.report.plots import Plot
    from bixse.ui.train_run import BatchMatrix
    from bixse.ui.workspace import Visit, Workspace

PANELS = {
    "loss": ("Training loss", "loss"),
    "dev": ("nDCG@10", "eval_dev_ndcg@10"),
    "bias": ("Logit bias", "logit_bias"),
    "logits": ("Mean logit", "mean_logit_relevant"),
    "merge": ("Dev and guard", ""),
}
"""Name of a plot -> start of its title, and the log field that it needs."""
FIGURES = {
    "loss": "loss",
    "logit bias (beta)": "logit_bias",
    "logit scale (alpha)": "logit_scale",
    "mean target": "mean_target",
    "gradient norm": "grad_norm",
    "learning rate": "learning_rate",
    "pairs per second": "train_pairs_per_second",
}
RELEVANCE_EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
SIGMA_EDGES = (0.0, 0.02, 0.1, 0.25, 0.5, 1.0)
"""Edges between shades; most unlabelled entries have a small sigma."""
DOUBTED = 10
"""Number of unlabelled entries that are listed per batch."""
AT_ONCE = 20
"""Likely false negatives per page."""


def training(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The current state of the run's files."""
    run = workspace.training
    run.look()
    record, last = run.record, run.last
    results, status = record.get("results") or {}, record.get("status", "running")
    optimizer = (record.get("config") or {}).get("optimizer") or {}
    epochs, steps = optimizer.get("epochs"), optimizer.get("steps")
    return {
        "run": str(workspace.run),
        "status": status,
        "is_live": status == "running",
        "version": run.version,
        "step": last.get("step", 0),
        "share": last.get("step", 0) / steps if steps else (last.get("epoch", 0.0) / epochs if epochs else None),
        "figures": {title: last[field] for title, field in FIGURES.items() if field in last},
        "panels": {
            name: title
            for name, (title, field) in PANELS.items()
            if field in last or (name == "merge" and run.merge_curve())
        },
        "dev": list(zip(*run.logged.get("eval_dev_ndcg@10", ([], [])), strict=False)),
        "best": results.get("best_step"),
        "merged": results.get("merge"),
        "regraded": run.regraded(),
        "command": shlex.join(["tail", "-f", str(workspace.run / LOG_FILE)]),
    }


def _panel(name: str, workspace: Workspace, visit: Visit) -> Plot | None:
    plots = workspace.training.plots()
    return next((plot for title, plot in plots.items() if title.startswith(PANELS[name][0])), None)


def batch(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The batch that the address names, counted from 1, and the likely false negatives of the run."""
    job = workspace.batches.start(visit.number("epoch") - 1, visit.number("batch") - 1)
    matrix: BatchMatrix | None = job.result
    values = {**_asked(workspace, visit), "matrix": matrix, "error": job.error, "loading": None}
    if matrix is None:
        return values if job.error else {**values, "loading": job.status}
    zeros = [
        {"sigma": sigma, "query": matrix.queries[row], "document": matrix.documents[column]}
        | {"row": row + 1, "column": column + 1}
        for sigma, row, column in matrix.highest_zeros(DOUBTED)
    ]
    return {**values, "shades": _shades(matrix), "zeros": zeros}


def _shades(matrix: BatchMatrix) -> list[dict[str, Any]]:
    """Each kind of entry with its count and its SVG path."""
    known = matrix.known
    sigma = matrix.sigma if matrix.sigma is not None else np.zeros_like(known)
    masks = {}
    for level, (low, high) in enumerate(pairwise(RELEVANCE_EDGES)):
        inside = (known >= low) & ((known < high) | (high == 1))
        masks[f"known-{level}"] = (f"known, relevance {low:g} to {high:g}", inside)
    masks["masked"] = ("masked: counts neither way", np.isnan(known))
    for level, (low, high) in enumerate(pairwise(SIGMA_EDGES)):
        inside = matrix.assumed & (sigma >= low) & ((sigma < high) | (high == 1))
        words = f"assumed zero, sigma {low:g} to {high:g}" if matrix.sigma is not None else "assumed zero"
        masks[f"zero-{level}"] = (words, inside)
    return [
        {"style": style, "words": words, "count": int(mask.sum()), "path": _path(mask)}
        for style, (words, mask) in masks.items()
        if mask.any()
    ]


def _path(mask: NDArray[np.bool_]) -> str:
    """The SVG path of rectangles of height 1, one per horizontal run of a (B, N) mask."""
    padded = np.pad(mask, ((0, 0), (1, 1))).astype(np.int8)
    steps = np.diff(padded, axis=1)
    (rows, starts), (_, ends) = np.nonzero(steps == 1), np.nonzero(steps == -1)
    return "".join(f"M{x} {y}h{end - x}v1h{x - end}z" for y, x, end in zip(rows, starts, ends, strict=True))


def _suspects(workspace: Workspace) -> list[dict[str, Any]]:
    """The pairs asked after the last epoch with questions, with the judge's relevance if there is one."""
    folder = workspace.run / REGRADE_FOLDER
    names = [path.name.removeprefix("epoch-").partition(".")[0] for path in folder.glob("epoch-*.asked.parquet")]
    epoch = max((int(name) for name in names if name.isdecimal()), default=None)
    if epoch is None:
        return []
    asked, answers = folder / f"epoch-{epoch}.asked.parquet", folder / f"epoch-{epoch}" / "pairs.parquet"
    changed = tuple(path.stat().st_mtime_ns for path in (asked, answers) if path.is_file())
    return _read(asked, answers, changed, epoch)


@lru_cache(maxsize=1)
def _read(asked: Path, answers: Path, changed: tuple[int, ...], epoch: int) -> list[dict[str, Any]]:
    """The rows of both files; `changed`, their times of change, makes the cache read them again."""
    suspects = read_table(asked, ["query_id", "query", "document_id", "document", "logit"]).to_pylist()
    rows = read_table(answers, ["query_id", "document_id", "relevance"]).to_pylist() if len(changed) > 1 else []
    judged = {(row["query_id"], row["document_id"]): row["relevance"] for row in rows}
    return [{**row, "epoch": epoch, "judge": judged.get((row["query_id"], row["document_id"]))} for row in suspects]


def _asked(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    suspects = _suspects(workspace)
    start = min(visit.number("start"), max(0, len(suspects) - 1))
    words = workspace.labels.words
    shown = []
    for row in suspects[start : start + AT_ONCE]:
        word = words.get((row["query_id"], row["document_id"]), {}).get(visit.person)
        sigma = 1 / (1 + np.exp(-row["logit"]))
        shown.append({**row, "own": word.grade if word is not None else None, "sigma": float(sigma)})
    command = None
    if suspects:
        judged = workspace.run / REGRADE_FOLDER / f"epoch-{suspects[0]['epoch']}" / "judgements.parquet"
        words_of_command = ("bixse", "grade", "audit", "--judge", judged, "--human", workspace.settings.labels_path)
        command = shlex.join(map(str, words_of_command))
    counts = {"number": len(suspects), "start": start, "step": AT_ONCE}
    return {"suspects": shown, **counts, **grading_form(workspace), "command": command}


def grade(workspace: Workspace, visit: Visit) -> str:
    """Write a person's grade of a likely false negative."""
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


PAGES = (
    Page(
        "training",
        "Training",
        training,
        lambda workspace: (workspace.run / LOG_FILE).is_file(),
        parts={"now": training},
        pictures={name: partial(_panel, name) for name in PANELS},
        news=lambda workspace: workspace.training.version,
    ),
    Page("batch", "Batch", batch, lambda workspace: workspace.record.get("command") == "train", {"grade": grade}),
)
