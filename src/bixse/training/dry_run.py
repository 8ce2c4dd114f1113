"""`bixse train --dry-run`: rows, steps, memory and time of a run, from a few steps whose result is thrown away."""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import torch
from transformers.trainer_utils import SaveStrategy

from bixse.encoders.encode import encode_texts
from bixse.encoders.loading.build import no_library_bars
from bixse.encoders.loading.precision import use_precision
from bixse.errors import InputError
from bixse.training.checks import check_space
from bixse.training.distributed import world_size
from bixse.training.merge import SEARCHED_WEIGHTS
from bixse.training.recipe import make_parts, make_trainer, steps_of
from bixse.training.train import open_training

if TYPE_CHECKING:
    from bixse.training.config import TrainConfig
    from bixse.training.loop.trainer import GradedTrainer

TIMED_STEPS = 5
TIMED_SHARE = 20
"""Steps of a run per timed step: a plan must not take longer than a tenth of the run."""
TEXTS_TIMED = 128


@dataclass(frozen=True)
class TrainPlan:
    """The time and memory of a training run."""

    pairs: int
    queries: int
    steps: int
    weights_bytes: int
    peak_bytes: int
    """Highest memory during the timed steps, weights and libraries included: of the GPU, or of the process."""
    free_bytes: int
    seconds_per_step: float
    evaluations: int
    """Dev evaluations, the one before training included."""
    texts: int
    """Texts to encode besides the steps: for dev evaluations and merge weights."""
    token_bytes: int
    """Disk for the tokens of all texts; 0 if the model tokenises every batch anew."""
    seconds_per_text: float
    warnings: list[str]
    took: float = 0.0
    """Seconds that the plan itself took."""

    @property
    def seconds(self) -> float:
        """Expected wall time of steps, evaluations and merging, without loading and saving."""
        return self.steps * self.seconds_per_step + self.texts * self.seconds_per_text


def plan_training(config: TrainConfig, out: Path) -> TrainPlan:
    """Check a run as `train` does, and measure its time and memory; no file is left behind.

    A few steps are trained into a temporary folder.

    Example:
        ::

            plan = plan_training(TrainConfig(pairs="pairs.jsonl"), Path("runs/mine"))
            print(plan.steps, plan.seconds)
    """
    if world_size() > 1:
        raise InputError(f"--dry-run: got {world_size()} processes; expected one; fix: start it without the launcher")
    started = time.perf_counter()
    with use_precision(config.precision):
        plan = _plan(config.resolved(), out)
    return replace(plan, took=time.perf_counter() - started)


def _plan(config: TrainConfig, out: Path) -> TrainPlan:
    inputs, _ = open_training(config, out)
    parts = make_parts(config, inputs)
    pairs, model, evaluator = inputs.pairs, parts.loss.model, parts.evaluator
    short = config.model_copy(update={"report_to": ()})
    documents = pairs.distinct("document")
    with tempfile.TemporaryDirectory(prefix="bixse-dry-run-") as scratch, no_library_bars():
        trainer = make_trainer(short, Path(scratch), inputs, replace(parts, evaluator=None))
        check_space(out, trainer)
        trainer.token_cache = None  # no file is left behind
        steps, _, every = steps_of(config, len(trainer.get_train_dataloader()))
        evaluations = 1 + -(-steps // every) if evaluator is not None else 0
        dev = () if evaluator is None else evaluator.dev
        texts = evaluations * sum(len(each.corpus) + len(part.queries) for each in dev for part in each.sets)
        if config.merge is not None:
            weights = config.merge.weights
            between = SEARCHED_WEIGHTS - 1 if weights is None else len({*weights} - {0.0, 1.0})
            texts += sum(corpus.encoded_for(between) for corpus in inputs.eval_corpora)
        sample = pairs.texts("document", documents[:: -(-len(documents) // TEXTS_TIMED)])
        started = time.perf_counter()
        encode_texts(model, sample, "document")
        seconds_per_text = (time.perf_counter() - started) / len(sample)
        seconds_per_step = _seconds_per_step(trainer, max(1, min(TIMED_STEPS, steps // TIMED_SHARE)))
        peak, free = _memory(model.device)
    return TrainPlan(
        pairs=len(pairs),
        queries=len(pairs.groups()),
        steps=steps,
        weights_bytes=sum(part.numel() * part.element_size() for part in model.parameters()),
        peak_bytes=peak,
        free_bytes=free,
        seconds_per_step=seconds_per_step,
        evaluations=evaluations,
        texts=texts,
        token_bytes=trainer.data_collator.token_bytes(),
        seconds_per_text=seconds_per_text,
        warnings=parts.warnings,
    )


def _seconds_per_step(trainer: GradedTrainer, timed: int) -> float:
    """Return the seconds per step over `timed` steps, batch loading and optimizer included; nothing is saved."""
    trainer.args.save_strategy = SaveStrategy.NO
    trainer.args.max_steps = 1
    trainer.train()  # warms up
    trainer.args.max_steps = timed
    return float(trainer.train().metrics["train_runtime"]) / timed


def _memory(device: torch.device) -> tuple[int, int]:
    """Return the highest bytes used so far and the free bytes, of the GPU or of this process and its machine."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device), int(torch.cuda.mem_get_info(device)[0])
    free = int(psutil.virtual_memory().available)
    try:
        import resource  # Windows has none
    except ImportError:
        return int(psutil.Process().memory_info().rss), free
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024), free
