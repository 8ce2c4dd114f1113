"""What happens around the training steps: a progress bar, the learning curve, and a Ctrl-C that loses nothing."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING, Any

from tqdm import tqdm
from transformers import TrainerCallback

if TYPE_CHECKING:
    from types import FrameType

    from transformers import TrainerControl, TrainerState, TrainingArguments


class ProgressBar(TrainerCallback):
    """One progress bar with rate, time left, loss and the dev figure."""

    def __init__(self, title: str, disable: bool = False) -> None:
        self.title = title
        self.disable = disable
        self.bar: tqdm[Any] | None = None
        self.shown: dict[str, str] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the bar, at the step a resumed run stands at."""
        self.bar = tqdm(
            total=state.max_steps, initial=state.global_step, desc=self.title, unit="step", disable=self.disable
        )

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """One step on."""
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)

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
        if self.bar is not None:
            self.bar.set_postfix(self.shown, refresh=False)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the bar."""
        if self.bar is not None:
            self.bar.close()


class StopOnInterrupt(TrainerCallback):
    """Ctrl-C ends training after the current step with a checkpoint; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Listen for Ctrl-C."""
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Save and stop when asked, unless this was the last step anyway."""
        if self.asked and state.global_step < state.max_steps:
            control.should_save = True
            control.should_training_stop = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Give Ctrl-C back."""
        self.release()

    def release(self) -> None:
        """Restore the signal handler that was there before; safe to call twice."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None
