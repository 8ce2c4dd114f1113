"""Encoders whose weights several processes hold together: each process has a part of every weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable
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


def world_size() -> int:
    """W, the number of processes that train together; 1 outside torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def all_reduce_sum(value: Tensor) -> Tensor:
    """A detached tensor summed over all processes; each must call this with the same shape."""
    if world_size() == 1:
        return value.detach()
    total = value.detach().clone()
    dist.all_reduce(total)
    return total


def all_gather_rows(rows: Tensor, number: int) -> Tensor:
    """(W * number, D): rows of process 0, zeros up to `number` of them, rows of process 1, ...

    `rows` are (n, D), n at most `number`. The gradient of each row flows back to the process it came from.
    """
    padded = torch.cat([rows, rows.new_zeros(number - len(rows), rows.shape[1])])
    gathered: Tensor = _Gather.apply(padded)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    """Backward sums the gradients that all processes have for this one's rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        gathered = rows.new_empty(world_size() * len(rows), rows.shape[1])
        dist.all_gather_into_tensor(gathered, rows.contiguous())
        return gathered

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        own = gradient.new_empty(len(gradient) // world_size(), gradient.shape[1])
        dist.reduce_scatter_tensor(own, gradient.contiguous())
        return own


def global_mean_weight(count: Tensor) -> Tensor:
    """Weight W * count / (sum of the counts) that turns the means of processes into the mean over all rows.

    `count` is what this process divided its sum by, 0 where it had nothing.
    """
    if world_size() == 1:
        return count.new_ones(())
    total = all_reduce_sum(count).clamp_(min=1.0)
    return world_size() * count / total
