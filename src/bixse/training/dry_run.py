"""`bixse train --dry-run`: rows, steps, memory and time of a run, from a few steps whose result is thrown away."""

from __future__ import annotations

import math
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bixse.encoders.loading.precision import use_precision
from bixse.errors import InputError
from bixse.training.dev_evaluation import load_watched_of
from bixse.training.distributed import world_size
from bixse.training.preflight import check_memory, free_memory
from bixse.training.recipe import check_training, make_evaluator, make_model, make_trainer, open_training

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import TrainerControl, TrainerState, TrainingArguments

    from bixse.encoders.relevance_model import RelevanceModel
    from bixse.training.config import TrainConfig
    from bixse.training.loop.trainer import GradedTrainer

TIMED_STEPS = 5
"""Steps that are timed, after a first one that is not."""
SECONDS = 30.0
"""No further step is begun after this time."""
TEXTS_TIMED = 128
"""Texts of dev that are encoded to see how long all take."""


@dataclass(frozen=True)
class TrainPlan:
    """What a training run takes."""

    pairs: int
    """Graded pairs."""
    queries: int
    """Queries with their own documents: the groups that batches are made of."""
    steps: int
    """Optimizer steps."""
    weights_bytes: int
    """Memory of the encoder's weights."""
    step_bytes: int
    """Memory that a step takes beside them: states of a batch, gradients, moments; a lower bound."""
    free_bytes: int
    """Memory that is free on the device now."""
    seconds_per_step: float
    """Median wall time of the timed steps."""
    timed_steps: int
    """How many were timed."""
    seconds_of_dev: float
    """Wall time of one evaluation on dev; 0 without dev."""
    evaluations: int
    """Evaluations on dev, the one before training included."""
    seconds_of_merge: float
    """Wall time of scoring the merge weights on dev and guard; 0 where nothing is chosen."""
    warnings: list[str]
    """What the run would warn of."""

    @property
    def seconds(self) -> float:
        """Expected wall time of steps, evaluations and merging; loading and saving come on top."""
        return self.steps * self.seconds_per_step + self.evaluations * self.seconds_of_dev + self.seconds_of_merge


def plan_training(config: TrainConfig, out: Path) -> TrainPlan:
    """Check a run as `train` does, and measure what it would take; nothing is left behind.

    A few steps are trained into a temporary folder: the first one warms up, up to five more are timed.

    Args:
        config: the run's settings.
        out: the folder it would write to; only looked at.

    Raises:
        InputError: as `train`, also where a batch does not fit into memory; or several processes were started.
        OutputExistsError: `out` holds another run.
        StorageError: the disk has no room for the checkpoints.

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
    """`plan_training`, in the precision that is set."""
    from bixse.encoders.loading.build import no_library_bars

    pairs, table, collections, _ = open_training(config, out)
    watched = load_watched_of(config)
    model, loss = make_model(config, table)
    warnings = check_training(config, out, model, loss, pairs, collections, watched)
    evaluator = make_evaluator(config, model, collections)
    short = config.model_copy(
        update={"report_to": (), "optimizer": config.optimizer.model_copy(update={"steps": 1 + TIMED_STEPS})}
    )
    with tempfile.TemporaryDirectory(prefix="bixse-dry-run-") as scratch, no_library_bars():
        trainer = make_trainer(short, Path(scratch), model, loss, pairs, None, progress=False, title="")
        step_bytes = check_memory(trainer)
        free = free_memory(model.device)
        evaluators = [] if evaluator is None else getattr(evaluator, "evaluators", [evaluator])
        seconds_of_dev = _seconds_to_encode(
            model, [text for one in evaluators for text in (*one.corpus.values(), *one.queries.values())]
        )
        weights = len({0.0, 1.0, *config.merge.weights}) if config.merge is not None else 0
        seconds_of_merge = weights * _seconds_to_encode(
            model, [text for corpus in watched for text in corpus.documents.values()]
        )
        batches = len(trainer.get_train_dataloader())
        times = _step_times(trainer)
    per_epoch = math.ceil(batches / config.optimizer.gradient_accumulation_steps)
    steps = config.optimizer.steps or per_epoch * config.optimizer.epochs
    every = max(1, per_epoch // max(1, config.evaluations_per_epoch))
    return TrainPlan(
        pairs=len(pairs),
        queries=len(pairs.groups()),
        steps=steps,
        weights_bytes=sum(part.numel() * part.element_size() for part in model.parameters()),
        step_bytes=step_bytes,
        free_bytes=free,
        seconds_per_step=median(times),
        timed_steps=len(times),
        seconds_of_dev=seconds_of_dev,
        evaluations=1 + math.ceil(steps / every) if evaluator is not None else 0,
        seconds_of_merge=seconds_of_merge,
        warnings=warnings,
    )


def _step_times(trainer: GradedTrainer) -> list[float]:
    """Wall times of a few steps, loading of their batches and the optimizer included; nothing is saved."""
    from transformers import TrainerCallback
    from transformers.trainer_utils import SaveStrategy

    ends: list[float] = []

    class Clock(TrainerCallback):
        """Notes when steps end."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            """The first step begins."""
            ends.append(time.perf_counter())

        def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
            """A step ends; there are no more when the time is up."""
            ends.append(time.perf_counter())
            control.should_training_stop = control.should_training_stop or ends[-1] - ends[0] > SECONDS

    trainer.args.save_strategy = SaveStrategy.NO
    trainer.add_callback(Clock())
    trainer.train()
    times = [end - start for start, end in pairwise(ends)]
    return times[1:] or times


def _seconds_to_encode(model: RelevanceModel, texts: Sequence[str]) -> float:
    """Time to encode texts, from a sample of them."""
    from bixse.encoders.encode import encode_texts

    if not texts:
        return 0.0
    sample = texts[:: -(-len(texts) // TEXTS_TIMED)]
    started = time.perf_counter()
    encode_texts(model, sample, "document")
    return (time.perf_counter() - started) * len(texts) / len(sample)
