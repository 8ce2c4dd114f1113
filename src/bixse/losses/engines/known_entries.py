"""The entries of a batch with a grade: few, so that each is computed by itself in float32."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

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


class Terms(NamedTuple):
    """The log-sum-exps that a loss is made of: T of them, those of a query side by side."""

    first: Tensor
    """(B,) the first of each query."""
    last: Tensor
    """(B,) behind its last."""
    highest: Tensor
    """(T,) logit up to which an entry counts."""
    of_entry: Tensor
    """(M,) that of each known entry."""
    one_a_query: bool

    @classmethod
    def of_queries(cls, targets: GradedTargets) -> Terms:
        """One a query, over all its logits."""
        first = torch.arange(targets.shape[0], device=targets.rows.device)
        return cls(first, first + 1, torch.full_like(first, math.inf, dtype=torch.float32), targets.rows, True)

    @classmethod
    def of_entries(cls, targets: GradedTargets, chosen: Tensor, highest: Tensor) -> Terms:
        """One for each of the (M,) known entries that is chosen; the others have a place that is in no query's range.

        Nobody tells the processor how many are chosen.
        """
        key = 2 * targets.rows + (~chosen).long()
        key, order = key.sort()
        queries = 2 * torch.arange(targets.shape[0], device=key.device)
        of_entry = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order), device=key.device))
        first, last = torch.searchsorted(key, queries), torch.searchsorted(key, queries + 1)
        return cls(first, last, highest[order], of_entry, False)

    def of_rows(self, rows: slice) -> tuple[Terms, slice]:
        """Those of some queries, and where they stand among all."""
        span = rows if self.one_a_query else slice(0, len(self.highest))
        first, last = self.first[rows] - span.start, self.last[rows] - span.start
        return self._replace(first=first, last=last, highest=self.highest[span]), span
