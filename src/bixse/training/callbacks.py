"""What happens around the training steps: a progress bar, the learning curve, and a Ctrl-C that loses nothing."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from bixse.data.files import write_atomically
from bixse.progress import Progress
from bixse.training.processes import any_process

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

    from transformers import TrainerControl, TrainerState, TrainingArguments


class ProgressBar(TrainerCallback):
    """Progress with rate, time left, loss and the dev figure, as that of every other long work."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.bar: Progress | None = None
        self.done = 0
        self.shown: dict[str, str] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the bar, at the step a resumed run stands at."""
        self.bar, self.done = Progress(self.title, state.max_steps, "step"), state.global_step
        self.bar(0, known=self.done)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """One step on."""
        if self.bar is not None:
            self.bar(state.global_step - self.done, ", ".join(f"{name}={value}" for name, value in self.shown.items()))
            self.done = state.global_step

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Show the latest loss and dev nDCG."""
        for name, value in (logs or {}).items():
            if name == "loss" or name.endswith("ndcg@10"):
                self.shown[name.removeprefix("eval_")] = f"{value:.3f}"

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the bar."""
        if self.bar is not None:
            self.bar.close()


class StopOnInterrupt(TrainerCallback):
    """Ctrl-C, or the signal with which clusters end a job, ends training after the current step with a checkpoint.

    A second Ctrl-C stops at once. Several processes stop after the same step, whichever was asked first.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Listen for the signals."""
        if threading.current_thread() is threading.main_thread():
            self._before = {one: signal.signal(one, self._ask) for one in (signal.SIGINT, signal.SIGTERM)}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Save and stop when asked, unless this was the last step anyway."""
        self.asked = any_process(self.asked, args.device)
        if self.asked and state.global_step < state.max_steps:
            control.should_save = True
            control.should_training_stop = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Give the signals back."""
        self.release()

    def release(self) -> None:
        """Restore the signal handlers that were there before; safe to call twice."""
        for one, handler in self._before.items():
            signal.signal(one, handler)
        self._before = {}


class StepLog(TrainerCallback):
    """Writes every entry of the log to a file as it comes: one JSON object a line.

    A resumed run first drops the entries after the step it resumes from.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Keep what earlier processes wrote up to this step; a line that was cut off is dropped."""
        kept = []
        for line in self.path.read_text(encoding="utf-8").splitlines() if self.path.is_file() else []:
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if 0 < state.global_step >= entry["step"] and "train_runtime" not in entry:
                    kept.append(line + "\n")
        write_atomically(self.path, "".join(kept))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """One entry."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": state.global_step, **(logs or {})}) + "\n")
