"""Grade likely false negatives between epochs: the unlabelled entries with the highest logits."""

from __future__ import annotations

import json
import logging
import signal
import threading
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from accelerate.utils import broadcast_object_list, gather_object
from safetensors.torch import load, save
from transformers import TrainerCallback

from bixse.data.graded_pairs import Pair
from bixse.data.run import RUN_FILE
from bixse.errors import BixseError, InputError, InterruptedRunError, OutputExistsError, StorageError
from bixse.files.files import read_text, write_atomically
from bixse.files.parquet import read_table, save_table
from bixse.judging.grade import PAIRS_NAME, Estimate, estimate, grade, spending_of
from bixse.judging.judge import NOTHING
from bixse.judging.spending import LEDGER_NAME, OverBudgetError
from bixse.results import RegradedEpoch
from bixse.training.config import REGRADE_FOLDER
from bixse.training.distributed import is_main_process, raise_together, world_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from bixse.data.graded_pairs import GradedPairs
    from bixse.judging.judge import Judge
    from bixse.judging.open_judge import GradeConfig
    from bixse.losses import GradedLoss, GradedTargets
    from bixse.training.config import RegradeConfig
    from bixse.training.loop.trainer import GradedTrainer


log = logging.getLogger(__name__)

COLLECTED_PER_PAIR = 8
"""Candidates kept per pair of the budget, since some have a grade that the batch does not know."""


class _Grades(NamedTuple):
    """New grades by the numbers of groups and documents."""

    groups: NDArray[np.int64]
    documents: NDArray[np.int64]
    relevance: NDArray[np.float64]


class Regrading(TrainerCallback):
    """A callback that asks a judge before every epoch but the first, after the checkpoint of the previous epoch.

    All ranks agree on the pairs; the first rank asks, and broadcasts the answers. The grades then count like those of
    the data set. A resumed run reads the grades of earlier epochs from its folder. Raise InputError for a single epoch,
    or a loss that ignores unlabelled entries; raise BixseError for a judge that cannot be opened.
    """

    def __init__(self, config: RegradeConfig, out: Path, trainer: GradedTrainer, steps: int, per_epoch: int) -> None:
        self.config, self.folder, self.trainer = config, out / REGRADE_FOLDER, trainer
        self.steps_per_epoch = per_epoch
        self.judging, self.epochs = _judging(config, self.folder), list[RegradedEpoch]()
        if steps <= per_epoch:
            raise InputError(
                "regrade: got a run that ends with its first epoch; expected two epochs or more, as grades count from "
                "the next epoch on; fix: raise num_train_epochs or max_steps"
            )
        if not trainer.loss.assumes_zeros:
            raise InputError(
                f"regrade: got {type(trainer.loss).__name__}, which ignores documents without a grade; expected a loss "
                "that counts them as irrelevant; fix: choose another loss, or leave regrade out"
            )
        self.unlabelled = trainer.collector = UnlabelledCollector(trainer.loss, COLLECTED_PER_PAIR * config.budget)
        if is_main_process():
            with suppress(OverBudgetError):  # a resumed run trains on with the known grades
                self._open().close()  # a wrong judge should fail here, not after the first epoch

    def warnings(self) -> list[str]:
        return [
            f"regrade: after epoch {epoch.epoch} {epoch.asked - epoch.graded} of {epoch.asked} pairs got no grade "
            f"({epoch.failure or f'see {self._answers(epoch.epoch)}'}): they stay 0"
            for epoch in self.epochs
            if epoch.graded < epoch.asked
        ]

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Add the grades of all earlier epochs, and ask for the missing ones."""
        for epoch in range(len(self.epochs) + 1, state.global_step // self.steps_per_epoch + 1):
            unlabelled = self.unlabelled.of_all_processes()
            shared: list[Any] = [None]
            with raise_together():
                if is_main_process():
                    done = self._done(epoch)
                    shared = [(done is None, *(done or self._asked(unlabelled, epoch)))]
            if world_size() > 1:
                broadcast_object_list(shared)
            asked_now, regraded, grades = shared[0]
            # otherwise the checkpoint's candidates belong to the continued epoch
            if asked_now or state.global_step == epoch * self.steps_per_epoch:
                self.unlabelled.entries = UnlabelledEntries.none()
            if len(grades.groups):
                self.trainer.add_grades(*grades)
            self.epochs.append(regraded)
            self.unlabelled.most += regraded.asked  # asked pairs stay among the highest-scoring entries

    def _done(self, epoch: int) -> tuple[RegradedEpoch, _Grades] | None:
        """Return the saved result of an epoch, or None."""
        file = self._summary(epoch)
        if not file.is_file():
            return None
        return RegradedEpoch(**json.loads(read_text(file))), self._grades(read_table(self._pairs(epoch)), epoch)

    def _asked(self, unlabelled: UnlabelledEntries, epoch: int) -> tuple[RegradedEpoch, _Grades]:
        """Choose pairs and ask about them; unanswered pairs stay zeros."""
        if self._pairs(epoch).is_file():  # chosen before this run was killed
            asked = read_table(self._pairs(epoch))
        else:
            asked = self._table(self._chosen(unlabelled, epoch))
            self.folder.mkdir(parents=True, exist_ok=True)
            save_table(asked, self._pairs(epoch))
        failure = self._ask(asked, epoch) if len(asked) else None
        grades = self._grades(asked, epoch)
        learns_probability = hasattr(self.trainer.loss.with_head, "logit_bias")
        logits = asked["logit"].to_numpy()
        probability = float((1 / (1 + np.exp(-logits))).mean()) if len(asked) and learns_probability else None
        relevance = grades.relevance
        regraded = RegradedEpoch(
            epoch=epoch,
            asked=len(asked),
            graded=len(relevance),
            relevant=int((relevance >= 0.5).sum()),
            mean_relevance=float(relevance.mean()) if len(relevance) else None,
            mean_probability=probability,
            usd=self._usd(epoch),
            failure=failure,
        )
        write_atomically(self._summary(epoch), json.dumps(asdict(regraded)) + "\n")
        log.info("%s", regraded.line())
        return regraded, grades

    def _ask(self, asked: pa.Table, epoch: int) -> str | None:
        """Grade the pairs; return why the judge stopped, or None."""
        rows = asked.select(["query_id", "query", "document_id", "document"]).to_pylist()
        try:
            with _stopped_by_signals(), closing(self._open()) as judge:
                result = grade(self.judging, judge, self._answers(epoch), [Pair(**row) for row in rows])
        except (StorageError, OutputExistsError, InterruptedRunError):
            raise
        except (BixseError, torch.OutOfMemoryError) as error:
            log.warning("regrade: %s; training continues with the known grades", error)
            return str(error).partition("; ")[0]
        return result.summary.stopped

    def _open(self) -> Judge:
        return self.judging.open(spending_of(self.folder, self.judging.ledger, self.judging.prices))

    def _usd(self, epoch: int) -> float | None:
        """Return the price of the answers of an epoch so far, also of those that a shared ledger had."""
        record = self._answers(epoch) / RUN_FILE
        results = json.loads(read_text(record))["results"] if record.is_file() else {}
        usd: float | None = (results.get("summary") or {"usd": self.judging.prices.usd(NOTHING)}).get("usd")
        return usd

    def _pairs(self, epoch: int) -> Path:
        """Return the file of chosen pairs, written before the first question, so that a killed run asks the same."""
        return self.folder / f"epoch-{epoch}.asked.parquet"

    def _answers(self, epoch: int) -> Path:
        return self.folder / f"epoch-{epoch}"

    def _summary(self, epoch: int) -> Path:
        """Return the file that is written after the last question."""
        return self.folder / f"epoch-{epoch}.json"

    def _chosen(self, unlabelled: UnlabelledEntries, epoch: int) -> UnlabelledEntries:
        """Return the pairs with the highest logits that are neither graded nor asked before, each text once."""
        known: Any = self.trainer.data_collator
        rows, entries = known.known.of(unlabelled.groups)
        free = np.ones(len(unlabelled.groups), dtype=bool)
        free[rows[known.known.documents[entries] == unlabelled.documents[rows]]] = False
        query_of = known.known.query_of_group
        seen = {
            (query_of[group], document)
            for earlier in range(1, epoch)
            for group, document in zip(*_numbers(read_table(self._pairs(earlier))), strict=True)
        }
        for position, (group, document) in enumerate(zip(unlabelled.groups, unlabelled.documents, strict=True)):
            free[position] &= (query_of[group], document) not in seen
            seen.add((query_of[group], document))
        return unlabelled.where(free).first(self.config.budget)

    def _table(self, chosen: UnlabelledEntries) -> pa.Table:
        pairs = self.trainer.pairs
        queries, documents = pairs.groups().first_rows[chosen.groups], pairs.distinct("document")[chosen.documents]
        return pa.table(
            {
                "query_id": pa.array([pairs.query_ids[row] for row in queries], pa.string()),
                "query": pa.array(pairs.texts("query", queries), pa.string()),
                "document_id": pa.array([pairs.document_ids[row] for row in documents], pa.string()),
                "document": pa.array(pairs.texts("document", documents), pa.string()),
                "query_group": chosen.groups,
                "document_number": chosen.documents,
                "logit": chosen.logits.astype(np.float64),
            }
        )

    def _grades(self, asked: pa.Table, epoch: int) -> _Grades:
        answers = self._answers(epoch) / PAIRS_NAME
        graded: dict[tuple[str, str], float] = {}
        if answers.is_file():
            rows = read_table(answers, ["query_id", "document_id", "relevance"]).to_pylist()
            graded = {(row["query_id"], row["document_id"]): row["relevance"] for row in rows}
        keys = zip(asked["query_id"].to_pylist(), asked["document_id"].to_pylist(), strict=True)
        relevance = np.array([graded.get(key, np.nan) for key in keys], dtype=np.float64)
        got = ~np.isnan(relevance)
        groups, documents = _numbers(asked)
        return _Grades(groups[got], documents[got], relevance[got])

    @staticmethod
    def estimate(config: RegradeConfig, pairs: GradedPairs, rounds: int, scratch: Path) -> Estimate:
        """Estimate the cost of all questions from as many random pairs of the training texts, without asking."""
        number = config.budget * rounds
        generator = np.random.default_rng(0)
        groups, documents = pairs.groups(), pairs.distinct("document")
        drawn = generator.integers(len(groups), size=number), generator.integers(len(documents), size=number)
        queries = pairs.texts("query", groups.first_rows[drawn[0]])
        others = pairs.texts("document", documents[drawn[1]])
        asked = [Pair(str(n), query, str(n), text) for n, (query, text) in enumerate(zip(queries, others, strict=True))]
        judging = _judging(config, scratch)
        with closing(judging.open()) as judge:
            return estimate(judging, judge, scratch, asked)


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM stop the questions at once; training itself ends after its step."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread handles signals
        yield
        return
    before = {number: signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _numbers(asked: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return asked["query_group"].to_numpy(), asked["document_number"].to_numpy()


def _judging(config: RegradeConfig, folder: Path) -> GradeConfig:
    judging: GradeConfig = config.judging()
    return judging.model_copy(update={"ledger": config.ledger or folder / LEDGER_NAME})


UNLABELLED_FILE = "unlabelled.safetensors"
"""File of a checkpoint with the entries of the epoch so far."""
ENTRIES_LOOKED_AT = 2**20
"""Maximum entries of a batch to score; a larger batch has some rows scored, the next batch other rows."""


class UnlabelledEntries(NamedTuple):
    """The M likely false negatives: unlabelled entries that score high, each listed once."""

    groups: NDArray[np.int64]
    """(M,) number of the query's group."""
    documents: NDArray[np.int64]
    """(M,) number of the document in `GradedPairs.document_numbers`."""
    logits: NDArray[np.float32]
    """(M,) highest logit of the entry in any batch of the epoch."""

    @classmethod
    def none(cls) -> UnlabelledEntries:
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32))

    @classmethod
    def joined(cls, parts: Sequence[UnlabelledEntries], most: int) -> UnlabelledEntries:
        """Return the highest `most` entries of `parts`, each once with its highest logit, in descending order.

        Example:
            >>> one = UnlabelledEntries(np.array([0, 0]), np.array([5, 7]), np.array([1.0, 3.0]))
            >>> two = UnlabelledEntries(np.array([0]), np.array([5]), np.array([2.0]))
            >>> UnlabelledEntries.joined([one, two], most=2).logits.tolist()
            [3.0, 2.0]
        """
        groups, documents, logits = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((documents, groups, -logits))  # a fixed order among equal logits
        entries = (groups[order] << 32) | documents[order]  # one key per entry: document numbers are int32
        first = order[np.sort(np.unique(entries, return_index=True)[1])[:most]]
        return cls(groups[first], documents[first], logits[first])

    def first(self, number: int) -> UnlabelledEntries:
        return UnlabelledEntries(self.groups[:number], self.documents[:number], self.logits[:number])

    def where(self, chosen: NDArray[np.bool_]) -> UnlabelledEntries:
        return UnlabelledEntries(self.groups[chosen], self.documents[chosen], self.logits[chosen])


class UnlabelledCollector:
    """Collect the `most` unlabelled entries with the highest logits over all batches."""

    def __init__(self, loss: GradedLoss, most: int) -> None:
        self.loss, self.most = loss, most
        self.step = 0
        """Training step, which selects the scored rows of a large batch."""
        self.groups = self.documents = np.empty(0, np.int64)
        """(B,) groups and (N,) documents of the next batch."""
        self.entries = UnlabelledEntries.none()

    def begin(self, groups: NDArray[np.int64], documents: NDArray[np.int64], step: int) -> None:
        """Note the numbers of the batch whose embeddings `look` gets next."""
        self.groups, self.documents, self.step = groups, documents, step

    @torch.no_grad()
    def look(self, queries: torch.Tensor, documents: torch.Tensor, targets: GradedTargets) -> None:
        """Score (B, D) queries and (N, D) documents, L2-normalised; the loss calls this."""
        stride = max(1, -(-len(queries) * len(documents) // ENTRIES_LOOKED_AT))
        start = self.step % stride
        logits = self.loss.logits(queries[start::stride].float() @ documents.float().T)
        mine = targets.rows % stride == start
        logits[targets.rows[mine] // stride, targets.columns[mine]] = -torch.inf
        best, positions = logits.flatten().topk(min(self.most, logits.numel()))
        full = len(self.entries.logits) == self.most
        higher = best > (float(self.entries.logits[-1]) if full else -torch.inf)
        best, positions = best[higher].cpu(), positions[higher].cpu()
        rows, columns = np.divmod(positions.numpy(), max(1, len(documents)))
        new = UnlabelledEntries(self.groups[start::stride][rows], self.documents[columns], best.numpy())
        if len(new.logits):
            self.entries = UnlabelledEntries.joined([self.entries, new], self.most)

    def of_all_processes(self) -> UnlabelledEntries:
        return UnlabelledEntries.joined(gather_object([self.entries]), self.most)

    def gather(self) -> None:
        """Leave the entries of all processes to the first one, which writes them into a checkpoint."""
        everyone = self.of_all_processes()
        self.entries = everyone if is_main_process() else UnlabelledEntries.none()

    def save(self, folder: Path) -> None:
        columns = {name: torch.from_numpy(column) for name, column in self.entries._asdict().items()}
        write_atomically(folder / UNLABELLED_FILE, save(columns))

    def load(self, folder: Path) -> None:
        path = folder / UNLABELLED_FILE
        if is_main_process() and path.is_file():
            columns = load(path.read_bytes())
            self.entries = UnlabelledEntries(**{name: tensor.numpy() for name, tensor in columns.items()})
