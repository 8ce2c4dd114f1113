"""From a configuration to the arguments of the trainer: the paper's optimizer and schedule."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from bixse.encoders.loading.precision import default_device, resolve_precision
from bixse.errors import InputError
from bixse.training.distributed import PATIENCE, world_size
from bixse.training.loop.trainer import GradedTrainingArguments

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
    bf16 = resolve_precision(config.precision, device) == "bfloat16"
    processes = world_size()
    if optimizer.batch_size % processes:
        near = max(1, optimizer.batch_size // processes) * processes
        raise InputError(
            f"batch_size: got {optimizer.batch_size} queries for {processes} processes; expected a multiple, so that "
            f"each has as many; fix: set it to {near}"
        )
    _check_trackers(config.report_to)
    steps = math.ceil(batches / optimizer.gradient_accumulation_steps)
    every = max(1, steps // max(1, config.evaluations_per_epoch))
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


def _check_trackers(names: Sequence[str]) -> None:
    """Refuse a tracker whose package is not there before any training."""
    from transformers.integrations.integration_utils import get_available_reporting_integrations

    missing = [name for name in names if name not in get_available_reporting_integrations()]
    if missing:
        raise InputError(
            f"report_to: got {', '.join(missing)}; expected trackers whose packages are installed; "
            f"fix: pip install {' '.join(missing)}"
        )
