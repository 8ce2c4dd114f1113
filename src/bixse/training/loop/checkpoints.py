"""The checkpoints on disk: the loss's own state, complete checkpoints, and the best one."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from safetensors.torch import load, save
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from bixse.errors import LAST_VERSION, TrainingError
from bixse.files.files import HASHES_FILE, damage, write_atomically
from bixse.progress import Progress
from bixse.training.distributed import any_process, raise_together

if TYPE_CHECKING:
    from torch import Tensor, nn


STATE_FILE = "trainer_state.json"
SHARDS_FOLDER = "shards"
"""Files of each process, if each holds a part of the weights."""
LOSS_STATE_FILE = "loss_state.safetensors"
"""Scale and bias: sentence-transformers' checkpoints hold the encoder alone."""


def loss_state(loss: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of the loss, without the encoder inside it."""
    return {name: value.detach().cpu() for name, value in loss.state_dict().items() if not name.startswith("model.")}


def save_loss_state(loss: nn.Module, folder: Path) -> None:
    """Write the loss's own state into a checkpoint folder; a loss without state writes nothing."""
    state = loss_state(loss)
    if state:
        write_atomically(folder / LOSS_STATE_FILE, save(state))


def load_loss_state(loss: nn.Module, folder: Path) -> None:
    """Restore the loss's own state from a checkpoint folder."""
    expected = loss_state(loss)
    if not expected:
        return
    path = folder / LOSS_STATE_FILE
    state = load(path.read_bytes()) if path.is_file() else {}  # undamaged: its hash was checked
    if set(state) != set(expected):
        # the optimizer's state is that of a scale and bias per length, or of a bias in a group with a rate of its own
        several = any(name.startswith("terms.") or name.endswith("logit_bias") for name in state)
        fix = f"finish this run with bixse {LAST_VERSION}, whose bias was another parameter, or begin anew"
        raise TrainingError(
            f"{path}: got tensors {sorted(state)}; expected {sorted(expected)}; fix: "
            f"{fix if several else 'resume with the loss of the start'}"
        )
    loss.load_state_dict(state, strict=False)  # the encoder is not in it


def check_map(checkpoint: str | Path, what: str, got: int, expected: int) -> None:
    """Refuse a checkpoint without the map of `standardise`, which decoders have by default since it is measured."""
    if got < expected:
        raise TrainingError(
            f"{checkpoint}: got {got} {what}; expected {expected}, with the map of `standardise`; fix: finish this run "
            f"with bixse {LAST_VERSION}, or begin anew"
        )


def complete_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints, newest first; a process killed while saving leaves an incomplete one."""
    steps = {path: path.name.removeprefix("checkpoint-") for path in folder.glob("checkpoint-*")}
    steps = {path: step for path, step in steps.items() if step.isdigit()}  # not a user's checkpoint-6.bak
    complete = [path for path in steps if (path / HASHES_FILE).is_file()]  # written last
    return sorted(complete, key=lambda path: int(steps[path]), reverse=True)  # as text, 10 is before 9


@raise_together()
def checkpoint_to_resume(folder: Path) -> tuple[str | None, list[str]]:
    """Return the newest undamaged complete checkpoint and a warning per skipped one; refuse if all are damaged."""
    complete = complete_checkpoints(folder)
    passed_over: list[str] = []
    for path in complete:
        wrong = damage(path)
        if wrong is None:
            step = json.loads((path / STATE_FILE).read_bytes()).get("best_global_step")
            best = path.with_name(f"checkpoint-{step}") if step else None  # without an evaluation there is none
            # if the damaged newest one was the best, the best one before it is deleted, and training finds it again
            if best is not None and (best.is_dir() or not passed_over):  # the run would end with it
                check_checkpoint(best)
            return str(path), [f"{skipped}: passed over, training went on from {path.name}" for skipped in passed_over]
        passed_over.append(f"{path}: got {wrong}")  # an older checkpoint leads to the same result
    if complete:  # a new start would throw away checkpoints that a copy may restore
        check_checkpoint(complete[0])
    return None, []


def check_checkpoint(checkpoint: Path) -> None:
    """Refuse, by a TrainingError, a checkpoint that is gone or whose files have changed since they were written."""
    wrong = damage(checkpoint) if checkpoint.is_dir() else "no such folder"
    if wrong is not None:
        raise TrainingError(
            f"{checkpoint}: got {wrong}; expected the checkpoint as it was saved (its hashes are in {HASHES_FILE}); "
            f"fix: restore it from a copy, or delete {checkpoint.parent} to train from the beginning"
        )


class ProgressBar(TrainerCallback):
    """Show progress with rate, time left, loss and the dev figure, as every other long command."""

    def __init__(self, title: str) -> None:
        self.title, self.done = title, 0
        self.bar: Progress | None = None
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
    """Append each log entry to a file at once: one JSON object per line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Keep the log of earlier processes up to the resumed step; an incomplete line is dropped."""
        lines = []
        for line in self.path.read_text(encoding="utf-8").splitlines() if self.path.is_file() else []:
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if 0 < state.global_step >= entry["step"] and "train_runtime" not in entry:
                    lines.append(line + "\n")
        write_atomically(self.path, "".join(lines))

    def on_log(
        self, args: Any, state: TrainerState, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": state.global_step, **(logs or {})}) + "\n")


class StopOnInterrupt(TrainerCallback):
    """End training after the current step with a checkpoint, on Ctrl-C or the signal with which clusters end a job.

    A second Ctrl-C stops at once. Several processes stop after the same step, although only one got the signal.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.best_global_step:  # the library forgets the path of the best checkpoint if the run was moved since
            state.best_model_checkpoint = str(Path(args.output_dir) / f"checkpoint-{state.best_global_step}")
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.requested = any_process(self.requested, args.device)
        if self.requested and state.global_step < state.max_steps:
            control.should_save = True
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.release()

    def release(self) -> None:
        """Restore the earlier signal handlers; safe to call twice."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
