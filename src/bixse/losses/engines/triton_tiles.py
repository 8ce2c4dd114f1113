"""Tiles of the losses in Triton: a kernel for the graded binary cross-entropy, one for softmax losses.

Neither stores the logits.
"""

from __future__ import annotations

import math
import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import triton
import triton.language as tl

from bixse.losses.engines.tiles import Scored, Tiles

if TYPE_CHECKING:
    from torch import Tensor

    from bixse.losses.engines.known_entries import Terms

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether kernels run in Triton's interpreter, on the processor (`TRITON_INTERPRET=1` when this is imported)."""
SHAPE = (32, 32, 32) if INTERPRETED else (128, 128, 64)
"""Queries, documents and dimensions that a program multiplies at a time."""
GROUP = 8
"""Rows of programs that run side by side, so that they find each other's embeddings in the cache."""
LAUNCH = {"num_warps": 8, "num_stages": 3}


class TritonTiles(Tiles):
    """A kernel writes one number an entry, in the products' type; the products with these numbers are PyTorch's."""

    bytes_per_entry: ClassVar[dict[torch.dtype, int]] = {torch.bfloat16: 2, torch.float32: 4}

    def __init__(self, entries: int, dtype: torch.dtype, device: torch.device) -> None:
        self._numbers = torch.zeros(entries + 1, dtype=dtype, device=device)

    def score(
        self, queries: Tensor, documents: Tensor, scale: Tensor, bias: Tensor, known: Tensor, base: Tensor | None = None
    ) -> Scored:
        sigma = self._marked(queries, documents, known)
        sums = torch.empty(2, math.prod(_programs(sigma)), dtype=torch.float32, device=queries.device)
        _launch(score_tile, queries, documents, sigma, sums[0], sums[1], scale, bias)
        return Scored(sums[0], sums[1], sigma)

    def log_sums(self, queries: Tensor, documents: Tensor, scale: float, terms: Terms, apart: Tensor) -> Tensor:
        """(T,) log-sum-exp of the logits that count for each term, of (R, D) queries and (C, D) documents.

        `apart`: places of entries that count for none, as `known` of `score`.
        """
        marks = self._marked(queries, documents, apart)
        sums = terms.highest.new_full((_programs(marks)[1], len(terms.highest)), -math.inf)
        _launch(softmax_tile, queries, documents, marks, sums, *terms[:3], scale, sums.shape[1], True)
        self._numbers.index_fill_(0, apart, 0.0)
        return sums.logsumexp(dim=0)

    def weights(
        self, queries: Tensor, documents: Tensor, scale: float, terms: Terms, apart: Tensor, offsets: Tensor
    ) -> Tensor:
        """(R, C): sum of exp(logit - offset) over the terms that an entry counts for; overwritten by the next tile."""
        weights = self._marked(queries, documents, apart)
        _launch(softmax_tile, queries, documents, weights, offsets, *terms[:3], scale, 0, False)
        return weights

    def _marked(self, queries: Tensor, documents: Tensor, apart: Tensor) -> Tensor:
        """The numbers of a tile, negative where an entry is left out: no kernel writes one below 0."""
        self._numbers.index_fill_(0, apart, -1.0)
        shape = len(queries), len(documents)
        return self._numbers[: math.prod(shape)].view(shape)


def _programs(numbers: Tensor) -> tuple[int, int]:
    """Blocks of a tile, down and across."""
    return triton.cdiv(numbers.shape[0], SHAPE[0]), triton.cdiv(numbers.shape[1], SHAPE[1])


def _launch(kernel: Any, queries: Tensor, documents: Tensor, numbers: Tensor, *rest: Any) -> None:
    grid = (math.prod(_programs(numbers)),)
    queries, documents = queries.contiguous(), documents.contiguous()
    with torch.cuda.device(queries.device) if queries.is_cuda else nullcontext():
        kernel[grid](
            queries, documents, numbers, *numbers.shape, queries.shape[1], *rest, *SHAPE, GROUP, INTERPRETED, **LAUNCH
        )


@triton.jit  # type: ignore[untyped-decorator]
def block_products(  # type: ignore[no-untyped-def]
    queries, documents, rows, columns, dimensions,
    block_rows: tl.constexpr, block_columns: tl.constexpr, block_dimensions: tl.constexpr, group_rows: tl.constexpr,
    widen: tl.constexpr,
):  # fmt: skip
    """Of the queries and documents of one program, and where its first row and column are."""
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
    return first_row, first_column, products


@triton.jit  # type: ignore[untyped-decorator]
def block_places(  # type: ignore[no-untyped-def]
    numbers, first_row, first_column, rows, columns, block_rows: tl.constexpr, block_columns: tl.constexpr
):
    """Where a program's entries stand among a tile's numbers, and which of them exist."""
    row, column = tl.arange(0, block_rows), tl.arange(0, block_columns)
    corner = numbers + first_row.to(tl.int64) * columns + first_column
    exists = (first_row + row < rows)[:, None] & (first_column + column < columns)[None, :]
    return corner + row[:, None] * columns + column[None, :], exists


@triton.jit  # type: ignore[untyped-decorator]
def store_numbers(places, numbers, exists, widen: tl.constexpr):  # type: ignore[no-untyped-def]
    """In the type of the tile, rounded to the nearest."""
    if widen and places.dtype.element_ty == tl.bfloat16:  # the interpreter cuts off what a GPU rounds to nearest
        bits = numbers.to(tl.int32, bitcast=True)
        numbers = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)
    tl.store(places, numbers.to(places.dtype.element_ty), mask=exists)


@triton.jit  # type: ignore[untyped-decorator]
def score_tile(  # type: ignore[no-untyped-def]
    queries, documents, numbers, rows, columns, dimensions, values, totals, scale, bias,
    block_rows: tl.constexpr, block_columns: tl.constexpr, block_dimensions: tl.constexpr, group_rows: tl.constexpr,
    widen: tl.constexpr,
):  # fmt: skip
    """Of block_rows queries and block_columns documents: sigma of their logits, and the sums of softplus and of sigma.

    Where `numbers` holds a negative number the entry is known: it becomes 0 and counts in no sum.
    """
    first_row, first_column, products = block_products(
        queries, documents, rows, columns, dimensions,
        block_rows, block_columns, block_dimensions, group_rows, widen,
    )  # fmt: skip
    logits = products * tl.load(scale) + tl.load(bias)
    places, exists = block_places(numbers, first_row, first_column, rows, columns, block_rows, block_columns)
    counts = exists & (tl.load(places, mask=exists, other=-1.0).to(tl.float32) >= 0.0)
    small = tl.exp(-tl.abs(logits))
    sigma = tl.where(counts, tl.where(logits >= 0, 1.0, small) / (1.0 + small), 0.0)
    # log(1 + small) = 2 artanh(t), t = small / (2 + small) <= 1/3: exact where log itself would round 1 + small
    t = small / (2.0 + small)
    u = t * t
    tail = 1 / 9 + u * (1 / 11 + u * (1 / 13 + u * (1 / 15)))
    logarithm = 2.0 * t * (1.0 + u * (1 / 3 + u * (1 / 5 + u * (1 / 7 + u * tail))))
    softplus = tl.where(counts, tl.maximum(logits, 0.0) + logarithm, 0.0)
    program = tl.program_id(0)
    tl.store(values + program, tl.sum(tl.sum(softplus, axis=1), axis=0))
    tl.store(totals + program, tl.sum(tl.sum(sigma, axis=1), axis=0))
    store_numbers(places, sigma, exists, widen)


@triton.jit  # type: ignore[untyped-decorator]
def softmax_tile(  # type: ignore[no-untyped-def]
    queries, documents, numbers, rows, columns, dimensions, of_terms, first, last, highest, scale, stride,
    summing: tl.constexpr,
    block_rows: tl.constexpr, block_columns: tl.constexpr, block_dimensions: tl.constexpr, group_rows: tl.constexpr,
    widen: tl.constexpr,
):  # fmt: skip
    """Of block_rows queries and block_columns documents, term by term of each query, over logits up to its highest.

    `summing`: the log-sum-exp of each term goes to `of_terms`, which has a row of `stride` for each block of columns.
    Otherwise `of_terms` holds an offset for each term, and the sum of exp(logit - offset) goes to `numbers`.
    Where `numbers` holds a negative number the entry counts for no term.
    """
    first_row, first_column, products = block_products(
        queries, documents, rows, columns, dimensions,
        block_rows, block_columns, block_dimensions, group_rows, widen,
    )  # fmt: skip
    places, exists = block_places(numbers, first_row, first_column, rows, columns, block_rows, block_columns)
    counts = exists & (tl.load(places, mask=exists, other=-1.0).to(tl.float32) >= 0.0)
    logits = tl.where(counts, products * scale, float("-inf"))
    row = first_row + tl.arange(0, block_rows)
    term = tl.load(first + row, mask=row < rows, other=0)
    end = tl.load(last + row, mask=row < rows, other=0)
    weights = tl.zeros((block_rows, block_columns), dtype=tl.float32)
    for _ in range(0, tl.max((end - term).to(tl.int32), axis=0)):
        here = term < end
        most = tl.load(highest + term, mask=here, other=float("-inf"))
        kept = tl.where(logits > most[:, None], float("-inf"), logits)  # NaN stays
        if summing:
            top = tl.max(kept, axis=1)
            nothing = top == float("-inf")
            top = tl.where(nothing, 0.0, top)
            total = tl.sum(tl.exp(kept - top[:, None]), axis=1)
            log_sum = tl.where(nothing, float("-inf"), top + tl.log(tl.where(nothing, 1.0, total)))
            tl.store(of_terms + (first_column // block_columns).to(tl.int64) * stride + term, log_sum, mask=here)
        else:
            offset = tl.load(of_terms + term, mask=here, other=float("inf"))
            weights += tl.exp(kept - offset[:, None])
        term += 1
    if not summing:
        store_numbers(places, weights, exists, widen)
