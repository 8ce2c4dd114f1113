"""Graded binary cross-entropy over every (query, document) entry, tile by tile, with exact gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bixse.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bixse.losses.targets import GradedTargets

TILE_ROWS = 1024
"""Queries of a tile; a tile takes 10 MB while it is worked on."""
TILE_COLUMNS = 1024
"""Documents of a tile."""
LARGEST_EXPONENT = 80.0
"""exp() of a larger logit could overflow float32; the slower, always stable form is taken then."""

Reduction = Literal["query", "mean"]
"""Divide the sum over entries by B (the paper's), or by the number of entries that count."""


def graded_bce(
    queries: Tensor,
    documents: Tensor,
    targets: GradedTargets,
    logit_scale: Tensor | float,
    logit_bias: Tensor | float,
    reduction: Reduction = "query",
    tile_rows: int = TILE_ROWS,
    tile_columns: int = TILE_COLUMNS,
) -> Tensor:
    """Binary cross-entropy of graded relevance over all B x N entries (BiXSE paper, equation 2).

    L = (1/B) sum_ij [ softplus(s_ij) - z_ij s_ij ], s = logit_scale * q.d + logit_bias. The loss separates over
    entries, so value and all four gradients come from one pass over tiles: g = sigma(s) - z, dQ = alpha g D,
    dD = alpha g^T Q, dalpha = <Q, g D>, dbeta = sum g. The B x N matrix is never kept. Arithmetic is float32
    (float64 for float64 input) whatever autocast says: in bf16 the bias would be lost.

    Args:
        queries: (B, D).
        documents: (N, D).
        targets: known relevance; masked entries count neither way.
        logit_scale: alpha, a number or a tensor of one element.
        logit_bias: beta, likewise.
        reduction: "query" divides by B, "mean" by the number of entries that count.
        tile_rows: queries of a tile; changes speed and memory only.
        tile_columns: documents of a tile.

    Raises:
        InputError: the shapes do not fit together, or a tile is empty.

    Example:
        >>> from bixse.losses import GradedTargets
        >>> q, d = torch.eye(2, requires_grad=True), torch.eye(2)
        >>> targets = GradedTargets.from_ids(["a", "b"], ["x", "y"], {"a": {"x": 1.0}, "b": {"y": 0.5}})
        >>> loss = graded_bce(q, d, targets, logit_scale=20.0, logit_bias=-10.0)
        >>> round(float(loss), 4)
        2.5001
    """
    targets.check_fits("graded_bce", queries, documents)
    if tile_rows < 1 or tile_columns < 1:
        raise InputError(f"graded_bce: got tiles of {tile_rows} x {tile_columns}; expected at least 1 x 1")
    dtype = torch.promote_types(torch.promote_types(queries.dtype, documents.dtype), torch.float32)
    scale = torch.as_tensor(logit_scale, dtype=dtype, device=queries.device).reshape(())
    bias = torch.as_tensor(logit_bias, dtype=dtype, device=queries.device).reshape(())
    with torch.autocast(queries.device.type, enabled=False):
        loss: Tensor = _GradedBCE.apply(  # type: ignore[no-untyped-call]
            queries.to(dtype), documents.to(dtype), scale, bias, targets, reduction, (tile_rows, tile_columns)
        )
    return loss


@dataclass(frozen=True)
class _Tile:
    rows: slice
    columns: slice
    known: slice
    """Place of its known entries in the sorted targets."""


class _GradedBCE(torch.autograd.Function):
    """Loss and gradients in one pass; backward only scales what forward computed."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        documents: Tensor,
        scale: Tensor,
        bias: Tensor,
        targets: GradedTargets,
        reduction: Reduction,
        tile_shape: tuple[int, int],
    ) -> Tensor:
        needs_queries, needs_documents, needs_scale, needs_bias = ctx.needs_input_grad[:4]
        needs_any = any(ctx.needs_input_grad[:4])
        tiles, known = _tiles(targets, tile_shape)
        alpha, beta = float(scale), float(bias)
        largest = abs(alpha) * float(_largest_norm(queries) * _largest_norm(documents)) + beta
        logits_buffer = queries.new_empty(min(tile_shape[0], len(queries)) * min(tile_shape[1], len(documents)))
        sigma_buffer = torch.empty_like(logits_buffer) if largest < LARGEST_EXPONENT else None
        half_buffer = queries.new_empty(len(logits_buffer) // 2 + 1)
        grad_queries = torch.zeros_like(queries) if needs_queries or needs_scale else None
        grad_documents = torch.zeros_like(documents) if needs_documents else None
        exact = torch.float32 if queries.device.type == "mps" else torch.float64
        total = torch.zeros((), dtype=exact, device=queries.device)
        grad_bias = torch.zeros((), dtype=exact, device=queries.device)
        for tile in tiles:
            q, d = queries[tile.rows], documents[tile.columns]
            logits = logits_buffer[: len(q) * len(d)].view(len(q), len(d))
            torch.addmm(logits, q, d.T, beta=0, alpha=alpha, out=logits).add_(beta)
            rows, columns, relevance = (part[tile.known] for part in known)
            picked = logits[rows, columns]
            masked = relevance.isnan()
            z = relevance.nan_to_num(0.0).to(logits.dtype)
            total -= (z * picked).sum(dtype=exact)
            logits[rows, columns] = torch.where(masked, -math.inf, picked)  # softplus and sigma are 0 there
            sigma = _softplus_and_sigma(logits, sigma_buffer, half_buffer, largest, total)
            if not needs_any:
                continue
            sigma[rows, columns] -= z
            grad_bias += sigma.sum()
            if grad_queries is not None:
                grad_queries[tile.rows].addmm_(sigma, d)
            if grad_documents is not None:
                grad_documents[tile.columns].addmm_(sigma.T, q)
        count = max(1, len(queries) if reduction == "query" else targets.number_counted())
        if needs_any:
            grad_scale = None
            if needs_scale and grad_queries is not None:
                by_query = torch.einsum("bd,bd->b", queries, grad_queries)
                grad_scale = (by_query.sum(dtype=exact) / count).to(queries.dtype)
            for gradient in (grad_queries, grad_documents):
                if gradient is not None:
                    gradient.mul_(alpha / count)
            ctx.save_for_backward(
                grad_queries if needs_queries else None,
                grad_documents,
                grad_scale,
                (grad_bias / count).to(queries.dtype) if needs_bias else None,
            )
        return (total / count).to(queries.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        gradients = ctx.saved_tensors
        if float(grad_output) != 1.0:
            gradients = [gradient * grad_output if gradient is not None else None for gradient in gradients]
        return (*gradients, None, None, None)


def _softplus_and_sigma(
    logits: Tensor, sigma_buffer: Tensor | None, half_buffer: Tensor, largest: float, total: Tensor
) -> Tensor:
    """Add the sum of softplus(logits) to `total` and return sigma(logits); `logits` is overwritten.

    With u = exp(s), sigma = u / (1 + u) and softplus = log(1 + u). Logarithms are the slow part, so pairs are
    multiplied first: (1 + a)(1 + b) = 1 + (a + b + ab), without cancellation, as often as no product can overflow.
    """
    if sigma_buffer is None:
        total += _softplus(logits).sum(dtype=total.dtype)
        return logits.sigmoid_()
    sigma = sigma_buffer[: logits.numel()].view(logits.shape)
    u = logits.exp_()
    torch.add(u, 1.0, out=sigma)
    torch.div(u, sigma, out=sigma)
    flat, bound = u.view(-1), max(largest, 0.0) + 0.7
    while 2 * bound < LARGEST_EXPONENT and flat.numel() > 1 and flat.numel() % 2 == 0:
        first, second = flat.chunk(2)
        product = half_buffer[: first.numel()] if flat.data_ptr() == u.data_ptr() else first
        torch.addcmul(first, first, second, out=product)
        product.add_(second)
        flat, bound = product, 2 * bound
    total += flat.log1p_().sum()
    return sigma


def _softplus(logits: Tensor) -> Tensor:
    """log(1 + exp(s)), exact for every s (torch's softplus returns s above 20)."""
    return -torch.nn.functional.logsigmoid(-logits)


def _tiles(targets: GradedTargets, shape: tuple[int, int]) -> tuple[list[_Tile], tuple[Tensor, Tensor, Tensor]]:
    """Every tile of the batch, and the known entries sorted by tile with rows and columns inside their tile."""
    queries, documents = targets.shape
    across = -(-documents // shape[1]) if documents else 0
    number = targets.rows // shape[0] * across + targets.columns // shape[1]
    order = torch.argsort(number, stable=True)
    rows, columns = targets.rows[order] % shape[0], targets.columns[order] % shape[1]
    tiles = list(_blocks(queries, documents, shape))
    ends = torch.searchsorted(number[order], torch.arange(len(tiles), device=number.device), right=True).tolist()
    starts = [0, *ends][: len(tiles)]
    known = [slice(start, end) for start, end in zip(starts, ends, strict=True)]
    return (
        [_Tile(*block, part) for block, part in zip(tiles, known, strict=True)],
        (rows, columns, targets.relevance[order]),
    )


def _blocks(queries: int, documents: int, shape: tuple[int, int]) -> Iterator[tuple[slice, slice]]:
    for row in range(0, queries, shape[0]):
        for column in range(0, documents, shape[1]):
            yield slice(row, min(row + shape[0], queries)), slice(column, min(column + shape[1], documents))


def _largest_norm(vectors: Tensor) -> Tensor:
    return vectors.norm(dim=1).amax() if len(vectors) else vectors.new_zeros(())
