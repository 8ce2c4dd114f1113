"""The arguments of the trainer, and how they follow from a configuration: the paper's optimizer and schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sentence_transformers import SentenceTransformerTrainingArguments
from transformers.integrations.integration_utils import get_available_reporting_integrations

from bixse.encoders.loading.precision import default_device
from bixse.errors import InputError
from bixse.training.config import OptimizerConfig
from bixse.training.distributed import PATIENCE, world_size
from bixse.training.loop.checkpoints import whole_checkpoints

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bixse.evaluation.dev_evaluator import DevEvaluator
    from bixse.training.config import TrainConfig

CHECKPOINTING: dict[str, Any] = {
    "gradient_checkpointing": True,
    "gradient_checkpointing_kwargs": {"use_reentrant": False},
}
"""Given only where it is wanted: transformers 5.23 warns of these names, sentence-transformers 6.2 knows no others."""


@dataclass
class GradedTrainingArguments(SentenceTransformerTrainingArguments):
    """sentence-transformers' training arguments with a few of our own.

    `per_device_train_batch_size` counts queries; each brings its graded documents. Of W processes (torchrun) each gets
    as many: a batch has W times that.
    """

    documents_per_query: int | None = None
    """Graded documents of a query in one batch, at least 1; None takes all."""
    bias_lr_multiplier: float = OptimizerConfig.model_fields["bias_lr_multiplier"].default
    """The logit bias learns at `bias_lr_multiplier * learning_rate`."""
    train_max_length: int | None = None
    """Tokens of a text that are read while training; None reads what the model reads when it encodes."""
    task_shares: dict[str, float] | None = None
    """Task -> share of its queries that stand in one epoch, in (0, 1]; 1 for tasks that are not named."""


def training_arguments(
    config: TrainConfig, folder: Path, batches: int, evaluator: DevEvaluator | None
) -> GradedTrainingArguments:
    """The trainer's arguments of a configuration.

    Args:
        config: the run's settings.
        folder: where checkpoints go.
        batches: of one epoch.
        evaluator: decides whether checkpoints are compared.

    Raises:
        InputError: the processes cannot share a batch evenly, or a tracker's package is missing.
    """
    optimizer = config.optimizer
    device = default_device()
    bf16 = config.resolved().precision == "bfloat16"
    processes = world_size()
    if optimizer.batch_size % processes:
        near = max(1, optimizer.batch_size // processes) * processes
        raise InputError(
            f"batch_size: got {optimizer.batch_size} queries for {processes} processes; expected a multiple, so that "
            f"each has as many; fix: set it to {near}"
        )
    _check_trackers(config.report_to)
    _, every = steps_of(config, batches)
    arguments = GradedTrainingArguments(
        output_dir=str(folder),
        num_train_epochs=optimizer.epochs,
        max_steps=optimizer.steps if optimizer.steps is not None else -1,
        per_device_train_batch_size=optimizer.batch_size // processes,
        gradient_accumulation_steps=optimizer.gradient_accumulation_steps,
        **(CHECKPOINTING if optimizer.gradient_checkpointing else {}),
        documents_per_query=optimizer.documents_per_query,
        train_max_length=config.train_max_length,
        task_shares=dict(config.task_shares),
        learning_rate=optimizer.scaled_learning_rate,
        bias_lr_multiplier=optimizer.bias_lr_multiplier,
        lr_scheduler_type="linear",
        warmup_steps=optimizer.warmup,
        adam_beta1=0.9,
        adam_beta2=optimizer.adam_beta2,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_grad_norm,
        bf16=bf16,
        seed=config.seed,
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=every,
        save_total_limit=2 if config.merge is None or config.merge.checkpoints == 1 else None,  # the best are merged
        eval_strategy="steps" if evaluator is not None else "no",
        eval_steps=every if evaluator is not None else None,
        eval_on_start=evaluator is not None and not whole_checkpoints(folder),
        load_best_model_at_end=evaluator is not None,
        metric_for_best_model=f"eval_{evaluator.primary_metric}" if evaluator is not None else None,
        greater_is_better=True if evaluator is not None else None,
        dataloader_pin_memory=device == "cuda",
        report_to=list(config.report_to) or "none",
        use_cpu=device == "cpu",
        ddp_timeout=int(PATIENCE.total_seconds()),
        dataloader_drop_last=processes > 1,  # the plan drops nothing; this keeps the library from warning
        disable_tqdm=True,
    )
    arguments.mixed_precision = "bf16" if bf16 else "no"  # a launcher's ACCELERATE_MIXED_PRECISION would decide else
    return arguments


def steps_of(config: TrainConfig, batches: int) -> tuple[int, int]:
    """Optimizer steps of a run with so many batches an epoch, and steps between two evaluations or checkpoints."""
    per_epoch = math.ceil(batches / config.optimizer.gradient_accumulation_steps)
    steps = config.optimizer.steps or per_epoch * config.optimizer.epochs
    return steps, max(1, per_epoch // max(1, config.evaluations_per_epoch))


def _check_trackers(names: Sequence[str]) -> None:
    """Refuse a tracker whose package is not there before any training."""
    missing = [name for name in names if name not in get_available_reporting_integrations()]
    if missing:
        raise InputError(
            f"report_to: got {', '.join(missing)}; expected trackers whose packages are installed; "
            f"fix: pip install {' '.join(missing)}"
        )
