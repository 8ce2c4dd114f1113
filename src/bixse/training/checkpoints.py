"""Checkpoints on disk: which one is whole, and where the best one is."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from bixse.data.files import write_atomically

STATE_FILE = "trainer_state.json"
"""The last file that the first process writes of a checkpoint."""


def last_whole_checkpoint(folder: Path) -> str | None:
    """The newest checkpoint that was written to its end, or None; a process killed while saving leaves half of one.

    The trainer's state is the last file of the first process. The others write their random state alone: with that of
    process n there must be those of all before it.

    Args:
        folder: holds `checkpoint-<step>` folders.
    """
    whole = []
    for path in folder.glob(f"checkpoint-*/{STATE_FILE}"):
        with suppress(ValueError):
            json.loads(path.read_bytes())
            states = {state.name for state in path.parent.glob("rng_state_*.pth")}
            if states == {f"rng_state_{process}.pth" for process in range(len(states))}:
                whole.append(path.parent)
    return str(max(whole, key=lambda path: int(path.name.rpartition("-")[2]))) if whole else None


def tell_where_the_best_is(checkpoint: Path) -> None:
    """Write the path of the best checkpoint so far, beside this one: the run may have been moved since."""
    path = checkpoint / STATE_FILE
    state = json.loads(path.read_bytes())
    if state.get("best_model_checkpoint"):
        state["best_model_checkpoint"] = str(checkpoint.parent / Path(state["best_model_checkpoint"]).name)
        write_atomically(path, json.dumps(state, indent=2))
