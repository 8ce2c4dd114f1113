"""Figures of a batch for the log, without the B x N matrix."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bixse.losses.engines.gather import all_reduce_sum
from bixse.losses.engines.known_entries import known_cosines

if TYPE_CHECKING:
    from bixse.losses.targets import GradedTargets

ENTRIES_LOOKED_AT = 2**22
"""Entries of which the mean target is computed, about: all of a small batch, 16 MB of a large one."""


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
    cosines = known_cosines(queries, documents, targets)
    relevant, masked = targets.relevance >= 0.5, targets.relevance.isnan()
    total = queries.float().sum(dim=0) @ documents.float().sum(dim=0)
    number = targets.shape[0] * targets.shape[1] - relevant.sum() - masked.sum()
    found = [cosines[relevant].sum(), total - cosines[relevant | masked].sum(), relevant.sum(), number]
    sums, numbers = all_reduce_sum(torch.stack([part.float() for part in found])).chunk(2)
    means = torch.where(numbers > 0, sums / numbers, math.nan)
    return logit_scale * means[0] + logit_bias, logit_scale * means[1] + logit_bias


@torch.no_grad()
def mean_target(targets: GradedTargets) -> Tensor:
    """Mean relevance over the entries of a batch that count, over all processes; NaN where there is none."""
    known = targets.relevance.nansum() + _sum_of_unlabelled(targets)
    relevance, number = all_reduce_sum(torch.stack([known, targets.number_counted()]).float())
    return torch.where(number > 0, relevance / number, math.nan)


def _sum_of_unlabelled(targets: GradedTargets) -> Tensor:
    """Sum of the relevance of all entries that are not known; of a large batch estimated from a sample of queries."""
    if targets.unlabelled is None:
        return targets.relevance.new_zeros(())
    stride = max(1, targets.shape[0] * targets.shape[1] // ENTRIES_LOOKED_AT)
    sample = targets.every(stride)
    assert sample.unlabelled is not None
    block = sample.unlabelled.block(slice(None), slice(None))
    block[sample.rows, sample.columns] = 0.0
    return block.sum() * (targets.shape[0] / max(1, sample.shape[0]))
