"""The trainer for graded pairs, `GradedTrainer`: sentence-transformers' trainer on one process or many."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, repeat
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import broadcast, gather_object, send_to_device
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.modules import Module
from sentence_transformers.util import fullname
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from bixse.data.graded_pairs import Pairs
from bixse.encoders.embedding import number_of_texts, retry_with_smaller_passes
from bixse.encoders.processes import is_sharded, local_part, unsharded_tensors
from bixse.encoders.serving import saved_for_servers
from bixse.errors import DivergedError, NotFiniteError, StorageError
from bixse.files.files import cache_folder, storage_errors, write_atomically, write_hashes
from bixse.losses import BiXSELoss, GradedLoss, GradedTargets
from bixse.machine import ahead
from bixse.training.config import DIVERGED_FILE
from bixse.training.distributed import average_gradients, raise_together
from bixse.training.loop.batches import BATCHES_AHEAD, BatchPlan, GradedCollator, GroupDataset, prompts_of
from bixse.training.loop.checkpoints import (
    ProgressBar,
    check_checkpoint,
    check_map,
    load_loss_state,
    save_loss_state,
)
from bixse.training.loop.figures import Batch, UnreadFigures
from bixse.training.loop.tokens import Tokenisation

if TYPE_CHECKING:
    from datasets import Dataset
    from sentence_transformers.base.evaluation import BaseEvaluator
    from transformers import TrainerCallback


FIX = "lower learning_rate or set max_grad_norm, and give another --out folder"
"""The fix for diverged training."""


@dataclass
class GradedTrainingArguments(SentenceTransformerTrainingArguments):
    """The training arguments of sentence-transformers, and three more.

    `per_device_train_batch_size` counts queries; each brings its graded documents. Each of W processes (torchrun) gets
    this number, so a batch has W times as many.
    """

    documents_per_query: int | None = None
    """Graded documents per query in one batch, at least 1; None takes all."""
    train_max_length: int | None = None
    """Tokens per text that training reads; None reads as many as the model does when it encodes."""
    task_shares: dict[str, float] | None = None
    """Task -> share of its queries per epoch, in (0, 1]; 1 for tasks without an entry."""


class GradedTrainer(SentenceTransformerTrainer):
    """Train an encoder on `Pairs` with any loss of `bixse.losses`.

    In addition to sentence-transformers' trainer it saves, restores and logs the loss's parameters. Its batches depend
    on (seed, epoch) alone, so that a resumed run equals an uninterrupted one. Several processes share every batch, and
    average all gradients after the backward pass: the result equals one process on the same batches, up to rounding.

    `train_dataset` is a `datasets.Dataset` with the columns query, document, relevance (or label), and optionally
    query_id, document_id, task; a `DatasetDict` with one task per key; or `Pairs`. The default loss is
    `BiXSELoss(model)`. InputError is raised for missing columns, unknown tasks, and tasks without an instruction in the
    model's table.

    Example:
        ::

            model = SentenceTransformer("sentence-transformers/all-MiniLM-L6-v2")
            args = GradedTrainingArguments(output_dir="checkpoints", learning_rate=5e-5, documents_per_query=4)
            dataset = load_dataset("parquet", data_dir="pairs", split="train")
            trainer = GradedTrainer(model, args, train_dataset=dataset, loss=BiXSELoss(model))
            trainer.train()
    """

    training_args_class = GradedTrainingArguments
    args: GradedTrainingArguments
    loss: GradedLoss  # type: ignore[assignment]
    data_collator: GradedCollator  # type: ignore[assignment]

    def __init__(
        self,
        model: SentenceTransformer,
        args: GradedTrainingArguments,
        train_dataset: Pairs | Dataset | Mapping[str, Dataset],
        loss: GradedLoss | None = None,
        evaluator: BaseEvaluator | None = None,
        callbacks: list[TrainerCallback] | None = None,
    ) -> None:
        loss = loss if loss is not None else BiXSELoss(model)
        args = copy.copy(args)  # the caller's arguments stay unchanged
        _ = args.device  # sets n_gpu, which the next line overrides: DataParallel would split batches
        args._n_gpu = min(1, args.n_gpu)
        args.logging_nan_inf_filter = False  # it would read the loss of every step, and log earlier losses for NaN
        rates = args.learning_rate_mapping if isinstance(args.learning_rate_mapping, dict) else {}
        args.learning_rate_mapping = {**rates, **_rates(args, loss)}
        if not isinstance(train_dataset, Pairs):
            train_dataset = Pairs.from_dataset(train_dataset)
        self.pairs = train_dataset
        self.plan = BatchPlan(self.pairs, args.train_batch_size * args.world_size, args.seed, args.task_shares)
        self.figures = UnreadFigures()
        self.token_cache = cache_folder()
        """Folder that keeps the tokens for later runs; None for a file that is deleted with the process."""
        self.diverged_file = Path(args.output_dir or ".") / DIVERGED_FILE
        """File for the batch whose loss is not finite."""
        self._ahead: tuple[Iterator[Any], Generator[Any]] | None = None
        collator = GradedCollator(
            Tokenisation(model, args.train_max_length),
            self.pairs,
            loss.options.in_batch_labels,
            prompts_of(model, args.prompts, self.pairs),
            args.process_index,
            args.world_size,
        )
        super().__init__(
            model=model,
            args=args,
            loss=loss,
            evaluator=evaluator,
            callbacks=callbacks,
            data_collator=collator,  # type: ignore[arg-type]
        )
        if self._in_bf16():
            # a step has an autocast of its own; the library's is inside the encoder's forward, where none can leave it
            self.accelerator.native_amp = False
        # gradients are averaged by `average_gradients`: no wrapper that counts forward passes
        self.accelerator.prepare_model = partial(self.accelerator.prepare_model, evaluation_mode=True)
        if args.world_size > 1:
            torch.manual_seed(args.seed + args.process_index)  # each process has other texts and needs other dropout

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as sentence-transformers does; all processes begin with the weights of the first."""
        broadcast(unsharded_tensors(self.loss))
        with raise_together(), self.args.main_process_first(desc="tokenise"):  # the others read the first one's file
            self._tokenise()
        self.figures = UnreadFigures()  # none of a run that ended early
        try:
            return super().train(*args, **kwargs)
        finally:
            self._read_ahead(None)

    def _tokenise(self) -> None:
        """Tokenise the texts of the run once: all texts, or those of its steps if they are less than an epoch."""
        batches, rows = self.args.max_steps * self.args.gradient_accumulation_steps, None
        if 0 < batches < len(self.plan):
            drawn = GroupDataset(self.pairs, self.args.documents_per_query, self.args.seed)
            # and of the batches that the thread makes after the last step, for which it must not use the tokenizer
            chosen = chain.from_iterable(islice(self.plan.of_epoch(0), batches + BATCHES_AHEAD))
            rows = np.concatenate([drawn[index].rows for index in chosen])
        shown = any(isinstance(callback, ProgressBar) for callback in self.callback_handler.callbacks)
        self.data_collator.tokenise(rows, self.token_cache, "tokenise" if shown else None)

    def _read_ahead(self, batches: Iterator[Any] | None) -> Iterator[Any]:
        """Return these batches as a thread makes them ahead of the steps; None ends the thread."""
        if self._ahead is not None and self._ahead[0] is not batches:
            self._ahead[1].close()
            self._ahead = None
        if batches is None:
            return iter(())
        if self._ahead is None:
            self._ahead = batches, ahead(partial(next, batches), repeat(None), BATCHES_AHEAD)
        return iter(partial(next, self._ahead[1]), None)

    def get_batch_samples(self, epoch_iterator: Iterator[Any], *args: Any, **kwargs: Any) -> Any:
        """Take the next batches from the thread; a model's tokenizer serves one thread alone, and makes them here."""
        if self.args.dataloader_num_workers == 0 and self.data_collator.is_tokenised:
            epoch_iterator = self._read_ahead(epoch_iterator)
        return super().get_batch_samples(epoch_iterator, *args, **kwargs)

    def unsharded_model(self) -> SentenceTransformer:
        """Return the unsharded encoder; every process must call this."""
        return self.model

    def get_train_dataloader(self) -> DataLoader[Any]:
        return self._loader(self.plan, self.data_collator)

    def _loader(self, plan: BatchPlan, collator: Any) -> DataLoader[Any]:
        return _EpochLoader(
            GroupDataset(self.pairs, self.args.documents_per_query, self.args.seed),
            batch_sampler=plan,
            collate_fn=collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
        )

    def global_batches(self) -> Iterator[tuple[list[dict[str, Any]], GradedTargets]]:
        """Yield features and targets of the global batches of the first epoch, in every process."""
        collator = copy.copy(self.data_collator)
        collator.rank, collator.world_size = 0, 1
        for batch in self._loader(self.plan.of_epoch(0), collator):
            features, labels = self.collect_features(self._prepare_inputs(batch))
            shape = (number_of_texts(features[0]), number_of_texts(features[1]))
            yield features, GradedTargets(**labels, shape=shape)  # type: ignore[arg-type]

    def get_decay_parameter_names(self, model: torch.nn.Module) -> list[str]:
        """Return the names without the logit scale, which takes no weight decay (transformers leaves out biases)."""
        names: list[str] = super().get_decay_parameter_names(model)
        return [name for name in names if name.rpartition(".")[2] != "logit_scale"]

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """Train on one batch; its loss stays on the device until the figures are read."""
        counts, numbers = inputs.pop("counts"), inputs.pop("numbers")  # they stay on the host
        inputs = send_to_device(inputs, self.args.device, non_blocking=True)  # the library's copy would wait
        step = partial(super().training_step, model, inputs, *args, **kwargs)
        loss = retry_with_smaller_passes(self.model, step, self.loss.parameters())
        if self.accelerator.sync_gradients:
            average_gradients(part for part in self.loss.parameters() if not isinstance(part, DTensor))
        self.figures.add_batch(Batch(self.state.global_step + 1, numbers, loss), counts)
        return loss

    def autocast_smart_context_manager(self, *args: Any, **kwargs: Any) -> AbstractContextManager[Any]:
        """Compute the embeddings of a step in one autocast, so that its passes on a GPU round each weight once."""
        device = self.args.device.type
        # each pass gathers sharded weights anew: rounded ones that were kept would never be freed. The gradients of a
        # weight that several passes share are added in bf16: a GPU has few passes, and a CPU many
        reused = device != "cpu" and not is_sharded(self.loss)
        return torch.autocast(device, torch.bfloat16, self._in_bf16(), cache_enabled=reused)

    def _in_bf16(self) -> bool:
        # by the arguments or by the launcher; float16 is left to the library, which scales its gradients
        return str(self.accelerator.mixed_precision) == "bf16"

    def _maybe_log_save_evaluate(self, tr_loss: torch.Tensor, grad_norm: Any, *args: Any, **kwargs: Any) -> None:
        """Keep the log entry on the device; read all entries when it is time, and before an evaluation or a save."""
        control, steps = self.control, self.state.global_step - self._globalstep_last_logged
        if control.should_log and steps > 0:
            rate = kwargs.get("learning_rate")
            figures = {"loss": tr_loss, "grad_norm": grad_norm, **self.loss.statistics}
            self.figures.add_entry(self.state, steps, self._get_learning_rate() if rate is None else rate, figures)
            tr_loss.zero_()
            self._globalstep_last_logged = self.state.global_step
        control.should_log = False  # the library would wait for the device
        ends = control.should_training_stop or self.state.global_step >= self.state.max_steps
        if self.figures.is_due(self.state.global_step) or ends or control.should_evaluate or control.should_save:
            self._read_figures()
        super()._maybe_log_save_evaluate(tr_loss, grad_norm, *args, **kwargs)

    def _read_figures(self) -> None:
        """Log the steps since the last read, up to the first whose loss is not finite: it ends all processes."""
        entries, broken, any_broken = self.figures.read(self.args.device)
        mine = [(batch.step, loss, [part.tolist() for part in batch.numbers]) for batch, loss in broken[:1]]
        first = min(chain.from_iterable(gather_object([mine])), key=itemgetter(0)) if any_broken else None
        state, step, epoch = self.state, self.state.global_step, self.state.epoch
        for entry, figures, losses in entries:
            if first is None or entry.step < first[0]:
                state.global_step, state.epoch = entry.step, entry.epoch  # callbacks read them
                self._total_loss_scalar += losses
                self.log(figures)
        state.global_step, state.epoch = step, epoch
        self.store_flos()
        if first is not None:
            raise self._diverged(*first)

    def _diverged(self, step: int, loss: float, numbers: list[list[int]]) -> DivergedError:
        """Write the pairs of a batch, by the numbers of its groups and documents, and return the error."""
        rows = np.concatenate([self.pairs.groups().rows(number) for number in numbers[0]])
        rows = rows[np.isin(self.pairs.numbers("document")[rows], numbers[1])]
        if self.args.should_save:
            with suppress(StorageError):  # a full disk is not what ended the run
                lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in self.pairs.select(rows).rows()]
                write_atomically(self.diverged_file, "".join(lines))
        return DivergedError(
            f"training: got loss {loss} at step {step} (its batch is in {self.diverged_file}); expected a finite "
            f"number; fix: {FIX}"
        ).of_all_processes()

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate as sentence-transformers does; raise DivergedError if weights or embeddings are NaN or infinite."""
        self.check_finite()
        try:
            return super().evaluate(*args, **kwargs)
        except NotFiniteError as error:
            if not self.state.global_step:  # the model was already broken
                raise
            raise DivergedError(
                f"training: got embeddings that are not finite after step {self.state.global_step}; expected finite "
                f"ones; fix: {FIX}"
            ) from error
        finally:
            self.figures.restart_clock()

    def check_finite(self) -> None:
        """Raise DivergedError in all processes if weights of one are not finite."""
        # of sharded weights only this process's part
        parts = ((name, local_part(weight.detach())) for name, weight in self.loss.named_parameters())
        with raise_together():
            if name := next((name for name, part in parts if not bool(part.isfinite().all())), ""):
                raise DivergedError(
                    f"training: got weights that are not finite ({name}) after step {self.state.global_step}; "
                    f"expected finite ones; fix: {FIX}"
                )

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save encoder, tokenizer and loss state, all as safetensors or JSON (no pickled arguments)."""
        if self.args.should_save:  # transformers 5.23 calls this in every process; all would write the same files
            self._save_files(self.model, output_dir)

    def _save_files(self, model: SentenceTransformer | None, output_dir: str | None) -> None:
        folder = Path(output_dir or self.args.output_dir or "tmp_trainer")
        if model is not None:
            with saved_for_servers(folder):  # a plain SentenceTransformer saves no settings for servers
                model.save_pretrained(str(folder), create_model_card=False)
        save_loss_state(self.loss, folder)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """Save as transformers does, then the hashes of all files of all processes."""
        self.check_finite()
        with storage_errors(Path(self.args.output_dir or ".")):
            super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()  # the other processes have written their random states
        if self.args.should_save:
            write_hashes(Path(self.args.output_dir or ".") / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        self.figures.restart_clock()

    def _load_best_model(self) -> None:
        """Load as sentence-transformers does, but raise errors; the library logs them and keeps the last weights."""
        best = str(self.state.best_model_checkpoint)
        self._load_from_checkpoint(best)
        self.model.model_card_data.set_best_model_step(int(best.rpartition("-")[2]))

    def _load_from_checkpoint(self, checkpoint_path: str) -> None:  # type: ignore[override]
        """Load encoder and loss state, on a resume and for the best model; refuse damaged files."""
        check_checkpoint(Path(checkpoint_path))
        load_loss_state(self.loss, Path(checkpoint_path))  # first, as it refuses a checkpoint of another loss
        self._load_encoder(checkpoint_path)

    def _load_encoder(self, checkpoint_path: str) -> None:
        """Load as sentence-transformers does, but in float32."""
        classes = {fullname(part): type(part) for part in self.model.modules() if isinstance(part, Module)}
        wide = {"dtype": torch.float32}
        # float32: adapters of an encoder that is stored in bf16 would be rounded to bf16 on the way
        loaded = type(self.model)._load_with_module_classes(
            checkpoint_path, classes, trust_remote_code=self.model.trust_remote_code, device="cpu", model_kwargs=wide
        )
        check_map(checkpoint_path, "modules", len(loaded), len(self.model))
        self.model.load_state_dict(loaded.state_dict())


class _EpochLoader(DataLoader[Any]):
    """A loader that passes the trainer's epoch to its plan."""

    def set_epoch(self, epoch: int) -> None:
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]


def _rates(args: GradedTrainingArguments, loss: GradedLoss) -> dict[str, float]:
    """Return the learning rate, by exact name, of the parameters that need an optimizer group of their own."""
    # those of the loss always: a run may go on with one process, which shards nothing, and needs the same groups; an
    # optimizer refuses unsharded and sharded weights in one group
    sharded = is_sharded(loss)
    names = [
        name
        for name, part in loss.named_parameters()
        if part.requires_grad and (not name.startswith("model.") or (sharded and not isinstance(part, DTensor)))
    ]
    return {rf"^{re.escape(name)}$": args.learning_rate for name in names}
