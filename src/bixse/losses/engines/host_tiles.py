"""The graded binary cross-entropy on the processor: tiles that its caches hold, and few logarithms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from bixse.losses.engines.tiles import blocks

if TYPE_CHECKING:
    from torch import Tensor

    from bixse.losses.engines.tiles import Sums
    from bixse.losses.targets import GradedTargets

LARGEST_EXPONENT = 80.0
"""exp() of a larger logit could overflow float32; the slower, always stable form is taken then."""


@dataclass(frozen=True)
class _Tile:
    rows: slice
    columns: slice
    known: slice
    """Place of its known entries in the sorted targets."""


def add_host_tiles(
    sums: Sums,
    queries: Tensor,
    documents: Tensor,
    scale: Tensor,
    bias: Tensor,
    targets: GradedTargets,
    shape: tuple[int, int],
) -> None:
    """Add loss and gradients of every entry, a tile of `shape` at a time, in the type of the embeddings.

    Numbers are read from tensors, which costs nothing here and would make a GPU wait.
    """
    tiles, known = _tiles(targets, shape)
    alpha, beta = float(scale), float(bias)
    largest = abs(alpha) * float(_largest_norm(queries) * _largest_norm(documents)) + beta
    logits_buffer = queries.new_empty(min(shape[0], len(queries)) * min(shape[1], len(documents)))
    sigma_buffer = torch.empty_like(logits_buffer) if largest < LARGEST_EXPONENT else None
    half_buffer = queries.new_empty(len(logits_buffer) // 2 + 1)
    for tile in tiles:
        q, d = queries[tile.rows], documents[tile.columns]
        logits = logits_buffer[: len(q) * len(d)].view(len(q), len(d))
        torch.addmm(logits, q, d.T, beta=0, alpha=alpha, out=logits).add_(beta)
        rows, columns, relevance = (part[tile.known] for part in known)
        picked = logits[rows, columns]
        masked = relevance.isnan()
        z = relevance.nan_to_num(0.0).to(logits.dtype)
        sums.value -= (z * picked).sum(dtype=sums.value.dtype)
        base = None if targets.unlabelled is None else targets.unlabelled.block(tile.rows, tile.columns).to(logits)
        if base is not None:  # before known logits become -inf, which times 0 would be NaN
            base[rows, columns] = 0.0
            sums.value -= torch.linalg.vecdot(base, logits).sum(dtype=sums.value.dtype)
        logits[rows, columns] = torch.where(masked, -math.inf, picked)  # softplus and sigma are 0 there
        sigma = _softplus_and_sigma(logits, sigma_buffer, half_buffer, largest, sums.value)
        if not sums.with_gradients:
            continue
        sigma[rows, columns] -= z
        if base is not None:
            sigma -= base
        sums.bias += sigma.sum()
        if sums.queries is not None:
            sums.queries[tile.rows].addmm_(sigma, d)
        if sums.documents is not None:
            sums.documents[tile.columns].addmm_(sigma.T, q)


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
    tiles = list(blocks(queries, documents, shape))
    ends = torch.searchsorted(number[order], torch.arange(len(tiles), device=number.device), right=True).tolist()
    starts = [0, *ends][: len(tiles)]
    known = [slice(start, end) for start, end in zip(starts, ends, strict=True)]
    return (
        [_Tile(*block, part) for block, part in zip(tiles, known, strict=True)],
        (rows, columns, targets.relevance[order]),
    )


def _largest_norm(vectors: Tensor) -> Tensor:
    return vectors.norm(dim=1).amax() if len(vectors) else vectors.new_zeros(())
