"""Checkpoints on disk: the loss's own state in them, which one is whole, and where the best one is."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from transformers import TrainerCallback

from bixse.errors import TrainingError
from bixse.files.files import HASHES_FILE, damage, write_atomically, write_with_hash
from bixse.progress import Progress
from bixse.training.distributed import any_process
from bixse.training.loop.unlabelled import Suspects

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

    from torch import Tensor, nn
    from transformers import TrainerControl, TrainerState, TrainingArguments


STATE_FILE = "trainer_state.json"
"""The last file that the first process writes of a checkpoint."""
SHARDS_FOLDER = "shards"
"""A file or more of each process, where each holds a part of the weights."""
SUSPECTS_FILE = "suspects.safetensors"
"""Suspicious zeros of an epoch that is not over, where they are collected."""
LOSS_STATE_FILE = "loss_state.safetensors"
"""Scale and bias: sentence-transformers' checkpoints hold the encoder alone."""


def loss_state(loss: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers that belong to the loss and not to the encoder inside it."""
    return {name: value.detach().cpu() for name, value in loss.state_dict().items() if not name.startswith("model.")}


def restore_loss_state(loss: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Give a loss what `loss_state` took of it."""
    with torch.no_grad():
        for name, target in loss.state_dict().items():
            if name in state:
                target.copy_(state[name])


def save_loss_state(loss: nn.Module, folder: Path) -> None:
    """Write the loss's own state into a checkpoint folder; nothing is written for a loss that has none."""
    state = loss_state(loss)
    if state:
        write_atomically(folder / LOSS_STATE_FILE, save(state))


def load_loss_state(loss: nn.Module, folder: Path) -> None:
    """Restore the loss's own state from a checkpoint folder."""
    own = loss_state(loss)
    if not own:
        return
    path = folder / LOSS_STATE_FILE
    try:
        state = load(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise TrainingError(
            f"{path}: got no readable loss state ({error}); expected {', '.join(sorted(own))}; "
            "fix: resume from another checkpoint of the run"
        ) from error
    if set(state) != set(own):
        raise TrainingError(
            f"{path}: got {sorted(state)}; expected {sorted(own)}; fix: resume with the loss the run began with"
        )
    restore_loss_state(loss, state)


def save_suspects(suspects: Suspects, folder: Path) -> None:
    """Write the suspicious zeros of the epoch so far into a checkpoint folder."""
    columns = {"groups": suspects.groups, "documents": suspects.documents, "logits": suspects.logits}
    write_atomically(folder / SUSPECTS_FILE, save({name: torch.from_numpy(own) for name, own in columns.items()}))


def load_suspects(folder: Path) -> Suspects:
    """Those of a checkpoint; none where it holds none."""
    path = folder / SUSPECTS_FILE
    if not path.is_file():
        return Suspects.none()
    return Suspects(**{name: tensor.numpy() for name, tensor in load(path.read_bytes()).items()})


def whole_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints that were written to their end, newest first; a process killed while saving leaves half of one.

    The hashes are written last of all. Without them (earlier versions wrote none, and no shards): the trainer's state
    is the last file of the first process; the others write their random state alone, and with that of process n there
    must be those of all before it.
    """
    whole = [path for path in folder.glob("checkpoint-*") if (path / HASHES_FILE).is_file() or _has_all_files(path)]
    return sorted(whole, key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)


def checkpoint_to_resume(folder: Path) -> tuple[str | None, list[str]]:
    """The newest whole checkpoint whose files are as they were written, and a warning for each that was passed over.

    Training goes on from an older checkpoint to the same end. Where all are damaged, or the best one so far is, with
    which the run would end, it is a TrainingError: to begin anew would throw away what may be restored from a copy.
    """
    whole = whole_checkpoints(folder)
    passed_over: list[str] = []
    for path in whole:
        wrong = damage(path)
        if wrong is None:
            best = _best_of(path)
            if best is not None:
                check_checkpoint(best)
            return str(path), [f"{one}: passed over, training went on from {path.name}" for one in passed_over]
        passed_over.append(f"{path}: got {wrong}")
    if whole:
        check_checkpoint(whole[0])
    return None, []


def check_checkpoint(checkpoint: Path) -> None:
    """Refuse, by a TrainingError, a checkpoint whose files are not as they were written."""
    wrong = damage(checkpoint)
    if wrong is not None:
        raise TrainingError(
            f"{checkpoint}: got {wrong}; expected the checkpoint as it was saved (its hashes are in {HASHES_FILE}); "
            f"fix: restore it from a copy, or delete {checkpoint.parent} to train from the beginning"
        )


def relocate_best_checkpoint(checkpoint: Path) -> None:
    """Write the path of the best checkpoint so far, beside this one: the run may have been moved since."""
    best = _best_of(checkpoint)
    if best is not None:
        path = checkpoint / STATE_FILE
        state = {**json.loads(path.read_bytes()), "best_model_checkpoint": str(best)}
        write_with_hash(path, json.dumps(state, indent=2))


def _has_all_files(checkpoint: Path) -> bool:
    if (checkpoint / SHARDS_FOLDER).exists():
        return False
    try:
        json.loads((checkpoint / STATE_FILE).read_bytes())
    except (OSError, ValueError):
        return False
    states = {state.name for state in checkpoint.glob("rng_state_*.pth")}
    return states == {f"rng_state_{process}.pth" for process in range(len(states))}


def _best_of(checkpoint: Path) -> Path | None:
    """The best checkpoint so far, which stands beside this one; None where nothing was evaluated."""
    best = json.loads((checkpoint / STATE_FILE).read_bytes()).get("best_model_checkpoint")
    return checkpoint.parent / Path(best).name if best else None


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
