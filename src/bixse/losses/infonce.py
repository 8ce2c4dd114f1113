"""The softmax losses: InfoNCE on positives, and Soft InfoNCE on graded relevance."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import softplus

from bixse.losses.catalogue import LossOptions
from bixse.losses.tiles.row_chunks import ChunkResult, RowWiseLoss

if TYPE_CHECKING:
    from bixse.losses.targets import GradedTargets


class InfoNCEOptions(LossOptions):
    """Options of `InfoNCELoss`."""

    positive_from: float = Field(default=0.5, gt=0, le=1)
    """Lowest relevance of a positive document, in (0, 1]."""
    false_negative_margin: float | None = Field(default=None, ge=0, le=2)
    """Leave out a positive's likely false negatives: documents whose cosine exceeds its cosine by more than this
    number. null leaves out none. Qwen3 Embedding takes 0.1 (Zhang et al. 2025, arXiv:2506.05176, section 3.1)."""
    hardness: float = Field(default=0.0, ge=0)
    """Weight negatives by exp(hardness * cosine), without a gradient through the weight. 0 counts all alike; 9 is the
    value of Lan et al. 2025 (arXiv:2503.04812)."""


class InfoNCELoss(RowWiseLoss):
    """Softmax cross-entropy of each positive against the batch's documents (BiXSE paper, equation 1).

    L = -(1/P) sum over the P positive entries of log [ exp(s_ij) / (exp(s_ij) + sum_k exp(s_ik)) ], s = scale * cos, k
    over the documents that are no positives of query i. An entry is positive from relevance `positive_from` on. Two
    positives of one query do not compete (van den Oord et al. 2018, arXiv:1807.03748, equation 4). With
    `false_negative_margin` m, k is over documents with cos_ik <= cos_ij + m alone; the choice has no gradient.
    """

    options_class = InfoNCEOptions
    options: InfoNCEOptions
    blocks_held: ClassVar[int] = 4

    def chunk_result(self, logits: Tensor, targets: GradedTargets) -> ChunkResult:
        """Return one term per positive: softplus(n - s), with n the log-sum-exp of the row's negatives."""
        rows, columns = targets.rows, targets.columns
        positive = targets.relevance >= self.options.positive_from
        chosen = logits[rows, columns]
        logits[rows, columns] = chosen.masked_fill(positive | targets.relevance.isnan(), -torch.inf)
        harder = 1 + self.options.hardness / self.options.scale  # (scale + hardness) * cos
        if self.options.hardness:
            logits.mul_(harder)
        if self.options.false_negative_margin is not None:
            highest = (chosen + self.options.scale * self.options.false_negative_margin) * harder
            return _separate_negatives(logits, *(part[positive] for part in (rows, columns, chosen, highest)))
        negatives = torch.logsumexp(logits, dim=1)
        # selecting positives would make a GPU wait, so all M known entries are computed
        gap = (negatives[rows] - chosen).masked_fill_(~positive, -torch.inf)
        share = gap.sigmoid()  # the pull on the positive, and the push on its negatives together
        push = torch.zeros_like(negatives).index_add_(0, rows, share)
        finite = negatives.masked_fill(negatives.isinf(), 0.0)  # a row without a negative
        gradient = logits.sub_(finite.unsqueeze(1)).exp_().mul_(push.unsqueeze(1))
        gradient[rows, columns] = torch.where(positive, -share, gradient[rows, columns])
        return ChunkResult(softplus(gap).sum(dtype=torch.float64), positive.sum(), gradient)


def _separate_negatives(logits: Tensor, rows: Tensor, columns: Tensor, chosen: Tensor, highest: Tensor) -> ChunkResult:
    """Return one term per positive against the negatives of its row that are at most `highest`."""
    # logits: (R, N), -inf for entries that are no negatives; the other arguments: (P,)
    gradient = torch.zeros_like(logits)
    value = logits.new_zeros((), dtype=torch.float64)
    blocks = (part.split(len(logits)) for part in (rows, columns, chosen, highest))
    for row, column, score, most in zip(*blocks, strict=True):
        negatives = logits[row]
        negatives.masked_fill_(negatives > most.unsqueeze(1), -torch.inf)
        total = torch.logsumexp(negatives, dim=1)
        gap = total - score
        share = gap.sigmoid()
        finite = total.masked_fill(total.isinf(), 0.0)  # a positive without a negative
        gradient.index_add_(0, row, negatives.sub_(finite.unsqueeze(1)).exp_().mul_(share.unsqueeze(1)))
        gradient.index_put_((row, column), -share, accumulate=True)
        value += softplus(gap).sum(dtype=torch.float64)
    return ChunkResult(value, len(rows), gradient)


class SoftInfoNCELoss(RowWiseLoss):
    """Softmax cross-entropy against the graded relevance of a row, normalised to sum 1.

    L = -(1/R) sum_i sum_j t_ij log softmax_j(s_ij), t_ij = z_ij / sum_k z_ik, over the R rows with a relevant document.
    The teacher's soft labels replace the one-hot target of InfoNCE, as in Cheng et al. 2023.
    """

    blocks_held: ClassVar[int] = 4

    def chunk_result(self, logits: Tensor, targets: GradedTargets) -> ChunkResult:
        """Return one term per row with a relevant document: log-sum-exp less the expected logit under the target."""
        rows, columns = targets.rows, targets.columns
        relevance = targets.relevance.nan_to_num(0.0).to(logits.dtype)
        total = logits.new_zeros(len(logits)).index_add_(0, rows, relevance)
        usable = total > 0
        share = relevance / total.clamp_min(torch.finfo(logits.dtype).tiny)[rows]  # not 0 / 0 in unusable rows
        expected = (share * logits[rows, columns]).sum(dtype=torch.float64)
        logits[rows, columns] = logits[rows, columns].masked_fill_(targets.relevance.isnan(), -torch.inf)
        partition = torch.logsumexp(logits, dim=1).masked_fill(~usable, 0.0)
        logits.masked_fill_(~usable.unsqueeze(1), -torch.inf)
        gradient = logits.sub_(partition.unsqueeze(1)).exp_()
        gradient[rows, columns] -= share
        return ChunkResult(partition.sum(dtype=torch.float64) - expected, usable.sum(), gradient)
