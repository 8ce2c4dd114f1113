"""Between epochs: a judge grades the assumed zeros that the encoder believes least, and training goes on with them."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from accelerate.utils import broadcast_object_list, gather_object
from transformers import TrainerCallback

from bixse.data.graded_pairs import Pair
from bixse.data.io.parquet import read_table, save_table
from bixse.errors import BixseError, InterruptedRunError, OutputExistsError, StorageError
from bixse.grading.estimate import Estimate, estimate
from bixse.grading.grade import LEDGER_NAME, PAIRS_NAME, grade
from bixse.grading.grade_settings import GradeSettings
from bixse.grading.open_judge import DEFAULT_RUBRIC, open_judge, reads_rubric
from bixse.grading.rubrics import load_rubric
from bixse.training.distributed import is_main_process, raise_together, world_size
from bixse.training.loop.suspects import RegradedEpoch, Suspects

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from bixse.data.graded_pairs import GradedPairs
    from bixse.grading.judge import Judge
    from bixse.training.config import RegradeConfig
    from bixse.training.loop.trainer import GradedTrainer

log = logging.getLogger(__name__)

REGRADE_FOLDER = "regrade"
"""Of a run: of each epoch the pairs that are asked and a folder with the answers; the ledger."""
ASKED_SUFFIX = ".asked.parquet"
"""Ends the file of an epoch's pairs, written before the first is asked: a run that is killed asks the same ones."""
KEPT_FOR_ONE = 8
"""Suspects that are kept for each that can be asked: some were asked before, or have a grade the batch is not told."""


class Regrading(TrainerCallback):
    """Asks a judge at the end of every epoch but the last, before its checkpoint is written.

    All ranks agree on the pairs; the first one asks. The grades count as the data set's own from the next epoch on. A
    resumed run takes the grades of the epochs behind it from its folder.
    """

    def __init__(self, config: RegradeConfig, out: Path, trainer: GradedTrainer, steps_per_epoch: int) -> None:
        self.config, self.folder, self.trainer = config, out / REGRADE_FOLDER, trainer
        self.steps_per_epoch = steps_per_epoch
        self.epochs: list[RegradedEpoch] = []
        trainer.collect_suspects(KEPT_FOR_ONE * config.budget)
        with raise_together():
            if is_main_process():
                _open(config).close()  # a judge that cannot be opened is refused before training

    def warnings(self) -> list[str]:
        """Of epochs whose questions were not answered."""
        return [
            f"regrade: after epoch {epoch.epoch} {epoch.asked - epoch.graded} of {epoch.asked} pairs got no grade "
            f"({epoch.failure or 'see judgements.parquet'}): they stay 0"
            for epoch in self.epochs
            if epoch.graded < epoch.asked
        ]

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Take up the grades of the epochs that a resumed run has behind it."""
        for epoch in range(1, state.global_step // self.steps_per_epoch + 1):
            if self._asked_file(epoch).is_file():
                self._take(read_table(self._asked_file(epoch)), epoch, 0.0, None)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Choose, ask and take the grades, where an epoch ends and another follows."""
        epoch, rest = divmod(state.global_step, self.steps_per_epoch)
        if rest or state.global_step >= state.max_steps:
            return
        assert self.trainer.suspects is not None
        found = Suspects.joined(gather_object([self.trainer.suspects.found]), self.trainer.suspects.most)
        self.trainer.suspects.found = Suspects.none()
        answered: list[Any] = [None]
        with raise_together():
            if is_main_process():
                answered = [self._asked(found, epoch)]
        if world_size() > 1:
            broadcast_object_list(answered)
        asked, usd, failure = answered[0]
        self._take(asked, epoch, usd, failure)
        log.info("%s", self.epochs[-1].line())

    def _asked(self, found: Suspects, epoch: int) -> tuple[pa.Table, float, str | None]:
        """What is asked after an epoch, answered as far as the judge does; its price, and why it stopped."""
        if self._asked_file(epoch).is_file():  # by this run, before it was killed
            asked = read_table(self._asked_file(epoch))
        else:
            asked = self._table(self._chosen(found, epoch))
            self.folder.mkdir(parents=True, exist_ok=True)
            save_table(asked, self._asked_file(epoch))
        if not len(asked):
            return asked, 0.0, None
        try:
            judge = _open(self.config)
            try:
                result = grade(_pairs(asked), judge, self._answers(epoch), **_asking(self.config, judge, self.folder))
            finally:
                judge.close()
        except BixseError as error:
            if isinstance(error, (StorageError, OutputExistsError, InterruptedRunError)):
                raise
            log.warning("regrade: %s; training goes on with the grades that are known", error)
            return asked, 0.0, str(error).partition("; ")[0]
        return asked, float(result.summary["usd_of_this_run"]), result.stopped

    def _asked_file(self, epoch: int) -> Path:
        return self.folder / f"epoch-{epoch}{ASKED_SUFFIX}"

    def _answers(self, epoch: int) -> Path:
        return self.folder / f"epoch-{epoch}"

    def _chosen(self, found: Suspects, epoch: int) -> Suspects:
        """The highest ones that nobody graded, in no batch either, and that were not asked before."""
        known = ungraded(self.trainer, found)
        before = [read_table(self._asked_file(earlier)) for earlier in range(1, epoch)]
        asked = {pair for table in before for pair in zip(*_numbers(table), strict=True)}
        new = np.array([pair not in asked for pair in zip(found.groups, found.documents, strict=True)], dtype=bool)
        return found.where(known & new).first(self.config.budget)

    def _table(self, chosen: Suspects) -> pa.Table:
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
                "probability": 1.0 / (1.0 + np.exp(-chosen.logits.astype(np.float64))),
            }
        )

    def _take(self, asked: pa.Table, epoch: int, usd: float, failure: str | None) -> None:
        """Train on the grades that came back; every rank reads them from the run's folder."""
        answers = self._answers(epoch) / PAIRS_NAME
        graded: dict[tuple[str, str], float] = {}
        if answers.is_file():
            rows = read_table(answers, ["query_id", "document_id", "relevance"]).to_pylist()
            graded = {(row["query_id"], row["document_id"]): row["relevance"] for row in rows}
        keys = zip(asked["query_id"].to_pylist(), asked["document_id"].to_pylist(), strict=True)
        relevance = np.array([graded.get(key, np.nan) for key in keys], dtype=np.float64)
        got = ~np.isnan(relevance)
        if got.any():
            groups, documents = _numbers(asked)
            self.trainer.add_grades(groups[got], documents[got], relevance[got])
        probabilities = asked["probability"].to_numpy()
        self.epochs.append(
            RegradedEpoch(
                epoch=epoch,
                asked=len(asked),
                graded=int(got.sum()),
                relevant=int((relevance[got] >= 0.5).sum()),
                mean_relevance=float(relevance[got].mean()) if got.any() else None,
                mean_probability=float(probabilities.mean()) if len(asked) else None,
                usd=usd,
                failure=failure,
            )
        )

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(epoch) for epoch in self.epochs]


def estimate_regrading(config: RegradeConfig, pairs: GradedPairs, epochs: int, scratch: Path) -> Estimate:
    """What all questions would take, from as many random pairs of the training texts; nothing is asked."""
    number = config.budget * (epochs - 1)
    generator = np.random.default_rng(0)
    groups, documents = pairs.groups(), pairs.distinct("document")
    drawn = generator.integers(len(groups), size=number), generator.integers(len(documents), size=number)
    queries, others = pairs.texts("query", groups.first_rows[drawn[0]]), pairs.texts("document", documents[drawn[1]])
    asked = [Pair(str(n), query, str(n), text) for n, (query, text) in enumerate(zip(queries, others, strict=True))]
    judge = _open(config)
    try:
        return estimate(asked, judge, scratch, pilot=0, **_asking(config, judge, scratch))
    finally:
        judge.close()


def ungraded(trainer: GradedTrainer, found: Suspects) -> NDArray[np.bool_]:
    """(M,) whether nobody graded the pair, in any row of the training pairs."""
    known: Any = trainer.data_collator
    places, entries = known.known.of(found.groups)
    graded = known.known.documents[entries] == found.documents[places]
    free = np.ones(len(found.groups), dtype=bool)
    free[places[graded]] = False
    return free


def _numbers(asked: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return asked["query_group"].to_numpy(), asked["document_number"].to_numpy()


def _pairs(asked: pa.Table) -> list[Pair]:
    rows = asked.select(["query_id", "query", "document_id", "document"]).to_pylist()
    return [Pair(**row) for row in rows]


def _open(config: RegradeConfig) -> Judge:
    return open_judge(config.judge, load_rubric(config.rubric or DEFAULT_RUBRIC), config.options)


def _asking(config: RegradeConfig, judge: Judge, folder: Path) -> dict[str, Any]:
    """Arguments of `grade` and `estimate`."""
    rubric = load_rubric(config.rubric or DEFAULT_RUBRIC) if reads_rubric(config.judge) else None
    return {
        "settings": GradeSettings(rubric=rubric),
        "ledger": config.ledger or folder / LEDGER_NAME,
        "prices": config.prices.of(config.options.model or judge.name),
    }
