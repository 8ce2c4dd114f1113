"""The softmax losses: InfoNCE on positives, and Soft InfoNCE on graded relevance."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch.nn.functional import softplus

from bixse.losses.engines.known_entries import Terms
from bixse.losses.engines.row_chunks import ChunkResult
from bixse.losses.engines.softmax import SoftmaxLoss, SoftmaxOptions, SoftmaxResult

if TYPE_CHECKING:
    from torch import Tensor

    from bixse.losses.targets import GradedTargets


class InfoNCEOptions(SoftmaxOptions):
    """Options of `InfoNCELoss`."""

    cutoff: float = Field(default=0.5, gt=0, le=1)
    """Relevance from which a document is a positive."""
    false_negative_margin: float | None = Field(default=None, ge=0, le=2)
    """Leave out of a positive's negatives those whose cosine exceeds its own by more than this, as likely relevant;
    null leaves out none. Qwen3 Embedding takes 0.1 (Zhang et al. 2025, arXiv:2506.05176, section 3.1)."""


class InfoNCELoss(SoftmaxLoss):
    """Softmax cross-entropy of each positive against the batch's documents (BiXSE paper, equation 1).

    L = -(1/P) sum over the P positive entries of log [ exp(s_ij) / (exp(s_ij) + sum_k exp(s_ik)) ], s = scale * cos,
    k over the documents that are no positives of query i. An entry is positive when its relevance is at least `cutoff`.
    Two positives of one query do not compete. (van den Oord et al. 2018, arXiv:1807.03748, equation 4.) With
    `false_negative_margin` m, k is over those with cos_ik <= cos_ij + m alone; the choice has no gradient.

    Example:
        >>> InfoNCELoss(torch.nn.Identity(), cutoff=0.7).requires
        'a document with relevance of at least 0.7'
    """

    options_class = InfoNCEOptions
    options: InfoNCEOptions
    blocks_held: ClassVar[int] = 4

    @property
    def positive_threshold(self) -> float:
        return self.options.cutoff

    def masked(self, queries: Tensor, documents: Tensor, targets: GradedTargets) -> GradedTargets:
        """Unchanged: each positive has negatives of its own."""
        return targets

    def chunk_result(self, logits: Tensor, targets: GradedTargets) -> ChunkResult:
        """One term a positive; with n the log-sum-exp of the row's negatives it is softplus(n - s)."""
        positive = targets.relevance >= self.options.cutoff
        rows, columns = targets.rows[positive], targets.columns[positive]
        chosen = logits[rows, columns]
        no_negative = positive | targets.relevance.isnan()
        logits[targets.rows[no_negative], targets.columns[no_negative]] = -torch.inf
        if self.options.false_negative_margin is not None:
            highest = chosen + self.options.scale * self.options.false_negative_margin
            return _own_negatives(logits, rows, columns, chosen, highest)
        negatives = torch.logsumexp(logits, dim=1)
        gap = negatives[rows] - chosen
        share = gap.sigmoid()  # (P,): the pull on the positive, and the push on its negatives together
        push = torch.zeros_like(negatives).index_add_(0, rows, share)
        finite = negatives.masked_fill(negatives.isinf(), 0.0)  # a row without a negative
        gradient = logits.sub_(finite.unsqueeze(1)).exp_().mul_(push.unsqueeze(1))
        gradient[rows, columns] = -share
        return ChunkResult(softplus(gap).sum(dtype=torch.float64), len(rows), gradient)

    def terms(self, known: Tensor, targets: GradedTargets) -> tuple[Terms, Tensor]:
        """The negatives of a query, or with the mask those of each positive."""
        positive = targets.relevance >= self.options.cutoff
        apart = positive | targets.relevance.isnan()
        margin = self.options.false_negative_margin
        if margin is None:
            return Terms.of_queries(targets), apart
        return Terms.of_entries(targets, positive, known + self.options.scale * margin), apart

    def result(self, log_sums: Tensor, known: Tensor, terms: Terms, targets: GradedTargets) -> SoftmaxResult:
        """As `chunk_result`: a share goes into the offset as its logarithm."""
        positive = targets.relevance >= self.options.cutoff
        gap = log_sums[terms.of_entry] - known
        value = softplus(gap).masked_fill(~positive, 0.0).sum(dtype=torch.float64)
        share = gap.sigmoid().masked_fill(~positive, 0.0)
        push = torch.zeros_like(log_sums).index_add_(0, terms.of_entry, share)
        offsets = torch.where(push > 0, log_sums - push.log(), torch.inf)
        return SoftmaxResult(value, positive.sum(), offsets, -share)


def _own_negatives(logits: Tensor, rows: Tensor, columns: Tensor, chosen: Tensor, highest: Tensor) -> ChunkResult:
    """One term per positive, each with the negatives of its row that are not above `highest`.

    Logits are (R, N), -inf where there is no negative; the other four are (P,). Positives are met a block of R at once.
    """
    gradient = torch.zeros_like(logits)
    value = logits.new_zeros((), dtype=torch.float64)
    blocks = (part.split(len(logits)) for part in (rows, columns, chosen, highest))
    for row, column, own, most in zip(*blocks, strict=True):
        negatives = logits[row]
        negatives.masked_fill_(negatives > most.unsqueeze(1), -torch.inf)
        total = torch.logsumexp(negatives, dim=1)
        gap = total - own
        share = gap.sigmoid()
        finite = total.masked_fill(total.isinf(), 0.0)  # a positive without a negative
        gradient.index_add_(0, row, negatives.sub_(finite.unsqueeze(1)).exp_().mul_(share.unsqueeze(1)))
        gradient.index_put_((row, column), -share, accumulate=True)
        value += softplus(gap).sum(dtype=torch.float64)
    return ChunkResult(value, len(rows), gradient)


class SoftInfoNCELoss(SoftmaxLoss):
    """Softmax cross-entropy against the graded relevance of a row, normalised to sum 1.

    L = -(1/R) sum_i sum_j t_ij log softmax_j(s_ij), t_ij = z_ij / sum_k z_ik, over the R rows with a relevant
    document: the one-hot target of InfoNCE replaced by the teacher's soft labels, as in Cheng et al. 2023.
    """

    blocks_held: ClassVar[int] = 4

    def chunk_result(self, logits: Tensor, targets: GradedTargets) -> ChunkResult:
        """One term per row with a relevant document: log-sum-exp less the expected logit under the target."""
        rows, columns = targets.rows, targets.columns
        relevance = targets.relevance.nan_to_num(0.0).to(logits.dtype)
        total = logits.new_zeros(len(logits)).index_add_(0, rows, relevance)
        usable = total > 0
        share = relevance / total.clamp_min(torch.finfo(logits.dtype).tiny)[rows]
        expected = (share * logits[rows, columns]).sum(dtype=torch.float64)
        masked = targets.relevance.isnan()
        logits[rows[masked], columns[masked]] = -torch.inf
        whole = torch.logsumexp(logits, dim=1).masked_fill(~usable, 0.0)
        logits[~usable] = -torch.inf
        gradient = logits.sub_(whole.unsqueeze(1)).exp_()
        gradient[rows, columns] -= share
        return ChunkResult(whole.sum(dtype=torch.float64) - expected, usable.sum(), gradient)

    def terms(self, known: Tensor, targets: GradedTargets) -> tuple[Terms, Tensor]:
        """The documents of a query without a grade."""
        return Terms.of_queries(targets), torch.ones_like(targets.rows, dtype=torch.bool)

    def result(self, log_sums: Tensor, known: Tensor, terms: Terms, targets: GradedTargets) -> SoftmaxResult:
        """As `chunk_result`; graded documents join the log-sum-exp of the others."""
        rows, masked = targets.rows, targets.relevance.isnan()
        relevance = targets.relevance.nan_to_num(0.0).to(known.dtype)
        total = torch.zeros_like(log_sums).index_add_(0, rows, relevance)
        share = relevance / total.clamp_min(torch.finfo(known.dtype).tiny)[rows]
        graded = known.masked_fill(masked, -torch.inf)
        top = log_sums.scatter_reduce(0, rows, graded, "amax")
        top = top.masked_fill(top.isinf(), 0.0)
        summed = (log_sums - top).exp().index_add_(0, rows, (graded - top[rows]).exp())
        whole = torch.where(total > 0, top + summed.log(), torch.inf)
        expected = (share * known.masked_fill(masked, 0.0)).sum(dtype=torch.float64)
        value = whole.masked_fill(total <= 0, 0.0).sum(dtype=torch.float64) - expected
        return SoftmaxResult(value, (total > 0).sum(), whole, (graded - whole[rows]).exp() - share)
