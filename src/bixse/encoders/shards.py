"""Encoders whose weights several processes hold together: each process has a part of every weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from torch import Tensor, nn


def is_sharded(model: object) -> bool:
    """Whether weights of a model lie in several processes; a pass through it then takes all of them."""
    return isinstance(model, torch.nn.Module) and any(isinstance(own, DTensor) for own in model.parameters())


def local_part(tensor: Tensor) -> Tensor:
    """What this process has of a tensor: a view of the same numbers; all of them where the tensor is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def most_of_all(number: int, device: torch.device) -> int:
    """The largest of the numbers that the processes give; each must call this."""
    most = torch.tensor(number, device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return int(most)


def whole_tensors(module: nn.Module) -> list[torch.Tensor]:
    """Parameters and buffers that every process has whole."""
    return [own.data for own in (*module.parameters(), *module.buffers()) if not isinstance(own, DTensor)]
