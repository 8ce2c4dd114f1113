"""Operations over all processes, and the weights of sharded encoders, of which each process has a part."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def is_sharded(model: object) -> bool:
    """Return True if a model's weights are spread over processes; a pass then takes all processes."""
    if not (dist.is_available() and dist.is_initialized()):  # a step asks several times
        return False
    return isinstance(model, torch.nn.Module) and any(isinstance(weight, DTensor) for weight in model.parameters())


def local_part(tensor: Tensor) -> Tensor:
    """Return a view of this process's part of a tensor, or the tensor if it is unsharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def most_of_all(number: int, device: torch.device) -> int:
    """Return the largest number over all processes; each must call this."""
    most = torch.tensor(number, device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return int(most)


def unsharded_tensors(module: nn.Module) -> list[torch.Tensor]:
    """Return the unsharded parameters and buffers."""
    return [part.data for part in (*module.parameters(), *module.buffers()) if not isinstance(part, DTensor)]


def world_size() -> int:
    """Return W, the number of processes that train together; 1 outside torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def all_reduce_sum(value: Tensor) -> Tensor:
    """Sum a detached tensor over all processes; each must call this with the same shape."""
    if world_size() == 1:
        return value.detach()
    total = value.detach().clone()
    dist.all_reduce(total)
    return total
