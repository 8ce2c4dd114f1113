"""`bixse train --dry-run`: rows, steps, memory and time of a run, from a few steps whose result is thrown away."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, cast

from transformers import TrainerCallback
from transformers.trainer_utils import SaveStrategy

from bixse.encoders.encode import encode_texts
from bixse.encoders.loading.build import no_library_bars
from bixse.encoders.loading.precision import use_precision
from bixse.errors import InputError
from bixse.extensions import extension
from bixse.training.checks import check_memory, free_memory
from bixse.training.distributed import world_size
from bixse.training.inputs import open_training
from bixse.training.loop.unlabelled import BaseTargets
from bixse.training.setup import make_parts, make_trainer, steps_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sentence_transformers import SentenceTransformer
    from transformers import TrainerControl, TrainerState, TrainingArguments

    from bixse.training.config import TrainConfig
    from bixse.training.dev_evaluation import Watched
    from bixse.training.loop.trainer import GradedTrainer

TIMED_STEPS = 5
"""Timed steps, after one warm-up step."""
SECONDS = 30.0
"""Seconds after which no further step begins."""
TEXTS_TIMED = 128


@dataclass(frozen=True)
class TrainPlan:
    """The time and memory of a training run."""

    pairs: int
    queries: int
    steps: int
    weights_bytes: int
    step_bytes: int
    """Memory per step in addition to the weights: states of a batch, gradients, moments; a lower bound."""
    free_bytes: int
    seconds_per_step: float
    """Median of the timed steps."""
    timed_steps: int
    seconds_of_dev: float
    """Wall time of one dev evaluation; 0 without dev."""
    evaluations: int
    """Dev evaluations, the one before training included."""
    seconds_of_base: float
    """Wall time of embedding the training texts by the base model; 0 if its probabilities are not used."""
    seconds_of_merge: float
    """Wall time of scoring the merge weights on dev and guard; 0 if no weight is chosen."""
    regrade: Any
    """Estimate for grading the likely false negatives; its time is not in `seconds`."""
    warnings: list[str]

    @property
    def seconds(self) -> float:
        """Expected wall time of steps, evaluations and merging, without loading and saving."""
        once = self.seconds_of_base + self.seconds_of_merge
        return self.steps * self.seconds_per_step + self.evaluations * self.seconds_of_dev + once


def plan_training(config: TrainConfig, out: Path) -> TrainPlan:
    """Check a run as `train` does, and measure its time and memory; no file is left behind.

    A few steps are trained into a temporary folder: the first one warms up, up to five more are timed.

    Example:
        ::

            plan = plan_training(TrainConfig(pairs="pairs.jsonl"), Path("runs/mine"))
            print(plan.steps, plan.seconds)
    """
    if world_size() > 1:
        raise InputError(f"--dry-run: got {world_size()} processes; expected one; fix: start it without the launcher")
    with use_precision(config.precision):
        return _plan(config.resolved(), out)


def _plan(config: TrainConfig, out: Path) -> TrainPlan:
    inputs = open_training(config, out)
    parts = make_parts(config, out, inputs)
    model, evaluator = parts.loss.model, parts.evaluator
    timed = config.optimizer.model_copy(update={"steps": 1 + TIMED_STEPS})
    short = config.model_copy(update={"report_to": (), "optimizer": timed})
    with tempfile.TemporaryDirectory(prefix="bixse-dry-run-") as scratch, no_library_bars():
        trainer = make_trainer(short, Path(scratch), inputs, replace(parts, evaluator=None))
        step_bytes = check_memory(trainer)
        free = free_memory(model.device)
        tasks = () if evaluator is None else evaluator.tasks
        dev_texts = [text for task in tasks for _, text in task.documents()]
        dev_texts += [text for task in tasks for text in task.query_sets[0].queries.values()]
        weights = {0.0, 1.0, *config.merge.weights} if config.merge is not None else {}
        seconds_of_dev = _seconds_to_encode(model, dev_texts)
        seconds_of_merge = sum(_seconds_to_merge(model, corpus, len(weights)) for corpus in inputs.watched)
        steps, per_epoch, every = steps_of(config, len(trainer.get_train_dataloader()))
        regrade = None
        if config.regrade is not None:
            rounds, scratch_ledger = (steps - 1) // per_epoch, Path(scratch) / "regrade"
            regrade = extension("regrade").estimate(config.regrade, inputs.pairs, rounds, scratch_ledger)
        seconds_of_base = _seconds_of_base(trainer)
        times = _step_times(trainer)
    return TrainPlan(
        pairs=len(inputs.pairs),
        queries=len(inputs.pairs.groups()),
        steps=steps,
        weights_bytes=sum(part.numel() * part.element_size() for part in model.parameters()),
        step_bytes=step_bytes,
        free_bytes=free,
        seconds_per_step=median(times),
        timed_steps=len(times),
        seconds_of_dev=seconds_of_dev,
        evaluations=1 + -(-steps // every) if evaluator is not None else 0,
        seconds_of_base=seconds_of_base,
        seconds_of_merge=seconds_of_merge,
        regrade=regrade,
        warnings=parts.warnings,
    )


def _step_times(trainer: GradedTrainer) -> list[float]:
    """Return the seconds per step, batch loading and optimizer included; nothing is saved."""
    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())

        def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
            ends.append(time.perf_counter())
            control.should_training_stop = control.should_training_stop or ends[-1] - ends[0] > SECONDS

    trainer.args.save_strategy = SaveStrategy.NO
    trainer.add_callback(Clock())
    trainer.train()
    times = [end - start for start, end in pairwise(ends)]
    return times[1:] or times


def _seconds_of_base(trainer: GradedTrainer) -> float:
    """Return the seconds to embed the training texts by the base model; empty targets stay, to time steps with."""
    if getattr(trainer.loss.options, "unlabelled", "zero") == "zero":
        return 0.0
    model, collator = trainer.loss.model, cast("Any", trainer.data_collator)
    collator.base = BaseTargets.unknown(trainer.pairs, model.get_embedding_dimension() or 0)
    rows = trainer.pairs.distinct("document")
    sample = trainer.pairs.texts("document", rows[:: -(-len(rows) // TEXTS_TIMED)])
    return _seconds_to_encode(model, sample) * len(rows) / len(sample)


def _seconds_to_merge(model: SentenceTransformer, corpus: Watched, weights: int) -> float:
    texts = [document.content for document in corpus.collection.corpus.values()] if weights else []
    return _seconds_to_encode(model, texts) * corpus.encoded_for(weights) / max(1, len(texts))


def _seconds_to_encode(model: SentenceTransformer, texts: Sequence[str]) -> float:
    if not texts:
        return 0.0
    sample = texts[:: -(-len(texts) // TEXTS_TIMED)]
    started = time.perf_counter()
    encode_texts(model, sample, "document")
    return (time.perf_counter() - started) * len(texts) / len(sample)
