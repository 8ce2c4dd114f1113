"""Margin MSE: differences of scores against differences of relevance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from pydantic import Field

from bixse.losses.engines.row_chunks import ChunkResult, RowWiseLoss
from bixse.losses.options import LossOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from bixse.losses.targets import GradedTargets


class MarginMSEOptions(LossOptions):
    """Options of `MarginMSELoss`; the scale multiplies the loss by its square and changes nothing else."""

    margin: float = Field(default=1.0, gt=0, le=2)
    """Difference of cosines that a difference in relevance of 1 is to reach."""
    in_batch_negatives: bool = False
    """Also pair a query's documents with all others of the batch; the BiXSE paper leaves them out: they harm."""


class MarginMSELoss(RowWiseLoss):
    """Mean squared error of the margin between two documents of a query (Hofstätter et al. 2020, arXiv:2010.02666).

    L = (1/P) sum over the P pairs j < k of a query's documents of [ (s_ij - s_ik) - m (z_ij - z_ik) ]^2, with
    s = scale * cos and m = scale * margin. The sum has a closed form, so no pair is ever formed.

    Example:
        >>> MarginMSELoss(torch.nn.Identity(), margin=0.5).is_informative([1.0])
        False
    """

    options_class = MarginMSEOptions
    options: MarginMSEOptions

    @property
    def requires(self) -> str:
        return "a graded document" if self.options.in_batch_negatives else "two graded documents"

    def is_informative(self, relevance: Sequence[float]) -> bool:
        return len(relevance) >= (1 if self.options.in_batch_negatives else 2)

    def chunk_result(self, logits: Tensor, targets: GradedTargets) -> ChunkResult:
        """One term per pair of which at least one document is graded.

        Of g graded documents a and u others b, with errors taken from the mean of the graded ones, the pairs sum to
        (g + u) sum_a e_a^2 + g sum_b e_b^2.
        """
        relevance, counted = targets.dense(logits.dtype)
        graded = targets.graded(logits.dtype)
        slate = counted if self.options.in_batch_negatives else graded
        number = graded.sum(dim=1, keepdim=True)  # (R, 1)
        others = slate.sum(dim=1, keepdim=True) - number
        errors = logits.sub_(relevance.mul_(self.options.scale * self.options.margin))
        errors.sub_((errors * graded).sum(dim=1, keepdim=True) / number.clamp_min(1.0)).mul_(slate)
        weighed = (graded * others).add_(number).mul_(errors)
        value = (weighed * errors).sum(dtype=torch.float64)
        gradient = weighed.sub_(graded.mul_(errors.sum(dim=1, keepdim=True))).mul_(2.0)
        pairs = (number * (number - 1) / 2 + number * others).sum(dtype=torch.float64)
        return ChunkResult(value, pairs, gradient)
