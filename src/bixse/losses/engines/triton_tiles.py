"""Tiles of the graded binary cross-entropy in Triton: one kernel, which does not store the logits."""

from __future__ import annotations

import math
import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, ClassVar

import torch
import triton
import triton.language as tl

from bixse.losses.engines.tiles import Scored, Tiles

if TYPE_CHECKING:
    from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether kernels run in Triton's interpreter, on the processor (`TRITON_INTERPRET=1` when this is imported)."""
SHAPE = (32, 32, 32) if INTERPRETED else (128, 128, 64)
"""Queries, documents and dimensions that a program multiplies at a time."""
GROUP = 8
"""Rows of programs that run side by side, so that they find each other's embeddings in the cache."""
LAUNCH = {"num_warps": 8, "num_stages": 3}


class TritonTiles(Tiles):
    """One kernel writes one number an entry, sigma in the products' type; the products that follow are PyTorch's."""

    bytes_per_entry: ClassVar[dict[torch.dtype, int]] = {torch.bfloat16: 2, torch.float32: 4}

    def __init__(self, entries: int, dtype: torch.dtype, device: torch.device) -> None:
        self._sigma = torch.zeros(entries + 1, dtype=dtype, device=device)

    def score(self, queries: Tensor, documents: Tensor, scale: Tensor, bias: Tensor, known: Tensor) -> Scored:
        rows, columns = shape = (len(queries), len(documents))
        entries = math.prod(shape)
        self._sigma.index_fill_(0, known, -1.0)  # no sigma is below 0: the kernel leaves these out
        sigma = self._sigma[:entries].view(shape)
        programs = triton.cdiv(rows, SHAPE[0]) * triton.cdiv(columns, SHAPE[1])
        sums = torch.empty(2, programs, dtype=torch.float32, device=queries.device)
        queries, documents = queries.contiguous(), documents.contiguous()
        with torch.cuda.device(queries.device) if queries.is_cuda else nullcontext():
            score_tile[(programs,)](
                queries, documents, sigma, sums[0], sums[1], scale, bias, rows, columns, queries.shape[1],
                *SHAPE, GROUP, INTERPRETED, **LAUNCH,
            )  # fmt: skip
        return Scored(sums[0], sums[1], sigma)


@triton.jit  # type: ignore[untyped-decorator]
def score_tile(  # type: ignore[no-untyped-def]
    queries, documents, sigmas, values, totals, scale, bias, rows, columns, dimensions,
    block_rows: tl.constexpr, block_columns: tl.constexpr, block_dimensions: tl.constexpr, group_rows: tl.constexpr,
    widen: tl.constexpr,
):  # fmt: skip
    """Of block_rows queries and block_columns documents: sigma of their logits, and the sums of softplus and of sigma.

    Where `sigmas` holds a negative number the entry is known: it becomes 0 and counts in no sum.
    """
    down, across = tl.cdiv(rows, block_rows), tl.cdiv(columns, block_columns)
    program = tl.program_id(0)
    group = program // (group_rows * across)
    height = tl.minimum(down - group * group_rows, group_rows)
    inside = program % (group_rows * across)
    first_row = (group * group_rows + inside % height) * block_rows
    first_column = (inside // height) * block_columns
    row, column = first_row + tl.arange(0, block_rows), first_column + tl.arange(0, block_columns)
    dimension = tl.arange(0, block_dimensions)
    # rows beyond the last are read as the first ones again and left out below
    q = queries + (row % rows).to(tl.int64)[:, None] * dimensions + dimension[None, :]
    d = documents + (column % columns).to(tl.int64)[None, :] * dimensions + dimension[:, None]
    products = tl.zeros((block_rows, block_columns), dtype=tl.float32)
    for start in range(0, dimensions, block_dimensions):
        left = tl.load(q, mask=dimension[None, :] < dimensions - start, other=0.0)
        right = tl.load(d, mask=dimension[:, None] < dimensions - start, other=0.0)
        if widen:  # the interpreter multiplies the bits of bf16
            left, right = left.to(tl.float32), right.to(tl.float32)
        products = tl.dot(left, right, products, input_precision="ieee")
        q += block_dimensions
        d += block_dimensions
    logits = products * tl.load(scale) + tl.load(bias)
    corner = sigmas + first_row.to(tl.int64) * columns + first_column
    places = corner + tl.arange(0, block_rows)[:, None] * columns + tl.arange(0, block_columns)[None, :]
    exists = (row < rows)[:, None] & (column < columns)[None, :]
    counts = exists & (tl.load(places, mask=exists, other=-1.0).to(tl.float32) >= 0.0)
    small = tl.exp(-tl.abs(logits))
    sigma = tl.where(counts, tl.where(logits >= 0, 1.0, small) / (1.0 + small), 0.0)
    # log(1 + small) = 2 artanh(t), t = small / (2 + small) <= 1/3: exact where log itself would round 1 + small
    t = small / (2.0 + small)
    u = t * t
    tail = 1 / 9 + u * (1 / 11 + u * (1 / 13 + u * (1 / 15)))
    logarithm = 2.0 * t * (1.0 + u * (1 / 3 + u * (1 / 5 + u * (1 / 7 + u * tail))))
    softplus = tl.where(counts, tl.maximum(logits, 0.0) + logarithm, 0.0)
    tl.store(values + program, tl.sum(tl.sum(softplus, axis=1), axis=0))
    tl.store(totals + program, tl.sum(tl.sum(sigma, axis=1), axis=0))
    if widen and sigmas.dtype.element_ty == tl.bfloat16:  # the interpreter cuts off what a GPU rounds to nearest
        bits = sigma.to(tl.int32, bitcast=True)
        sigma = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)
    tl.store(places, sigma.to(sigmas.dtype.element_ty), mask=exists)
