"""The losses on a teacher's scores: Margin MSE follows differences, KL divergence a distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from pydantic import Field
from torch import Tensor

from bixse.losses.catalogue import LossOptions
from bixse.losses.tiles.row_chunks import ChunkResult, RowWiseLoss

if TYPE_CHECKING:
    from bixse.losses.targets import GradedTargets


class MarginMSEOptions(LossOptions):
    """Options of `MarginMSELoss`; the scale multiplies the loss by its square and changes nothing else."""

    margin: float = Field(default=1.0, gt=0, le=2)
    """Target difference of cosines per difference of 1 in relevance."""


class MarginMSELoss(RowWiseLoss):
    """Mean squared error of the margin between two documents of a query (Hofstätter et al. 2020, arXiv:2010.02666).

    L = (1/P) sum over the P pairs j < k of a query's graded documents of [ (s_ij - s_ik) - m (z_ij - z_ik) ]^2, with
    s = scale * cos and m = scale * margin. The sum has a closed form, so no pair is ever formed. The other documents of
    the batch take no part: the BiXSE paper found that they harm.
    """

    options_class = MarginMSEOptions
    options: MarginMSEOptions
    learns_differences = True

    def chunk_result(self, logits: Tensor, targets: GradedTargets) -> ChunkResult:
        """Return one term per pair of graded documents."""
        relevance, _ = targets.dense(logits.dtype)
        graded = targets.graded(logits.dtype)
        number = graded.sum(dim=1, keepdim=True)  # (R, 1)
        # with errors relative to their mean, the pairs of g documents sum to g times the sum of squares
        errors = logits.sub_(relevance * (self.options.scale * self.options.margin))
        errors.sub_((errors * graded).sum(dim=1, keepdim=True) / number.clamp_min(1.0)).mul_(graded)
        weighed = errors * number
        value = (weighed * errors).sum(dtype=torch.float64)
        gradient = weighed.sub_(graded.mul_(errors.sum(dim=1, keepdim=True))).mul_(2.0)  # the last sum is rounding
        return ChunkResult(value, (number * (number - 1) / 2).sum(dtype=torch.float64), gradient)


class DistillKLOptions(LossOptions):
    """Options of `DistillKLLoss`."""

    temperature: float = Field(default=0.1, gt=0)
    """Divisor of relevance before the softmax of the teacher; a lower temperature sharpens it."""


class DistillKLLoss(RowWiseLoss):
    """KL divergence from the teacher's distribution over a query's graded documents to the student's.

    L = (1/R) sum_i sum_j p_ij (log p_ij - log softmax_j(s_ij)), p_ij = softmax_j(z_ij / temperature), over the R
    queries with two graded documents and over these documents alone, s = scale * cos (Ren et al. 2021, RocketQAv2,
    arXiv:2110.07367, equation 4; Hinton et al. 2015, arXiv:1503.02531).
    """

    options_class = DistillKLOptions
    options: DistillKLOptions
    learns_differences = True

    def chunk_result(self, logits: Tensor, targets: GradedTargets) -> ChunkResult:
        """Return one term per query with two graded documents; a single document has no order to learn."""
        relevance, _ = targets.dense(logits.dtype)
        graded = targets.graded(logits.dtype).bool()
        graded &= graded.sum(dim=1, keepdim=True) > 1
        teacher = relevance / self.options.temperature
        least = torch.finfo(logits.dtype).min
        wanted, reached = (  # log-softmax over the graded documents of a row; 0 elsewhere
            scores.masked_fill(~graded, least).log_softmax(dim=1).masked_fill(~graded, 0.0)
            for scores in (teacher, logits)
        )
        share = wanted.exp().mul_(graded)
        value = (share * (wanted - reached)).sum(dtype=torch.float64)
        return ChunkResult(value, graded.any(dim=1).sum(), reached.exp_().mul_(graded).sub_(share))
