"""The sums of a loss over the entries of a batch, from which its value and gradients are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Sums:
    """Sums over the entries; the scale has not yet multiplied the embeddings' gradients."""

    totals: Tensor
    """(2,) sums of softplus(s) - z s and of sigma(s) - z, float64."""
    queries: Tensor | None
    """(B, D) sum of (sigma - z) d; None if not wanted."""
    documents: Tensor | None
    """(N, D) sum of (sigma - z) q; None if not wanted."""
    with_gradients: bool = True

    @classmethod
    def empty(
        cls,
        queries: Tensor,
        documents: Tensor,
        wanted: tuple[bool, bool, bool, bool],
        like: Callable[[Tensor], Tensor],
    ) -> Sums:
        """Return empty sums, made by `like`.

        `wanted`: the gradients of queries, documents, scale (derived from queries) and bias.
        """
        exact = torch.float32 if queries.device.type == "mps" else torch.float64  # MPS has no float64
        return cls(
            like(queries.new_empty(2, dtype=exact)),
            like(queries) if wanted[0] or wanted[2] else None,
            like(documents) if wanted[1] else None,
            any(wanted),
        )

    def add(self, parts: Tensor) -> None:
        """Add (2, n) parts of the totals."""
        self.totals += parts.sum(dim=1, dtype=self.totals.dtype)

    def gradient_of_scale(self, queries: Tensor) -> Tensor | None:
        """Return <Q, dQ>, which the gradient of the scale is made of; None without the queries' gradient."""
        if self.queries is None:
            return None
        if queries.device.type == "cpu":
            return torch.einsum("bd,bd->b", queries, self.queries).sum(dtype=self.totals.dtype)
        return torch.dot(queries.reshape(-1), self.queries.reshape(-1))  # einsum would compute a product per query
