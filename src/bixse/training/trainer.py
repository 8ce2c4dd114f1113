"""`GradedTrainer`: sentence-transformers' trainer for graded pairs, with a loss state that survives."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from torch.utils.data import DataLoader

from bixse.encoders.parts import input_parts
from bixse.encoders.prompts import prompt_for
from bixse.errors import TrainingError
from bixse.training.batches import GradedCollator, GroupBatchSampler, GroupDataset
from bixse.training.checks import check_finite
from bixse.training.loss_state import load_loss_state, save_loss_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.evaluation import BaseEvaluator
    from transformers import TrainerCallback

    from bixse.data.graded_pairs import GradedPairs
    from bixse.losses.base import GradedLoss


@dataclass
class GradedTrainingArguments(SentenceTransformerTrainingArguments):
    """sentence-transformers' training arguments with two of our own.

    `per_device_train_batch_size` counts queries; each brings its graded documents.
    """

    documents_per_query: int | None = field(default=None, metadata={"help": "graded documents of a query in a batch"})
    """Graded documents of a query in one batch, at least 1; None takes all."""
    bias_lr_multiplier: float = field(default=100.0, metadata={"help": "learning rate of the bias over the encoder's"})
    """The logit bias learns at `bias_lr_multiplier * learning_rate`."""
    train_max_length: int | None = field(default=None, metadata={"help": "tokens of a text read while training"})
    """Tokens of a text that are read while training; None reads what the model reads when it encodes."""


class GradedTrainer(SentenceTransformerTrainer):
    """Train an encoder on `GradedPairs` with any loss of `bixse.losses`.

    Beside sentence-transformers' trainer it gives the logit bias its own learning rate, saves and restores the
    loss's parameters with every checkpoint (resume and best model), logs them, and draws batches that depend on
    (seed, epoch) alone, so that a resumed run equals an uninterrupted one.

    Args:
        model: the encoder.
        args: a `GradedTrainingArguments`.
        train_pairs: the graded pairs.
        loss: a loss on the same model.
        evaluator: as in sentence-transformers; a checkpoint is chosen by its primary metric, never by the loss.
        callbacks: transformers callbacks.

    Raises:
        TrainingError: started as one of several processes, which this version does not support.

    Example:
        ::

            model = SentenceTransformer("sentence-transformers/all-MiniLM-L6-v2")
            args = GradedTrainingArguments(output_dir="checkpoints", learning_rate=5e-5, documents_per_query=4)
            trainer = GradedTrainer(model, args, load_graded_pairs("pairs.jsonl"), BiXSELoss(model))
            trainer.train()
    """

    training_args_class = GradedTrainingArguments
    args: GradedTrainingArguments
    loss: GradedLoss  # type: ignore[assignment]

    def __init__(
        self,
        model: SentenceTransformer,
        args: GradedTrainingArguments,
        train_pairs: GradedPairs,
        loss: GradedLoss,
        evaluator: BaseEvaluator | None = None,
        callbacks: list[TrainerCallback] | None = None,
    ) -> None:
        if args.world_size > 1:
            raise TrainingError(
                f"trainer: got {args.world_size} processes; expected one; to mend: start `bixse train` without torchrun"
            )
        args = copy.copy(args)
        given = args.learning_rate_mapping if isinstance(args.learning_rate_mapping, dict) else {}
        args.learning_rate_mapping = {**given, **_own_rates(args, loss)}
        self.train_pairs = train_pairs
        self.seconds_in_steps = 0.0
        """Wall time of the training steps alone, evaluation and saving excluded."""
        own_prompts = {"query": prompt_for(model, "query"), "document": prompt_for(model, "document")}
        given_prompts = {**own_prompts, **(args.prompts if isinstance(args.prompts, dict) else {})}
        prompts = {name: text for name, text in given_prompts.items() if isinstance(text, str)}
        super().__init__(
            model=model,
            args=args,
            loss=loss,
            evaluator=evaluator,
            callbacks=callbacks,
            data_collator=GradedCollator(  # type: ignore[arg-type]
                shortened_preprocess(model, args.train_max_length), train_pairs, loss.in_batch, prompts
            ),
        )

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Batches of query groups, placed on the device."""
        prepared: DataLoader[Any] = self.accelerator.prepare(self.train_batches())
        return prepared

    def train_batches(self) -> DataLoader[Any]:
        """Batches of query groups, a function of (seed, epoch)."""
        arguments = self.args
        dataset = GroupDataset(self.train_pairs, arguments.documents_per_query, arguments.seed)
        sampler = GroupBatchSampler(len(dataset), arguments.train_batch_size, arguments.seed)
        return DataLoader(
            dataset,
            batch_sampler=sampler,
            collate_fn=self.data_collator,
            num_workers=arguments.dataloader_num_workers,
            pin_memory=arguments.dataloader_pin_memory,
        )

    def get_decay_parameter_names(self, model: torch.nn.Module) -> list[str]:
        """The loss's own parameters take no weight decay."""
        names: list[str] = super().get_decay_parameter_names(model)
        return [name for name in names if name not in ("logit_scale", "logit_bias")]

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """One step, timed; a loss that is no finite number stops the run."""
        start = time.perf_counter()
        loss: torch.Tensor = super().training_step(*args, **kwargs)
        self.seconds_in_steps += time.perf_counter() - start
        if not bool(loss.isfinite()):
            raise TrainingError(
                f"training: got loss {float(loss)} at step {self.state.global_step + 1}; expected a finite number; "
                "to mend: lower learning_rate or set max_grad_norm, and give another --out folder"
            )
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the loss's figures (bias, scale, mean logits) to each training entry, where there are any."""
        if "loss" in logs:
            figures = {name: float(value) for name, value in self.loss.statistics.items()}
            logs = {**logs, **{name: value for name, value in figures.items() if math.isfinite(value)}}
        super().log(logs, start_time)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Encoder, tokenizer and loss state, all as safetensors or JSON (no pickled arguments)."""
        check_finite(self.loss, self.state.global_step)
        folder = Path(output_dir or self.args.output_dir or "tmp_trainer")
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(str(folder), create_model_card=False)
        save_loss_state(self.loss, folder)

    def _load_from_checkpoint(self, checkpoint_path: str) -> None:  # type: ignore[override]
        """Encoder and loss state: called on a resume and for the best model."""
        super()._load_from_checkpoint(checkpoint_path)
        load_loss_state(self.loss, Path(checkpoint_path))


def shortened_preprocess(model: SentenceTransformer, max_length: int | None) -> Callable[..., Mapping[str, Any]]:
    """The model's tokenisation, reading at most `max_length` tokens of a text."""

    def preprocess(texts: list[str], prompt: str | None = None, task: str | None = None) -> Mapping[str, Any]:
        parts: list[Any] = input_parts(model) if max_length is not None else []
        own = [part.max_seq_length for part in parts]
        try:
            for part, length in zip(parts, own, strict=True):
                part.max_seq_length = max_length if length is None else min(length, max_length)
            features: Mapping[str, Any] = model.preprocess(texts, prompt=prompt, task=task)
            return features
        finally:
            for part, length in zip(parts, own, strict=True):
                part.max_seq_length = length

    return preprocess


def _own_rates(args: GradedTrainingArguments, loss: GradedLoss) -> dict[str, float]:
    """Learning rates of the loss's own parameters, by exact name ("bias" alone would also catch encoder layers)."""
    own = {name: parameter for name, parameter in loss.named_parameters(recurse=False) if parameter.requires_grad}
    return {
        rf"^{name}$": args.learning_rate * (args.bias_lr_multiplier if name == "logit_bias" else 1.0) for name in own
    }
