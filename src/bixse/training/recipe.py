"""The recipe: from pairs, a model and settings to a trained model in a folder, resumable at every checkpoint."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from sentence_transformers.util import batch_to_device
from transformers import PrinterCallback, set_seed
from transformers.integrations.integration_utils import get_available_reporting_integrations

from bixse.encoders.embedding import embed_features
from bixse.encoders.head import RelevanceHead, at_lengths
from bixse.encoders.lengths import check_lengths
from bixse.encoders.loading.backbones import switch_attention
from bixse.encoders.loading.build import build_encoder, check_dimensions, quiet_loading
from bixse.encoders.loading.precision import autocast, default_device
from bixse.encoders.relevance_model import RelevanceModel, save_whole
from bixse.encoders.weights import (
    Standardised,
    Weights,
    add_lora,
    has_lora,
    merge_lora,
    set_dropout,
    set_instructions,
    standardise,
    trained_weights,
    upcast_trainable_to_float32,
    use_attention_to_train_with,
)
from bixse.errors import InputError, InterruptedRunError
from bixse.files.files import storage_errors
from bixse.losses.catalogue import LOSSES, build_loss
from bixse.training import checks
from bixse.training.config import (
    ADAPTER_FOLDER,
    CHECKPOINT_FOLDER,
    DIVERGED_FILE,
    LOG_FILE,
    MODEL_FOLDER,
    TENSORBOARD_FOLDER,
    TUNED_FOLDER,
    TrainConfig,
)
from bixse.training.dev_evaluation import DevEvaluator, EvalCorpus, dev_evaluator
from bixse.training.distributed import (
    PATIENCE,
    any_process,
    check_agreement,
    is_main_process,
    raise_together,
    world_size,
)
from bixse.training.loop.batches import BatchPlan, GradedCollator, GroupDataset, prompts_of
from bixse.training.loop.checkpoints import (
    ProgressBar,
    StepLog,
    StopOnInterrupt,
    checkpoint_to_resume,
    complete_checkpoints,
)
from bixse.training.loop.tokens import Tokenisation
from bixse.training.loop.trainer import GradedTrainer, GradedTrainingArguments
from bixse.training.merge import MergeResult, refitted_head, set_best_weights

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.data.graded_pairs import Pairs
    from bixse.data.task_instructions import Instructions
    from bixse.losses import GradedLoss

TEXTS_MEASURED = 1000
"""Training texts whose embeddings give the statistics of `standardise`."""
QUERIES_AT_ONCE = 32
"""Maximum number of queries per batch whose embeddings are measured."""

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
class TrainResult:
    """The result of a training run; `run.json` holds all but the first two fields."""

    model_path: Path
    """Folder of the model; loads in plain SentenceTransformer."""
    reused: bool
    history: list[dict[str, Any]]
    """Log entries, one per step and one per dev evaluation; `log.jsonl` of the run adds throughput."""
    best_step: int | None
    """Step of the best checkpoint; None without a dev collection."""
    warnings: list[str]
    learning_rate: float
    """The encoder's peak rate, scaled to the queries per step."""
    merge: MergeResult | None = None
    """The merge with the base model's weights; None without a merge."""
    standardised: Standardised | None = None
    """Figures of the map before training; None without a map."""

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in ("model_path", "reused")}


class Inputs(NamedTuple):
    """The objects that a run works on."""

    model: str | SentenceTransformer
    """Name or folder of the model, or the model, which stays as it is."""
    pairs: Pairs
    where: str
    """Name of the pairs in messages."""
    instructions: Instructions | None
    eval_corpora: list[EvalCorpus]
    """Dev and guard; empty without dev."""


@dataclass(frozen=True)
class Parts:
    """The parts of a trainer, checked."""

    loss: GradedLoss
    evaluator: DevEvaluator | None
    warnings: list[str]
    standardised: Standardised | None


def run_training(
    config: TrainConfig, out: Path, inputs: Inputs, parts: Parts, trainer: GradedTrainer, progress: bool = False
) -> TrainResult:
    """Train, merge and save below a folder, from the last checkpoint there.

    See `bixse.training.train.train_into` for the errors.
    """
    can_be_merged = config.merge is not None and (inputs.eval_corpora or config.merge.weights is not None)
    base = trained_weights(trainer.loss.model) if can_be_merged else None
    warnings = parts.warnings + _run_trainer(trainer, out, then_merge=base is not None)
    history = [
        {name: value for name, value in entry.items() if not name.endswith(("_runtime", "_per_second"))}
        for entry in trainer.state.log_history
        if "train_runtime" not in entry
    ]
    best = trainer.state.best_global_step if trainer.evaluator is not None else None
    warnings += checks.warn_of_no_gain(history, best)
    targets = [entry["mean_target"] for entry in history if "mean_target" in entry]
    merged, head = None, trainer.loss.trained_head(sum(targets) / len(targets) if targets else None)
    if base is not None:
        merged, head = _merge_tuned(config, out, trainer, base, inputs.eval_corpora, head, progress)
        warnings += merged.warnings()
    result = TrainResult(
        model_path=out / MODEL_FOLDER,
        reused=False,
        history=history,
        best_step=best,
        warnings=warnings,
        learning_rate=trainer.args.learning_rate,
        merge=merged,
        standardised=parts.standardised,
    )
    unsharded = trainer.unsharded_model()
    with raise_together(), storage_errors(out):
        if is_main_process():
            _save_model(trainer, unsharded, head, result.model_path, merged, out / ADAPTER_FOLDER)
    return result


@raise_together()
def make_parts(config: TrainConfig, inputs: Inputs) -> Parts:
    """Make the loss and the dev evaluator, and refuse inputs that cannot be trained on."""
    loss = make_loss(config, inputs.model, inputs.instructions)
    model, pairs = cast("RelevanceModel", loss.model), inputs.pairs
    standardised = _standardise_bare(config, model, pairs)
    warnings = checks.check_held_out(inputs.eval_corpora, pairs.queries, config.allow_shared_queries)
    if config.standardise not in (None, "none") and standardised is None:
        warnings.append(
            f"standardise: got the sentence-transformers model {config.model}; expected a bare backbone; its "
            "embeddings stay as they are; fix: leave it out"
        )
    warnings += checks.check_pairs(inputs.where, config.loss, loss, pairs, config.optimizer.documents_per_query)
    warnings += checks.check_max_length(model)
    warnings += check_lengths(model, pairs, checks.prompts_before(model, pairs))
    return Parts(loss, dev_evaluator(config, model, inputs.eval_corpora), warnings, standardised)


def make_loss(config: TrainConfig, source: str | SentenceTransformer, table: Instructions | None = None) -> GradedLoss:
    """Return the loss on an encoder that is ready to be trained."""
    set_seed(config.seed)
    model = build_encoder(
        source,
        config.max_length,
        "cpu" if config.sharding is not None and world_size() > 1 else None,  # each process keeps only a part
        trust_remote_code=config.trust_remote_code,
        bidirectional=config.bidirectional,
        pooling=config.pooling,
    )
    use_attention_to_train_with(model, config.train_max_length or config.max_length)
    if table is not None:
        set_instructions(model, table)
    if config.dropout is not None:  # before the adapters, which have a dropout of their own
        set_dropout(model, config.dropout)
    if config.lora is not None:
        add_lora(model, **config.lora.model_dump())
    upcast_trainable_to_float32(model)
    check_dimensions(model, config.dimensions)
    options = {"scale": config.scale, **config.loss_options}
    if LOSSES[config.loss].name == "BiXSELoss":
        options["bias_lr_multiplier"] = config.optimizer.bias_lr_multiplier
    return build_loss(config.loss, model, config.dimensions, **options)


@torch.no_grad()
def _standardise_bare(config: TrainConfig, model: RelevanceModel, pairs: Pairs) -> Standardised | None:
    """Append the map `config.standardise` to a bare backbone, measured on texts as training reads them."""
    statistics = config.standardise or ("mean-and-deviation" if model.was_decoder else "none")
    if statistics == "none" or model.backbone_files is None:
        return None
    optimizer, was_training = config.optimizer, model.training
    groups = GroupDataset(pairs, optimizer.documents_per_query, config.seed)
    tokenisation = Tokenisation(model, config.train_max_length)
    collator = GradedCollator(tokenisation, pairs, prompts=prompts_of(model, None, pairs))
    vectors: list[torch.Tensor] = []
    model.eval()
    # batches of the first epoch, cut small: queries, documents and tasks come in the proportion of training
    for drawn in BatchPlan(pairs, min(optimizer.global_batch_size, QUERIES_AT_ONCE), config.seed, config.task_shares):
        batch = collator([groups[index] for index in drawn])
        for kind in ("query", "document"):
            part = {name.removeprefix(f"{kind}_"): value for name, value in batch.items() if name.startswith(kind)}
            with autocast(model.device):
                vectors += embed_features(model, batch_to_device(part, model.device)).float()
        if len(vectors) >= TEXTS_MEASURED:
            break
    model.train(was_training)
    return standardise(model, torch.stack(vectors), statistics)


@raise_together()
def make_trainer(
    config: TrainConfig, out: Path, inputs: Inputs, parts: Parts, title: str | None = None
) -> GradedTrainer:
    """Return the trainer of a run, with our own progress bar under `title` instead of the library's."""
    arguments = training_arguments(config, out / CHECKPOINT_FOLDER, parts.evaluator)
    arguments.output_dir = gettempdir()  # the library makes this folder at once, and a refused command leaves none
    # a step cannot hold more queries than there are
    arguments.learning_rate = config.optimizer.scaled_learning_rate(len(inputs.pairs.groups()))
    kind = GradedTrainer
    if config.sharding is not None:
        from bixse.training.sharding import ShardedTrainer  # distributed checkpoints take a second to import

        kind = ShardedTrainer
    trainer = kind(parts.loss.model, arguments, inputs.pairs, loss=parts.loss, evaluator=parts.evaluator)
    trainer.args.output_dir = str(out / CHECKPOINT_FOLDER)
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


def _run_trainer(trainer: GradedTrainer, out: Path, then_merge: bool) -> list[str]:
    """Train from the last checkpoint, if any, and return warnings of checkpoints that could not be used."""
    stop = StopOnInterrupt()
    trainer.add_callback(stop)
    checkpoint, warnings = checkpoint_to_resume(out / CHECKPOINT_FOLDER)
    check_agreement({"checkpoint": checkpoint})
    before = checks.embedding_spreads(trainer.loss.model, trainer.pairs)
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"training: got a batch that does not fit into the memory of {trainer.args.device} "
            f"({str(error).partition('. ')[0]}); expected one that fits; fix: set `gradient_cache: true` under "
            "loss_options, or a smaller global_batch_size or train_max_length"
        ) from error
    finally:
        stop.release()
    trainer.check_finite()
    state = trainer.state
    is_done = state.global_step >= state.max_steps
    if is_done:
        losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
        after = checks.embedding_spreads(trainer.loss.model, trainer.pairs)
        checks.check_learned(before, after, losses, trainer.evaluator is not None)
        # a Ctrl-C during the last step ends the run only if the merge is still to come
        is_done = not (then_merge and any_process(stop.requested, trainer.args.device))
    if not is_done:
        done = f"got Ctrl-C or SIGTERM after step {state.global_step} of {state.max_steps}"
        raise InterruptedRunError(f"{out}: {done}; the last checkpoint is kept; the same command continues from it")
    return warnings


def _merge_tuned(
    config: TrainConfig,
    out: Path,
    trainer: GradedTrainer,
    base: Weights,
    eval_corpora: Sequence[EvalCorpus],
    head: RelevanceHead | None,
    progress: bool,
) -> tuple[MergeResult, RelevanceHead | None]:
    """Set the trained encoder to the best weights between it and the base."""
    settings, model = config.merge, trainer.loss.model
    assert settings is not None
    device = model.device
    if settings.keep_tuned:
        unsharded = trainer.unsharded_model()
        with raise_together():
            if is_main_process():
                # a copy: saving merges adapters
                _save_model(trainer, copy.deepcopy(unsharded.cpu()), head, out / TUNED_FOLDER)
        model.to(device)
    model.eval()
    # a saved model loads with sdpa: eager attention, which trains faster, rounds differently and is slow on long texts
    switch_attention(model, None)
    tuned = trained_weights(model)
    merged = set_best_weights(model, base, tuned, settings.weights, eval_corpora, config.guard_tolerance, progress)
    if head is not None and merged.weight < 1:
        with raise_together():
            head = refitted_head(trainer, head, trainer.loss.dimensions)
    return merged, head


def _save_model(
    trainer: GradedTrainer,
    encoder: SentenceTransformer,
    head: RelevanceHead | None,
    folder: Path,
    merged: MergeResult | None = None,
    adapters: Path | None = None,
) -> None:
    """Save an encoder with its head and the card of a merge; adapters are written alone first, then merged."""
    model = cast("RelevanceModel", encoder)
    # also without one: the base model's heads do not fit this encoder
    model.heads = at_lengths(head, getattr(trainer.loss, "dimensions", ()))
    with quiet_loading():
        if has_lora(model):
            if adapters is not None:
                save_whole(model, adapters)
            model.float()  # bf16 would round away a part of the adapters' change
            merge_lora(model)
        save_whole(model, folder, merged.card() if merged is not None else "")
