"""A tile of the BiXSE loss in one Triton kernel: logits stay in registers, and nothing waits for the device."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 128, 128
"""Entries of one program. Two programs fit a multiprocessor: one multiplies while the other computes sigma."""
ALIGNED = 16
"""Rows of sigma begin at multiples of this number: cuBLAS needs 8, vector stores with a mask 16."""


@triton.jit(do_not_specialize=["rows", "columns"])  # type: ignore[untyped-decorator]
def _score(
    queries: tl.tensor,
    documents: tl.tensor,
    scale: tl.tensor,
    bias: tl.tensor,
    sigma: tl.tensor,
    sums: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    dimensions: tl.tensor,
    stride: tl.tensor,
    HEIGHT: tl.constexpr,  # noqa: N803
    WIDTH: tl.constexpr,  # noqa: N803
    DEPTH: tl.constexpr,  # noqa: N803
    GROUP: tl.constexpr,  # noqa: N803
) -> None:
    program, programs = tl.program_id(0), tl.num_programs(0)
    # programs that run at the same time share their rows and columns in the L2 cache
    strip = GROUP * tl.cdiv(columns, WIDTH)
    first = program // strip * GROUP
    height = tl.minimum(tl.cdiv(rows, HEIGHT) - first, GROUP)
    row = (first + program % strip % height) * HEIGHT + tl.arange(0, HEIGHT)
    column = program % strip // height * WIDTH + tl.arange(0, WIDTH)
    depth = tl.arange(0, DEPTH)
    # positions after the last row or column read another one, since a mask would cost time in every step
    q = queries + (row % rows).to(tl.int64)[:, None] * dimensions + depth[None, :]
    d = documents + (column % columns).to(tl.int64)[None, :] * dimensions + depth[:, None]
    logits = tl.zeros((HEIGHT, WIDTH), tl.float32)
    for start in range(0, dimensions, DEPTH):
        inside = depth < dimensions - start
        logits = tl.dot(tl.load(q, inside[None, :], 0.0), tl.load(d, inside[:, None], 0.0), logits)
        q += DEPTH
        d += DEPTH
    # in units of log 2, since the hardware has 2^x alone; softplus and sigma of -inf are 0
    shift = tl.load(bias) * 1.4426950408889634
    of_row, of_column = tl.where(row < rows, shift, -float("inf")), tl.where(column < columns, shift, -float("inf"))
    logits = logits * (tl.load(scale) * 1.4426950408889634) + tl.minimum(of_row[:, None], of_column[None, :])
    e = tl.exp2(-tl.abs(logits))
    # log2(1 + e) / e by a polynomial with relative errors below 4e-7: a logarithm costs more and loses small e
    p = -0.012319312430918217 * e + 0.06360732764005661
    p = p * e - 0.15535108745098114
    p = p * e + 0.25600919127464294
    p = p * e - 0.35339462757110596
    p = p * e + 0.48006367683410645
    p = p * e - 0.7213100790977478
    p = p * e + 1.4426947832107544
    softplus = tl.maximum(logits, 0.0) + p * e
    root = tl.rsqrt(1.0 + e)  # a division takes three instructions more
    share = tl.where(logits >= 0, 1.0, e) * (root * root)
    tl.store(sums + program, tl.sum(softplus) * 0.6931471805599453)
    tl.store(sums + programs + program, tl.sum(share))
    # zeros up to the stride, as a mask that ends at any column would leave stores of single numbers
    inside = (row < rows)[:, None] & (column < stride)[None, :]
    tl.store(sigma + row.to(tl.int64)[:, None] * stride + column[None, :], share.to(tl.bfloat16), inside)


class KernelTiles:
    """Score one tile after another into one reused buffer of bf16; sums count every entry as unlabelled."""

    bytes_per_entry = 2

    def __init__(self, shape: tuple[int, int], device: torch.device) -> None:
        self.stride = -(-shape[1] // ALIGNED) * ALIGNED
        self._sigma = torch.empty(shape[0] * self.stride + 1, dtype=torch.bfloat16, device=device)

    def score(
        self, queries: Tensor, documents: Tensor, scale: Tensor, bias: Tensor, known: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return what `DeviceTiles.score` returns, but with known entries in the sums.

        Embeddings are contiguous bf16; scale and bias are float32.
        """
        rows, columns = len(queries), len(documents)
        programs = triton.cdiv(rows, ROWS) * triton.cdiv(columns, COLUMNS)
        sums = scale.new_empty(2, programs)
        with torch.cuda.device_of(queries):  # Triton launches on the current device
            _score[(programs,)](
                *(queries, documents, scale, bias, self._sigma, sums, rows, columns, queries.shape[1], self.stride),
                **{"HEIGHT": ROWS, "WIDTH": COLUMNS, "DEPTH": 64, "GROUP": 8, "num_warps": 4, "num_stages": 3},
            )
        self._sigma.index_fill_(0, known, 0.0)
        return sums, self._sigma[: rows * self.stride].view(rows, self.stride)[:, :columns]
