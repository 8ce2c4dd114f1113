"""`TrainBatches`: any batch of a training run, drawn as the trainer draws it, with what the model says of it now."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bixse.errors import InputError, thread_error
from bixse.training.config import MODEL_FOLDER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bixse.data.graded_pairs import GradedPairs
    from bixse.encoders.relevance_model import RelevanceModel
    from bixse.ui.runs.train_run import TrainRun

MOST_QUERIES, MOST_DOCUMENTS = 64, 256
"""Of a batch that are shown."""
BATCHES_KEPT = 8


@dataclass(frozen=True)
class BatchMatrix:
    """The (B, N) entries of a batch, as far as they are shown."""

    epoch: int
    number: int
    batches: int
    """Of an epoch."""
    whole: tuple[int, int]
    """(B, N) of the whole batch."""
    query_rows: list[int]
    document_rows: list[int]
    """Rows of the pairs that hold the texts."""
    known: NDArray[np.float64]
    """(B, N) given relevance in [0, 1], -1 where nobody gave one, NaN where the entry is masked."""
    sigma: NDArray[np.float64] | None
    """(B, N) probability of relevance; None without a model that says one."""

    @property
    def assumed(self) -> NDArray[np.bool_]:
        """(B, N) zeros that nobody gave."""
        found: NDArray[np.bool_] = self.known == -1
        return found

    def highest_zeros(self, number: int) -> list[tuple[float, int, int]]:
        """(sigma, row, column) of the assumed zeros that the model believes least, from the highest down."""
        if self.sigma is None:
            return []
        values = np.where(self.assumed, self.sigma, -1.0)
        order = np.argsort(-values, axis=None, kind="stable")[:number]
        places = (np.unravel_index(int(place), values.shape) for place in order)
        return [
            (float(values[row, column]), int(row), int(column)) for row, column in places if values[row, column] >= 0
        ]


class TrainBatches:
    """The batches of a run folder of `bixse train`; its pairs and its model are loaded in a thread, once."""

    def __init__(self, run: TrainRun) -> None:
        self.run = run
        self.error: str | None = None
        self.doing = "reading the pairs"
        self.pairs: GradedPairs | None = None
        self.model: RelevanceModel | None = None
        self._kept: dict[tuple[int, int], BatchMatrix] = {}
        self._threads: dict[Any, threading.Thread] = {}
        self._lock = threading.Lock()
        self._at_work = threading.Lock()

    def batch(self, epoch: int, number: int) -> BatchMatrix | None:
        """A batch, both counted from 0 and cut to what there is; None while it is being made (see `doing`, `error`)."""
        key = (max(0, epoch), max(0, number))
        with self._lock:
            if key not in self._kept and key not in self._threads and self.error is None:
                self._threads[key] = threading.Thread(target=self._make, args=(key,), daemon=True)
                self._threads[key].start()
            return self._kept.get(key)

    def wait(self, epoch: int, number: int) -> BatchMatrix | None:
        """Until it is made."""
        self.batch(epoch, number)
        for thread in list(self._threads.values()):
            thread.join()
        return self.batch(epoch, number)

    def _make(self, key: tuple[int, int]) -> None:
        try:
            with self._at_work:
                found = self._drawn(*key)
            with self._lock:
                for old in list(self._kept)[: -(BATCHES_KEPT - 1)]:
                    del self._kept[old]
                self._kept[key] = found
        except Exception as error:
            self.error = thread_error(error, "batch")
        finally:
            self._threads.pop(key, None)

    def _drawn(self, epoch: int, number: int) -> BatchMatrix:
        from bixse.data.pairs_files import load_several
        from bixse.encoders.loading.build import load_relevance_model
        from bixse.settings import paths_in
        from bixse.training.config import OptimizerConfig
        from bixse.training.loop.batches import BatchPlan, GradedCollator, GroupDataset

        config = self.run.record.get("config") or {}
        if not config.get("pairs"):
            raise InputError(
                f"{self.run.folder}: got no run.json with pairs; expected that of `bixse train`; fix: wait"
            )
        optimizer = OptimizerConfig.model_validate(config["optimizer"])
        if self.pairs is None:
            self.pairs = load_several(paths_in(config["pairs"]))
        folder = self.run.folder / MODEL_FOLDER
        if self.model is None and folder.is_dir():
            self.doing = "loading the model"
            self.model = load_relevance_model(folder)
        self.doing = "drawing the batch"
        plan = BatchPlan(self.pairs, optimizer.batch_size, config["seed"], config.get("task_shares"))
        plan.set_epoch(min(epoch, optimizer.epochs - 1))
        number = min(number, len(plan) - 1)
        indices = next(entries for place, entries in enumerate(plan) if place == number)
        dataset = GroupDataset(self.pairs, optimizer.documents_per_query, config["seed"])
        options = config.get("loss_options") or {}
        collate = GradedCollator(lambda *_, **__: {}, self.pairs, options.get("in_batch_labels", "known"))
        batch = collate([dataset[index] for index in indices])
        groups, documents = (part.numpy() for part in batch["numbers"])
        whole = (len(groups), len(documents))
        groups, documents = groups[:MOST_QUERIES], documents[:MOST_DOCUMENTS]
        rows, columns, relevance = (batch["label"][name].numpy() for name in ("rows", "columns", "relevance"))
        known = np.full(whole, -1.0)
        known[rows, columns] = relevance
        known = known[: len(groups), : len(documents)]
        query_rows = self.pairs.groups().first_rows[groups].tolist()
        document_rows = self.pairs.distinct("document")[documents].tolist()
        sigma = self._sigma(query_rows, document_rows)
        return BatchMatrix(plan.epoch, number, len(plan), whole, query_rows, document_rows, known, sigma)

    def _sigma(self, query_rows: list[int], document_rows: list[int]) -> NDArray[np.float64] | None:
        from bixse.encoders.encode import encode_texts

        if self.pairs is None or self.model is None or self.model.head is None:
            return None
        self.doing = "encoding the batch"
        queries = encode_texts(self.model, self.pairs.texts("query", query_rows), "query")
        documents = encode_texts(self.model, self.pairs.texts("document", document_rows), "document")
        return self.model.head.probability((queries @ documents.T).astype(np.float64))
