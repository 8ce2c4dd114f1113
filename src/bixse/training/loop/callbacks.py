"""What happens around the training steps: progress, the learning curve, the head in checkpoints, a Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from bixse.encoders.head import RelevanceHead
from bixse.errors import InputError
from bixse.files.files import write_atomically
from bixse.losses.relevance_head import check_learns_probability, restore_head, save_relevance_head
from bixse.progress import Progress
from bixse.training.distributed import any_process

if TYPE_CHECKING:
    from types import FrameType

    from torch import nn
    from transformers import TrainerControl, TrainerState, TrainingArguments


LABEL_COLUMNS = ("label", "labels", "score", "scores")
"""Columns that sentence-transformers' trainer takes for labels; it reads every other one as text."""


class ProgressBar(TrainerCallback):
    """Progress with rate, time left, loss and the dev figure, as that of every other long work."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.bar: Progress | None = None
        self.done = 0
        self.shown: dict[str, str] = {}

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.bar, self.done = Progress(self.title, state.max_steps, "step"), state.global_step
        self.bar(0, known=self.done)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.bar is not None:
            self.bar(state.global_step - self.done, ", ".join(f"{name}={value}" for name, value in self.shown.items()))
            self.done = state.global_step

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        for name, value in (logs or {}).items():
            if name == "loss" or name.endswith("ndcg@10"):
                self.shown[name.removeprefix("eval_")] = f"{value:.3f}"

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.bar is not None:
            self.bar.close()


class StepLog(TrainerCallback):
    """Writes every entry of the log to a file as it comes: one JSON object per line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Keep what earlier processes wrote up to the step that is resumed from; a line that was cut off is dropped."""
        kept = []
        for line in self.path.read_text(encoding="utf-8").splitlines() if self.path.is_file() else []:
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if 0 < state.global_step >= entry["step"] and "train_runtime" not in entry:
                    kept.append(line + "\n")
        write_atomically(self.path, "".join(kept))

    def on_log(
        self, args: Any, state: TrainerState, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": state.global_step, **(logs or {})}) + "\n")


class StopOnInterrupt(TrainerCallback):
    """Ctrl-C, or the signal with which clusters end a job, ends training after the current step with a checkpoint.

    A second Ctrl-C stops at once. Several processes stop after the same step, whichever was asked first.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = {one: signal.signal(one, self._ask) for one in (signal.SIGINT, signal.SIGTERM)}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.asked = any_process(self.asked, args.device)
        if self.asked and state.global_step < state.max_steps:
            control.should_save = True
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.release()

    def release(self) -> None:
        """Restore the signal handlers that were there before; safe to call twice."""
        for one, handler in self._before.items():
            signal.signal(one, handler)
        self._before = {}


class SaveRelevanceHead(TrainerCallback):
    """Keeps scale and bias of a `BiXSELoss` with what sentence-transformers' own trainer saves.

    Every checkpoint gets the relevance head of its step. At the end the output folder of the training gets it, where
    `trainer.save_model()` writes the model: that of the best checkpoint, if the trainer has loaded the best one. A
    model of `build_encoder` gets it too, and is saved with it wherever that is. With another folder and a plain
    `SentenceTransformer`, call `save_relevance_head(loss, folder)`.

    A run that is resumed from a checkpoint in its output folder goes on with the scale and bias of that checkpoint.

    Args:
        loss: the one that the trainer is given.

    Raises:
        InputError: when training begins: the loss learns no probability of relevance, or the data set has no labels.

    Example:
        ::

            loss = BiXSELoss(model)
            heads = SaveRelevanceHead(loss)
            trainer = SentenceTransformerTrainer(model, args, train_dataset, loss=loss, callbacks=[heads])
            trainer.train()
            trainer.save_model("out/model")
            load_relevance_model("out/model")
    """

    def __init__(self, loss: nn.Module) -> None:
        self.loss = loss
        self._targets = 0.0
        self._steps = 0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        check_learns_probability(self.loss)
        _check_labels(kwargs.get("train_dataloader"))
        self._targets, self._steps = 0.0, 0
        head = RelevanceHead.load(_checkpoint(args, state)) if state.global_step else None
        if head is not None:
            restore_head(self.loss, head)
            self._targets, self._steps = (head.trained_prior or 0.0) * state.global_step, state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        target = getattr(self.loss, "statistics", {}).get("mean_target")
        if target is not None:
            self._targets += float(target)
            self._steps += 1

    def on_save(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            save_relevance_head(self.loss, _checkpoint(args, state), self._prior())

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        best = state.best_model_checkpoint if args.load_best_model_at_end else None
        head = RelevanceHead.load(Path(best)) if best is not None else None
        if head is not None:
            restore_head(self.loss, head)
        if state.is_world_process_zero:
            save_relevance_head(self.loss, args.output_dir or ".", head.trained_prior if head else self._prior())

    def _prior(self) -> float | None:
        return self._targets / self._steps if self._steps else None


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir or ".") / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"


def _check_labels(loader: Any) -> None:
    """Refuse a data set whose columns hold no labels, before its first batch."""
    names = getattr(getattr(loader, "dataset", None), "column_names", None)
    if isinstance(names, list) and not set(names) & set(LABEL_COLUMNS):
        raise InputError(
            f"data set: got the columns {', '.join(names)}; expected the relevance in [0, 1] in a column named label "
            f"(or {', '.join(LABEL_COLUMNS[1:])}), any other is read as text; fix: rename it, as "
            "GradedPairs.to_dataset() does"
        )
