"""The recipe: from a configuration to a trained model in a folder, resumable at every checkpoint."""

from __future__ import annotations

import copy
import math
import shutil
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from transformers import PrinterCallback, ProgressCallback, set_seed
from transformers.integrations.integration_utils import get_available_reporting_integrations

from bixse.data.pairs_files import load_several
from bixse.data.run import Run, Status, open_run
from bixse.data.task_instructions import load_instructions
from bixse.encoders.identity import model_hashes, model_path_settings
from bixse.encoders.instructions import set_instructions, use_task
from bixse.encoders.interpolation import check_can_be_scaled, mean_weights, trained_weights
from bixse.encoders.loading.attention import switch_attention
from bixse.encoders.loading.build import build_encoder, no_library_bars, quiet_loading, set_dropout
from bixse.encoders.loading.precision import default_device, upcast_trainable_to_float32, use_precision
from bixse.encoders.lora import add_lora, has_lora, merge_lora
from bixse.encoders.relevance_model import RelevanceModel, save_whole
from bixse.errors import BixseError, InputError, InterruptedRunError, TrainingError
from bixse.extensions import extension
from bixse.files.files import file_hash, storage_errors
from bixse.losses.catalogue import build_loss
from bixse.losses.relevance_head import trained_head
from bixse.settings import paths_in
from bixse.training.config import (
    ADAPTER_FOLDER,
    CHECKPOINT_FOLDER,
    LOG_FILE,
    MODEL_FOLDER,
    TENSORBOARD_FOLDER,
    TUNED_FOLDER,
)
from bixse.training.dev_evaluation import (
    check_not_trained_on,
    dev_evaluator,
    dev_figures,
    load_watched,
    queries_of,
    split_hashes,
    watched_splits,
)
from bixse.training.distributed import (
    PATIENCE,
    any_process,
    check_agreement,
    first_process_alone_in,
    init_distributed,
    is_main_process,
    raise_together,
    world_size,
)
from bixse.training.loop.checkpoints import (
    ProgressBar,
    StepLog,
    StopOnInterrupt,
    checkpoint_to_resume,
    relocate_best_checkpoint,
    whole_checkpoints,
)
from bixse.training.loop.divergence import check_finite_together, check_learned, embedding_spreads
from bixse.training.loop.trainer import GradedTrainer, GradedTrainingArguments
from bixse.training.loop.unlabelled import RegradedEpoch
from bixse.training.merge import MergeResult, merge, refitted_head
from bixse.training.preflight import check_disk, check_lengths, check_max_length, check_memory, check_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bixse.data.graded_pairs import GradedPairs
    from bixse.data.task_instructions import Instructions
    from bixse.encoders.head import RelevanceHead
    from bixse.encoders.interpolation import Weights
    from bixse.losses.base import GradedLoss
    from bixse.training.config import TrainConfig
    from bixse.training.dev_evaluation import DevEvaluator, Watched

CHECKPOINTING: dict[str, Any] = {
    "gradient_checkpointing": True,
    "gradient_checkpointing_kwargs": {"use_reentrant": False},
}
"""Given only where it is wanted: transformers 5.23 warns of these names, sentence-transformers 6.2 knows no others."""


@dataclass(frozen=True)
class TrainResult:
    """What a training run left."""

    model_path: Path
    """Folder of the model; loads in plain SentenceTransformer."""
    history: list[dict[str, Any]]
    """The log: an entry a step and one an evaluation on dev; `log.jsonl` of the run holds the same with throughput."""
    best_step: int | None
    """Step of the checkpoint that was kept; None without a dev collection."""
    warnings: list[str]
    """What the user should know."""
    learning_rate: float
    """The encoder's peak rate, scaled to the queries of a step."""
    reused: bool
    """The run was finished before; nothing was trained."""
    merge: MergeResult | None = None
    """How the tuned weights were merged with the base model's; None where they were not."""
    regrade: list[RegradedEpoch] = field(default_factory=list)
    """What a judge said of suspicious zeros after each epoch."""
    loss_computed_by: str = ""  # dtype of the matrix products of the loss


class Inputs(NamedTuple):
    """What a configuration names, read."""

    pairs: GradedPairs
    instructions: Instructions | None
    watched: list[Watched]
    record: Run


def train(config: TrainConfig, out: Path, progress: bool = True, title: str = "train") -> TrainResult:
    """Train an encoder on graded pairs and save it to `out/model` with `out/run.json`.

    Called again with the same configuration and precision it continues an interrupted run from its last checkpoint,
    and returns a finished one as it is. Started several times at once by torchrun or `accelerate launch`, the processes
    share every batch; the first one writes.

    Raises:
        InputError: pairs, collection, model or configuration cannot be used.
        OutputExistsError: `out` holds another run.
        StorageError: the disk is full.
        InterruptedRunError: stopped by Ctrl-C after a checkpoint.
    """
    with use_precision(config.precision):
        config = config.resolved()
        init_distributed()
        with raise_together():
            inputs = open_training(config, out)
        record = inputs.record
        check_agreement({"settings": record.fingerprint, "status of the run": record.status})
        if record.status == "finished" and (out / MODEL_FOLDER).is_dir():
            return _result(out, record.results, reused=True)
        started = time.perf_counter()
        with raise_together():
            model, loss = make_model(config, inputs.instructions)
            warnings = check_training(config, out, model, loss, inputs)
            evaluator = dev_evaluator(config, model, inputs.watched)
        with no_library_bars(), _nothing_left_if_refused(out):
            with raise_together(), storage_errors(out):
                trainer = make_trainer(config, out, model, loss, inputs.pairs, evaluator, progress, title)
                base = _weights_to_merge_with(config, model)
                check_memory(trainer)
                regrading = _regrading(config, out, trainer)
            with first_process_alone_in(out), storage_errors(out):
                _save_record(record, "running")
                warnings += _run_trainer(trainer, out, record, then_merge=base is not None)
                if regrading is not None:
                    warnings += regrading.warnings()
                results = _results(config, trainer, warnings) | {"loss_computed_by": loss.computed_by(model.device)}
                results["regrade"] = [] if regrading is None else regrading.to_json()
                head = _trained_head(loss, results["history"])
                merged = None
                if base is not None:
                    merged, head = _merge(config, out, trainer, base, inputs, results["history"], head, progress)
                    warnings += merged.warnings()
                    results["merge"] = merged.to_json()
                whole = cast("RelevanceModel", trainer.whole_model())
                with raise_together(), storage_errors(out):
                    if is_main_process():
                        record.results = results
                        _save_model(whole, head, out, MODEL_FOLDER, merged)
                        _add_timings(record, started, trainer)
                        record.save("finished")
                        shutil.rmtree(out / CHECKPOINT_FOLDER, ignore_errors=True)
        return _result(out, results, reused=False)


def open_training(config: TrainConfig, out: Path) -> Inputs:
    """Read what a configuration names, and the record of its run; nothing is written."""
    files, splits = paths_in(config.pairs), watched_splits(config)
    pairs = load_several(files)
    names = ["pairs"] if len(files) == 1 else [f"pairs/{path.stem}" for path in files]
    hashes = {name: file_hash(path) for name, path in zip(names, files, strict=True)} | split_hashes(splits)
    paths = ("pairs", "dev", "guard", "instructions", *model_path_settings(config.model))
    hashes |= model_hashes(config.model)
    table = load_instructions(config.instructions) if config.instructions is not None else None
    if table is not None:
        hashes["instructions"] = table.content_hash()
    record = open_run(out, "train", config.identity(), hashes, paths)
    searched = config.merge.documents if config.merge is not None else None
    return Inputs(pairs, table, load_watched(splits, searched, config.missing_documents), record)


def make_model(config: TrainConfig, table: Instructions | None) -> tuple[RelevanceModel, GradedLoss]:
    """The encoder, ready to be trained, and the loss on it."""
    set_seed(config.seed)
    model = build_encoder(
        config.model,
        config.max_length,
        "cpu" if config.sharding is not None and world_size() > 1 else None,  # each process keeps a part of it
        trust_remote_code=config.trust_remote_code,
        bidirectional=config.bidirectional,
        pooling=config.pooling,
        attention=config.attention,
    )
    if config.attention is None and config.attention_taken is not None:
        switch_attention(model, config.attention_taken)
    if table is not None:
        set_instructions(model, table)
    use_task(model, config.dev_task)
    if config.lora is not None:
        add_lora(model, **config.lora.model_dump(exclude={"options"}), **config.lora.options)
    upcast_trainable_to_float32(model)
    if config.dropout is not None:
        set_dropout(model, config.dropout)
    return model, build_loss(config.loss, model, **config.all_loss_options)


def check_training(
    config: TrainConfig, out: Path, model: RelevanceModel, loss: GradedLoss, inputs: Inputs
) -> list[str]:
    """Refuse what cannot be trained, and return what the user should know."""
    loss.computed_by(model.device)  # refuses products of bf16 that PyTorch lacks here
    where, pairs = ", ".join(map(str, paths_in(config.pairs))), inputs.pairs
    warnings = check_not_trained_on(queries_of(inputs.watched), pairs.queries, config.allow_shared_queries)
    warnings += check_pairs(where, config.loss, loss, pairs, config.optimizer.documents_per_query)
    warnings += check_max_length(model)
    warnings += check_lengths(where, model, pairs, config.long_texts)
    warnings += [said for corpus in inputs.watched for said in corpus.warnings()]
    averaged = config.merge is not None and config.merge.checkpoints > 1  # then all checkpoints are kept
    check_disk(out, model, max(2, config.optimizer.epochs * config.evaluations_per_epoch) if averaged else 2)
    return warnings


def make_trainer(
    config: TrainConfig,
    out: Path,
    model: RelevanceModel,
    loss: GradedLoss,
    pairs: GradedPairs,
    evaluator: DevEvaluator | None,
    progress: bool = False,
    title: str = "train",
) -> GradedTrainer:
    """With a bar of our own instead of the library's."""
    arguments = training_arguments(config, out / CHECKPOINT_FOLDER, evaluator)
    arguments.learning_rate = config.optimizer.scaled_learning_rate(len(pairs.groups()))
    kind: type[GradedTrainer] = GradedTrainer if config.sharding is None else extension("sharding")
    trainer = kind(model, arguments, pairs, loss=loss, evaluator=evaluator)
    trainer.plan.check_sizes(", ".join(map(str, paths_in(config.pairs))))
    trainer.args.save_steps = trainer.args.eval_steps = steps_of(config, len(trainer.plan))[2]
    if is_main_process():
        trainer.add_callback(StepLog(out / LOG_FILE))
        if progress:
            trainer.add_callback(ProgressBar(title))
    for callback in trainer.callback_handler.callbacks:
        if getattr(callback, "logging_dir", "") is None:  # TensorBoard's files would go with the checkpoints
            callback.logging_dir = str(out / TENSORBOARD_FOLDER)
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    return trainer


def _regrading(config: TrainConfig, out: Path, trainer: GradedTrainer) -> Any:
    if config.regrade is None:
        return None
    regrading = extension("regrade")(config.regrade, out, trainer, *steps_of(config, len(trainer.plan))[:2])
    trainer.add_callback(regrading)
    return regrading


def training_arguments(config: TrainConfig, folder: Path, evaluator: DevEvaluator | None) -> GradedTrainingArguments:
    """The trainer's arguments of a configuration, but how often it saves: that depends on the number of batches.

    `folder` is where checkpoints go; with an evaluator they are compared.
    """
    optimizer = config.optimizer
    bf16 = config.resolved().precision == "bfloat16"
    processes = world_size()
    if optimizer.batch_size % processes:
        near = max(1, optimizer.batch_size // processes) * processes
        raise InputError(
            f"batch_size: got {optimizer.batch_size} queries for {processes} processes; expected a multiple, so that "
            f"each has as many; fix: set it to {near}"
        )
    _check_trackers(config.report_to)
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
        learning_rate=optimizer.scaled_learning_rate(),
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
        save_total_limit=2 if config.merge is None or config.merge.checkpoints == 1 else None,  # the best are merged
        eval_strategy="steps" if evaluator is not None else "no",
        eval_on_start=evaluator is not None and not whole_checkpoints(folder),
        load_best_model_at_end=evaluator is not None,
        metric_for_best_model=f"eval_{evaluator.primary_metric}" if evaluator is not None else None,
        greater_is_better=True if evaluator is not None else None,
        dataloader_pin_memory=default_device() == "cuda",
        report_to=list(config.report_to) or "none",
        use_cpu=default_device() == "cpu",
        ddp_timeout=int(PATIENCE.total_seconds()),
        dataloader_drop_last=processes > 1,  # the plan drops nothing; this keeps the library from warning
        disable_tqdm=True,
    )
    arguments.mixed_precision = "bf16" if bf16 else "no"  # a launcher's ACCELERATE_MIXED_PRECISION would decide else
    return arguments


def steps_of(config: TrainConfig, batches: int) -> tuple[int, int, int]:
    """Optimizer steps of a run with so many batches an epoch, of an epoch, and between two checkpoints."""
    per_epoch = math.ceil(batches / config.optimizer.gradient_accumulation_steps)
    steps = config.optimizer.steps or per_epoch * config.optimizer.epochs
    return steps, per_epoch, max(1, per_epoch // max(1, config.evaluations_per_epoch))


def _check_trackers(names: Sequence[str]) -> None:
    """Refuse a tracker whose package is not there before any training."""
    missing = [name for name in names if name not in get_available_reporting_integrations()]
    if missing:
        raise InputError(
            f"report_to: got {', '.join(missing)}; expected trackers whose packages are installed; "
            f"fix: pip install {' '.join(missing)}"
        )


@contextmanager
def _nothing_left_if_refused(out: Path) -> Iterator[None]:
    """Leave no empty folder behind a command that is refused."""
    try:
        yield
    except BixseError:
        for folder in (out / CHECKPOINT_FOLDER, out):
            with suppress(OSError):
                folder.rmdir()
        raise


def _run_trainer(trainer: GradedTrainer, out: Path, record: Run, then_merge: bool) -> list[str]:
    """Train from the last checkpoint, if any, and return warnings of checkpoints that could not be used.

    A Ctrl-C leaves a checkpoint and ends the run; during the last step it does where merging is still to come.
    """
    stop, started = StopOnInterrupt(), time.perf_counter()
    trainer.add_callback(stop)
    with raise_together():
        checkpoint, warnings = checkpoint_to_resume(out / CHECKPOINT_FOLDER)
    if checkpoint is not None and is_main_process():
        relocate_best_checkpoint(Path(checkpoint))
    check_agreement({"checkpoint": checkpoint})
    before = embedding_spreads(trainer.loss.model, trainer.pairs)
    ended: Status | None = "interrupted"
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
        state = trainer.state
        check_finite_together(trainer.loss, state.global_step)
        if state.global_step >= state.max_steps:
            losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
            after = embedding_spreads(trainer.loss.model, trainer.pairs)
            check_learned(before, after, losses, trainer.evaluator is not None)
            if not (then_merge and any_process(stop.asked, trainer.args.device)):
                ended = None
    except TrainingError:
        ended = "failed"
        raise
    finally:
        stop.release()
        if ended is not None:
            _add_timings(record, started, trainer)
            _save_record(record, ended)
    if ended is not None:
        done = f"got Ctrl-C or SIGTERM after step {state.global_step} of {state.max_steps}"
        raise InterruptedRunError(f"{out}: {done}; the last checkpoint is kept; to go on: give the same command again")
    return warnings


def _weights_to_merge_with(config: TrainConfig, model: RelevanceModel) -> Weights | None:
    """Those of the base model, where w can be chosen on dev or is given."""
    if config.merge is None or (config.dev is None and len(config.merge.weights) > 1):
        return None
    base = trained_weights(model)
    check_can_be_scaled(base)
    return base


def _merge(
    config: TrainConfig,
    out: Path,
    trainer: GradedTrainer,
    base: Weights,
    inputs: Inputs,
    history: Sequence[dict[str, Any]],
    head: RelevanceHead | None,
    progress: bool,
) -> tuple[MergeResult, RelevanceHead | None]:
    """Set the trained encoder, or the mean of its best checkpoints, to the best weights between it and the base."""
    settings = config.merge
    model, device = cast("RelevanceModel", trainer.loss.model), trainer.loss.model.device
    assert settings is not None
    try:
        if settings.keep_tuned:
            whole = cast("RelevanceModel", trainer.whole_model())
            with raise_together():
                if is_main_process():
                    _save_model(copy.deepcopy(whole.cpu()), head, out, TUNED_FOLDER)
            model.to(device)
        tuned = [trained_weights(model)]
        if settings.checkpoints > 1:
            figures = dev_figures(history)
            best = sorted((step for step in figures if step > 0), key=lambda step: -figures[step])
            tuned = []
            for step in best[: settings.checkpoints]:
                trainer._load_from_checkpoint(str(out / CHECKPOINT_FOLDER / f"checkpoint-{step}"))
                tuned.append(trained_weights(model))
        model.eval()
        # as a saved model computes: eager attention, which trains faster, rounds differently and is slow on long texts
        switch_attention(model, config.attention)
        mean = mean_weights(tuned) if len(tuned) > 1 else tuned[0]
        tolerance, keep = config.guard_tolerance, settings.keep_tuned
        found = merge(model, base, mean, settings.weights, inputs.watched, tolerance, progress, keep)
        merged = replace(found, checkpoints=len(tuned), checkpoints_wanted=settings.checkpoints)
        if head is not None and (merged.weight < 1 or settings.checkpoints > 1):
            with raise_together():
                head = refitted_head(trainer, head)
    except KeyboardInterrupt:
        _save_record(inputs.record, "interrupted")
        raise
    return merged, head


def _results(config: TrainConfig, trainer: GradedTrainer, warnings: list[str]) -> dict[str, Any]:
    """What `run.json` holds of a run before it is merged, and a warning of a best checkpoint that is no better."""
    history = [
        {name: value for name, value in entry.items() if not name.endswith(("_runtime", "_per_second"))}
        for entry in trainer.state.log_history
        if "train_runtime" not in entry
    ]
    best = trainer.state.best_global_step if trainer.evaluator is not None else None
    figures = dev_figures(history)
    if best in figures and 0 in figures and figures[best] < figures[0]:
        warnings.append(
            f"on dev the best checkpoint (nDCG@10 {figures[best]:.4f}) is below the untrained encoder "
            f"({figures[0]:.4f}): a lower learning_rate or more graded queries may help"
        )
    rate = trainer.args.learning_rate
    return {"history": history, "best_step": best, "warnings": warnings, "learning_rate": rate, "merge": None}


def _result(out: Path, results: dict[str, Any], reused: bool) -> TrainResult:
    merged = MergeResult.from_json(results["merge"]) if results.get("merge") else None
    epochs = [RegradedEpoch(**epoch) for epoch in results.get("regrade", [])]
    return TrainResult(out / MODEL_FOLDER, **{**results, "merge": merged, "regrade": epochs}, reused=reused)


def _trained_head(loss: GradedLoss, history: Sequence[dict[str, Any]]) -> RelevanceHead | None:
    """Scale and bias of a loss that has them, with the mean target they were trained on."""
    targets = [entry["mean_target"] for entry in history if "mean_target" in entry]
    return trained_head(loss, sum(targets) / len(targets) if targets else None)


def _save_model(
    model: RelevanceModel, head: RelevanceHead | None, out: Path, folder: str, merged: MergeResult | None = None
) -> None:
    """Adapters are written alone first, then merged into the model."""
    model.head = head  # one that came with the base model is not this encoder's
    with quiet_loading():
        if has_lora(model):
            if folder == MODEL_FOLDER:
                save_whole(model, out / ADAPTER_FOLDER)
            model.float()  # bf16 would round away a part of what the adapters add
            merge_lora(model)
        save_whole(model, out / folder, merged.card() if merged is not None else "")


def _save_record(record: Run, status: Status) -> None:
    if is_main_process():
        record.save(status)


def _add_timings(record: Run, started: float, trainer: GradedTrainer) -> None:
    """Add the seconds of this process to those of the ones before it, whole and in training steps."""
    for name, seconds in (("train", time.perf_counter() - started), ("steps", trainer.seconds_in_steps)):
        record.timings[name] = record.timings.get(name, 0.0) + seconds
