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
    return mean_logits_of(cosines, queries, documents.float().sum(dim=0), targets, logit_scale, logit_bias)


@torch.no_grad()
def mean_logits_of(
    cosines: Tensor,
    queries: Tensor,
    sum_of_documents: Tensor,
    targets: GradedTargets,
    logit_scale: Tensor | float,
    logit_bias: Tensor | float,
) -> tuple[Tensor, Tensor]:
    """`mean_logits` from the (M,) cosines of the known entries and the (D,) sum of all documents."""
    relevant, masked = targets.relevance >= 0.5, targets.relevance.isnan()
    total = queries.float().sum(dim=0) @ sum_of_documents
    number = targets.shape[0] * targets.shape[1] - relevant.sum() - masked.sum()
    found = [cosines[relevant].sum(), total - cosines[relevant | masked].sum(), relevant.sum(), number]
    sums, numbers = all_reduce_sum(torch.stack([part.float() for part in found])).chunk(2)
    means = torch.where(numbers > 0, sums / numbers, math.nan)
    return logit_scale * means[0] + logit_bias, logit_scale * means[1] + logit_bias


@torch.no_grad()
def mean_target(targets: GradedTargets) -> Tensor:
    """Mean relevance over the entries of a batch that count, over all processes; NaN where there is none."""
    relevance, number = all_reduce_sum(torch.stack([targets.relevance.nansum(), targets.number_counted()]).float())
    return torch.where(number > 0, relevance / number, math.nan)
