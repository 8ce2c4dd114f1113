"""The entries of a batch with a grade: few, so that each is computed by itself in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from bixse.losses.targets import GradedTargets

NUMBERS_AT_ONCE = 2**20
"""Numbers of embeddings that are multiplied at a time on the processor: 4 MB."""
NUMBERS_ON_DEVICE = 2**24
"""And elsewhere: 64 MB."""


def known_parts(queries: Tensor, targets: GradedTargets) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Rows, columns and relevance of the known entries, as many at a time as their embeddings may take memory."""
    numbers = NUMBERS_AT_ONCE if queries.device.type == "cpu" else NUMBERS_ON_DEVICE
    entries = max(1, numbers // max(1, queries.shape[1]))
    yield from zip(*(part.split(entries) for part in (targets.rows, targets.columns, targets.relevance)), strict=True)


def known_cosines(queries: Tensor, documents: Tensor, targets: GradedTargets) -> Tensor:
    """(M,) q.d of the known entries."""
    parts = known_parts(queries, targets)
    return torch.cat([(queries[r].float() * documents[c].float()).sum(dim=1) for r, c, _ in parts])


def add_outer(
    gradients: tuple[Tensor | None, Tensor | None],
    embeddings: tuple[Tensor, Tensor],
    entries: tuple[Tensor, Tensor],
    weight: Tensor,
) -> None:
    """Add to the gradients of queries and documents what entries (rows, columns) of this (M,) weight give them."""
    rows, columns = entries
    if gradients[0] is not None:
        gradients[0].index_add_(0, rows, weight[:, None] * embeddings[1][columns])
    if gradients[1] is not None:
        gradients[1].index_add_(0, columns, weight[:, None] * embeddings[0][rows])
