"""Graded binary cross-entropy over every (query, document) entry, tile by tile, with exact gradients."""

from __future__ import annotations

import math
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bixse.encoders.loading.precision import without_autocast
from bixse.losses.targets import GradedTargets, blocks
from bixse.losses.tiles.products import (
    KERNEL_TILE_BYTES,
    TILE_SIDE,
    TileSums,
    add_outer,
    add_product,
    has_wide_products,
    known_parts,
    product_dtype,
    tile_bytes,
    tile_shape,
)

if TYPE_CHECKING:
    from bixse.encoders.loading.precision import Setting

Reduction = Literal["query", "mean"]
""""query" divides the sum over entries by B (the paper's), "mean" by the number of entries that count."""
LARGEST_EXPONENT = 80.0
"""Largest logit of the fast form: exp() of a larger one could overflow float32. The slower form is always stable."""
BYTES_PER_ENTRY = {torch.bfloat16: 10, torch.float32: 8, torch.float64: 16}
"""Bytes of the buffers of `add_tiles` per entry, by the dtype of the products."""


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
    """Return the binary cross-entropy of graded relevance over all B x N entries (BiXSE paper, equation 2).

    L = (1/B) sum_ij [ softplus(s_ij) - z_ij s_ij ], s = logit_scale * q.d + logit_bias. The loss separates over
    entries, so value and all four gradients come from one pass over tiles: g = sigma(s) - z, dQ = alpha g D,
    dD = alpha g^T Q, dalpha = <Q, g D>, dbeta = sum g. The B x N matrix is never kept. Logits and sums are float32
    (float64 for float64 input) despite autocast: in bf16 the bias would be lost. `reduction` divides by B or by the
    number of entries that count. Tiles change speed and memory only. `products` is the dtype of the factors of the
    three matrix products: embeddings, and sigma of unlabelled entries.

    Example:
        >>> from bixse.losses import GradedTargets
        >>> q, d = torch.eye(2, requires_grad=True), torch.eye(2)
        >>> targets = GradedTargets.from_ids(["a", "b"], ["x", "y"], {"a": {"x": 1.0}, "b": {"y": 0.5}})
        >>> loss = graded_bce(q, d, targets, logit_scale=20.0, logit_bias=-10.0)
        >>> round(float(loss), 4)
        2.5001
    """
    targets.check_fits("graded_bce", queries, documents)
    dtype = torch.promote_types(torch.promote_types(queries.dtype, documents.dtype), torch.float32)
    rounded = product_dtype(products, queries.device, dtype)
    scale = torch.as_tensor(logit_scale, dtype=dtype, device=queries.device).reshape(())
    bias = torch.as_tensor(logit_bias, dtype=dtype, device=queries.device).reshape(())
    height, width = TILE_SIDE, TILE_SIDE
    if _in_kernel(queries.device, rounded):
        queries, documents = queries.contiguous(), documents.contiguous()  # the kernels read rows
        height, width = tile_shape(*targets.shape, 2, min(KERNEL_TILE_BYTES, tile_bytes(queries.device)))
    elif queries.device.type != "cpu":
        height, width = tile_shape(*targets.shape, BYTES_PER_ENTRY[rounded], tile_bytes(queries.device))
    shape = (max(1, min(tile_rows or height, len(queries))), max(1, min(tile_columns or width, len(documents))))
    with without_autocast(queries.device):
        loss: Tensor = _GradedBCE.apply(  # type: ignore[no-untyped-call]
            queries.to(dtype), documents.to(dtype), scale, bias, targets, reduction, shape, rounded
        )
    return loss


@cache
def has_kernel(device: torch.device) -> bool:
    """Return True if the Triton kernel runs on a device: an NVIDIA GPU that multiplies bf16."""
    if not has_wide_products(device) or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    try:  # without Triton, without a C compiler, or on a GPU that this Triton does not know, it fails
        from bixse.losses.tiles.kernel import DESCRIBED_FROM, add_kernel_tiles

        side = math.isqrt(DESCRIBED_FROM - 1) + 1  # the smallest tile that takes every branch
        ones, one = torch.ones(side, 64, device=device), torch.ones((), device=device)
        index = torch.zeros(1, dtype=torch.long, device=device)
        targets, shape, wanted = (
            GradedTargets(index, index, one[None], (side, side)),
            (side, side),
            (True, True, False, False),
        )
        add_kernel_tiles(TileSums(ones, ones, one, one, targets, shape, wanted, torch.empty_like))
    except Exception as error:
        warnings.warn(f"loss: the Triton kernel does not run here ({error}), so slower operations do", stacklevel=2)
        return False
    return True


def _on_host(embeddings: Tensor, rounded: torch.dtype) -> bool:
    """Return True if the CPU tiles, which read numbers at no cost, are faster and as exact."""
    return embeddings.device.type == "cpu" and rounded == embeddings.dtype


def _in_kernel(device: torch.device, rounded: torch.dtype) -> bool:
    return rounded == torch.bfloat16 and has_kernel(device)


class _GradedBCE(torch.autograd.Function):
    """Loss and gradients in one pass; backward only scales the gradients of forward.

    On the CPU forward has scaled them before: the gradient of the loss is 1 there in most runs.
    """

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
        wanted, on_host = ctx.needs_input_grad[:4], _on_host(queries, rounded)
        # other devices set all sums themselves, since every launch counts there
        like = torch.zeros_like if on_host or not math.prod(targets.shape) else torch.empty_like
        sums = TileSums(queries, documents, scale, bias, targets, shape, wanted, like)
        if on_host:
            add_host_tiles(sums)
        elif _in_kernel(queries.device, rounded):
            from bixse.losses.tiles.kernel import add_kernel_tiles  # needs Triton

            add_kernel_tiles(sums)
        else:
            add_tiles(sums, rounded)
        count: Tensor | int = max(1, len(queries))
        if reduction == "mean":
            count = targets.number_counted().clamp(min=1)
        grad_scale = sums.gradient_of_scale()
        gradients = [sums.grad_queries if wanted[0] else None, sums.grad_documents]
        ctx.count = 1 if on_host else count
        if on_host:
            sums.totals /= count
            grad_scale = None if grad_scale is None else grad_scale / count
            if present := [part for part in sums.gradients if part is not None]:
                torch._foreach_mul_(present, scale / count)
        loss = torch.div(sums.totals[0], ctx.count, out=queries.new_empty(()))
        ctx.save_for_backward(*gradients, grad_scale, sums.totals[1] if wanted[3] else None, None if on_host else scale)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        *embeddings, grad_scale, grad_bias, scale = ctx.saved_tensors
        each = grad_output / ctx.count
        present = [part for part in embeddings if part is not None]
        if present and (scale is not None or float(grad_output) != 1.0):  # reading it would make a GPU wait
            scaled = iter(torch._foreach_mul(present, each if scale is None else each * scale))
            embeddings = [None if part is None else next(scaled) for part in embeddings]
        numbers = [
            None if part is None else torch.mul(part, each, out=torch.empty_like(each))
            for part in (grad_scale, grad_bias)
        ]
        return (*embeddings, *numbers, None, None, None, None)


def add_host_tiles(sums: TileSums) -> None:
    """Add loss and gradients of every entry, one tile at a time, in the dtype of the embeddings."""
    queries, documents = sums.queries, sums.documents
    alpha, beta = float(sums.scale), float(sums.bias)  # free on the CPU; a GPU would wait
    largest = abs(alpha) * float(_largest_norm(queries) * _largest_norm(documents)) + beta
    logits_buffer = queries.new_empty(math.prod(sums.shape))
    sigma_buffer = torch.empty_like(logits_buffer) if largest < LARGEST_EXPONENT else None
    half_buffer = queries.new_empty(len(logits_buffer) // 2 + 1)
    value, total = sums.totals.unbind()
    for tile_rows, tile_columns, known in sums.targets.tiles(*sums.shape):
        q, d = queries[tile_rows], documents[tile_columns]
        logits = logits_buffer[: len(q) * len(d)].view(len(q), len(d))
        torch.addmm(logits, q, d.T, beta=0, alpha=alpha, out=logits).add_(beta)
        rows, columns = known.rows, known.columns
        picked = logits[rows, columns]
        masked = known.relevance.isnan()
        z = known.relevance.nan_to_num(0.0).to(logits.dtype)
        value -= (z * picked).sum(dtype=value.dtype)
        logits[rows, columns] = torch.where(masked, -math.inf, picked)  # softplus and sigma are 0 there
        sigma = _softplus_and_sigma(logits, sigma_buffer, half_buffer, largest, value)
        if any(sums.wanted):
            sigma[rows, columns] -= z
            total += sigma.sum()
            sums.add_products(tile_rows, tile_columns, sigma, queries, documents)


def _softplus_and_sigma(
    logits: Tensor, sigma_buffer: Tensor | None, half_buffer: Tensor, largest: float, total: Tensor
) -> Tensor:
    """Add the sum of softplus(logits) to `total` and return sigma(logits); `logits` is overwritten."""
    if sigma_buffer is None:
        total -= torch.nn.functional.logsigmoid(-logits).sum(dtype=total.dtype)  # torch's softplus returns s above 20
        return logits.sigmoid_()
    sigma = sigma_buffer[: logits.numel()].view(logits.shape)
    u = logits.exp_()  # sigma is u / (1 + u), softplus log(1 + u)
    torch.add(u, 1.0, out=sigma)
    torch.div(u, sigma, out=sigma)
    flat, bound = u.view(-1), max(largest, 0.0) + 0.7  # log(1 + exp(x)) <= x + log 2 for x >= 0
    # logarithms are slow, so pairs are multiplied first, as long as no product can overflow:
    # (1 + a)(1 + b) = 1 + (a + b + ab), without cancellation
    while 2 * bound < LARGEST_EXPONENT and flat.numel() > 1 and flat.numel() % 2 == 0:
        first, second = flat.chunk(2)
        product = half_buffer[: first.numel()] if flat.data_ptr() == u.data_ptr() else first
        torch.addcmul(first, first, second, out=product)
        product.add_(second)
        flat, bound = product, 2 * bound
    total += flat.log1p_().sum()
    return sigma


def _largest_norm(vectors: Tensor) -> Tensor:
    return vectors.norm(dim=1).amax() if len(vectors) else vectors.new_zeros(())


def add_tiles(sums: TileSums, dtype: torch.dtype) -> None:
    """Set loss and gradients of every entry, one tile at a time, with products of this dtype.

    PyTorch's own operations run one after another in reused buffers; nothing waits for the device. Logits and sums are
    at least float32.
    """
    q, d, shape = sums.queries.to(dtype), sums.documents.to(dtype), sums.shape
    wide, entries = torch.promote_types(dtype, torch.float32), math.prod(shape)
    all_logits = q.new_empty(entries + 1, dtype=wide)
    all_softplus = q.new_empty(entries, dtype=wide)
    all_sigma = all_logits if dtype == wide else q.new_empty(entries)
    sums.totals.zero_()
    for rows, columns in blocks(len(q), len(d), shape):
        height, width = rows.stop - rows.start, columns.stop - columns.start
        logits, softplus, sigma = (
            buffer[: height * shape[1]].view(-1, shape[1])[:, :width]
            for buffer in (all_logits, all_softplus, all_sigma)
        )
        add_product(logits, q[rows], d[columns].T, beta=0)
        torch.addcmul(sums.bias, logits, sums.scale, out=logits)
        # softplus and sigma of known entries are 0 here; entries of other tiles: the position after the last
        all_logits.index_fill_(0, flat_positions(sums.targets, rows, columns, shape), -math.inf)
        value = torch.logaddexp(logits, logits.new_zeros(()), out=softplus).sum(dim=1)
        weight = logits.sigmoid_().sum(dim=1)
        if all_sigma is not all_logits:
            sigma.copy_(logits)
        sums.totals += torch.stack([value, weight]).sum(dim=1, dtype=sums.totals.dtype)
        sums.add_products(rows, columns, sigma, q, d, beta=0)
    _add_known(sums)


def _add_known(sums: TileSums) -> None:
    """Add loss and gradients of the known entries, in the dtype of the embeddings throughout."""
    for row, column, relevance in known_parts(sums.queries, sums.targets):
        q, d = sums.queries[row], sums.documents[column]
        logits = torch.addcmul(sums.bias, (q * d).sum(dim=1), sums.scale)
        z, masked = relevance.nan_to_num(0.0).to(logits.dtype), relevance.isnan()
        softplus = torch.nn.functional.softplus(logits, threshold=LARGEST_EXPONENT)  # by default it is s above 20
        value = torch.addcmul(softplus, z, logits, value=-1.0).masked_fill_(masked, 0.0)
        weight = logits.sigmoid().sub_(z).masked_fill_(masked, 0.0)
        sums.totals += torch.stack([value, weight]).sum(dim=1, dtype=sums.totals.dtype)
        add_outer(sums.gradients, (q, d), (row, column), weight)


def flat_positions(targets: GradedTargets, rows: slice, columns: slice, shape: tuple[int, int]) -> Tensor:
    """Return the (M,) position of each known entry in the tile, that after its last for entries of other tiles."""
    height, width = rows.stop - rows.start, columns.stop - columns.start
    if (height, width) == targets.shape:
        return torch.add(targets.columns, targets.rows, alpha=shape[1])
    # all M for every tile: selecting those of one tile would make the CPU wait for their number
    row, column = targets.rows - rows.start, targets.columns - columns.start
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    return torch.where(inside, row * shape[1] + column, math.prod(shape))
