"""Weights and optimizer state that every process writes its part of, in safetensors; read by any number of processes.

torch.distributed.checkpoint writes and reads them through its safetensors storage: shape and place of each part stand
in the files' headers. Its default storage keeps them in a pickle.
"""

from __future__ import annotations

import json
import shutil
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_parts
from torch.distributed.checkpoint.state_dict_saver import save as save_parts
from torch.distributed.tensor import DTensor

from bixse.files.files import storage_errors, write_atomically
from bixse.training.distributed import is_main_process, raise_together, world_size
from bixse.training.loop.checkpoints import SHARDS_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor, nn

SCHEDULE_FILE = "schedule.json"
"""Where the learning rates stand."""
WEIGHT, STATE = "weight", "state"
"""First words of the tensors' names: `weight.NAME`, `state.KEY.NAME` of a parameter and of the optimizer's state."""
BYTES_PER_FILE = 2**30
"""About so many of the whole state go into one file of all processes: each writes its part of them at once."""


def save_shards(checkpoint: Path, loss: nn.Module, optimizer: Any, scheduler: Any) -> None:
    """Write this process's part of the trained weights and the optimizer state; every process must call this."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in _trained(loss).items():
        tensors[f"{WEIGHT}.{name}"] = parameter.detach()
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{STATE}.{key}.{name}"] = value
    folder = checkpoint / SHARDS_FOLDER
    with raise_together(), storage_errors(checkpoint):
        if is_main_process():
            shutil.rmtree(folder, ignore_errors=True)  # parts that a killed run left, perhaps of more processes
            folder.mkdir(parents=True)
            write_atomically(checkpoint / SCHEDULE_FILE, json.dumps(scheduler.state_dict()))
    writer = HuggingFaceStorageWriter(str(folder), fqn_to_index_mapping=_files(tensors), save_distributed=True)
    with _own_errors():
        save_parts(tensors, storage_writer=writer, no_dist=world_size() == 1)


def load_weights(checkpoint: Path, loss: nn.Module) -> None:
    """Set the trained weights to those of a checkpoint, each process its part."""
    _read(checkpoint, {f"{WEIGHT}.{name}": parameter.detach() for name, parameter in _trained(loss).items()})


def load_optimizer(checkpoint: Path, loss: nn.Module, optimizer: Any, scheduler: Any) -> None:
    """Set optimizer and learning rates to those of a checkpoint, each process its part."""
    trained = _trained(loss)
    reader = HuggingFaceStorageReader(str(checkpoint / SHARDS_FOLDER))
    tensors: dict[str, Tensor] = {}
    for name, found in reader.read_metadata().state_dict_metadata.items():
        if name.startswith(f"{STATE}.") and isinstance(found, TensorStorageMetadata):
            parameter = trained[name.split(".", 2)[2]].detach()
            alike = isinstance(parameter, DTensor) and found.size == parameter.shape
            tensors[name] = torch.zeros_like(parameter) if alike else torch.zeros(found.size)
    _read(checkpoint, tensors)
    given = optimizer.state_dict()
    numbers = {id(own): number for number, own in enumerate(_parameters(optimizer))}
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        _, key, parameter_name = name.split(".", 2)
        state.setdefault(numbers[id(trained[parameter_name])], {})[key] = value
    optimizer.load_state_dict({**given, "state": state})
    scheduler.load_state_dict(json.loads((checkpoint / SCHEDULE_FILE).read_bytes()))
    for group, rate in zip(optimizer.param_groups, scheduler.get_last_lr(), strict=True):
        group["lr"] = rate


def _trained(loss: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in loss.named_parameters() if parameter.requires_grad}


def _parameters(optimizer: Any) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _files(tensors: dict[str, Tensor]) -> dict[str, int]:
    """The number of the file, from 1, that each tensor goes to: a file is put together in memory."""
    numbers, written = {}, 0
    for name, tensor in tensors.items():
        numbers[name] = 1 + written // BYTES_PER_FILE
        written += tensor.numel() * tensor.element_size()
    return numbers


def _read(checkpoint: Path, tensors: dict[str, Tensor]) -> None:
    with _own_errors():
        load_parts(
            tensors,
            storage_reader=HuggingFaceStorageReader(str(checkpoint / SHARDS_FOLDER)),
            no_dist=world_size() == 1,
        )


@contextmanager
def _own_errors() -> Iterator[None]:
    """Raise what failed (a full disk, ...) and not torch's collection of it, which is no Exception."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that one process is alone
        try:
            yield
        except CheckpointException as error:
            raise next(iter(error.failures.values()))[0] from error
