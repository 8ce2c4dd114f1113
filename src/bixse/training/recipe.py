"""The recipe: from a configuration to a trained model in a folder, resumable at every checkpoint."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import TypeAdapter

from bixse.data.collection import collection_folders
from bixse.data.pairs_files import pairs_files
from bixse.encoders.loading.build import build_encoder, model_name
from bixse.encoders.loading.standardise import Standardised  # noqa: TC001 pydantic reads it
from bixse.errors import InputError, InterruptedRunError, TrainingError
from bixse.files.files import work_folders
from bixse.losses.relevance_head import trained_head
from bixse.report.table import Cell, Table
from bixse.training.checks import check_learned, check_space, embedding_spreads, warn_of_no_gain
from bixse.training.config import ADAPTER_FOLDER, CHECKPOINT_FOLDER, MODEL_FOLDER, TrainConfig
from bixse.training.dev_evaluation import dev_figures
from bixse.training.distributed import RunGuard, any_process, check_agreement, is_main_process
from bixse.training.finish import merge_tuned, save_model, weights_to_merge_with
from bixse.training.inputs import open_training
from bixse.training.loop.checkpoints import StopOnInterrupt, checkpoint_to_resume
from bixse.training.merge import MergeResult  # noqa: TC001 pydantic reads it
from bixse.training.setup import make_parts, make_trainer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.encoders.relevance_model import RelevanceModel
    from bixse.training.loop.trainer import GradedTrainer


log = logging.getLogger(__name__)


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


@dataclass(frozen=True)
class Trained(Table):
    """A trained model in memory, with the log of its training; prints as a few lines.

    Example:
        ::

            trained = train("demo", pairs, dev=dev)
            trained.model.relevance("copy a folder", ["shutil.copytree", "os.remove"])
    """

    model: RelevanceModel
    history: list[dict[str, Any]] = field(repr=False)
    """Log entries, one per step and one per dev evaluation."""
    merge: MergeResult | None = field(repr=False)
    """The merge with the base model's weights; None without a merge."""
    warnings: list[str]
    folder: Path | None
    """Folder of the run; None without `out`."""

    def cells(self) -> tuple[Sequence[str], Sequence[Sequence[Cell]]]:
        dev, losses = dev_figures(self.history), [entry["loss"] for entry in self.history if "loss" in entry]
        rows: list[list[Cell]] = [["steps", len(losses)]]
        rows += [["loss, first to last step", f"{losses[0]:.4f} to {losses[-1]:.4f}"]] if losses else []
        rows += [[f"nDCG@10 on dev at step {step}", figure] for step, figure in dev.items()]
        if self.merge is not None:
            rows += [["merge weight", self.merge.weight], ["nDCG@10 on dev, merged", self.merge.dev(self.merge.weight)]]
        return ["trained", "figure"], rows


def train(
    model: str | Path | SentenceTransformer,
    pairs: Any,
    *,
    dev: Any = None,
    guard: Any = None,
    out: str | Path | None = None,
    verbose: bool = True,
    **settings: Any,
) -> Trained:
    """Train an encoder on graded pairs, by default with BiXSE, and merge it with the base model on dev.

    Args:
        model: a name such as "demo", a folder, or a `SentenceTransformer`, which stays as it is.
        pairs: a `Dataset`, a frame, an Arrow table, a list of dictionaries (query, document, relevance), or paths.
        dev: a collection that selects checkpoint and merge weight: a folder, a `Collection`, or three dictionaries
            (queries, corpus, qrels); or a list of several.
        guard: a collection that must not get worse, in the same forms.
        out: folder of the run. The same call continues an interrupted run from it, and reads a finished one. None
            trains in a temporary folder, which is removed: nothing can be resumed.
        verbose: show progress.
        settings: options of `bixse train` under the same names, such as `loss`, `seed` or `num_train_epochs`.

    Raises:
        InputError: model, pairs, collection or settings cannot be used.
        InterruptedRunError: Ctrl-C; `model` of the error is that of the last checkpoint, or None.

    Example:
        >>> pairs = [
        ...     {"query": "copy a folder", "document": "shutil.copytree", "relevance": 1.0},
        ...     {"query": "delete a file", "document": "os.remove", "relevance": 1.0},
        ... ]
        >>> trained = train("static:demo", pairs, num_train_epochs=1, global_batch_size=2, verbose=False)
        >>> len(trained.model.relevance("copy a folder", ["shutil.copytree", "os.remove"])), trained.merge
        (2, None)
    """
    with work_folders(out, "train") as (folder, run):
        config = TrainConfig.of_options(
            settings,
            model=model_name(model, folder / "model"),
            pairs=pairs_files(pairs, folder),
            dev=collection_folders(dev, folder / "dev", settings.get("dev_split", "dev")) or None,
            guard=collection_folders(guard, folder / "guard", settings.get("guard_split", "test")) or None,
        )
        if out is None:
            log.warning("train: checkpoints are in %s until the end, and nothing can be resumed; out= keeps them", run)
        try:
            result = train_into(config, run, verbose)
        except InterruptedRunError as error:
            checkpoint, _ = checkpoint_to_resume(run / CHECKPOINT_FOLDER)
            stopped = (
                error if out is not None else InterruptedRunError("train: got Ctrl-C; `model` is the model so far")
            )
            stopped.model = checkpoint and build_encoder(checkpoint)  # type: ignore[attr-defined]
            raise stopped from error
        for line in result.warnings:
            log.warning("%s", line)
        trained = build_encoder(result.model_path, trust_remote_code=config.trust_remote_code)
    return Trained(trained, result.history, result.merge, result.warnings, None if out is None else run)


def train_into(config: TrainConfig, out: Path, progress: bool = True, title: str = "train") -> TrainResult:
    """Train an encoder on graded pairs and save it to `out/model` with `out/run.json`.

    A second call with the same configuration and precision continues an interrupted run from its last checkpoint, and
    returns a finished run as it is. With torchrun or `accelerate launch` the processes share every batch; the first
    process writes.

    Raises:
        InputError: pairs, collection, model or configuration cannot be used, or a batch does not fit into a GPU.
        OutputExistsError: `out` holds another run.
        StorageError: the disk is full.
        InterruptedRunError: Ctrl-C stopped the run after a checkpoint.
    """
    model_path = out / MODEL_FOLDER
    with RunGuard(out, config.precision) as guard:
        config = config.resolved()
        inputs = guard.together(open_training, config, out)
        record = inputs.record
        check_agreement({"settings": record.fingerprint, "status of the run": record.status})
        if record.status == "finished" and model_path.is_dir():
            saved = {**record.results, "model_path": model_path, "reused": True}
            return TypeAdapter(TrainResult).validate_python(saved)
        started = time.perf_counter()
        parts = guard.together(make_parts, config, inputs)
        guard.begin_writing()
        trainer = guard.together(make_trainer, config, out, inputs, parts, title if progress else None)
        guard.together(check_space, out, trainer)
        base = guard.together(weights_to_merge_with, config, trainer)
        guard.lock(record)
        warnings = parts.warnings + _run_trainer(trainer, out, guard, then_merge=base is not None)
        history, best = _history(trainer), trainer.state.best_global_step if trainer.evaluator is not None else None
        warnings += warn_of_no_gain(history, best)
        merged, head = None, trained_head(trainer.loss, _mean_target(history))
        if base is not None:
            merged, head = merge_tuned(config, out, trainer, base, inputs.watched, head, progress)
            warnings += merged.warnings()
        result = TrainResult(
            model_path=model_path,
            reused=False,
            history=history,
            best_step=best,
            warnings=warnings,
            learning_rate=trainer.args.learning_rate,
            merge=merged,
            standardised=parts.standardised,
        )
        guard.together(_save, result, trainer.unsharded_model(), head, guard, trainer, started)
    return result


def _run_trainer(trainer: GradedTrainer, out: Path, guard: RunGuard, then_merge: bool) -> list[str]:
    """Train from the last checkpoint, if any, and return warnings of checkpoints that could not be used."""
    stop, started = StopOnInterrupt(), time.perf_counter()
    trainer.add_callback(stop)
    checkpoint, warnings = guard.together(checkpoint_to_resume, out / CHECKPOINT_FOLDER)
    check_agreement({"checkpoint": checkpoint})
    before = embedding_spreads(trainer.loss.model, trainer.pairs)
    ended: Literal["interrupted", "failed"] | None = "interrupted"
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
        trainer.check_finite()
        state = trainer.state
        if state.global_step >= state.max_steps:
            losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
            after = embedding_spreads(trainer.loss.model, trainer.pairs)
            check_learned(before, after, losses, trainer.evaluator is not None)
            # a Ctrl-C during the last step ends the run only if the merge is still to come
            if not (then_merge and any_process(stop.requested, trainer.args.device)):
                ended = None
    except TrainingError:
        ended = "failed"
        raise
    except torch.OutOfMemoryError as error:
        ended = "failed"
        raise InputError(
            f"training: got a batch that does not fit into the memory of {trainer.args.device} "
            f"({str(error).partition('. ')[0]}); expected one that fits; fix: set `gradient_cache: true` under "
            "loss_options, or a smaller global_batch_size or train_max_length"
        ) from error
    finally:
        stop.release()
        if ended is not None:
            _add_timings(guard, started, trainer)
            guard.save_record(ended)
    if ended is not None:
        done = f"got Ctrl-C or SIGTERM after step {state.global_step} of {state.max_steps}"
        raise InterruptedRunError(f"{out}: {done}; the last checkpoint is kept; the same command continues from it")
    return warnings


def _history(trainer: GradedTrainer) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in entry.items() if not name.endswith(("_runtime", "_per_second"))}
        for entry in trainer.state.log_history
        if "train_runtime" not in entry
    ]


def _mean_target(history: Sequence[dict[str, Any]]) -> float | None:
    targets = [entry["mean_target"] for entry in history if "mean_target" in entry]
    return sum(targets) / len(targets) if targets else None


def _save(result: TrainResult, model: Any, head: Any, guard: RunGuard, trainer: GradedTrainer, started: float) -> None:
    if not is_main_process():
        return
    save_model(trainer, model, head, result.model_path, result.merge, result.model_path.with_name(ADAPTER_FOLDER))
    guard.record.results = result.to_json()
    _add_timings(guard, started, trainer)
    guard.save_record("finished")
    shutil.rmtree(result.model_path.with_name(CHECKPOINT_FOLDER), ignore_errors=True)


def _add_timings(guard: RunGuard, started: float, trainer: GradedTrainer) -> None:
    """Add this process's seconds, in total and in training steps, to the seconds of earlier processes."""
    guard.record.timings["train"] += time.perf_counter() - started
    guard.record.timings["steps"] += trainer.figures.seconds
