"""The BiXSE loss in two Triton kernels, without a wait: one scores a tile, one replaces its known entries."""

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from bixse.losses.targets import blocks
from bixse.losses.tiles.products import TileSums, add_outer, known_parts

ROWS, COLUMNS, DEPTH = 128, 128, 64
"""Entries of one program. Two programs fit a multiprocessor: one multiplies while the other computes sigma."""
DESCRIBED_FROM = 2**25
"""Entries of a tile with descriptors. The host makes them for longer than a card works at a smaller tile."""
ENTRIES = 4
"""Known entries of one program. Entries of one query in a row share one addition to its gradient."""
ALIGNED = 16
"""Rows of sigma begin at multiples of this number: cuBLAS needs 8, vector stores with a mask 16."""


@triton.jit  # type: ignore[untyped-decorator]
def _softplus_and_sigma(logits: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    # in units of log 2, since the hardware has 2^x alone; both are 0 for -inf
    e = tl.exp2(-tl.abs(logits))
    # log2(1 + e) / e by a polynomial with relative errors below 4e-7: a logarithm costs more and loses small e
    p = -0.012319312430918217 * e + 0.06360732764005661
    p = p * e - 0.15535108745098114
    p = p * e + 0.25600919127464294
    p = p * e - 0.35339462757110596
    p = p * e + 0.48006367683410645
    p = p * e - 0.7213100790977478
    p = p * e + 1.4426947832107544
    root = tl.rsqrt(1.0 + e)  # a division takes three instructions more
    return tl.maximum(logits, 0.0) + p * e, tl.where(logits >= 0, 1.0, e) * (root * root)


@triton.jit(do_not_specialize=["rows", "columns", "first_part", "parts"])  # type: ignore[untyped-decorator]
def _score(
    queries: tl.tensor,
    documents: tl.tensor,
    scale: tl.tensor,
    bias: tl.tensor,
    sigma: tl.tensor,
    sums: tl.tensor,
    first_part: tl.tensor,
    parts: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    dimensions: tl.tensor,
    stride: tl.tensor,
    HEIGHT: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    DEPTH: tl.constexpr,  # noqa: N803
    GROUP: tl.constexpr,  # noqa: N803
    DESCRIBED: tl.constexpr,  # noqa: N803
) -> None:
    program = tl.program_id(0)
    # programs that run at the same time share their rows and columns in the L2 cache
    strip = GROUP * tl.cdiv(columns, WIDTH)
    first = program // strip * GROUP
    height = tl.minimum(tl.cdiv(rows, HEIGHT) - first, GROUP)
    top, left = (first + program % strip % height) * HEIGHT, program % strip // height * WIDTH
    row, column = top + tl.arange(0, HEIGHT), left + tl.arange(0, WIDTH)
    logits = tl.zeros((HEIGHT, WIDTH), tl.float32)
    if DESCRIBED:
        for start in range(0, dimensions, DEPTH):
            logits = tl.dot(queries.load([top, start]), documents.load([left, start]).T, logits)
    else:
        depth = tl.arange(0, DEPTH)
        # positions after the last row or column read another one, since a mask would cost time in every step
        q = queries + (row % rows).to(tl.int64)[:, None] * dimensions + depth[None, :]
        d = documents + (column % columns).to(tl.int64)[None, :] * dimensions + depth[:, None]
        for start in range(0, dimensions, DEPTH):
            inside = depth < dimensions - start
            logits = tl.dot(tl.load(q, inside[None, :], 0.0), tl.load(d, inside[:, None], 0.0), logits)
            q += DEPTH
            d += DEPTH
    shift = tl.load(bias) * 1.4426950408889634
    of_row, of_column = tl.where(row < rows, shift, -float("inf")), tl.where(column < columns, shift, -float("inf"))
    logits = logits * (tl.load(scale) * 1.4426950408889634) + tl.minimum(of_row[:, None], of_column[None, :])
    softplus, share = _softplus_and_sigma(logits)
    if DESCRIBED:
        # two reductions need less local memory; Triton 3.6 cannot compile them for Blackwell
        tl.store(sums + first_part + program, tl.sum(tl.sum(softplus, 1), 0) * 0.6931471805599453)
        tl.store(sums + parts + first_part + program, tl.sum(tl.sum(share, 1), 0))
        sigma.store([top, left], share.to(tl.bfloat16))
    else:
        tl.store(sums + first_part + program, tl.sum(softplus) * 0.6931471805599453)
        tl.store(sums + parts + first_part + program, tl.sum(share))
        # zeros up to the stride, as a mask that ends at any column would leave stores of single numbers
        inside = (row < rows)[:, None] & (column < stride)[None, :]
        tl.store(sigma + row.to(tl.int64)[:, None] * stride + column[None, :], share.to(tl.bfloat16), inside)


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["number", "top", "bottom", "left", "right", "first_part", "parts"]
)
def _replace_known(
    queries: tl.tensor,
    documents: tl.tensor,
    scale: tl.tensor,
    bias: tl.tensor,
    sigma: tl.tensor,
    sums: tl.tensor,
    first_part: tl.tensor,
    parts: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    relevance: tl.tensor,
    weights: tl.tensor,
    grad_queries: tl.tensor,
    grad_documents: tl.tensor,
    number: tl.tensor,
    top: tl.tensor,
    bottom: tl.tensor,
    left: tl.tensor,
    right: tl.tensor,
    dimensions: tl.tensor,
    stride: tl.tensor,
    ENTRIES: tl.constexpr,  # noqa: N803
    DEPTH: tl.constexpr,  # noqa: N803
) -> None:
    program = tl.program_id(0)
    entry = program * ENTRIES + tl.arange(0, ENTRIES)
    row, column = tl.load(rows + entry, entry < number, -1), tl.load(columns + entry, entry < number, -1)
    inside = (row >= top) & (row < bottom) & (column >= left) & (column < right)
    end = tl.max(inside.to(tl.int32), 0) * dimensions  # most programs have no entry of this tile
    depth = tl.arange(0, DEPTH)
    q, d = row[:, None] * dimensions + depth[None, :], column[:, None] * dimensions + depth[None, :]
    exact, rounded = tl.zeros((ENTRIES,), tl.float32), tl.zeros((ENTRIES,), tl.float32)
    for start in range(0, end, DEPTH):
        mask = inside[:, None] & (depth < dimensions - start)[None, :]
        x, y = tl.load(queries + q + start, mask, 0.0), tl.load(documents + d + start, mask, 0.0)
        exact += tl.sum(x * y, 1)
        rounded += tl.sum(x.to(tl.bfloat16).to(tl.float32) * y.to(tl.bfloat16).to(tl.float32), 1)
    factor, shift = tl.load(scale) * 1.4426950408889634, tl.load(bias) * 1.4426950408889634
    softplus, share = _softplus_and_sigma(exact * factor + shift)
    z = tl.load(relevance + entry, inside, 0.0).to(tl.float32)
    value = tl.where(z == z, softplus - z * (exact * factor + shift), 0.0)  # masked entries are NaN
    weight = tl.where((z == z) & inside, share - z, 0.0)
    softplus, share = _softplus_and_sigma(rounded * factor + shift)  # as `_score` counted them
    tl.store(sums + first_part + program, tl.sum(tl.where(inside, value - softplus, 0.0), 0) * 0.6931471805599453)
    tl.store(sums + parts + first_part + program, tl.sum(tl.where(inside, weight - share, 0.0), 0))
    tl.store(sigma + (row - top) * stride + (column - left), tl.zeros((ENTRIES,), tl.bfloat16), inside)
    if weights is not None:
        tl.store(weights + entry, weight, inside)
    low, high = tl.min(tl.where(inside, row, bottom), 0), tl.max(tl.where(inside, row, -1), 0)
    for start in range(0, end, DEPTH):
        within = depth < dimensions - start
        mask = inside[:, None] & within[None, :]
        if grad_queries is not None:
            added = weight[:, None] * tl.load(documents + d + start, mask, 0.0)
            if low == high:
                total = grad_queries + low * dimensions + start + depth
                tl.atomic_add(total, tl.sum(added, 0), within, sem="relaxed")
            else:
                tl.atomic_add(grad_queries + q + start, added, mask, sem="relaxed")
        if grad_documents is not None:
            added = weight[:, None] * tl.load(queries + q + start, mask, 0.0)
            tl.atomic_add(grad_documents + d + start, added, mask, sem="relaxed")


def add_kernel_tiles(sums: TileSums) -> None:
    """Set loss and gradients of every entry, one tile at a time, with products in bf16.

    Embeddings and gradients are contiguous, and float32 as scale and bias.
    """
    if gradients := [gradient for gradient in sums.gradients if gradient is not None]:
        torch._foreach_zero_(gradients)
    tiles, targets = KernelTiles(sums), sums.targets
    for rows, columns in blocks(*targets.shape, sums.shape):
        sums.add_products(rows, columns, tiles.score(rows, columns), *tiles.rounded)
    sums.totals = tiles.parts.sum(dim=1, dtype=torch.float64)
    if tiles.weights is not None:
        for row, column, weight in known_parts(sums.queries, replace(targets, relevance=tiles.weights)):
            add_outer(sums.gradients, (sums.queries[row], sums.documents[column]), (row, column), weight)


class KernelTiles:
    """Score one tile after another into one reused buffer of bf16."""

    def __init__(self, sums: TileSums) -> None:
        known = [part.contiguous() for part in sums.targets.tensors().values()]
        queries, shape = sums.queries, sums.shape
        self._exact, self._numbers, self._known = (queries, sums.documents), (sums.scale, sums.bias), known
        self.rounded = queries.to(torch.bfloat16), sums.documents.to(torch.bfloat16)
        self.weights: Tensor | None = None
        """(M,) sigma - z of the known entries, if their part of the gradients is still to be added."""
        self._gradients = sums.gradients
        if torch.are_deterministic_algorithms_enabled():  # atomic additions come in any order
            self.weights, self._gradients = queries.new_empty(len(known[0])), (None, None)
        self._stride = _ceiling(shape[1], ALIGNED) * ALIGNED
        self._sigma = queries.new_empty(shape[0] * self._stride, dtype=torch.bfloat16)
        self._replacing = _ceiling(len(known[0]), ENTRIES)
        tiles = [_programs(rows, columns) + self._replacing for rows, columns in blocks(*sums.targets.shape, shape)]
        self.parts, self._next = queries.new_empty(2, sum(tiles)), 0
        """(2, P) parts of the totals, one of each program."""

    def score(self, rows: slice, columns: slice) -> Tensor:
        """Add known entries to the gradients; return (R, C) sigma(s), 0 at known entries.

        The next tile overwrites it.
        """
        q, d = self.rounded[0][rows], self.rounded[1][columns]
        sigma = self._sigma[: len(q) * self._stride].view(-1, self._stride)[:, : len(d)]
        tile, dimensions, total = (q, d, sigma), q.shape[1], self.parts.shape[1]
        fits = dimensions % 8 == 0 and min(len(q), len(d)) >= ROWS and len(q) * len(d) >= DESCRIBED_FROM
        described = fits and _has_descriptors(q.device)
        if described:
            boxes = [ROWS, DEPTH], [COLUMNS, DEPTH], [ROWS, COLUMNS]
            tile = tuple(TensorDescriptor.from_tensor(*part) for part in zip(tile, boxes, strict=True))
        constants = {"HEIGHT": ROWS, "WIDTH": COLUMNS, "DEPTH": DEPTH, "GROUP": 16, "num_warps": 4, "num_stages": 3}
        with torch.cuda.device_of(q):  # Triton launches on the current device
            programs = _programs(rows, columns)
            _score[(programs,)](
                *(*tile[:2], *self._numbers, tile[2], self.parts, self._next, total, len(q), len(d)),
                *(dimensions, self._stride),
                **{**constants, "DESCRIBED": described},
            )
            self._next += programs
            if self._replacing:
                _replace_known[(self._replacing,)](
                    *(*self._exact, *self._numbers, self._sigma, self.parts, self._next, total, *self._known),
                    *(self.weights, *self._gradients, len(self._known[0]), rows.start, rows.stop, columns.start),
                    *(columns.stop, dimensions, self._stride),
                    **{"ENTRIES": ENTRIES, "DEPTH": 128, "num_warps": 1},
                )
                self._next += self._replacing
        return sigma


def _programs(rows: slice, columns: slice) -> int:
    return _ceiling(rows.stop - rows.start, ROWS) * _ceiling(columns.stop - columns.start, COLUMNS)


def _ceiling(number: int, size: int) -> int:
    return -(-number // size)  # triton.cdiv takes 5 us on the host


def _has_descriptors(device: torch.device) -> bool:
    """Return True on Hopper, where a tile takes 10 to 14 % less time with descriptors; not tried on later GPUs."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9
