"""`GradedTrainer`: sentence-transformers' trainer for graded pairs, on one process or many."""

from __future__ import annotations

import copy
import json
import math
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.modules import Module
from sentence_transformers.util import fullname
from torch.utils.data import DataLoader
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from bixse.data.io.files import write_atomically
from bixse.data.io.hashes import write_hashes
from bixse.encoders.embedding import tokens_without_padding
from bixse.encoders.loading.parts import input_parts
from bixse.encoders.prompts import prompt_for
from bixse.errors import DivergedError
from bixse.training.distributed import all_of, any_process, average_gradients, copy_from_first
from bixse.training.loop.batch_plan import BatchPlan
from bixse.training.loop.batches import GradedCollator, GroupDataset
from bixse.training.loop.checkpoints import check_checkpoint
from bixse.training.loop.loss_state import load_loss_state, save_loss_state
from bixse.training.loop.throughput import Throughput
from bixse.training.preflight import check_finite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.evaluation import BaseEvaluator
    from transformers import TrainerCallback
    from transformers.trainer_utils import TrainOutput

    from bixse.data.graded_pairs import GradedPairs
    from bixse.data.task_instructions import Instructions
    from bixse.losses.base import GradedLoss


@dataclass
class GradedTrainingArguments(SentenceTransformerTrainingArguments):
    """sentence-transformers' training arguments with a few of our own.

    `per_device_train_batch_size` counts queries; each brings its graded documents. Of W processes (torchrun) each gets
    as many: a batch has W times that.
    """

    documents_per_query: int | None = field(default=None, metadata={"help": "graded documents of a query in a batch"})
    """Graded documents of a query in one batch, at least 1; None takes all."""
    bias_lr_multiplier: float = field(default=100.0, metadata={"help": "learning rate of the bias over the encoder's"})
    """The logit bias learns at `bias_lr_multiplier * learning_rate`."""
    train_max_length: int | None = field(default=None, metadata={"help": "tokens of a text read while training"})
    """Tokens of a text that are read while training; None reads what the model reads when it encodes."""
    task_shares: dict[str, float] | None = field(default=None, metadata={"help": "share of a task's queries an epoch"})
    """Task -> share of its queries that stand in one epoch, in (0, 1]; 1 for tasks that are not named."""


class GradedTrainer(SentenceTransformerTrainer):
    """Train an encoder on `GradedPairs` with any loss of `bixse.losses`.

    Beside sentence-transformers' trainer it gives the logit bias its own learning rate, saves and restores the
    loss's parameters with every checkpoint (resume and best model), logs them, and draws batches that depend on
    (seed, epoch) alone, so that a resumed run equals an uninterrupted one.

    A batch holds one task. Of several processes each has a part of the queries and documents of every batch and scores
    its queries against all documents; gradients, those of scale and bias included, are averaged after the backward
    pass. The result is that of one process on the same batches, up to rounding.

    Args:
        model: the encoder.
        args: a `GradedTrainingArguments`.
        train_pairs: the graded pairs.
        loss: a loss on the same model.
        evaluator: as in sentence-transformers; a checkpoint is chosen by its primary metric, never by the loss.
        callbacks: transformers callbacks.

    Raises:
        InputError: `task_shares` name an unknown task, or a task has no instruction in the model's table.

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
        args = copy.copy(args)
        _ = args.device  # sets up what the next line overrides: DataParallel would cut batches apart
        args._n_gpu = min(1, args.n_gpu)
        given = args.learning_rate_mapping if isinstance(args.learning_rate_mapping, dict) else {}
        args.learning_rate_mapping = {**given, **_own_rates(args, loss)}
        self.train_pairs = train_pairs
        self.seconds_in_steps = 0.0
        """Wall time of the training steps alone, evaluation and saving excluded."""
        self.throughput = Throughput()
        """Counts since the last entry of the log."""
        preprocess = shortened_preprocess(model, args.train_max_length)
        prompts = _prompts_of(model, args, train_pairs)
        super().__init__(
            model=model,
            args=args,
            loss=loss,
            evaluator=evaluator,
            callbacks=callbacks,
            data_collator=GradedCollator(  # type: ignore[arg-type]
                preprocess, train_pairs, loss.in_batch, prompts, args.process_index, args.world_size
            ),
        )
        # gradients are averaged by `average_gradients`: no wrapper that counts forward passes
        self.accelerator.prepare_model = partial(self.accelerator.prepare_model, evaluation_mode=True)
        if args.world_size > 1:
            torch.manual_seed(args.seed + args.process_index)  # other texts, other dropout

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """As sentence-transformers does; all processes begin with the weights of the first."""
        copy_from_first([*self.loss.parameters(), *self.loss.buffers()])
        return super().train(*args, **kwargs)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Batches of query groups (this process's part of each), a function of (seed, epoch)."""
        arguments = self.args
        dataset = GroupDataset(self.train_pairs, arguments.documents_per_query, arguments.seed)
        plan = BatchPlan(
            dataset.groups,
            arguments.train_batch_size * arguments.world_size,
            arguments.seed,
            arguments.task_shares,
        )
        return _EpochLoader(
            dataset,
            batch_sampler=plan,
            collate_fn=self.data_collator,
            num_workers=arguments.dataloader_num_workers,
            pin_memory=arguments.dataloader_pin_memory,
        )

    def whole_batches(self) -> Iterator[tuple[list[dict[str, Any]], torch.Tensor]]:
        """Features and table of known relevance of the batches of the first epoch, whole in every process."""
        arguments = self.args
        collator: Any = copy.copy(self.data_collator)
        collator.process, collator.processes = 0, 1
        dataset = GroupDataset(self.train_pairs, arguments.documents_per_query, arguments.seed)
        size = arguments.train_batch_size * arguments.world_size
        for numbers in BatchPlan(dataset.groups, size, arguments.seed, arguments.task_shares):
            batch = self._prepare_inputs(collator([dataset[number] for number in numbers]))
            batch.pop("counts")
            features, labels = self.collect_features(batch)
            if labels is not None:
                yield features, labels

    def get_decay_parameter_names(self, model: torch.nn.Module) -> list[str]:
        """The loss's own parameters take no weight decay."""
        names: list[str] = super().get_decay_parameter_names(model)
        return [name for name in names if name not in ("logit_scale", "logit_bias")]

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """One batch, timed; a loss that is no finite number stops the run and leaves the batch on disk."""
        start = time.perf_counter()
        inputs = self._prepare_inputs(inputs)
        counts = inputs.pop("counts")
        loss: torch.Tensor = super().training_step(model, inputs, *args, **kwargs)
        if self.accelerator.sync_gradients:
            average_gradients(self.loss.parameters())
        seconds = time.perf_counter() - start
        self.seconds_in_steps += seconds
        self.throughput.add(counts, self.collect_features(inputs)[0], self.loss.texts_per_pass, seconds)
        if any_process(not bool(loss.isfinite()), loss.device):
            path = self._dump_batch(inputs)
            losses = [value for value in all_of(float(loss)) if not math.isfinite(value)]
            raise DivergedError(
                f"training: got loss {losses[0]} at step {self.state.global_step + 1}; expected a finite number; "
                f"fix: look at the batch ({path}), lower learning_rate or set max_grad_norm, and give another "
                "--out folder"
            ).of_all_processes()
        return loss

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As sentence-transformers does, but weights that are no finite numbers are a fault of the training."""
        check_finite(self.loss, self.state.global_step)
        return super().evaluate(*args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the loss's figures (bias, scale, mean logits) to each training entry, where there are any."""
        if "loss" in logs:
            figures = {name: float(value) for name, value in self.loss.statistics.items()}
            figures |= self.throughput.figures(self.args.device)
            logs = {**logs, **{name: value for name, value in figures.items() if math.isfinite(value)}}
            self.throughput = Throughput()
        super().log(logs, start_time)

    def _dump_batch(self, inputs: Mapping[str, Any]) -> Path:
        """Write the texts of a batch beside the checkpoints: tokens decoded, and the table of known relevance."""
        features, labels = self.collect_features(dict(inputs))
        tokens = [tokens_without_padding(part).tolist() for part in features]
        decode = self.model.tokenizer.decode
        texts = [[decode([t for t in text if t >= 0], skip_special_tokens=True) for text in part] for part in tokens]
        said = {"step": self.state.global_step + 1, "queries": texts[0], "documents": texts[1]}
        said["cells"] = labels.nan_to_num(-1.0).tolist() if labels is not None else []
        path = Path(self.args.output_dir or ".") / f"failed-batch-{self.args.process_index}.json"
        write_atomically(path, json.dumps(said, indent=1, ensure_ascii=False))
        return path

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Encoder, tokenizer and loss state, all as safetensors or JSON (no pickled arguments)."""
        check_finite(self.loss, self.state.global_step)
        folder = Path(output_dir or self.args.output_dir or "tmp_trainer")
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(str(folder), create_model_card=False)
        save_loss_state(self.loss, folder)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """As transformers does, then the hashes of all files of all processes."""
        super()._save_checkpoint(model, trial)
        all_of(None)  # the other processes have written their random states
        if self.args.should_save:
            write_hashes(Path(self.args.output_dir or ".") / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")

    def _load_best_model(self) -> None:
        """As sentence-transformers does, but a fault is raised; the library logs it and keeps the last weights."""
        best = str(self.state.best_model_checkpoint)
        self._load_from_checkpoint(best)
        self.model.model_card_data.set_best_model_step(int(best.rpartition("-")[2]))

    def _load_from_checkpoint(self, checkpoint_path: str) -> None:  # type: ignore[override]
        """Encoder and loss state: called on a resume and for the best model.

        As sentence-transformers loads it, but in float32: adapters beside an encoder that is stored in bf16 would be
        rounded to bf16 on the way. Damaged files are refused.
        """
        check_checkpoint(Path(checkpoint_path))
        classes = {fullname(part): type(part) for part in self.model.modules() if isinstance(part, Module)}
        loaded = type(self.model)._load_with_module_classes(
            checkpoint_path,
            classes,
            trust_remote_code=self.model.trust_remote_code,
            device="cpu",
            model_kwargs={"dtype": torch.float32},
        )
        self.model.load_state_dict(loaded.state_dict())
        load_loss_state(self.loss, Path(checkpoint_path))


class _EpochLoader(DataLoader[Any]):
    """A DataLoader whose plan learns the epoch from the trainer."""

    def set_epoch(self, epoch: int) -> None:
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]


def _prompts_of(
    model: SentenceTransformer, args: GradedTrainingArguments, pairs: GradedPairs
) -> Mapping[str, str] | Instructions:
    """The model's table of task instructions where it has one, else its prompts, or those given in the arguments."""
    table: Instructions | None = getattr(model, "instructions", None)
    if table is not None:
        table.check_tasks("instructions", (group.task for group in pairs.groups()))
        return table
    own = {"query": prompt_for(model, "query"), "document": prompt_for(model, "document")}
    given = {**own, **(args.prompts if isinstance(args.prompts, dict) else {})}
    return {name: text for name, text in given.items() if isinstance(text, str)}


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
