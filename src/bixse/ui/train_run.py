"""`TrainRun` and `TrainBatches`: the growing log of a training run, and its batches as the model sees them."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bixse.data.run import RUN_FILE
from bixse.errors import InputError
from bixse.files.files import read_text
from bixse.training.config import LOG_FILE, MODEL_FOLDER, REGRADE_FOLDER
from bixse.ui.background import BackgroundJob

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from bixse.data.graded_pairs import GradedPairs
    from bixse.report.plots import Plot
    from bixse.report.schema import MergeCurve, TrainingCurve

LONGEST_CURVE = 1000
"""Maximum number of points of a curve; plots thin it further."""
MOST_QUERIES, MOST_DOCUMENTS = 64, 256
"""Shown part of a batch."""
BATCHES_KEPT = 8


def runs_below(root: Path) -> Iterator[Path]:
    """The folders with a run.json: the root, and folders up to two levels below it."""
    for pattern in (RUN_FILE, f"*/{RUN_FILE}", f"*/*/{RUN_FILE}"):
        yield from (path.parent for path in sorted(root.glob(pattern)))


def read_record(folder: Path) -> dict[str, Any]:
    """Return the content of a folder's run.json, empty if there is none; raise InputError if it is damaged."""
    path = folder / RUN_FILE
    try:
        record = json.loads(read_text(path)) if path.is_file() else {}
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise InputError(f"{path}: got a damaged record; expected the JSON that bixse wrote; fix: fetch it again")
    return record


class TrainRun:
    """A run folder of `bixse train`; each look reads the lines added since the last look."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, folder.resolve().name
        self._begin()
        self._lock = threading.Lock()
        self._drawn: tuple[str, dict[str, Plot]] = ("", {})

    def _begin(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.last: dict[str, Any] = {}
        """Field -> newest value."""
        self.logged: dict[str, tuple[list[int], list[float]]] = {}
        """Field -> steps and finite values, in the order of the log."""
        self._read = 0

    @property
    def version(self) -> str:
        """A text that changes with the log and the record."""
        paths = (self.folder / LOG_FILE, self.folder / RUN_FILE)
        return "-".join(f"{(now := path.stat()).st_size}.{now.st_mtime_ns}" for path in paths if path.is_file())

    def look(self) -> list[dict[str, Any]]:
        """Read and return all entries; a line counts once it is complete, and a damaged line never counts."""
        path = self.folder / LOG_FILE
        with self._lock:
            size = path.stat().st_size if path.is_file() else 0
            if size < self._read:  # the run was restarted
                self._begin()
            if size > self._read:
                with path.open("rb") as file:
                    file.seek(self._read)
                    new = file.read()
                complete = new.rfind(b"\n") + 1
                self._read += complete
                entries = filter(None, map(_entry, new[:complete].splitlines()))
                added = [entry for entry in entries if isinstance(entry.get("step"), int)]
                self.entries = [*self.entries, *added]
                for entry in added:
                    self.last.update((name, value) for name, value in entry.items() if value is not None)
                    for name, value in entry.items():
                        if isinstance(value, int | float) and math.isfinite(value):
                            steps, values = self.logged.setdefault(name, ([], []))
                            steps.append(entry["step"])
                            values.append(value)
            return self.entries

    @property
    def record(self) -> dict[str, Any]:
        """The content of run.json; empty if the file is missing or damaged."""
        try:
            return read_record(self.folder)
        except InputError:
            return {}

    @property
    def results(self) -> dict[str, Any]:
        return self.record.get("results") or {}

    def curve(self) -> TrainingCurve:
        """The log as a curve. A long log is thinned, as the curve is drawn again for every new line."""
        from bixse.report.schema import training_curve

        self.look()
        thin = [
            {"step": step, name: value}
            for name, logged in list(self.logged.items())
            for step, value in _thinned(*logged)
        ]
        return training_curve(self.name, thin, self.results.get("best_step"))

    def merge_curve(self) -> MergeCurve | None:
        """The scores of the tried merge weights; None if the model was not merged."""
        from bixse.report.schema import MergeCurve

        merged = self.results.get("merge")
        if not merged or not merged["points"]:
            return None
        guards = sorted({change["collection"] for change in merged["changes"] if change["role"] == "guard"})
        return MergeCurve(system=self.name, weight=merged["weight"], points=merged["points"], guards=guards)

    def regraded(self) -> list[dict[str, Any]]:
        """The results of regrading after each epoch so far."""
        files = (self.folder / REGRADE_FOLDER).glob("epoch-*.json")
        found = [entry for path in files if (entry := _entry(path.read_bytes())) is not None]
        return sorted(found, key=lambda entry: entry.get("epoch", 0))

    def plots(self) -> dict[str, Plot]:
        """Title -> plot, drawn once per state of the files; call it in one thread at a time, as matplotlib requires."""
        from bixse.report.plots import merge_plot, training_plots

        version = self.version
        if version != self._drawn[0]:
            drawn = training_plots([self.curve()])
            merge = self.merge_curve()
            if merge is not None:
                drawn["Dev and guard against the weight of the tuned model"] = merge_plot(merge)
            self._drawn = (version, drawn)
        return self._drawn[1]


def _thinned(steps: list[int], values: list[float]) -> Iterator[tuple[int, float]]:
    """Yield at most LONGEST_CURVE points, which are means of neighbours."""
    if len(steps) <= LONGEST_CURVE:
        yield from zip(steps, values, strict=False)  # another thread may append meanwhile
        return
    count = len(values)
    edges = np.linspace(0, count, LONGEST_CURVE + 1).astype(int)
    sums = (np.add.reduceat(np.array(side[:count], dtype=np.float64), edges[:-1]) for side in (steps, values))
    at, mean = (side / np.diff(edges) for side in sums)
    yield from zip(at.round().astype(int).tolist(), mean.tolist(), strict=True)


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and ("step" in found or "epoch" in found) else None


@dataclass(frozen=True)
class BatchMatrix:
    """The shown (B, N) entries of a batch."""

    epoch: int
    number: int
    batches: int
    """Number of batches per epoch."""
    whole: tuple[int, int]
    """Shape (B, N) of the complete batch."""
    queries: list[str]
    documents: list[str]
    known: NDArray[np.float64]
    """(B, N) relevance in [0, 1]; -1 for unlabelled entries, NaN for masked entries."""
    sigma: NDArray[np.float64] | None
    """(B, N) probability of relevance; None without a model that has a relevance head."""

    @property
    def assumed(self) -> NDArray[np.bool_]:
        """The (B, N) mask of unlabelled entries."""
        return np.equal(self.known, -1)

    def highest_zeros(self, number: int) -> list[tuple[float, int, int]]:
        """The (sigma, row, column) of the unlabelled entries with the highest sigma, in descending order."""
        if self.sigma is None:
            return []
        values = np.where(self.assumed, self.sigma, -1.0)
        order = np.argsort(-values, axis=None, kind="stable")[:number]
        rows, columns = (side.tolist() for side in np.unravel_index(order, values.shape))
        zeros = zip(values[rows, columns].tolist(), rows, columns, strict=True)
        return [zero for zero in zeros if zero[0] >= 0]


class TrainBatches:
    """The batches of a run folder of `bixse train`; a thread loads the pairs and the model, once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pairs: GradedPairs | None = None
        self._model: Any = None
        self._jobs: dict[tuple[int, int], BackgroundJob] = {}
        self._lock = threading.Lock()
        self._at_work = threading.Lock()

    def start(self, epoch: int, number: int) -> BackgroundJob:
        """Start the job that draws a `BatchMatrix`; both indices count from 0 and are clipped to the run's batches."""
        key = (max(0, epoch), max(0, number))
        with self._lock:
            if key not in self._jobs:
                for old in [old for old, job in self._jobs.items() if not job.is_running][: -(BATCHES_KEPT - 1)]:
                    del self._jobs[old]
                self._jobs[key] = BackgroundJob("batch", lambda job: self._drawn(job, *key))
            return self._jobs[key]

    def _drawn(self, job: BackgroundJob, epoch: int, number: int) -> BatchMatrix:
        from bixse.data.pairs_files import load_several
        from bixse.encoders.loading.build import load_relevance_model
        from bixse.settings import paths_in
        from bixse.training.config import TrainConfig
        from bixse.training.loop.batches import BatchPlan, GradedCollator, GroupDataset

        job.begin("reading the pairs")
        settings = read_record(self.folder).get("config") or {}
        if not settings.get("pairs"):
            raise InputError(f"{self.folder}: got no run.json with pairs; expected that of `bixse train`; fix: wait")
        config = TrainConfig.load(None, settings)
        optimizer = config.optimizer
        with self._at_work:  # pairs and model are loaded once, and one batch is encoded at a time
            if self._pairs is None:
                self._pairs = load_several(paths_in(config.pairs))
            if self._model is None and (self.folder / MODEL_FOLDER).is_dir():
                job.begin("loading the model")
                self._model = load_relevance_model(self.folder / MODEL_FOLDER)
            job.begin("drawing the batch")
            pairs = self._pairs
            plan = BatchPlan(pairs, optimizer.batch_size, config.seed, config.task_shares)
            plan.set_epoch(min(epoch, optimizer.epochs - 1))
            number = min(number, len(plan) - 1)
            dataset = GroupDataset(pairs, optimizer.documents_per_query, config.seed)
            collate = GradedCollator(lambda *_, **__: {}, pairs, config.loss_options.get("in_batch_labels", "known"))
            batch = collate([dataset[index] for index in list(plan)[number]])
            groups, documents = (part.numpy() for part in batch["numbers"])
            whole = (len(groups), len(documents))
            rows, columns, relevance = (batch["label"][name].numpy() for name in ("rows", "columns", "relevance"))
            known = np.full(whole, -1.0)
            known[rows, columns] = relevance
            known = known[:MOST_QUERIES, :MOST_DOCUMENTS]
            texts = (
                pairs.texts("query", pairs.groups().first_rows[groups[:MOST_QUERIES]].tolist()),
                pairs.texts("document", pairs.distinct("document")[documents[:MOST_DOCUMENTS]].tolist()),
            )
            sigma = self._sigma(job, *texts)
        return BatchMatrix(plan.epoch, number, len(plan), whole, *texts, known, sigma)

    def _sigma(self, job: BackgroundJob, queries: list[str], documents: list[str]) -> NDArray[np.float64] | None:
        from bixse.encoders.encode import encode_texts

        if self._model is None or self._model.head is None:
            return None
        job.begin("encoding the batch")
        cosines = encode_texts(self._model, queries, "query") @ encode_texts(self._model, documents, "document").T
        sigma: NDArray[np.float64] = self._model.head.probability(cosines.astype(np.float64))
        return sigma
