"""The setup before the first step: the loss and its checks, the trainer and its arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from transformers import PrinterCallback, ProgressCallback
from transformers.integrations.integration_utils import get_available_reporting_integrations

from bixse.encoders.lengths import check_lengths
from bixse.encoders.loading.precision import default_device
from bixse.errors import InputError
from bixse.training.checks import check_max_length, check_pairs, prompts_before
from bixse.training.config import CHECKPOINT_FOLDER, DIVERGED_FILE, LOG_FILE, TENSORBOARD_FOLDER, TrainConfig
from bixse.training.dev_evaluation import DevEvaluator, check_not_trained_on, dev_evaluator, queries_of, warnings_of
from bixse.training.distributed import PATIENCE, is_main_process, world_size
from bixse.training.inputs import Inputs, make_loss, standardise_bare
from bixse.training.loop.checkpoints import ProgressBar, StepLog, complete_checkpoints
from bixse.training.loop.trainer import GradedTrainer, GradedTrainingArguments

if TYPE_CHECKING:
    from bixse.encoders.loading.standardise import Standardised
    from bixse.encoders.relevance_model import RelevanceModel
    from bixse.losses.base import GradedLoss

CHECKPOINTING: dict[str, Any] = {
    "gradient_checkpointing": True,
    "gradient_checkpointing_kwargs": {"use_reentrant": False},
}
"""Passed only if wanted: transformers 5.23 warns of these names, and sentence-transformers 6.2 knows no others."""
SAME_NAMES = {
    "gradient_accumulation_steps", "documents_per_query", "adam_beta2", "weight_decay", "max_grad_norm",
}  # fmt: skip
"""Settings of the optimizer that the trainer's arguments call the same."""


@dataclass(frozen=True)
class Parts:
    """The parts of a trainer, checked."""

    loss: GradedLoss
    evaluator: DevEvaluator | None
    warnings: list[str]
    trainer: type[GradedTrainer] = GradedTrainer
    standardised: Standardised | None = None


def make_parts(config: TrainConfig, inputs: Inputs) -> Parts:
    """Make the loss and the dev evaluator, and refuse inputs that cannot be trained on."""
    loss = make_loss(config, inputs.instructions)
    model, pairs = cast("RelevanceModel", loss.model), inputs.pairs
    standardised = standardise_bare(config, model, pairs)
    warnings = warnings_of(inputs.watched)
    if config.standardise is not None and standardised is None:
        warnings.append(
            f"standardise: got the sentence-transformers model {config.model}; expected a bare backbone; its "
            "embeddings stay as they are; fix: leave it out"
        )
    warnings += check_not_trained_on(queries_of(inputs.watched), pairs.queries, config.allow_shared_queries)
    warnings += check_pairs(inputs.where, config.loss, loss, pairs, config.optimizer.documents_per_query)
    warnings += check_max_length(model)
    warnings += check_lengths(model, pairs, prompts_before(model, pairs))
    return Parts(loss, dev_evaluator(config, model, inputs.watched), warnings, _trainer_class(config), standardised)


def _trainer_class(config: TrainConfig) -> type[GradedTrainer]:
    if config.sharding is None:
        return GradedTrainer
    from bixse.training.sharding import ShardedTrainer  # distributed checkpoints take a second to import

    return ShardedTrainer


def make_trainer(
    config: TrainConfig, out: Path, inputs: Inputs, parts: Parts, title: str | None = None
) -> GradedTrainer:
    """Return the trainer of a run, with our own progress bar under `title` instead of the library's."""
    arguments = training_arguments(config, out / CHECKPOINT_FOLDER, parts.evaluator)
    # a step cannot hold more queries than there are
    arguments.learning_rate = config.optimizer.scaled_learning_rate(len(inputs.pairs.groups()))
    trainer = parts.trainer(parts.loss.model, arguments, inputs.pairs, loss=parts.loss, evaluator=parts.evaluator)
    trainer.diverged_file = out / DIVERGED_FILE
    trainer.args.save_steps = trainer.args.eval_steps = steps_of(config, len(trainer.plan))[2]
    if is_main_process():
        trainer.add_callback(StepLog(out / LOG_FILE))
        if title is not None:
            trainer.add_callback(ProgressBar(title))
    for callback in trainer.callback_handler.callbacks:
        if getattr(callback, "logging_dir", "") is None:  # otherwise its files would be deleted with the checkpoints
            callback.logging_dir = str(out / TENSORBOARD_FOLDER)
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    return trainer


def training_arguments(config: TrainConfig, folder: Path, evaluator: DevEvaluator | None) -> GradedTrainingArguments:
    """Return the trainer's arguments, except the steps between saves, which depend on the number of batches."""
    optimizer = config.optimizer
    bf16 = config.precision == "bfloat16"
    processes = world_size()
    if optimizer.global_batch_size % processes:
        near = max(1, optimizer.global_batch_size // processes) * processes
        raise InputError(
            f"global_batch_size: got {optimizer.global_batch_size} queries for {processes} processes; expected a "
            f"multiple, because each process gets the same number; fix: set it to {near}"
        )
    _check_trackers(config.report_to)
    arguments = GradedTrainingArguments(
        output_dir=str(folder),
        num_train_epochs=optimizer.num_train_epochs,
        max_steps=optimizer.max_steps if optimizer.max_steps is not None else -1,
        per_device_train_batch_size=optimizer.global_batch_size // processes,
        **optimizer.model_dump(include=SAME_NAMES),
        **(CHECKPOINTING if optimizer.gradient_checkpointing else {}),
        train_max_length=config.train_max_length,
        task_shares=dict(config.task_shares),
        learning_rate=optimizer.scaled_learning_rate(),
        lr_scheduler_type="linear",
        warmup_steps=optimizer.warmup_ratio,  # below 1: a share of the steps
        adam_beta1=0.9,
        bf16=bf16,
        seed=config.seed,
        logging_steps=1,
        save_strategy="steps",
        save_total_limit=2,  # the best one on dev and the last one
        eval_strategy="steps" if evaluator is not None else "no",
        eval_on_start=evaluator is not None and not complete_checkpoints(folder),  # a resumed run did this before
        load_best_model_at_end=evaluator is not None,
        metric_for_best_model=f"eval_{evaluator.primary_metric}" if evaluator is not None else None,
        dataloader_pin_memory=default_device() == "cuda",
        report_to=list(config.report_to) or "none",
        use_cpu=default_device() == "cpu",
        ddp_timeout=int(PATIENCE.total_seconds()),
        dataloader_drop_last=processes > 1,  # the plan drops nothing; this keeps the library from warning
        disable_tqdm=True,
    )
    arguments.mixed_precision = "bf16" if bf16 else "no"  # else a launcher's ACCELERATE_MIXED_PRECISION decides
    return arguments


def steps_of(config: TrainConfig, batches: int) -> tuple[int, int, int]:
    """Return the optimizer steps per run, per epoch, and per checkpoint, for `batches` batches per epoch."""
    per_epoch = math.ceil(batches / config.optimizer.gradient_accumulation_steps)
    steps = config.optimizer.max_steps or per_epoch * config.optimizer.num_train_epochs
    return steps, per_epoch, max(1, per_epoch // max(1, config.evaluations_per_epoch))


def _check_trackers(names: Sequence[str]) -> None:
    missing = [name for name in names if name not in get_available_reporting_integrations()]
    if missing:
        raise InputError(
            f"report_to: got {', '.join(missing)}; expected trackers whose packages are installed; "
            f"fix: pip install {' '.join(missing)}"
        )
