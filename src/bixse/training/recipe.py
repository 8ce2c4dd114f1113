"""The recipe: from a configuration to a trained model in a folder, resumable at every checkpoint."""

from __future__ import annotations

import copy
import shutil
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bixse.data.collection_warnings import warn_of_missing
from bixse.data.io.files import file_hash, storage_errors
from bixse.data.pairs_files import load_several
from bixse.data.run_record import RunRecord, Status, open_run
from bixse.data.task_instructions import load_instructions
from bixse.encoders.identity import model_hashes, model_path_settings
from bixse.encoders.loading.precision import upcast_trainable_to_float32, use_precision
from bixse.errors import ConfigError, InputError, InterruptedRunError, OutputExistsError, TrainingError
from bixse.losses.catalogue import build_loss, check_loss_options
from bixse.progress import progress_bar
from bixse.settings import paths_in
from bixse.training.config import TrainConfig
from bixse.training.dev_evaluation import dev_evaluator, dev_figures, dev_hashes, load_dev, load_watched_of
from bixse.training.distributed import any_process, check_agreement, init_distributed, is_main_process, raise_together
from bixse.training.loop.checkpoints import checkpoint_to_resume, tell_where_the_best_is, whole_checkpoints
from bixse.training.loop.divergence import check_finite, check_learned, embedding_spreads
from bixse.training.merging.merge import MergeResult, merge, own_share, refitted_head
from bixse.training.merging.watched import check_not_trained_on, queries_of
from bixse.training.preflight import check_disk, check_lengths, check_memory, check_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bixse.data.collection import Collection
    from bixse.data.graded_pairs import GradedPairs
    from bixse.data.task_instructions import Instructions
    from bixse.encoders.head import RelevanceHead
    from bixse.encoders.interpolation import Weights
    from bixse.encoders.relevance_model import RelevanceModel
    from bixse.evaluation.dev_evaluator import DevEvaluator
    from bixse.losses.base import GradedLoss
    from bixse.training.config import TrainConfig
    from bixse.training.loop.trainer import GradedTrainer
    from bixse.training.merging.watched import Watched

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
        return _train(config.resolved(), out, progress, title)


def _train(config: TrainConfig, out: Path, progress: bool, title: str | None) -> TrainResult:
    """`train`, in the precision that is set."""
    init_distributed()
    with raise_together():
        pairs, table, collections, record = open_training(config, out)
        watched = load_watched_of(config)
    check_agreement({"settings": record.fingerprint, "status of the run": record.status})
    if record.status == "finished" and (out / MODEL_FOLDER).is_dir():
        found = record.results.get("merge")
        merged = MergeResult.from_json(found) if found else None
        return TrainResult(out / MODEL_FOLDER, **{**record.results, "merge": merged}, reused=True)

    from bixse.encoders.interpolation import check_can_be_scaled, trained_weights
    from bixse.encoders.loading.build import no_library_bars

    started = time.perf_counter()
    with raise_together():
        model, loss = make_model(config, table)
        base = None
        if merges(config):
            base = trained_weights(model)
            check_can_be_scaled(base)
        warnings = check_training(config, out, model, loss, pairs, collections, watched)
        evaluator = make_evaluator(config, model, collections)
        with storage_errors(out), no_library_bars():
            trainer = make_trainer(config, out, model, loss, pairs, evaluator, progress, title or config.loss)
    try:
        with ExitStack() as held:
            with raise_together():
                check_memory(trainer)
                if is_main_process():
                    held.enter_context(alone_in(out))
            held.enter_context(storage_errors(out))
            held.enter_context(no_library_bars())
            _save_record(record, "running")
            warnings += _run_trainer(trainer, out, record, then_merge=base is not None)
            history, best_step = _history(trainer)
            warnings += _warn_if_worse(history, best_step)
            rate = config.optimizer.scaled_learning_rate
            head = _trained_head(loss, history)
            merged = None
            if base is not None and config.merge is not None:
                try:
                    merged, head = _merge(trainer, config, base, watched, history, head, out, progress)
                except KeyboardInterrupt:
                    _save_record(record, "interrupted")
                    raise
                warnings += merged.warnings()
            record.results = {
                "history": history, "best_step": best_step, "warnings": warnings, "learning_rate": rate,
                "merge": merged.to_json() if merged is not None else None,
            }  # fmt: skip
            with raise_together():
                if is_main_process():
                    _save_model(model, head, out, MODEL_FOLDER, merged)
                    _add_timings(record, started, trainer)
                    record.save("finished")
                    shutil.rmtree(out / CHECKPOINT_FOLDER, ignore_errors=True)
    except InputError:
        for folder in (out / CHECKPOINT_FOLDER, out):  # a refused command leaves no empty folder behind
            with suppress(OSError):
                folder.rmdir()
        raise
    return TrainResult(out / MODEL_FOLDER, history, best_step, warnings, rate, reused=False, merge=merged)


def merges(config: TrainConfig) -> bool:
    """Whether a run merges: as long as the weight can be chosen on dev, or is given."""
    return config.merge is not None and (config.dev is not None or len(config.merge.weights) == 1)


def _merge(
    trainer: GradedTrainer,
    config: TrainConfig,
    base: Weights,
    watched: Sequence[Watched],
    history: list[dict[str, Any]],
    head: RelevanceHead | None,
    out: Path,
    progress: bool,
) -> tuple[MergeResult, RelevanceHead | None]:
    """Set the trained encoder, or the mean of its best checkpoints, to the best weights between it and the base.

    Returns:
        What was chosen, and the relevance head for it.
    """
    from bixse.encoders.interpolation import mean_weights, trained_weights

    settings = config.merge
    model: Any = trainer.loss.model
    assert settings is not None
    with raise_together():
        if settings.keep_tuned and is_main_process():
            device = model.device
            _save_model(copy.deepcopy(model.cpu()), head, out, TUNED_FOLDER)
            model.to(device)
    tuned: Weights = trained_weights(model)
    if settings.checkpoints > 1:
        figures = dev_figures(history)
        best = sorted((step for step in figures if step > 0), key=lambda step: -figures[step])[: settings.checkpoints]
        several = []
        for step in best:
            trainer._load_from_checkpoint(str(Path(str(trainer.args.output_dir)) / f"checkpoint-{step}"))
            several.append(trained_weights(model))
        tuned = mean_weights(several)
    number = len(own_share({0.0, 1.0, *settings.weights})) if watched else 0
    shown = progress and is_main_process() and number > 0
    bar = progress_bar("merge: score weights", number) if shown else None
    model.eval()
    merged = merge(model, base, tuned, settings.weights, watched, config.guard_tolerance, bar)
    if head is not None and (merged.weight < 1 or settings.checkpoints > 1):
        with raise_together():
            head = refitted_head(trainer, head)
    return merged, head


def open_training(
    config: TrainConfig, out: Path
) -> tuple[GradedPairs, Instructions | None, dict[str, Collection], RunRecord]:
    """Read what a configuration names, and the record of its run; nothing is written."""
    pairs = load_several(paths_in(config.pairs))
    table = load_instructions(config.instructions) if config.instructions is not None else None
    collections = load_dev(config)
    check_loss_options(config.loss, _loss_arguments(config))
    paths = ("pairs", "dev", "guard", "instructions", *model_path_settings(config.model))
    record = open_run(out, "train", config.model_dump(mode="json"), _input_hashes(config, table), paths)
    return pairs, table, collections, record


def check_training(
    config: TrainConfig,
    out: Path,
    model: RelevanceModel,
    loss: GradedLoss,
    pairs: GradedPairs,
    collections: Mapping[str, Collection],
    watched: Sequence[Watched],
) -> list[str]:
    """Refuse what cannot be trained, and return what the user should know."""
    where = _pairs_named(config)
    held_out = queries_of(watched, "guard")
    for name, dev in collections.items():
        held_out[f"dev {name}"] = {query: dev.queries[query] for query in dev.qrels[config.dev_split]}
    warnings = check_not_trained_on(held_out, pairs.queries, config.allow_shared_queries)
    warnings += check_pairs(where, config.loss, loss, pairs, config.optimizer.documents_per_query)
    warnings += check_lengths(where, model, pairs, config.long_texts)
    split = config.dev_split
    for dev in collections.values():
        warnings += warn_of_missing(dev.missing.get(split, 0), dev.qrels[split], split)
    warnings += [said for corpus in watched for said in corpus.warnings]
    check_disk(out, model, checkpoints=_kept_checkpoints(config))
    return warnings


def _kept_checkpoints(config: TrainConfig) -> int:
    """Checkpoints that lie on the disk together: the best and the last, or all that may be averaged."""
    if config.merge is None or config.merge.checkpoints == 1:
        return 2
    return max(2, config.optimizer.epochs * config.evaluations_per_epoch)


def make_evaluator(
    config: TrainConfig, model: RelevanceModel, collections: Mapping[str, Collection]
) -> DevEvaluator | None:
    """What searches the dev collections, and the model's prompts for them; None without dev."""
    from bixse.encoders.instructions import use_task
    from bixse.encoders.prompts import prompt_for

    evaluator = dev_evaluator(config, collections)
    if evaluator is not None:
        use_task(model, config.dev_task)
        prompt_for(model, "query")  # a task that is missing is said before training
    return evaluator


def make_model(config: TrainConfig, table: Instructions | None) -> tuple[RelevanceModel, GradedLoss]:
    """The encoder of a configuration, ready to be trained, and the loss on it."""
    from transformers import set_seed

    from bixse.encoders.instructions import set_instructions
    from bixse.encoders.loading.build import build_encoder, set_dropout
    from bixse.encoders.lora import add_lora

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
    return model, build_loss(config.loss, model, **_loss_arguments(config))


def _save_record(record: RunRecord, status: Status) -> None:
    """Write run.json, in the first process alone."""
    if is_main_process():
        record.save(status)


def _history(trainer: GradedTrainer) -> tuple[list[dict[str, Any]], int | None]:
    """The log without the library's timings, and the step of the best checkpoint (None without a dev collection)."""
    history = [
        {name: value for name, value in entry.items() if not name.endswith(("_runtime", "_per_second"))}
        for entry in trainer.state.log_history
        if "train_runtime" not in entry
    ]
    return history, trainer.state.best_global_step if trainer.evaluator is not None else None


@contextmanager
def alone_in(out: Path) -> Iterator[None]:
    """Hold an output folder against other processes; the operating system lets go of it when this one ends."""
    from filelock import FileLock, Timeout

    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / LOCK_FILE, timeout=0):
            yield
    except Timeout as error:
        raise OutputExistsError(
            f"{out}: got a folder in which another process is at work; expected one that is free; "
            "fix: wait until it has ended, or choose another --out"
        ) from error


def make_trainer(
    config: TrainConfig,
    out: Path,
    model: RelevanceModel,
    loss: GradedLoss,
    pairs: GradedPairs,
    evaluator: DevEvaluator | None,
    progress: bool,
    title: str,
) -> GradedTrainer:
    """The trainer of a configuration, with a bar of our own instead of the library's."""
    from transformers import PrinterCallback, ProgressCallback

    from bixse.training.loop.arguments import training_arguments
    from bixse.training.loop.batch_plan import BatchPlan
    from bixse.training.loop.callbacks import ProgressBar, StepLog
    from bixse.training.loop.trainer import GradedTrainer

    optimizer = config.optimizer
    plan = BatchPlan(pairs, optimizer.batch_size, config.seed, config.task_shares)
    plan.check_sizes(_pairs_named(config))
    arguments = training_arguments(config, out / CHECKPOINT_FOLDER, len(plan), evaluator)
    arguments.eval_on_start = evaluator is not None and not whole_checkpoints(out / CHECKPOINT_FOLDER)
    trainer = GradedTrainer(
        model=model,
        args=arguments,
        train_dataset=pairs,
        loss=loss,
        evaluator=evaluator,
        callbacks=[ProgressBar(title)] if progress and is_main_process() else [],
        plan=plan,
    )
    if is_main_process():
        trainer.add_callback(StepLog(out / LOG_FILE))
    for callback in trainer.callback_handler.callbacks:
        if getattr(callback, "logging_dir", "") is None:  # TensorBoard's files would go with the checkpoints
            callback.logging_dir = str(out / TENSORBOARD_FOLDER)
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    return trainer


def _run_trainer(trainer: GradedTrainer, out: Path, record: RunRecord, then_merge: bool) -> list[str]:
    """Train, from the last checkpoint when there is one; a Ctrl-C leaves a checkpoint and ends the run.

    A Ctrl-C during the last step ends the run too where merging is still to come.

    Returns:
        Warnings about checkpoints that could not be used.
    """
    from bixse.training.loop.callbacks import StopOnInterrupt

    stop = StopOnInterrupt()
    trainer.add_callback(stop)
    started = time.perf_counter()
    ended: Literal["failed", "interrupted"] = "interrupted"
    with raise_together():
        checkpoint, warnings = checkpoint_to_resume(out / CHECKPOINT_FOLDER)
    if checkpoint is not None and is_main_process():
        tell_where_the_best_is(Path(checkpoint))
    check_agreement({"checkpoint": checkpoint})
    before = embedding_spreads(trainer.loss.model, trainer.pairs)
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
        check_finite(trainer.loss, trainer.state.global_step)
        if trainer.state.global_step >= trainer.state.max_steps:
            losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
            after = embedding_spreads(trainer.loss.model, trainer.pairs)
            check_learned(before, after, losses, trainer.evaluator is not None)
    except TrainingError:
        ended = "failed"
        raise
    finally:
        stop.release()
        unfinished = trainer.state.global_step < trainer.state.max_steps
        if ended == "failed" or unfinished:
            _add_timings(record, started, trainer)
            _save_record(record, ended)
    if not unfinished and then_merge and any_process(stop.asked, trainer.args.device):
        _save_record(record, ended)
        unfinished = True
    if unfinished:
        raise InterruptedRunError(
            f"{out}: got Ctrl-C or SIGTERM after step {trainer.state.global_step} of {trainer.state.max_steps}; the "
            "last checkpoint is kept; to go on: give the same command again"
        )
    return warnings


def _add_timings(record: RunRecord, started: float, trainer: GradedTrainer) -> None:
    """Seconds of this process on top of those of the ones before it, whole and in training steps."""
    for name, seconds in (("train", time.perf_counter() - started), ("steps", trainer.seconds_in_steps)):
        record.timings[name] = record.timings.get(name, 0.0) + seconds


def _loss_arguments(config: TrainConfig) -> dict[str, Any]:
    if "scale" in config.loss_options:
        raise ConfigError("loss_options: got 'scale'; expected it beside `loss`; fix: set `scale` there")
    return {"scale": config.scale, **config.loss_options}


def _warn_if_worse(history: list[dict[str, Any]], best_step: int | None) -> list[str]:
    """A checkpoint below the untrained encoder is said aloud."""
    figures = dev_figures(history)
    if best_step is None or 0 not in figures or best_step not in figures or figures[best_step] >= figures[0]:
        return []
    return [
        f"on dev the best checkpoint (nDCG@10 {figures[best_step]:.4f}) is below the untrained encoder "
        f"({figures[0]:.4f}): a lower learning_rate or more graded queries may help"
    ]


def _trained_head(loss: GradedLoss, history: list[dict[str, Any]]) -> RelevanceHead | None:
    """Scale and bias of a loss that has them, with the mean target they were trained on."""
    from bixse.losses.relevance_head import trained_head

    targets = [entry["mean_target"] for entry in history if "mean_target" in entry]
    return trained_head(loss, sum(targets) / len(targets) if targets else None)


def _save_model(
    model: RelevanceModel, head: RelevanceHead | None, out: Path, folder: str, merged: MergeResult | None = None
) -> None:
    """Write the model with its relevance head; adapters alone first, then merged into the model."""
    from bixse.encoders.loading.build import quiet_loading
    from bixse.encoders.loading.saving import save_whole
    from bixse.encoders.lora import has_lora, merge_lora

    model.head = head  # one that came with the base model is not this encoder's
    with storage_errors(out), quiet_loading():
        if has_lora(model):
            if folder == MODEL_FOLDER:
                save_whole(model, out / ADAPTER_FOLDER)
            model.float()  # bf16 would round away a part of what the adapters add
            merge_lora(model)
        save_whole(model, out / folder, merged.card() if merged is not None else "")


def _pairs_named(config: TrainConfig) -> str:
    """The files of pairs, for a message."""
    return ", ".join(map(str, paths_in(config.pairs)))


def _input_hashes(config: TrainConfig, table: Instructions | None) -> dict[str, str]:
    """Content hashes of what a run reads: pairs, model, instructions and dev collection."""
    files = paths_in(config.pairs)
    names = ["pairs"] if len(files) == 1 else [f"pairs/{path.stem}" for path in files]
    hashes = {name: file_hash(path) for name, path in zip(names, files, strict=True)}
    hashes |= model_hashes(config.model)
    if table is not None:
        hashes["instructions"] = table.content_hash()
    hashes |= dev_hashes(config)
    return hashes
