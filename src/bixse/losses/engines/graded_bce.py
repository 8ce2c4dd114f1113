"""Graded binary cross-entropy over every (query, document) entry, tile by tile, with exact gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bixse.errors import InputError
from bixse.losses.engines.host_tiles import add_host_tiles
from bixse.losses.engines.products import TILE_SIDE, product_dtype, tile_bytes, tile_shape, without_autocast
from bixse.losses.engines.tiles import DeviceTiles, Sums, add_tiles

if TYPE_CHECKING:
    from bixse.encoders.loading.precision import Setting
    from bixse.losses.targets import GradedTargets

Reduction = Literal["query", "mean"]
"""Divide the sum over entries by B (the paper's), or by the number of entries that count."""


def graded_bce(
    queries: Tensor,
    documents: Tensor,
    targets: GradedTargets,
    logit_scale: Tensor | float,
    logit_bias: Tensor | float,
    reduction: Reduction = "query",
    tile_rows: int | None = None,
    tile_columns: int | None = None,
    products: Setting = "auto",
) -> Tensor:
    """Binary cross-entropy of graded relevance over all B x N entries (BiXSE paper, equation 2).

    L = (1/B) sum_ij [ softplus(s_ij) - z_ij s_ij ], s = logit_scale * q.d + logit_bias. The loss separates over
    entries, so value and all four gradients come from one pass over tiles: g = sigma(s) - z, dQ = alpha g D,
    dD = alpha g^T Q, dalpha = <Q, g D>, dbeta = sum g. The B x N matrix is never kept. Logits and sums are float32
    (float64 for float64 input) whatever autocast says: in bf16 the bias would be lost.

    Args:
        queries: (B, D).
        documents: (N, D).
        targets: known relevance; masked entries count neither way. z of an entry that is not known is 0, or as
            `GradedTargets.unlabelled` says: its product is one more per tile.
        logit_scale: alpha, a number or a tensor of one element.
        logit_bias: beta, likewise.
        reduction: "query" divides by B, "mean" by the number of entries that count.
        tile_rows: queries of a tile; changes speed and memory only. None: as suits the device.
        tile_columns: documents of a tile, likewise.
        products: what the factors of the three matrix products are rounded to: embeddings, and sigma of entries
            without a grade. "auto": float32 on the processor, elsewhere the precision of the process.

    Raises:
        InputError: the shapes do not fit together, a tile is empty, or products of bfloat16 cannot be had here.

    Example:
        >>> from bixse.losses import GradedTargets
        >>> q, d = torch.eye(2, requires_grad=True), torch.eye(2)
        >>> targets = GradedTargets.from_ids(["a", "b"], ["x", "y"], {"a": {"x": 1.0}, "b": {"y": 0.5}})
        >>> loss = graded_bce(q, d, targets, logit_scale=20.0, logit_bias=-10.0)
        >>> round(float(loss), 4)
        2.5001
    """
    targets.check_fits("graded_bce", queries, documents)
    if any(side is not None and side < 1 for side in (tile_rows, tile_columns)):
        raise InputError(f"graded_bce: got tiles of {tile_rows} x {tile_columns}; expected at least 1 x 1")
    dtype = torch.promote_types(torch.promote_types(queries.dtype, documents.dtype), torch.float32)
    rounded = product_dtype(products, queries.device, dtype)
    scale = torch.as_tensor(logit_scale, dtype=dtype, device=queries.device).reshape(())
    bias = torch.as_tensor(logit_bias, dtype=dtype, device=queries.device).reshape(())
    suited = _tile_shape(len(queries), len(documents), queries.device, rounded)
    shape = (tile_rows or suited[0], tile_columns or suited[1])
    with without_autocast(queries.device):
        loss: Tensor = _GradedBCE.apply(  # type: ignore[no-untyped-call]
            queries.to(dtype), documents.to(dtype), scale, bias, targets, reduction, shape, rounded
        )
    return loss


def _tile_shape(queries: int, documents: int, device: torch.device, rounded: torch.dtype) -> tuple[int, int]:
    """Rows and columns of a tile that suit the device; the last ones may be fewer."""
    if device.type == "cpu":
        return TILE_SIDE, TILE_SIDE
    return tile_shape(queries, documents, DeviceTiles.bytes_per_entry[rounded], tile_bytes(device))


def _on_host(embeddings: Tensor, rounded: torch.dtype) -> bool:
    """Return True where the tiles of the processor, which reads numbers at no cost, are faster and as exact."""
    return embeddings.device.type == "cpu" and rounded == embeddings.dtype


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
        shape: tuple[int, int],
        rounded: torch.dtype,
    ) -> Tensor:
        sums = Sums.zeros(queries, documents, ctx.needs_input_grad[:4])
        if _on_host(queries, rounded):
            add_host_tiles(sums, queries, documents, scale, bias, targets, shape)
        else:
            add_tiles(sums, queries, documents, scale, bias, targets, rounded, shape)
        count: Tensor | int = max(1, len(queries))
        if reduction == "mean":
            count = targets.number_counted().clamp(min=1)
        ctx.save_for_backward(*sums.gradients(queries, scale, count, ctx.needs_input_grad[:4]))
        return (sums.value / count).to(queries.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        gradients = ctx.saved_tensors
        if grad_output.device.type != "cpu" or float(grad_output) != 1.0:
            gradients = [gradient * grad_output if gradient is not None else None for gradient in gradients]
        return (*gradients, None, None, None, None)
