"""Losses on two documents of one query: pairwise BCE (RankNet) and LambdaLoss, without a dense table of pairs."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import logsigmoid

from bixse.losses.catalogue import LossOptions
from bixse.losses.tiles.row_chunks import ChunkResult, RowWiseLoss

if TYPE_CHECKING:
    from bixse.losses.targets import GradedTargets

    PairWeights: TypeAlias = Callable[[Tensor, Tensor], Tensor]

MU = 10.0
"""Weight of "ndcg-loss2" in "ndcg-loss2++", as in sentence-transformers."""


class PairwiseLoss(RowWiseLoss):
    """The base of the losses on pairs: a weighted sum of softplus(-(s_j - s_k)), document j above document k.

    A dense form takes a B x N x N tensor. Here each document j with relevance above 0 meets its row once, so the work
    is (number of these documents) x N entries, one block at a time.
    """

    mean_over: ClassVar[Literal["pairs", "queries"]]
    """Divisor of the sum: the number of pairs with a weight, or of queries with a document of relevance above 0."""

    @abstractmethod
    def pair_weights(self, logits: Tensor, relevance: Tensor, counted: Tensor) -> PairWeights:
        """Return a function from (P,) rows and (P,) columns of winners to (P, N) weights, 0 for no pair.

        Logits, relevance and `counted` (the documents that take part) are (R, N).
        """

    def chunk_result(self, logits: Tensor, targets: GradedTargets) -> ChunkResult:
        """Return one term per pair; the winners of a block come one block's size at a time."""
        relevance, weight = targets.dense(logits.dtype)
        counted = weight.bool()
        weights = self.pair_weights(logits, relevance, counted)
        winner = targets.relevance > 0
        winners = zip(targets.rows[winner].split(len(logits)), targets.columns[winner].split(len(logits)), strict=True)
        gradient = torch.zeros_like(logits)
        value = logits.new_zeros((), dtype=torch.float64)
        pairs = torch.zeros((), dtype=torch.long, device=logits.device)
        for rows, columns in winners:
            weighed = weights(rows, columns)  # (P, N)
            behind = logits[rows].sub_(logits[rows, columns].unsqueeze(1))  # s_k - s_j
            value -= logsigmoid(-behind).mul_(weighed).sum(dtype=torch.float64)
            push = behind.sigmoid_().mul_(weighed)
            gradient.index_add_(0, rows, push)
            gradient.index_put_((rows, columns), -push.sum(dim=1), accumulate=True)
            pairs += weighed.count_nonzero()
        queries = (relevance > 0).any(dim=1).sum()
        return ChunkResult(value, pairs if self.mean_over == "pairs" else queries, gradient)


class PairwiseBCELoss(PairwiseLoss):
    """Binary cross-entropy of "j is more relevant than k" (RankNet, Burges et al. 2005, equation 3).

    L = (1/P) sum over the P pairs with z_ij > z_ik of -log sigma(s_ij - s_ik), s = scale * cos. It is also the
    student's loss of PairDistill (Huang and Chen 2024) with the teacher's order as target.
    """

    mean_over = "pairs"

    def pair_weights(self, logits: Tensor, relevance: Tensor, counted: Tensor) -> PairWeights:

        def weights(rows: Tensor, columns: Tensor) -> Tensor:
            lower = relevance[rows] < relevance[rows, columns].unsqueeze(1)
            return lower.logical_and_(counted[rows]).to(logits.dtype)

        return weights


class LambdaOptions(LossOptions):
    """Options of `LambdaLoss`."""

    weighting: Literal["ndcg-loss1", "ndcg-loss2", "lambdarank", "ndcg-loss2++"] = "ndcg-loss2"
    """Weight of a pair of documents. The BiXSE paper's v1 is "ndcg-loss1", its v2 "ndcg-loss2"."""
    top_grade: float = Field(default=3.0, gt=0, le=32)
    """Grade of relevance 1: 3 for TREC's 0 to 3, 4 for 1 to 5. The gain is 2^(z * top_grade) - 1."""


class LambdaLoss(PairwiseLoss):
    """Weighted pairwise logistic loss of the LambdaLoss framework (Wang et al. 2018, 10.1145/3269206.3271784).

    L = (1/R) sum over the R queries with a relevant document, over pairs (j, k), of w_jk log2(1 + exp(-(s_j - s_k))).
    With the gain G_j = gain(z_j) / maxDCG, the rank r_j under the present scores and the discount D(r) = log2(1 + r):

    - "ndcg-loss1" (section 5.1): G_j / D(r_j), over every pair j != k;
    - "ndcg-loss2" (equation 16): |1/D(|r_j - r_k|) - 1/D(|r_j - r_k| + 1)| |G_j - G_k|, over pairs with z_j > z_k;
    - "lambdarank" (equation 11): |1/D(r_j) - 1/D(r_k)| |G_j - G_k|, over pairs with z_j > z_k;
    - "ndcg-loss2++" (equation 17): "lambdarank" + 10 * "ndcg-loss2".

    No gradient flows through the weights. Equal scores rank in the order of the columns.
    """

    options_class = LambdaOptions
    options: LambdaOptions
    mean_over = "queries"

    def pair_weights(self, logits: Tensor, relevance: Tensor, counted: Tensor) -> PairWeights:
        weighting = self.options.weighting
        # the (R, N) rank of each document in its row, 1 for the highest; equal scores rank in column order
        order = torch.argsort(logits.masked_fill(~counted, -torch.inf), dim=1, descending=True, stable=True)
        from_first = torch.arange(1, logits.shape[1] + 1, device=logits.device).expand_as(order)
        ranks = torch.empty_like(order).scatter_(1, order, from_first)
        positions = torch.arange(logits.shape[1] + 2, dtype=logits.dtype, device=logits.device)
        inverse = 1 / torch.log2(positions + 1.0)
        inverse[0] = 0.0  # distance 0 compares a document with itself; inverse[r] is 1 / D(r)
        # the largest DCG that each row can reach; 0 without a relevant document
        ideal = relevance.topk(int((relevance > 0).sum(dim=1).amax()), dim=1).values
        largest = (self._gains(ideal) * inverse[1 : ideal.shape[1] + 1]).sum(dim=1)
        gains = self._gains(relevance)
        gains /= largest.masked_fill_(largest == 0, 1.0).unsqueeze(1)

        def weights(rows: Tensor, columns: Tensor) -> Tensor:
            rank, winner_rank = ranks[rows], ranks[rows, columns].unsqueeze(1)  # (P, N), (P, 1)
            winner_gain = gains[rows, columns].unsqueeze(1)
            losers = counted[rows]
            if weighting == "ndcg-loss1":
                losers[torch.arange(len(rows), device=rows.device), columns] = False
                return (winner_gain * inverse[winner_rank] / math.log(2)).expand_as(rank) * losers
            losers &= relevance[rows] < relevance[rows, columns].unsqueeze(1)
            discount = logits.new_zeros(rank.shape)
            if weighting != "ndcg-loss2":
                discount += (inverse[winner_rank] - inverse[rank]).abs_()
            if weighting != "lambdarank":
                apart = (rank - winner_rank).abs_()
                share = 1.0 if weighting == "ndcg-loss2" else MU
                discount += share * (inverse[apart] - inverse[apart + 1]).abs_()
            return discount.mul_((winner_gain - gains[rows]).abs_()).mul_(losers).div_(math.log(2))

        return weights

    def _gains(self, relevance: Tensor) -> Tensor:
        return torch.exp2(relevance * self.options.top_grade) - 1
