"""The recipe: from a configuration to a trained model in a folder, resumable at every checkpoint."""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from bixse.errors import InterruptedRunError, TrainingError
from bixse.losses.relevance_head import trained_head
from bixse.training.checks import check_learned, check_memory, embedding_spreads
from bixse.training.config import ADAPTER_FOLDER, CHECKPOINT_FOLDER, MODEL_FOLDER
from bixse.training.dev_evaluation import dev_figures
from bixse.training.distributed import RunGuard, any_process, check_agreement, is_main_process
from bixse.training.finish import merge_tuned, save_model, weights_to_merge_with
from bixse.training.inputs import open_training
from bixse.training.loop.checkpoints import StopOnInterrupt, checkpoint_to_resume, relocate_best_checkpoint
from bixse.training.loop.unlabelled import RegradedEpoch  # noqa: TC001 pydantic reads it
from bixse.training.merge import MergeResult  # noqa: TC001 pydantic reads it
from bixse.training.setup import add_regrading, make_parts, make_trainer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bixse.data.run import Run, Status
    from bixse.training.config import TrainConfig
    from bixse.training.loop.trainer import GradedTrainer


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
    loss_computed_by: str = ""  # dtype of the matrix products of the loss
    regrade: list[RegradedEpoch] = field(default_factory=list)
    """The judge's grades of likely false negatives, per epoch."""

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in ("model_path", "reused")}

    @classmethod
    def from_json(cls, out: Path, results: dict[str, Any]) -> TrainResult:
        """Return the result of a finished run in `out` from the results in its `run.json`."""
        return TypeAdapter(cls).validate_python({**results, "model_path": out / MODEL_FOLDER, "reused": True})


def train(config: TrainConfig, out: Path, progress: bool = True, title: str = "train") -> TrainResult:
    """Train an encoder on graded pairs and save it to `out/model` with `out/run.json`.

    A second call with the same configuration and precision continues an interrupted run from its last checkpoint, and
    returns a finished run as it is. With torchrun or `accelerate launch` the processes share every batch; the first
    process writes.

    Raises:
        InputError: pairs, collection, model or configuration cannot be used.
        OutputExistsError: `out` holds another run.
        StorageError: the disk is full.
        InterruptedRunError: Ctrl-C stopped the run after a checkpoint.
    """
    with RunGuard(out, config.precision) as guard:
        config = config.resolved()
        inputs = guard.together(open_training, config, out)
        record = inputs.record
        check_agreement({"settings": record.fingerprint, "status of the run": record.status})
        if record.status == "finished" and (out / MODEL_FOLDER).is_dir():
            return TrainResult.from_json(out, record.results)
        started = time.perf_counter()
        parts = guard.together(make_parts, config, out, inputs)
        guard.begin_writing()
        trainer = guard.together(make_trainer, config, out, inputs, parts, title if progress else None)
        base = guard.together(weights_to_merge_with, config, trainer)
        guard.together(check_memory, trainer)
        regrading = guard.together(add_regrading, config, out, trainer)
        guard.lock(record)
        warnings = parts.warnings + _run_trainer(trainer, out, guard, then_merge=base is not None)
        warnings += [] if regrading is None else regrading.warnings()
        history, best = _history(trainer), trainer.state.best_global_step if trainer.evaluator is not None else None
        warnings += _warn_of_no_gain(history, best)
        merged, head = None, trained_head(parts.loss, _mean_target(history))
        if base is not None:
            merged, head = merge_tuned(config, out, trainer, base, inputs.watched, head, progress)
            warnings += merged.warnings()
        result = TrainResult(
            model_path=out / MODEL_FOLDER,
            reused=False,
            history=history,
            best_step=best,
            warnings=warnings,
            learning_rate=trainer.args.learning_rate,
            merge=merged,
            loss_computed_by=parts.loss.computed_by(parts.loss.model.device),
            regrade=[] if regrading is None else regrading.epochs,
        )
        guard.together(_save, result, trainer.whole_model(), head, record, trainer, started)
    return result


def _run_trainer(trainer: GradedTrainer, out: Path, guard: RunGuard, then_merge: bool) -> list[str]:
    """Train from the last checkpoint, if any, and return warnings of checkpoints that could not be used."""
    stop, started = StopOnInterrupt(), time.perf_counter()
    trainer.add_callback(stop)
    checkpoint, warnings = guard.together(checkpoint_to_resume, out / CHECKPOINT_FOLDER)
    if checkpoint is not None and is_main_process():
        relocate_best_checkpoint(Path(checkpoint))
    check_agreement({"checkpoint": checkpoint})
    before = embedding_spreads(trainer.loss.model, trainer.pairs)
    ended: Status | None = "interrupted"
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
        trainer.check_finite()
        state = trainer.state
        if state.global_step >= state.max_steps:
            losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
            after = embedding_spreads(trainer.loss.model, trainer.pairs)
            check_learned(before, after, losses, trainer.evaluator is not None)
            # a Ctrl-C during the last step ends the run only if the merge is still to come
            if not (then_merge and any_process(stop.asked, trainer.args.device)):
                ended = None
    except TrainingError:
        ended = "failed"
        raise
    finally:
        stop.release()
        if ended is not None:
            _add_timings(guard.record, started, trainer)
            guard.save_record(ended)
    if ended is not None:
        done = f"got Ctrl-C or SIGTERM after step {state.global_step} of {state.max_steps}"
        raise InterruptedRunError(f"{out}: {done}; the last checkpoint is kept; to go on: give the same command again")
    return warnings


def _history(trainer: GradedTrainer) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in entry.items() if not name.endswith(("_runtime", "_per_second"))}
        for entry in trainer.state.log_history
        if "train_runtime" not in entry
    ]


def _warn_of_no_gain(history: Sequence[dict[str, Any]], best: int | None) -> list[str]:
    """Return a warning if the best checkpoint is worse than the untrained encoder."""
    figures = dev_figures(history)
    if best not in figures or 0 not in figures or figures[best] >= figures[0]:
        return []
    return [
        f"on dev the best checkpoint (nDCG@10 {figures[best]:.4f}) is below the untrained encoder "
        f"({figures[0]:.4f}): a lower learning_rate or more graded queries may help"
    ]


def _mean_target(history: Sequence[dict[str, Any]]) -> float | None:
    targets = [entry["mean_target"] for entry in history if "mean_target" in entry]
    return sum(targets) / len(targets) if targets else None


def _save(result: TrainResult, model: Any, head: Any, record: Run, trainer: GradedTrainer, started: float) -> None:
    if not is_main_process():
        return
    save_model(model, head, result.model_path, result.merge, result.model_path.with_name(ADAPTER_FOLDER))
    record.results = result.to_json()
    _add_timings(record, started, trainer)
    record.save("finished")
    shutil.rmtree(result.model_path.with_name(CHECKPOINT_FOLDER), ignore_errors=True)


def _add_timings(record: Run, started: float, trainer: GradedTrainer) -> None:
    """Add this process's seconds, in total and in training steps, to the seconds of earlier processes."""
    for name, seconds in (("train", time.perf_counter() - started), ("steps", trainer.seconds_in_steps)):
        record.timings[name] = record.timings.get(name, 0.0) + seconds
