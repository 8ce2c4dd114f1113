"""Pages of a training run: its curves, from a log that may still grow, and one batch as the model sees it."""

from __future__ import annotations

import json
import shlex
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bixse.data.pairs_files import load_several
from bixse.data.run import read_record
from bixse.errors import InputError
from bixse.files.run_folder import RUN_FILE
from bixse.rendering.plots import DEV_FIELD, Plot, merge_plot, training_plots
from bixse.rendering.schema import MergeCurve, TrainingCurve, training_curve
from bixse.training.config import LOG_FILE, MODEL_FOLDER, TrainConfig
from bixse.ui.workspace import BackgroundJob, Page, Visit, Workspace

PANELS = {
    "loss": ("Training loss", "loss"),
    "dev": ("nDCG@10 on the development queries", DEV_FIELD),
    "bias": ("Logit bias beta", "logit_bias"),
    "logits": ("Mean logit", "mean_logit_relevant"),
    "merge": ("Dev and guard by weight of the tuned model", ""),
}
"""Name of a plot -> its title, or the start of it, and the log field that it needs."""
FIGURES = {
    "loss": "loss",
    "logit bias (beta)": "logit_bias",
    "logit scale (alpha)": "logit_scale",
    "cosine of probability .5": "cosine_at_half",
    "mean target": "mean_target",
    "gradient norm": "grad_norm",
    "learning rate": "learning_rate",
    "pairs per second": "train_pairs_per_second",
}


@dataclass(frozen=True)
class TrainState:
    """The log and the record of a run folder of `bixse train` at one time."""

    version: str
    record: dict[str, Any]
    """The content of run.json; empty if the file is missing or damaged."""
    last: dict[str, Any]
    """Field of the log -> newest value."""
    curve: TrainingCurve
    merge: MergeCurve | None
    """The scores of the tried merge weights; None if the model was not merged."""

    @cached_property
    def plots(self) -> dict[str, Plot]:
        """Title -> plot; draw them in one thread at a time, as matplotlib requires."""
        merged = {} if self.merge is None else {PANELS["merge"][0]: merge_plot(self.merge)}
        return training_plots([self.curve]) | merged


def train_state(folder: Path) -> TrainState:
    """Read the files of a run folder, again only if they changed."""
    # the version is part of an id, of which htmx makes a selector: no dots
    paths = (folder / LOG_FILE, folder / RUN_FILE)
    version = "-".join(f"{(now := path.stat()).st_size}-{now.st_mtime_ns}" for path in paths if path.is_file())
    with _READING:  # the page and its pictures come together: the log is parsed once, and plots are drawn once
        return _train_state(folder, version)


_READING = threading.Lock()


@lru_cache(maxsize=1)
def _train_state(folder: Path, version: str) -> TrainState:
    entries = []
    with suppress(FileNotFoundError), (folder / LOG_FILE).open("rb") as file:
        for line in file:
            with suppress(ValueError):  # a damaged line, or the last line before it is complete
                entry = json.loads(line)
                if isinstance(entry, dict) and isinstance(entry.get("step"), int):
                    entries.append(entry)
    record: dict[str, Any] = {}
    with suppress(InputError):
        record = read_record(folder / RUN_FILE)
    last = {name: value for entry in entries for name, value in entry.items() if value is not None}
    name, results = folder.resolve().name, record.get("results", {})
    merged = results.get("merge") or {}
    merge = None
    if merged.get("points"):
        guards = sorted({change["collection"] for change in merged["changes"] if change["role"] == "guard"})
        drawn: Any = {key: merged.get(key) for key in ("weight", "points", "tolerance")}
        merge = MergeCurve(system=name, guards=guards, **drawn)
    return TrainState(version, record, last, training_curve(name, entries, results.get("best_step")), merge)


def training(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The current state of the run's files."""
    state = train_state(workspace.run)
    record, last = state.record, state.last
    optimizer = record.get("config", {}).get("optimizer", {})
    epochs, steps = optimizer.get("num_train_epochs"), optimizer.get("max_steps")
    return {
        "version": state.version,
        "results": record.get("results", {}),
        "status": record.get("status", "running"),
        "step": last.get("step", 0),
        "share": last.get("step", 0) / steps if steps else (last.get("epoch", 0.0) / epochs if epochs else None),
        "figures": {title: last[field] for title, field in FIGURES.items() if field in last},
        "panels": {name: title for name, (title, field) in PANELS.items() if (field in last if field else state.merge)},
        "dev": state.curve.logged.get(DEV_FIELD, []),
        "command": shlex.join(["tail", "-f", str(workspace.run / LOG_FILE)]),
    }


def _panel(name: str, workspace: Workspace, visit: Visit) -> str | None:
    plots = train_state(workspace.run).plots
    return next((plot.svg for title, plot in plots.items() if title.startswith(PANELS[name][0])), None)


RELEVANCE_EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
SIGMA_EDGES = (0.0, 0.02, 0.1, 0.25, 0.5, 1.0)  # edges between shades; most unlabelled entries have a small sigma
MOST_DOUBTFUL = 10  # number of unlabelled entries that are listed per batch
MOST_QUERIES, MOST_DOCUMENTS = 64, 256  # shown part of a batch
CACHED_BATCHES = 8


@dataclass(frozen=True)
class BatchMatrix:
    """The shown (B, N) entries of a batch."""

    epoch: int
    number: int
    batches: int  # number of batches per epoch
    shape: tuple[int, int]  # shape (B, N) of the complete batch
    queries: list[str]
    documents: list[str]
    known: NDArray[np.float64]  # (B, N) relevance in [0, 1]; -1 for unlabelled entries, NaN for masked entries
    sigma: NDArray[np.float64] | None  # (B, N) probability of relevance; None without a model that has a relevance head

    @property
    def unlabelled(self) -> NDArray[np.bool_]:
        """The (B, N) mask of unlabelled entries."""
        return np.equal(self.known, -1)


class TrainBatches:
    """The batches of a run folder of `bixse train`; a thread loads the pairs and the model, once."""

    def __init__(self, workspace: Workspace) -> None:
        self.folder = workspace.run
        self._pairs: Any = None
        self._model: Any = None
        self._lock = threading.Lock()
        self._encoding = threading.Lock()
        # a cache on the class would keep instances alive
        self.jobs = lru_cache(CACHED_BATCHES)(lambda *wanted: BackgroundJob("batch", partial(self._drawn, *wanted)))

    def start(self, epoch: int, number: int) -> BackgroundJob:
        """Start the job that draws a `BatchMatrix`; both indices count from 0 and are clipped to the run's batches."""
        with self._lock:  # two requests must not start one batch twice
            return self.jobs(max(0, epoch), max(0, number), (self.folder / MODEL_FOLDER).is_dir())

    def _drawn(self, epoch: int, number: int, has_model: bool, job: BackgroundJob) -> BatchMatrix:
        from bixse.encoders.loading.load_scorer import load_relevance_model
        from bixse.training.loop.batches import BatchPlan, GradedCollator, GroupDataset

        job.begin("reading the pairs")
        settings = read_record(self.folder / RUN_FILE)["config"]
        if not settings.get("pairs"):
            raise InputError(
                f"{self.folder}: got no run.json with pairs; expected a run of `bixse train`; fix: wait for its start"
            )
        # an earlier version had more settings
        config = TrainConfig.load(None, {key: settings[key] for key in settings.keys() & TrainConfig.model_fields})
        optimizer = config.optimizer
        with self._encoding:  # pairs and model are loaded once, and one batch is encoded at a time
            if self._pairs is None:
                starts = [Path(), *self.folder.resolve().parents]  # training was started here, or above the run
                candidates = [[start / file for start in starts] for file in config.pair_files]
                self._pairs = load_several([next(filter(Path.exists, paths), paths[0]) for paths in candidates])
            if self._model is None and has_model and "kind" not in settings:  # other kinds have no cosines
                job.begin("loading the model")
                self._model = load_relevance_model(self.folder / MODEL_FOLDER)
            job.begin("drawing the batch")
            pairs = self._pairs
            plan = BatchPlan(pairs, optimizer.global_batch_size, config.seed, config.task_shares)
            plan.set_epoch(min(epoch, optimizer.num_train_epochs - 1))
            number = min(number, len(plan) - 1)
            dataset = GroupDataset(pairs, optimizer.documents_per_query, config.seed)
            collate = GradedCollator(lambda *_, **__: {}, pairs, config.loss_options.get("in_batch_labels", "known"))
            batch = collate([dataset[index] for index in list(plan)[number]])
            groups, documents = (part.numpy() for part in batch["numbers"])
            rows, columns, relevance = (batch["label"][name].numpy() for name in ("rows", "columns", "relevance"))
            known = np.full((len(groups), len(documents)), -1.0)
            known[rows, columns] = relevance
            queries = pairs.texts("query", pairs.groups().first_rows[groups[:MOST_QUERIES]].tolist())
            texts = pairs.texts("document", pairs.distinct("document")[documents[:MOST_DOCUMENTS]].tolist())
            sigma = self._sigma(job, queries, texts)
        shown = known[:MOST_QUERIES, :MOST_DOCUMENTS]
        return BatchMatrix(plan.epoch, number, len(plan), known.shape, queries, texts, shown, sigma)

    def _sigma(self, job: BackgroundJob, queries: list[str], documents: list[str]) -> NDArray[np.float64] | None:
        from bixse.encoders.encode import encode_texts

        if self._model is None or self._model.head is None:
            return None
        job.begin("encoding the batch")
        cosines = encode_texts(self._model, queries, "query") @ encode_texts(self._model, documents, "document").T
        return np.asarray(self._model.head.probability(cosines.astype(np.float64)))


def batch(workspace: Workspace, visit: Visit) -> dict[str, Any]:
    """The batch that the address names and an entry of it, counted from 1."""
    batches = workspace.once(TrainBatches)
    epoch, number, row, column = (int(visit.real(name) or 0) for name in ("epoch", "batch", "row", "column"))
    job = batches.start(epoch - 1, number - 1)
    if job.error and not job.is_running:  # this page shows the error, and the next look begins anew
        batches.jobs.cache_clear()
    job.check()
    matrix: BatchMatrix = job.result
    rows, columns = matrix.known.shape
    is_shown = 1 <= row <= rows and 1 <= column <= columns
    entry = _entry_of(matrix, row - 1, column - 1) if is_shown else None
    return {"matrix": matrix, "shades": _shades(matrix), "zeros": _doubtful(matrix), "entry": entry}


def _entry_of(matrix: BatchMatrix, row: int, column: int) -> dict[str, Any]:
    sigma = None if matrix.sigma is None else float(matrix.sigma[row, column])
    texts = {"query": matrix.queries[row], "document": matrix.documents[column]}
    return {**texts, "row": row + 1, "column": column + 1, "known": float(matrix.known[row, column]), "sigma": sigma}


def _doubtful(matrix: BatchMatrix) -> list[dict[str, Any]]:
    """The unlabelled entries with the highest sigma, in descending order."""
    if matrix.sigma is None:
        return []
    values = np.where(matrix.unlabelled, matrix.sigma, -1.0)
    order = np.argsort(-values, axis=None, kind="stable")[:MOST_DOUBTFUL]
    positions = zip(*(side.tolist() for side in np.unravel_index(order, values.shape)), strict=True)
    return [_entry_of(matrix, *position) for position in positions if matrix.unlabelled[position]]


def _shades(matrix: BatchMatrix) -> list[dict[str, Any]]:
    """Each kind of entry with its count and its SVG path."""
    known, sigma = matrix.known, np.zeros_like(matrix.known) if matrix.sigma is None else matrix.sigma
    masks = {"masked": ("masked: counts neither way", np.isnan(known))}
    for level, (low, high) in enumerate(pairwise(RELEVANCE_EDGES)):
        inside = (known >= 0) & (np.digitize(known, RELEVANCE_EDGES[1:-1]) == level)
        masks[f"known-{level}"] = (f"known, relevance {low:g} to {high:g}", inside)
    for level, (low, high) in enumerate(pairwise(SIGMA_EDGES)):
        title = "taken as irrelevant" + ("" if matrix.sigma is None else f", probability {low:g} to {high:g}")
        masks[f"zero-{level}"] = (title, matrix.unlabelled & (np.digitize(sigma, SIGMA_EDGES[1:-1]) == level))
    return [
        {"style": style, "title": title, "count": int(mask.sum()), "path": _path(mask)}
        for style, (title, mask) in masks.items()
        if mask.any()
    ]


def _path(mask: NDArray[np.bool_]) -> str:
    """The SVG path of rectangles of height 1, one per horizontal run of a (B, N) mask."""
    padded = np.pad(mask, ((0, 0), (1, 1))).astype(np.int8)
    steps = np.diff(padded, axis=1)
    (rows, starts), (_, ends) = np.nonzero(steps == 1), np.nonzero(steps == -1)
    return "".join(f"M{x} {y}h{end - x}v1h{x - end}z" for y, x, end in zip(rows, starts, ends, strict=True))


def _has_batches(workspace: Workspace) -> bool:
    record = workspace.record  # a reranker of an earlier version read pairs or lists, and no matrix of a batch
    return record.get("command") == "train" and record["config"].get("kind") != "reranker"


NOW, PICTURES = {"now": training}, {name: partial(_panel, name) for name in PANELS}
PAGES = (
    Page("training", "Training", training, lambda of: (of.run / LOG_FILE).is_file(), {}, NOW, PICTURES),
    Page("batch", "Batch", batch, _has_batches, parts={"entry": batch}),
)
