"""Tiles of the graded binary cross-entropy, in PyTorch: the sums and the gradient of the entries without a grade."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from bixse.losses.engines.known_entries import add_outer, known_parts
from bixse.losses.engines.products import add_product, multiply

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from bixse.losses.targets import GradedTargets


@dataclass
class Sums:
    """What is added up over the entries; the embeddings' gradients are still to be multiplied by the scale."""

    value: Tensor
    """Of softplus(s) - z s, float64."""
    bias: Tensor
    """Of sigma(s) - z, float64."""
    queries: Tensor | None
    """(B, D) of (sigma - z) d; None where it is not wanted."""
    documents: Tensor | None
    """(N, D) of (sigma - z) q; None where it is not wanted."""
    with_gradients: bool = True

    @classmethod
    def zeros(cls, queries: Tensor, documents: Tensor, wanted: tuple[bool, bool, bool, bool]) -> Sums:
        """`wanted`: the gradients of queries, documents, scale (found from that of queries) and bias."""
        exact = torch.float32 if queries.device.type == "mps" else torch.float64
        value = torch.zeros((), dtype=exact, device=queries.device)
        return cls(
            value,
            value.clone(),
            torch.zeros_like(queries) if wanted[0] or wanted[2] else None,
            torch.zeros_like(documents) if wanted[1] else None,
            any(wanted),
        )

    def gradients(
        self, queries: Tensor, scale: Tensor, count: Tensor | int, wanted: tuple[bool, bool, bool, bool]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """Those of the loss divided by `count`, None where not wanted; the sums are used up."""
        grad_scale = None
        if wanted[2] and self.queries is not None:
            by_query = torch.einsum("bd,bd->b", queries, self.queries)
            grad_scale = (by_query.sum(dtype=self.bias.dtype) / count).to(queries.dtype)
        for gradient in (self.queries, self.documents):
            if gradient is not None:
                gradient.mul_(scale / count)
        grad_bias = (self.bias / count).to(queries.dtype) if wanted[3] else None
        return self.queries if wanted[0] else None, self.documents, grad_scale, grad_bias


class Scored(NamedTuple):
    """What is said of a tile of R queries and C documents, whose known entries do not count."""

    value: Tensor
    """Sum of softplus(s), in parts of float32."""
    sigma: Tensor
    """Sum of sigma(s), likewise."""
    gradient: Tensor
    """(R, C) sigma(s), rounded to the type of the products, 0 at known entries; overwritten by the next tile."""


class DeviceTiles:
    """Scores tile after tile in buffers of its own: two of float32 and one of the products' type.

    PyTorch's own operations one after the other; nothing waits for the device.
    """

    bytes_per_entry: ClassVar[dict[torch.dtype, int]] = {torch.bfloat16: 10, torch.float32: 8, torch.float64: 16}
    """Of its buffers, by the type of the products."""

    def __init__(self, entries: int, dtype: torch.dtype, device: torch.device) -> None:
        wide = torch.promote_types(dtype, torch.float32)
        self._logits = torch.empty(entries + 1, dtype=wide, device=device)
        self._softplus = torch.empty(entries, dtype=wide, device=device)
        self._rounded = self._logits if dtype == wide else torch.empty(entries, dtype=dtype, device=device)

    def score(
        self, queries: Tensor, documents: Tensor, scale: Tensor, bias: Tensor, known: Tensor, base: Tensor | None = None
    ) -> Scored:
        """Score (R, D) queries and (C, D) documents.

        Args:
            queries: of the tile.
            documents: of the tile.
            scale: alpha.
            bias: beta.
            known: positions of known entries in the flat tile; for those of other tiles the number of the buffers'
                entries.
            base: (R, C) targets of the other entries; None: 0.
        """
        shape = (len(queries), len(documents))
        entries = math.prod(shape)
        logits = multiply(queries, documents.T, out=self._logits[:entries].view(shape))
        torch.addcmul(bias, logits, scale, out=logits)
        expected = logits.new_zeros(())
        if base is not None:  # `known` may name the place behind the last entry, so that there has to be one
            padded = torch.nn.functional.pad(base.to(logits.dtype).view(-1), (0, len(self._logits) - entries))
            base = padded.index_fill_(0, known, 0.0)[:entries].view(shape)
            expected = (base * logits).sum(dim=1)  # before known logits are -inf, which times 0 is NaN
        self._logits.index_fill_(0, known, -math.inf)
        softplus = torch.logaddexp(logits, logits.new_zeros(()), out=self._softplus[:entries].view(shape))
        value = softplus.sum(dim=1) - expected
        sigma = logits.sigmoid_()
        if base is not None:
            sigma -= base
        total = sigma.sum(dim=1)
        if self._rounded is not self._logits:
            sigma = self._rounded[:entries].view(shape).copy_(sigma)
        return Scored(value, total, sigma)


def add_tiles(
    sums: Sums,
    queries: Tensor,
    documents: Tensor,
    scale: Tensor,
    bias: Tensor,
    targets: GradedTargets,
    dtype: torch.dtype,
    shape: tuple[int, int],
) -> None:
    """Add loss and gradients of every entry, a tile of `shape` at a time, with products of this type.

    Entries without a grade come from the tiles, whose logits and sums are float32; those with a grade from a pass of
    their own, float32 throughout. The processor never waits for the device.
    """
    q, d = queries.to(dtype), documents.to(dtype)
    entries = min(shape[0], len(q)) * min(shape[1], len(d))
    buffers = DeviceTiles(entries, dtype, q.device)
    for rows, columns in blocks(len(q), len(d), shape):
        base = None if targets.unlabelled is None else targets.unlabelled.block(rows, columns)
        scored = buffers.score(q[rows], d[columns], scale, bias, places(targets, rows, columns, entries), base)
        sums.value += scored.value.sum(dtype=sums.value.dtype)
        sums.bias += scored.sigma.sum(dtype=sums.bias.dtype)
        if sums.queries is not None:
            add_product(sums.queries[rows], scored.gradient, d[columns])
        if sums.documents is not None:
            add_product(sums.documents[columns], scored.gradient.T, q[rows])
    _add_known(sums, queries, documents, scale, bias, targets)


def _add_known(
    sums: Sums, queries: Tensor, documents: Tensor, scale: Tensor, bias: Tensor, targets: GradedTargets
) -> None:
    for rows, columns, relevance in known_parts(queries, targets):
        logits = scale * (queries[rows] * documents[columns]).sum(dim=1) + bias
        z, masked = relevance.nan_to_num(0.0).to(logits.dtype), relevance.isnan()
        value = torch.logaddexp(logits, logits.new_zeros(())) - z * logits
        weight = (logits.sigmoid() - z).masked_fill(masked, 0.0)
        sums.value += value.masked_fill(masked, 0.0).sum(dtype=sums.value.dtype)
        sums.bias += weight.sum(dtype=sums.bias.dtype)
        add_outer((sums.queries, sums.documents), (queries, documents), (rows, columns), weight)


def blocks(queries: int, documents: int, shape: tuple[int, int]) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of every tile."""
    for row in range(0, queries, shape[0]):
        for column in range(0, documents, shape[1]):
            yield slice(row, min(row + shape[0], queries)), slice(column, min(column + shape[1], documents))


def places(targets: GradedTargets, rows: slice, columns: slice, elsewhere: int) -> Tensor:
    """(M,) place of each known entry in the flat tile, `elsewhere` for those of other tiles.

    All M are looked at for every tile: picking those of one would tell the processor their number.
    """
    row, column = targets.rows - rows.start, targets.columns - columns.start
    height, width = rows.stop - rows.start, columns.stop - columns.start
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    return torch.where(inside, row * width + column, elsewhere)
