"""The matrix products of the losses: the dtype of their factors, the size of a tile, and the sums over tiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bixse.encoders.loading.precision import Setting, resolve_precision
from bixse.encoders.processes import all_reduce_sum
from bixse.errors import InputError

if TYPE_CHECKING:
    from bixse.losses.targets import GradedTargets


TILE_SIDE = 1024
"""Queries and documents of a tile on the CPU: its 10 MB of work fit the caches."""
DEVICE_TILE_BYTES = 2**31
"""Maximum bytes of a tile on a GPU: a larger tile reads and writes gradients less often."""
KERNEL_TILE_BYTES = 2**28
"""Maximum bytes of a tile of the kernel: 8,192 x 16,384 entries, which keep the card busy for long enough."""
OTHER_TILE_BYTES = 2**28
"""Maximum bytes of a tile on any other device, which may share its memory with the CPU."""
SHARE_OF_DEVICE = 32
"""A tile takes at most 1/32 of a GPU's memory."""


def product_dtype(products: Setting, device: torch.device, embeddings: torch.dtype) -> torch.dtype:
    """Return the dtype of the factors of the three products; sums, logits and gradients are at least float32."""
    if embeddings == torch.float64:  # never rounded
        return embeddings
    able = device.type in ("cpu", "meta") or has_wide_products(device)
    if products == "auto":  # float32 on the CPU, elsewhere the precision of the process
        products = resolve_precision(device=device) if able and device.type == "cuda" else "float32"
    if products == "bfloat16" and not able:
        raise InputError(
            f"products: got bfloat16 with PyTorch {torch.__version__} on {device.type}; expected matrix products of "
            "bf16 that are summed and returned in float32 (PyTorch 2.8 on an NVIDIA GPU); fix: products: float32"
        )
    return torch.float32 if products == "float32" else torch.bfloat16


def has_wide_products(device: torch.device) -> bool:
    """Return True if `torch.mm` takes `out_dtype` on a device."""
    return device.type == "cuda" and not torch.version.hip and "dtype_out" in torch.ops.aten.addmm.overloads()


def add_product(total: Tensor, left: Tensor, right: Tensor, beta: int = 1, alpha: float = 1.0) -> None:
    """Add alpha times the product to `total`, or overwrite it (`beta` 0), summed in the dtype of `total`."""
    if left.dtype != total.dtype and left.device.type == "cpu":  # products of bf16 are exact in float32
        left, right = left.to(total.dtype), right.to(total.dtype)
    if left.dtype == total.dtype:
        total.addmm_(left, right, beta=beta, alpha=alpha)
    else:
        torch.addmm(total, left, right, beta=beta, alpha=alpha, out_dtype=total.dtype, out=total)


def tile_bytes(device: torch.device) -> int:
    """Return the maximum bytes of a tile on a device other than the CPU."""
    if device.type != "cuda":
        return OTHER_TILE_BYTES
    return min(DEVICE_TILE_BYTES, torch.cuda.get_device_properties(device).total_memory // SHARE_OF_DEVICE)


def tile_shape(queries: int, documents: int, bytes_per_entry: int, budget: int) -> tuple[int, int]:
    """Return rows and columns of a tile of at most `budget` bytes: all columns if enough rows fit, else a square.

    A tile of R x C entries reads and writes the gradients of R queries and C documents, so a square costs least next to
    its products. A strip of all columns needs half its side in rows to cost as little.
    """
    entries = max(1, budget // bytes_per_entry)
    side = math.isqrt(entries)
    if documents <= 2 * side:
        return max(1, min(queries, _even(entries // max(1, documents)))), max(1, documents)
    rows = max(1, min(queries, _even(side)))
    return rows, max(1, min(documents, _even(entries // rows)))


def _even(side: int) -> int:
    return side - side % 256 or side  # of any size, the last blocks of rows and columns would be half empty


NUMBERS_AT_ONCE = 2**20
"""Numbers of embeddings multiplied at a time on the CPU: 4 MB."""
NUMBERS_ON_DEVICE = 2**24
"""Numbers of embeddings multiplied at a time on other devices: 64 MB."""


def known_parts(queries: Tensor, targets: GradedTargets) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield rows, columns and relevance of the known entries, in parts whose embeddings fit the memory limit."""
    numbers = NUMBERS_AT_ONCE if queries.device.type == "cpu" else NUMBERS_ON_DEVICE
    entries = max(1, numbers // max(1, queries.shape[1]))
    yield from zip(*(part.split(entries) for part in (targets.rows, targets.columns, targets.relevance)), strict=True)


def add_outer(
    gradients: tuple[Tensor | None, Tensor | None],
    embeddings: tuple[Tensor, Tensor],
    entries: tuple[Tensor, Tensor],
    weight: Tensor,
) -> None:
    """Add entries with (M,) weight to the gradients; `embeddings` are the (M, D) queries and documents of each."""
    if gradients[0] is not None:
        gradients[0].index_add_(0, entries[0], weight[:, None] * embeddings[1])
    if gradients[1] is not None:
        gradients[1].index_add_(0, entries[1], weight[:, None] * embeddings[0])


@dataclass
class TileSums:
    """A batch, and the sums over its entries from which loss and gradients are made.

    The scale has not yet multiplied the gradients of the embeddings.
    """

    queries: Tensor
    """(B, D); documents are (N, D), scale and bias numbers on the same device."""
    documents: Tensor
    scale: Tensor
    bias: Tensor
    targets: GradedTargets
    shape: tuple[int, int]
    """Rows and columns of a tile."""
    wanted: tuple[bool, bool, bool, bool]
    """True for each gradient that is wanted: of queries, documents, scale (derived from that of queries) and bias."""
    like: InitVar[Callable[[Tensor], Tensor]]
    """Makes the sums: of zeros, or of memory that is overwritten."""
    totals: Tensor = field(init=False)
    """(2,) sums of softplus(s) - z s and of sigma(s) - z, float64."""
    grad_queries: Tensor | None = field(init=False)
    """(B, D) sum of (sigma - z) d; None if not wanted."""
    grad_documents: Tensor | None = field(init=False)
    """(N, D) sum of (sigma - z) q; None if not wanted."""

    def __post_init__(self, like: Callable[[Tensor], Tensor]) -> None:
        exact = torch.float32 if self.queries.device.type == "mps" else torch.float64  # MPS has no float64
        self.totals = like(self.queries.new_empty(2, dtype=exact))
        self.grad_queries = like(self.queries) if self.wanted[0] or self.wanted[2] else None
        self.grad_documents = like(self.documents) if self.wanted[1] else None

    @property
    def gradients(self) -> tuple[Tensor | None, Tensor | None]:
        return self.grad_queries, self.grad_documents

    def add_products(self, rows: slice, columns: slice, sigma: Tensor, q: Tensor, d: Tensor, beta: int = 1) -> None:
        """Add the products of (R, C) sigma of a tile with the (B, D) queries and (N, D) documents in its dtype.

        With `beta` 0, the first tile of each row and column overwrites what is in memory.
        """
        if self.grad_queries is not None:
            add_product(self.grad_queries[rows], sigma, d[columns], beta=beta or min(columns.start, 1))
        if self.grad_documents is not None:
            add_product(self.grad_documents[columns], sigma.T, q[rows], beta=beta or min(rows.start, 1))

    def gradient_of_scale(self) -> Tensor | None:
        """Return <Q, dQ>, which the gradient of the scale is made of; None if it is not wanted."""
        if self.grad_queries is None or not self.wanted[2]:
            return None
        if self.queries.device.type == "cpu":
            return torch.einsum("bd,bd->b", self.queries, self.grad_queries).sum(dtype=self.totals.dtype)
        # einsum would compute a product per query
        return torch.dot(self.queries.reshape(-1), self.grad_queries.reshape(-1))


@torch.no_grad()
def mean_logits(
    queries: Tensor,
    documents: Tensor,
    targets: GradedTargets,
    logit_scale: Tensor | float,
    logit_bias: Tensor | float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return the mean logits of relevant (z >= 0.5) and of other counted entries over all processes, or NaN."""
    known = known_parts(queries, targets)
    cosines = torch.cat([(queries[r].float() * documents[c].float()).sum(dim=1) for r, c, _ in known])
    relevant = targets.relevance >= 0.5
    flags = torch.stack([relevant, relevant | targets.relevance.isnan()]).float()  # selecting would make a GPU wait
    (cosine, excluded), (number, left_out) = flags @ cosines, flags.sum(dim=1)
    total = queries.float().sum(dim=0) @ documents.float().sum(dim=0)  # needs no B x N cosines
    parts = [cosine, total - excluded, number, targets.shape[0] * targets.shape[1] - left_out]
    sums, numbers = all_reduce_sum(torch.stack(parts)).chunk(2)
    means = torch.where(numbers > 0, sums / numbers, math.nan)
    relevant_mean, other_mean = (logit_scale * means + logit_bias).unbind()
    return relevant_mean, other_mean


@torch.no_grad()
def mean_target(targets: GradedTargets) -> Tensor:
    """Return the mean relevance over the entries of a batch that count, over all processes; NaN without an entry."""
    known = targets.relevance.nansum()
    relevance, number = all_reduce_sum(torch.stack([known, targets.number_counted()]).float())
    mean: Tensor = relevance / number  # 0 / 0 is NaN
    return mean


def mean_of_all(values: Tensor) -> float:
    """Return the mean over the values of all processes; 0.5 without values."""
    total, number = all_reduce_sum(torch.stack([values.sum(), values.new_tensor(values.numel())])).tolist()
    return total / number if number else 0.5
