"""The loss's own parameters (scale, bias) saved beside every checkpoint and restored from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from bixse.data.io.files import write_atomically
from bixse.errors import TrainingError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor, nn

LOSS_STATE_FILE = "loss_state.safetensors"
"""Name of the file inside a checkpoint folder."""


def loss_state(loss: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers that belong to the loss and not to the encoder inside it."""
    return {name: value.detach().cpu() for name, value in loss.state_dict().items() if not name.startswith("model.")}


def save_loss_state(loss: nn.Module, folder: Path) -> None:
    """Write the loss's own state into a checkpoint folder; nothing is written for a loss that has none.

    sentence-transformers' checkpoints hold the encoder alone: without this, a resumed run would start again with
    the initial bias.

    Raises:
        StorageError: the folder cannot be written.
    """
    state = loss_state(loss)
    if state:
        write_atomically(folder / LOSS_STATE_FILE, save(state))


def load_loss_state(loss: nn.Module, folder: Path) -> None:
    """Restore the loss's own state from a checkpoint folder.

    Raises:
        TrainingError: the file is missing, damaged, or belongs to another loss.
    """
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


def restore_loss_state(loss: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Give a loss the parameters and buffers that `loss_state` took."""
    with torch.no_grad():
        for name, target in loss.state_dict().items():
            if name in state:
                target.copy_(state[name])
