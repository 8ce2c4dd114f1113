"""The graded binary cross-entropy over several processes whose documents travel: no process holds those of all.

Process r begins with its own documents and passes them on to process r + 1, W times, until every process has scored its
queries against the documents of all. The gradient of the documents follows them and comes home complete. Each process
holds two shares of the documents and three of their gradient, whatever W is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from bixse.errors import InputError
from bixse.losses.engines.gather import all_reduce_sum, world_size
from bixse.losses.engines.graded_bce import add_entries
from bixse.losses.engines.implementations import choose
from bixse.losses.engines.known_entries import known_cosines
from bixse.losses.engines.products import without_autocast
from bixse.losses.engines.tiles import Sums
from bixse.losses.targets import GradedTargets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from bixse.encoders.loading.precision import Setting
    from bixse.losses.engines.graded_bce import Reduction
    from bixse.losses.engines.implementations import Chosen, Implementation


class Ring:
    """The documents of a batch, each process holding its own share.

    Args:
        own: (n, D) of this process.
        order: (N,) place of each column of the batch among the documents of process 0, 1, ..., each with
            ceil(N / W) places.

    Raises:
        InputError: this process has another number of documents than N dealt out to W gives it.
    """

    def __init__(self, own: Tensor, order: Tensor) -> None:
        self.own, self.order = own, order
        self.number = -(-len(order) // world_size())
        rank = dist.get_rank() if world_size() > 1 else 0
        self._rank, expected = rank, self.share(rank)
        if len(own) != expected:
            raise InputError(
                f"ring: got {len(own)} documents of process {rank}; expected {expected} of {len(order)}; "
                "fix: deal the documents out in turn"
            )

    def share(self, process: int) -> int:
        """How many documents a process has."""
        return len(range(process, len(self.order), world_size()))

    def visits(self) -> Iterator[tuple[int, Tensor]]:
        """Every process and its documents, own first; all processes must go through all of them."""
        documents = self._padded(self.own.detach())
        for step in range(world_size()):
            owner = (self._rank - step) % world_size()
            following = Exchange(documents) if step + 1 < world_size() else None
            yield owner, documents[: self.share(owner)]
            documents = following.wait() if following is not None else documents

    def _padded(self, rows: Tensor) -> Tensor:
        return torch.cat([rows, rows.new_zeros(self.number - len(rows), rows.shape[1])])

    def in_places(self, targets: GradedTargets) -> GradedTargets:
        """The targets with a column for every place."""
        shape = (targets.shape[0], self.number * world_size())
        return GradedTargets(targets.rows, self.order[targets.columns], targets.relevance, shape)

    def by_owner(self, targets: GradedTargets) -> tuple[Tensor, Tensor]:
        """Owner of each known entry's document, sorted, and the entries in that order."""
        return torch.sort(self.order[targets.columns] // self.number, stable=True)

    def targets_by_owner(self, targets: GradedTargets) -> list[GradedTargets]:
        """The known entries of each process's documents, columns counted from its first; one read of W numbers."""
        owner, entries = self.by_owner(targets)
        placed = self.in_places(targets).taken(entries)
        processes = torch.arange(world_size(), device=owner.device)
        ends = torch.searchsorted(owner, processes, right=True).tolist()
        parts = []
        for process, (low, high) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            columns = placed.columns[low:high] - process * self.number
            shape = (targets.shape[0], self.share(process))
            parts.append(GradedTargets(placed.rows[low:high], columns, placed.relevance[low:high], shape))
        return parts


class Exchange:
    """Begin to send a tensor to the next process; `wait` gives the one that the process before has sent."""

    def __init__(self, tensor: Tensor) -> None:
        self._sent, self._received = tensor.contiguous(), torch.empty_like(tensor)
        if world_size() == 1:
            self._received, self._requests = self._sent, []
            return
        rank = dist.get_rank()
        to = dist.P2POp(dist.isend, self._sent, (rank + 1) % world_size())
        fro = dist.P2POp(dist.irecv, self._received, (rank - 1) % world_size())
        self._requests = dist.batch_isend_irecv([to, fro])

    def wait(self) -> Tensor:
        for request in self._requests:
            request.wait()
        return self._received


def ring_bce(
    queries: Tensor,
    ring: Ring,
    targets: GradedTargets,
    logit_scale: Tensor,
    logit_bias: Tensor,
    reduction: Reduction = "query",
    implementation: Implementation = "auto",
    products: Setting = "auto",
) -> tuple[Tensor, Tensor]:
    """`graded_bce` of this process's (B, D) queries against the documents of all, which travel.

    `targets` are of (B, N) entries, columns in the order of the batch. All processes must call this.

    Returns:
        This process's sum times W over the number of queries (or of entries) of all processes, so that the mean over
        processes is the loss of the whole batch, and so are its gradients once they are averaged. And the (M,) cosines
        of the known entries in the order of `targets_by_owner`, detached. What is multiplied to the first must be the
        same in all processes: the documents' gradients are summed before.
    """
    dtype = torch.promote_types(torch.promote_types(queries.dtype, ring.own.dtype), torch.float32)
    choice = choose(implementation, products, queries.device, dtype)
    numbers = (torch.as_tensor(x, dtype=dtype, device=queries.device).reshape(()) for x in (logit_scale, logit_bias))
    with without_autocast(queries.device):
        found: tuple[Tensor, Tensor] = _RingBCE.apply(  # type: ignore[no-untyped-call]
            queries.to(dtype), ring.own.to(dtype), *numbers, ring, targets, reduction, choice
        )
    return found


class _RingBCE(torch.autograd.Function):
    """As in `graded_bce`, backward only scales what forward computed."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        own: Tensor,
        scale: Tensor,
        bias: Tensor,
        ring: Ring,
        targets: GradedTargets,
        reduction: Reduction,
        choice: Chosen,
    ) -> tuple[Tensor, Tensor]:
        wanted = ctx.needs_input_grad[:4]
        sums = Sums.zeros(queries, own, (wanted[0], False, *wanted[2:]))
        sums.with_gradients = any(wanted)
        parts = ring.targets_by_owner(targets)
        cosines = [queries.new_zeros(0)] * len(parts)
        coming: Exchange | None = None
        for owner, documents in ring.visits():
            block = documents.to(own.dtype)
            cosines[owner] = known_cosines(queries, block, parts[owner])
            gradient = queries.new_zeros(ring.number, queries.shape[1])
            sums.documents = gradient[: len(block)]
            shape = choice.tile_shape(len(queries), len(block))
            add_entries(sums, queries, block, scale, bias, parts[owner], shape, choice)
            coming = Exchange(gradient if coming is None else gradient.add_(coming.wait()))
        assert coming is not None
        sums.documents = coming.wait()[: len(own)]
        counted = targets.number_counted() if reduction == "mean" else queries.new_tensor(len(queries))
        count = all_reduce_sum(counted.to(sums.value.dtype)).clamp_(min=1.0) / world_size()
        ctx.save_for_backward(*sums.gradients(queries, scale, count, wanted))
        known = torch.cat(cosines)
        ctx.mark_non_differentiable(known)
        return (sums.value / count).to(queries.dtype), known

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor, _: Tensor) -> tuple[Any, ...]:
        gradients = [gradient * grad_output if gradient is not None else None for gradient in ctx.saved_tensors]
        return (*gradients, None, None, None, None)
