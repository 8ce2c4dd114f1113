"""Figures of a batch for the log, without the B x N matrix."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bixse.losses.engines.gather import all_reduce_sum

if TYPE_CHECKING:
    from bixse.losses.targets import GradedTargets

NUMBERS_AT_ONCE = 2**20
"""Numbers of embeddings that are multiplied at a time: 4 MB."""


@torch.no_grad()
def mean_logits(
    queries: Tensor,
    documents: Tensor,
    targets: GradedTargets,
    logit_scale: Tensor | float,
    logit_bias: Tensor | float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Mean logit of the relevant entries (z >= 0.5) and of all other entries that count, over all processes.

    The mean over all entries needs only the mean query and the mean document. NaN where there is no such entry.
    """
    cosines = _known_cosines(queries, documents, targets)
    relevant, masked = targets.relevance >= 0.5, targets.relevance.isnan()
    total = queries.float().sum(dim=0) @ documents.float().sum(dim=0)
    number = len(queries) * len(documents) - relevant.sum() - masked.sum()
    found = [cosines[relevant].sum(), total - cosines[relevant | masked].sum(), relevant.sum(), number]
    sums, numbers = all_reduce_sum(torch.stack([part.float() for part in found])).chunk(2)
    means = torch.where(numbers > 0, sums / numbers, math.nan)
    return logit_scale * means[0] + logit_bias, logit_scale * means[1] + logit_bias


@torch.no_grad()
def mean_target(queries: Tensor, documents: Tensor, targets: GradedTargets) -> Tensor:
    """Mean relevance over the entries of a batch that count, over all processes; NaN where there is none."""
    entries = len(queries) * len(documents) - targets.relevance.isnan().sum()
    relevance, number = all_reduce_sum(torch.stack([targets.relevance.nansum(), entries]).float())
    return torch.where(number > 0, relevance / number, math.nan)


def _known_cosines(queries: Tensor, documents: Tensor, targets: GradedTargets) -> Tensor:
    """(M,) q.d of the known entries."""
    entries = max(1, NUMBERS_AT_ONCE // max(1, queries.shape[1]))
    parts = zip(targets.rows.split(entries), targets.columns.split(entries), strict=True)
    return torch.cat([(queries[r].float() * documents[c].float()).sum(dim=1) for r, c in parts])
