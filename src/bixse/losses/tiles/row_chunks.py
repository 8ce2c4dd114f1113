"""Losses that are sums over queries, computed one block of rows at a time with exact gradients."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bixse.encoders.loading.precision import without_autocast
from bixse.losses.base import GradedLoss
from bixse.losses.tiles.products import add_outer, add_product, mean_logits, product_dtype, tile_bytes

if TYPE_CHECKING:
    from bixse.losses.targets import GradedTargets

ENTRIES_PER_CHUNK = 2**22
"""Entries of a block of rows on the CPU: 16 MB of float32, of which a loss holds a few blocks at once."""


class ChunkResult(NamedTuple):
    """The result of a loss on a block of R rows."""

    value: Tensor
    denominator: Tensor | int
    """This block's part of the divisor of the sum over all rows."""
    gradient: Tensor
    """(R, N) gradient of `value` with respect to the logits."""


class RowWiseLoss(GradedLoss):
    """The base of the losses in which each query's term depends on its own row of logits alone.

    The B x N matrix is never kept. The subclass's `chunk_result` gives value and gradient of one block of logits, and
    the block is multiplied into the gradients of the embeddings at once. The cost is the three matrix products that no
    exact method avoids, and memory for one block.
    """

    blocks_held: ClassVar[int] = 20
    """Measured peak number of float32 blocks in `chunk_result`; it limits the block size on a GPU."""

    @abstractmethod
    def chunk_result(self, logits: Tensor, targets: GradedTargets) -> ChunkResult:
        """Return the result of (R, N) logits, scale * cosine, which may be overwritten."""

    def compute_loss_from_embeddings(self, queries: Tensor, documents: Tensor, targets: GradedTargets) -> Tensor:
        """Return the sum of the rows' terms over the sum of their counts; 0 if there is nothing to learn."""
        targets.check_fits("loss", queries, documents)
        device = queries.device
        # logits and all sums are float32 at least, despite autocast
        dtype = torch.promote_types(torch.promote_types(queries.dtype, documents.dtype), torch.float32)
        rounded = product_dtype(self.options.products, device, dtype)  # embeddings, gradients of unlabelled entries
        entries = ENTRIES_PER_CHUNK if device.type == "cpu" else tile_bytes(device) // (4 * self.blocks_held)
        rows = max(1, min(len(queries), entries // max(1, len(documents))))  # speed and memory only
        with without_autocast(device):
            loss, self.denominator = _RowWise.apply(  # type: ignore[no-untyped-call]
                queries.to(dtype), documents.to(dtype), targets, self, rows, rounded
            )
        relevant, irrelevant = mean_logits(queries, documents, targets, self.options.scale)
        self.statistics = {"mean_logit_relevant": relevant, "mean_logit_irrelevant": irrelevant}
        value: Tensor = loss
        return value


class _RowWise(torch.autograd.Function):
    """Loss and gradients in one pass; backward only scales the gradients of forward."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        documents: Tensor,
        targets: GradedTargets,
        of: RowWiseLoss,
        rows: int,
        rounded: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        needs_queries, needs_documents = ctx.needs_input_grad[:2]
        grad_queries = torch.zeros_like(queries) if needs_queries else None
        grad_documents = torch.zeros_like(documents) if needs_documents else None
        scale = of.options.scale
        buffer = queries.new_empty(rows * len(documents))
        exact = torch.float32 if queries.device.type == "mps" else torch.float64  # MPS has no float64
        total = torch.zeros((), dtype=exact, device=queries.device)
        denominator = torch.zeros_like(total)
        d = documents.to(rounded)
        for block, _, known in targets.tiles(rows):
            q = queries[block].to(rounded)
            logits = buffer[: len(q) * len(d)].view(len(q), len(d))
            add_product(logits, q, d.T, beta=0, alpha=scale)
            result = of.chunk_result(logits, known)
            total += result.value
            denominator += result.denominator
            of_logits = result.gradient
            grad_block: Tensor | None = None if grad_queries is None else grad_queries[block]
            if rounded != of_logits.dtype:  # known entries stay float32
                entries = known.rows, known.columns
                pairs = queries[block][known.rows], documents[known.columns]
                add_outer((grad_block, grad_documents), pairs, entries, of_logits[entries])
                of_logits[entries] = 0.0
                of_logits = of_logits.to(rounded)
            if grad_block is not None:
                add_product(grad_block, of_logits, d)
            if grad_documents is not None:
                add_product(grad_documents, of_logits.T, q)
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
