"""The losses on a teacher's scores: Margin MSE follows differences, KL divergence the distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field

from bixse.losses.catalogue import LossOptions
from bixse.losses.row_chunks import ChunkResult, RowWiseLoss

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from bixse.losses.targets import GradedTargets


CERTAIN = 1e-6
"""Smallest distance of relevance from 0 and 1 before its log-odds are taken, which then end at -13.8 and 13.8."""


class TeacherOptions(LossOptions):
    """Options of the losses that follow a teacher."""

    teacher: Literal["relevance", "logit"] = "relevance"
    """The teacher's score: "relevance" z itself; "logit" its log-odds, the raw score of a cross-encoder that graded by
    `--judge cross-encoder:NAME` with the usual sigmoid."""

    def teacher_scores(self, relevance: Tensor) -> Tensor:
        """Return relevance or its log-odds, of any shape."""
        return relevance if self.teacher == "relevance" else relevance.logit(CERTAIN)


class MarginMSEOptions(TeacherOptions):
    """Options of `MarginMSELoss`; the scale multiplies the loss by its square and changes nothing else."""

    margin: float = Field(default=1.0, gt=0, le=2)
    """Difference of cosines that a difference of 1 in the teacher's score is to reach."""
    in_batch_negatives: bool = False
    """Also pair a query's documents with all others of the batch; the BiXSE paper leaves them out: they harm."""


class MarginMSELoss(RowWiseLoss):
    """Mean squared error of the margin between two documents of a query (Hofstätter et al. 2020, arXiv:2010.02666).

    L = (1/P) sum over the P pairs j < k of a query's documents of [ (s_ij - s_ik) - m (t_ij - t_ik) ]^2, with s = scale
    * cos, m = scale * margin and t the teacher's score. The sum has a closed form, so no pair is ever formed.

    Example:
        >>> MarginMSELoss(torch.nn.Identity(), margin=0.5).is_informative([1.0])
        False
    """

    options_class = MarginMSEOptions
    options: MarginMSEOptions

    @property
    def assumes_zeros(self) -> bool:
        return self.options.in_batch_negatives

    @property
    def requires(self) -> str:
        return "a graded document" if self.options.in_batch_negatives else "two graded documents"

    def is_informative(self, relevance: Sequence[float]) -> bool:
        return len(relevance) >= (1 if self.options.in_batch_negatives else 2)

    def chunk_result(self, logits: Tensor, targets: GradedTargets) -> ChunkResult:
        """Return one term per pair with at least one graded document."""
        relevance, counted = targets.dense(logits.dtype)
        graded = targets.graded(logits.dtype)
        slate = counted if self.options.in_batch_negatives else graded
        # g graded documents a and u others b, errors relative to the mean error of the graded ones: the pairs sum to
        # (g + u) sum_a e_a^2 + g sum_b e_b^2
        number = graded.sum(dim=1, keepdim=True)  # (R, 1)
        others = slate.sum(dim=1, keepdim=True) - number
        teacher = self.options.teacher_scores(relevance)
        errors = logits.sub_(teacher * (self.options.scale * self.options.margin))
        errors.sub_((errors * graded).sum(dim=1, keepdim=True) / number.clamp_min(1.0)).mul_(slate)
        weighed = (graded * others).add_(number).mul_(errors)
        value = (weighed * errors).sum(dtype=torch.float64)
        gradient = weighed.sub_(graded.mul_(errors.sum(dim=1, keepdim=True))).mul_(2.0)
        pairs = (number * (number - 1) / 2 + number * others).sum(dtype=torch.float64)
        return ChunkResult(value, pairs, gradient)


class DistillKLOptions(TeacherOptions):
    """Options of `DistillKLLoss`."""

    temperature: float = Field(default=0.1, gt=0)
    """What the teacher's score is divided by: 0.1 suits relevance, 1 the log-odds."""


class DistillKLLoss(RowWiseLoss):
    """KL divergence from the teacher's distribution over a query's graded documents to the student's.

    L = (1/R) sum_i sum_j p_ij (log p_ij - log softmax_j(s_ij)), p_ij = softmax_j(t_ij / temperature), over the R
    queries with two graded documents and over these documents alone. s = scale * cos, t is the teacher's score (Ren et
    al. 2021, RocketQAv2, arXiv:2110.07367, equation 4; Hinton et al. 2015, arXiv:1503.02531).

    Example:
        >>> DistillKLLoss(torch.nn.Identity(), teacher="logit", temperature=1.0).is_informative([1.0])
        False
    """

    options_class = DistillKLOptions
    options: DistillKLOptions

    @property
    def assumes_zeros(self) -> bool:
        return False

    @property
    def requires(self) -> str:
        return "two graded documents"

    def is_informative(self, relevance: Sequence[float]) -> bool:
        return len(relevance) >= 2

    def chunk_result(self, logits: Tensor, targets: GradedTargets) -> ChunkResult:
        """Return one term per query with two graded documents; a single document has no order to learn."""
        relevance, _ = targets.dense(logits.dtype)
        graded = targets.graded(logits.dtype).bool()
        graded &= graded.sum(dim=1, keepdim=True) > 1
        usable = graded.any(dim=1)
        teacher = self.options.teacher_scores(relevance) / self.options.temperature
        wanted, found = (_log_softmax(scores, graded) for scores in (teacher, logits))
        share = wanted.exp().mul_(graded)
        value = (share * (wanted - found)).sum(dtype=torch.float64)
        return ChunkResult(value, usable.sum(), found.exp_().mul_(graded).sub_(share))


def _log_softmax(scores: Tensor, counted: Tensor) -> Tensor:
    """Return the log-softmax over the entries of a row that count; 0 elsewhere."""
    least = torch.finfo(scores.dtype).min
    return scores.masked_fill(~counted, least).log_softmax(dim=1).masked_fill(~counted, 0.0)
