"""Operations over all processes, and the weights of sharded encoders, of which each process has a part."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor


def is_sharded(model: object) -> bool:
    """Return True if a model's weights are spread over processes; a pass then takes all processes."""
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


def all_gather_rows(rows: Tensor, number: int) -> Tensor:
    """Return (W * number, D): (n, D) rows of process 0, zeros up to `number` rows, rows of process 1, ..."""
    # all_gather needs equal shapes; processes may have different numbers of rows
    padded = torch.cat([rows, rows.new_zeros(number - len(rows), rows.shape[1])])
    gathered: Tensor = _Gather.apply(padded)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    """A gather whose backward sums the gradients of all processes for this process's rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        gathered = rows.new_empty(world_size() * len(rows), rows.shape[1])
        dist.all_gather_into_tensor(gathered, rows.contiguous())  # collectives refuse strided memory
        return gathered

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        reduced = gradient.new_empty(len(gradient) // world_size(), gradient.shape[1])
        dist.reduce_scatter_tensor(reduced, gradient.contiguous())
        return reduced


def global_mean_weight(count: Tensor) -> Tensor:
    """Return W * count / (sum of counts), the weight of a mean over `count` rows (or 0) in the global mean."""
    if world_size() == 1:
        return count.new_ones(())
    total = all_reduce_sum(count).clamp_(min=1.0)
    return world_size() * count / total
