"""Checkpoints on disk: which one is whole, and where the best one is."""

from __future__ import annotations

import json
from pathlib import Path

from bixse.data.io.hashes import HASHES_FILE, damage, write_with_hash
from bixse.errors import TrainingError

STATE_FILE = "trainer_state.json"
"""The last file that the first process writes of a checkpoint."""


def whole_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints that were written to their end, newest first; a process killed while saving leaves half of one.

    The hashes are written last of all. Without them (they are new): the trainer's state is the last file of the first
    process; the others write their random state alone, and with that of process n there must be those of all before it.

    Args:
        folder: holds `checkpoint-<step>` folders.
    """
    whole = [path for path in folder.glob("checkpoint-*") if (path / HASHES_FILE).is_file() or _has_all_files(path)]
    return sorted(whole, key=lambda path: int(path.name.rpartition("-")[2]), reverse=True)


def checkpoint_to_resume(folder: Path) -> tuple[str | None, list[str]]:
    """The newest whole checkpoint whose files are as they were written, and a warning for each that was passed over.

    Training goes on from an older checkpoint to the same end. It does not begin anew by itself where there is none:
    that would throw away what may be restored from a copy.

    Args:
        folder: holds `checkpoint-<step>` folders.

    Returns:
        Its path, None where no checkpoint is there; and the warnings.

    Raises:
        TrainingError: every checkpoint is damaged, or the best one so far is, which the run would end with.
    """
    found: list[str] = []
    whole = whole_checkpoints(folder)
    for path in whole:
        wrong = damage(path)
        if wrong is None:
            best = _best_of(path)
            wrong = damage(best) if best is not None else None
            if wrong is not None:
                raise _damaged(best or path, wrong)
            return str(path), [f"{one}: passed over, training went on from {path.name}" for one in found]
        found.append(f"{path}: got {wrong}")
    if whole:
        raise _damaged(whole[0], found[0].partition(": got ")[2])
    return None, []


def _has_all_files(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / STATE_FILE).read_bytes())
    except (OSError, ValueError):
        return False
    states = {state.name for state in checkpoint.glob("rng_state_*.pth")}
    return states == {f"rng_state_{process}.pth" for process in range(len(states))}


def check_checkpoint(checkpoint: Path) -> None:
    """Refuse a checkpoint whose files are not as they were written.

    Raises:
        TrainingError: names the file.
    """
    wrong = damage(checkpoint)
    if wrong is not None:
        raise _damaged(checkpoint, wrong)


def _damaged(checkpoint: Path, wrong: str) -> TrainingError:
    return TrainingError(
        f"{checkpoint}: got {wrong}; expected the checkpoint as it was saved (its hashes are in {HASHES_FILE}); "
        f"fix: restore it from a copy, or delete {checkpoint.parent} to train from the beginning"
    )


def _best_of(checkpoint: Path) -> Path | None:
    """The best checkpoint so far, beside this one, or None where nothing was evaluated."""
    best = json.loads((checkpoint / STATE_FILE).read_bytes()).get("best_model_checkpoint")
    return checkpoint.parent / Path(best).name if best else None


def tell_where_the_best_is(checkpoint: Path) -> None:
    """Write the path of the best checkpoint so far, beside this one: the run may have been moved since."""
    best = _best_of(checkpoint)
    if best is not None:
        path = checkpoint / STATE_FILE
        state = {**json.loads(path.read_bytes()), "best_model_checkpoint": str(best)}
        write_with_hash(path, json.dumps(state, indent=2))
