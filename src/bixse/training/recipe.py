"""The recipe: from a configuration to a trained model in a folder, resumable at every checkpoint."""

from __future__ import annotations

import copy
import shutil
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from filelock import FileLock, Timeout
from transformers import PrinterCallback, ProgressCallback, set_seed

from bixse.data.io.files import file_hash, storage_errors
from bixse.data.pairs_files import load_several
from bixse.data.run_record import RunRecord, Status, open_run
from bixse.data.task_instructions import load_instructions
from bixse.encoders.identity import model_hashes, model_path_settings
from bixse.encoders.instructions import set_instructions
from bixse.encoders.interpolation import check_can_be_scaled, mean_weights, trained_weights
from bixse.encoders.loading.build import build_encoder, no_library_bars, quiet_loading, set_dropout
from bixse.encoders.loading.precision import upcast_trainable_to_float32, use_precision
from bixse.encoders.lora import add_lora, has_lora, merge_lora
from bixse.encoders.relevance_model import RelevanceModel, save_whole
from bixse.errors import ConfigError, InputError, InterruptedRunError, OutputExistsError, TrainingError
from bixse.losses.catalogue import build_loss, check_loss_options
from bixse.losses.relevance_head import trained_head
from bixse.settings import paths_in
from bixse.training.dev_evaluation import (
    check_not_trained_on,
    dev_evaluator,
    dev_figures,
    load_watched,
    split_hashes,
    watched_splits,
)
from bixse.training.distributed import any_process, check_agreement, init_distributed, is_main_process, raise_together
from bixse.training.loop.arguments import training_arguments
from bixse.training.loop.batch_plan import BatchPlan
from bixse.training.loop.callbacks import ProgressBar, StepLog, StopOnInterrupt
from bixse.training.loop.checkpoints import checkpoint_to_resume, relocate_best_checkpoint
from bixse.training.loop.divergence import check_finite, check_learned, embedding_spreads
from bixse.training.loop.trainer import GradedTrainer
from bixse.training.merging.merge import MergeResult, merge, refitted_head
from bixse.training.preflight import check_disk, check_lengths, check_memory, check_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bixse.data.graded_pairs import GradedPairs
    from bixse.data.task_instructions import Instructions
    from bixse.encoders.head import RelevanceHead
    from bixse.encoders.interpolation import Weights
    from bixse.evaluation.dev_evaluator import DevEvaluator
    from bixse.losses.base import GradedLoss
    from bixse.training.config import TrainConfig
    from bixse.training.dev_evaluation import Watched

MODEL_FOLDER = "model"
"""Where a run keeps its model."""
TUNED_FOLDER = "tuned"
"""Where a run keeps the tuned model as it was before merging, if asked to."""
ADAPTER_FOLDER = "adapter"
"""Where a run with low-rank adapters keeps them alone; the model folder holds them merged."""
LOCK_FILE = ".lock"
"""Held by the process that trains into a folder."""
TENSORBOARD_FOLDER = "tensorboard"
"""Where TensorBoard's files go with `report_to: [tensorboard]`."""
LOG_FILE = "log.jsonl"
"""Every entry of the log as it came, throughput included."""
CHECKPOINT_FOLDER = "checkpoints"
"""Where a run keeps what it needs to resume, until it is finished."""


@dataclass(frozen=True)
class TrainResult:
    """What a training run left."""

    model_path: Path
    """Folder of the model; loads in plain SentenceTransformer."""
    history: list[dict[str, Any]]
    """The log: an entry a step (loss, logit_bias, mean logits, ...) and one an evaluation on dev; `log.jsonl` of the
    run holds the same with throughput."""
    best_step: int | None
    """Step of the checkpoint that was kept; None without a dev collection."""
    warnings: list[str]
    """What the user should know."""
    learning_rate: float
    """The encoder's peak rate, scaled to the batch size."""
    reused: bool
    """The run was finished before; nothing was trained."""
    merge: MergeResult | None = None
    """How the tuned weights were merged with the base model's; None where they were not."""


class Inputs(NamedTuple):
    """What a configuration names, read."""

    pairs: GradedPairs
    instructions: Instructions | None
    watched: list[Watched]
    """Dev and guard collections."""
    record: RunRecord


def train(config: TrainConfig, out: Path, progress: bool = True, title: str | None = None) -> TrainResult:
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
            base = _weights_to_merge_with(config, model)
            warnings = check_training(config, out, model, loss, inputs)
            evaluator = dev_evaluator(config, model, inputs.watched)
        with no_library_bars(), _nothing_left_if_refused(out):
            with raise_together(), storage_errors(out):
                trainer = make_trainer(config, out, model, loss, inputs.pairs, evaluator, progress, title)
                check_memory(trainer)
            with alone_in(out), storage_errors(out):
                _save_record(record, "running")
                warnings += _run_trainer(trainer, out, record, then_merge=base is not None)
                results = _results(config, trainer, warnings)
                head = _trained_head(loss, results["history"])
                merged = None
                if base is not None:
                    merged, head = _merge(config, out, trainer, base, inputs, results["history"], head, progress)
                    warnings += merged.warnings()
                    results["merge"] = merged.to_json()
                with raise_together(), storage_errors(out):
                    if is_main_process():
                        record.results = results
                        _save_model(model, head, out, MODEL_FOLDER, merged)
                        _add_timings(record, started, trainer)
                        record.save("finished")
                        shutil.rmtree(out / CHECKPOINT_FOLDER, ignore_errors=True)
        return _result(out, results, reused=False)


def open_training(config: TrainConfig, out: Path) -> Inputs:
    """Read what a configuration names, and the record of its run; nothing is written."""
    files = paths_in(config.pairs)
    pairs = load_several(files)
    table = load_instructions(config.instructions) if config.instructions is not None else None
    names = ["pairs"] if len(files) == 1 else [f"pairs/{path.stem}" for path in files]
    hashes = {name: file_hash(path) for name, path in zip(names, files, strict=True)} | model_hashes(config.model)
    if table is not None:
        hashes["instructions"] = table.content_hash()
    paths = ("pairs", "dev", "guard", "instructions", *model_path_settings(config.model))
    check_loss_options(config.loss, _loss_options(config))
    splits = watched_splits(config)
    searched = config.merge.documents if config.merge is not None else None
    watched = load_watched(splits, searched, config.missing_documents)
    record = open_run(out, "train", config.model_dump(mode="json"), hashes | split_hashes(splits), paths)
    return Inputs(pairs, table, watched, record)


def make_model(config: TrainConfig, table: Instructions | None) -> tuple[RelevanceModel, GradedLoss]:
    """The encoder of a configuration, ready to be trained, and the loss on it."""
    set_seed(config.seed)
    model = build_encoder(
        config.model,
        config.max_length,
        trust_remote_code=config.trust_remote_code,
        bidirectional=config.bidirectional,
        pooling=config.pooling,
        attention=config.attention,
    )
    if table is not None:
        set_instructions(model, table)
    if config.lora is not None:
        add_lora(model, **config.lora.model_dump(exclude={"options"}), **config.lora.options)
    upcast_trainable_to_float32(model)
    if config.dropout is not None:
        set_dropout(model, config.dropout)
    return model, build_loss(config.loss, model, **_loss_options(config))


def check_training(
    config: TrainConfig, out: Path, model: RelevanceModel, loss: GradedLoss, inputs: Inputs
) -> list[str]:
    """Refuse what cannot be trained, and return what the user should know."""
    where, pairs = _pairs_named(config), inputs.pairs
    warnings = check_not_trained_on(inputs.watched, pairs.queries, config.allow_shared_queries)
    warnings += check_pairs(where, config.loss, loss, pairs, config.optimizer.documents_per_query)
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
    title: str | None = None,
) -> GradedTrainer:
    """The trainer of a configuration, with a bar of our own instead of the library's."""
    plan = BatchPlan(pairs, config.optimizer.batch_size, config.seed, config.task_shares)
    plan.check_sizes(_pairs_named(config))
    arguments = training_arguments(config, out / CHECKPOINT_FOLDER, len(plan), evaluator)
    trainer = GradedTrainer(model, arguments, pairs, loss=loss, evaluator=evaluator, plan=plan)
    if is_main_process():
        trainer.add_callback(StepLog(out / LOG_FILE))
        if progress:
            trainer.add_callback(ProgressBar(title or config.loss))
    for callback in trainer.callback_handler.callbacks:
        if getattr(callback, "logging_dir", "") is None:  # TensorBoard's files would go with the checkpoints
            callback.logging_dir = str(out / TENSORBOARD_FOLDER)
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    return trainer


@contextmanager
def alone_in(out: Path) -> Iterator[None]:
    """Lock the output folder, by the first process of a run; the operating system releases the lock on exit."""
    with ExitStack() as held:
        with raise_together(), storage_errors(out):
            if is_main_process():
                out.mkdir(parents=True, exist_ok=True)
                try:
                    held.enter_context(FileLock(out / LOCK_FILE, timeout=0))
                except Timeout as error:
                    raise OutputExistsError(
                        f"{out}: got a folder in which another process is at work; expected one that is free; "
                        "fix: wait until it has ended, or choose another --out"
                    ) from error
        yield


@contextmanager
def _nothing_left_if_refused(out: Path) -> Iterator[None]:
    """A command that is refused leaves no empty folder behind."""
    try:
        yield
    except InputError:
        for folder in (out / CHECKPOINT_FOLDER, out):
            with suppress(OSError):
                folder.rmdir()
        raise


def _run_trainer(trainer: GradedTrainer, out: Path, record: RunRecord, then_merge: bool) -> list[str]:
    """Train, from the last checkpoint when there is one; a Ctrl-C leaves a checkpoint and ends the run.

    A Ctrl-C during the last step ends the run too where merging is still to come.

    Returns:
        Warnings about checkpoints that could not be used.
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
        check_finite(trainer.loss, state.global_step)
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
        raise InterruptedRunError(
            f"{out}: got Ctrl-C or SIGTERM after step {state.global_step} of {state.max_steps}; the last checkpoint "
            "is kept; to go on: give the same command again"
        )
    return warnings


def _weights_to_merge_with(config: TrainConfig, model: RelevanceModel) -> Weights | None:
    """Those of the base model where the run merges: the weight can be chosen on dev, or is given; else None."""
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
    """Set the trained encoder, or the mean of its best checkpoints, to the best weights between it and the base.

    Returns:
        What was chosen, and the relevance head for it.
    """
    settings = config.merge
    model = cast("RelevanceModel", trainer.loss.model)
    assert settings is not None
    try:
        with raise_together():
            if settings.keep_tuned and is_main_process():
                device = model.device
                _save_model(copy.deepcopy(model.cpu()), head, out, TUNED_FOLDER)
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
        mean = mean_weights(tuned) if settings.checkpoints > 1 else tuned[0]
        found = merge(model, base, mean, settings.weights, inputs.watched, config.guard_tolerance, progress)
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
    rate = config.optimizer.scaled_learning_rate
    return {"history": history, "best_step": best, "warnings": warnings, "learning_rate": rate, "merge": None}


def _result(out: Path, results: dict[str, Any], reused: bool) -> TrainResult:
    merged = MergeResult.from_json(results["merge"]) if results.get("merge") else None
    return TrainResult(out / MODEL_FOLDER, **{**results, "merge": merged}, reused=reused)


def _trained_head(loss: GradedLoss, history: Sequence[dict[str, Any]]) -> RelevanceHead | None:
    """Scale and bias of a loss that has them, with the mean target they were trained on."""
    targets = [entry["mean_target"] for entry in history if "mean_target" in entry]
    return trained_head(loss, sum(targets) / len(targets) if targets else None)


def _save_model(
    model: RelevanceModel, head: RelevanceHead | None, out: Path, folder: str, merged: MergeResult | None = None
) -> None:
    """Write the model with its relevance head; adapters alone first, then merged into the model."""
    model.head = head  # one that came with the base model is not this encoder's
    with storage_errors(out), quiet_loading():
        if has_lora(model):
            if folder == MODEL_FOLDER:
                save_whole(model, out / ADAPTER_FOLDER)
            model.float()  # bf16 would round away a part of what the adapters add
            merge_lora(model)
        save_whole(model, out / folder, merged.card() if merged is not None else "")


def _save_record(record: RunRecord, status: Status) -> None:
    if is_main_process():
        record.save(status)


def _add_timings(record: RunRecord, started: float, trainer: GradedTrainer) -> None:
    """Seconds of this process on top of those of the ones before it, whole and in training steps."""
    for name, seconds in (("train", time.perf_counter() - started), ("steps", trainer.seconds_in_steps)):
        record.timings[name] = record.timings.get(name, 0.0) + seconds


def _loss_options(config: TrainConfig) -> dict[str, Any]:
    if "scale" in config.loss_options:
        raise ConfigError("loss_options: got 'scale'; expected it beside `loss`; fix: set `scale` there")
    return {"scale": config.scale, **config.loss_options}


def _pairs_named(config: TrainConfig) -> str:
    """The files of pairs, for a message."""
    return ", ".join(map(str, paths_in(config.pairs)))
