"""Encoders whose weights several processes hold together: each process has a part of every weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from torch import Tensor


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
