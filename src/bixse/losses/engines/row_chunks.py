"""Losses that are a sum over queries: computed a block of whole rows at a time, with exact gradients."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bixse.losses.base import GradedLoss
from bixse.losses.engines.batch_statistics import mean_logits

if TYPE_CHECKING:
    from collections.abc import Callable

    from bixse.losses.targets import GradedTargets

ENTRIES_PER_CHUNK = 2**22
"""Entries of a block of rows: 16 MB of float32; a loss holds a few such blocks while it works."""


class ChunkResult(NamedTuple):
    """What a loss says of a block of R rows."""

    value: Tensor
    """Sum of the rows' terms."""
    denominator: Tensor | int
    """This block's part of what the sum over all rows is divided by."""
    gradient: Tensor
    """(R, N): of `value` with respect to the logits."""


class RowWiseLoss(GradedLoss):
    """Base of the losses in which each query's term depends on its own row of logits alone.

    The B x N matrix is never kept: a block of rows is scored, the subclass's `chunk_result` gives value and gradient
    with respect to its logits, and the block is multiplied into the gradients of the embeddings at once. That takes
    the three matrix products that no exact method avoids, and memory for one block.
    """

    @abstractmethod
    def chunk_result(self, logits: Tensor, targets: GradedTargets) -> ChunkResult:
        """Of (R, N) logits, scale * cosine, which may be overwritten; targets count rows from the block's first."""

    def compute_loss_from_embeddings(self, queries: Tensor, documents: Tensor, targets: GradedTargets) -> Tensor:
        """As every loss; 0 where there is nothing to learn."""
        loss, self.denominator = row_wise_loss(queries, documents, targets, self.options.scale, self.chunk_result)
        relevant, irrelevant = mean_logits(queries, documents, targets, self.options.scale)
        self.statistics = {"mean_logit_relevant": relevant, "mean_logit_irrelevant": irrelevant}
        return loss


def row_wise_loss(
    queries: Tensor,
    documents: Tensor,
    targets: GradedTargets,
    scale: float,
    chunk_result: Callable[[Tensor, GradedTargets], ChunkResult],
    entries_per_chunk: int = ENTRIES_PER_CHUNK,
) -> tuple[Tensor, Tensor]:
    """Sum of the rows' terms over the sum of their counts, differentiable in queries and documents.

    Logits are scale * q.d of (B, D) queries and (N, D) documents. Arithmetic is float32 (float64 for float64 input)
    whatever autocast says. `entries_per_chunk` changes speed and memory only.

    Returns:
        Two scalars: the loss, 0 with zero gradients when the counts sum to 0; and the sum of the counts, detached.
    """
    targets.check_fits("loss", queries, documents)
    dtype = torch.promote_types(torch.promote_types(queries.dtype, documents.dtype), torch.float32)
    with torch.autocast(queries.device.type, enabled=False):
        loss, denominator = _RowWise.apply(  # type: ignore[no-untyped-call]
            queries.to(dtype), documents.to(dtype), targets, scale, chunk_result, entries_per_chunk
        )
    return loss, denominator


class _RowWise(torch.autograd.Function):
    """Loss and gradients in one pass over blocks of rows; backward only scales what forward computed."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        documents: Tensor,
        targets: GradedTargets,
        scale: float,
        chunk_result: Callable[[Tensor, GradedTargets], ChunkResult],
        entries_per_chunk: int,
    ) -> tuple[Tensor, Tensor]:
        needs_queries, needs_documents = ctx.needs_input_grad[:2]
        rows = max(1, min(len(queries), entries_per_chunk // max(1, len(documents))))
        buffer = queries.new_empty(rows * len(documents))
        exact = torch.float32 if queries.device.type == "mps" else torch.float64
        total = torch.zeros((), dtype=exact, device=queries.device)
        denominator = torch.zeros((), dtype=exact, device=queries.device)
        grad_queries = torch.zeros_like(queries) if needs_queries else None
        grad_documents = torch.zeros_like(documents) if needs_documents else None
        for block, known in targets.row_chunks(rows):
            q = queries[block]
            logits = buffer[: len(q) * len(documents)].view(len(q), len(documents))
            torch.addmm(logits, q, documents.T, beta=0, alpha=scale, out=logits)
            result = chunk_result(logits, known)
            total += result.value
            denominator += result.denominator
            if grad_queries is not None:
                torch.mm(result.gradient, documents, out=grad_queries[block])
            if grad_documents is not None:
                grad_documents.addmm_(result.gradient.T, q)
        divisor = denominator.clamp(min=1.0)
        for gradient in (grad_queries, grad_documents):
            if gradient is not None:
                gradient.mul_((scale / divisor).to(gradient.dtype))
        ctx.save_for_backward(grad_queries, grad_documents)
        ctx.mark_non_differentiable(denominator)
        return (total / divisor).to(queries.dtype), denominator

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor, _: Tensor) -> tuple[Any, ...]:
        gradients = [None if gradient is None else gradient * grad_output for gradient in ctx.saved_tensors]
        return (*gradients, None, None, None, None)
