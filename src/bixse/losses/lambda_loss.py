"""LambdaLoss: pairs of documents weighed by what their order means to nDCG."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack, get_args

import torch

from bixse.errors import InputError
from bixse.losses.engines.pairwise import PairwiseLoss
from bixse.losses.options import DEFAULT_SCALE, LossOptions

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import Tensor

    from bixse.losses.engines.pairwise import PairWeights
    from bixse.losses.targets import GradedTargets

Weighting = Literal["ndcg-loss1", "ndcg-loss2", "lambdarank", "ndcg-loss2++"]
"""How a pair is weighed; the BiXSE paper's v1 is "ndcg-loss1", its v2 "ndcg-loss2"."""
WEIGHTINGS: tuple[Weighting, ...] = get_args(Weighting)
"""The words for it."""


class LambdaLoss(PairwiseLoss):
    """Weighted pairwise logistic loss of the LambdaLoss framework (Wang et al. 2018, 10.1145/3269206.3271784).

    L = (1/R) sum over the R queries with a relevant document, over pairs (j, k), of w_jk log2(1 + exp(-(s_j - s_k))).
    With the gain G_j = gain(z_j) / maxDCG, the rank r_j under the present scores and the discount D(r) = log2(1 + r):

    - "ndcg-loss1" (section 5.1): G_j / D(r_j), over every pair j != k;
    - "ndcg-loss2" (equation 16): |1/D(|r_j - r_k|) - 1/D(|r_j - r_k| + 1)| |G_j - G_k|, over pairs with z_j > z_k;
    - "lambdarank" (equation 11): |1/D(r_j) - 1/D(r_k)| |G_j - G_k|, over pairs with z_j > z_k;
    - "ndcg-loss2++" (equation 17): "lambdarank" + mu * "ndcg-loss2".

    No gradient flows through the weights. Equal scores rank in the order of the columns.

    Args:
        model: the encoder that is trained.
        scale: logit scale, above 0: the slope of the sigmoid.
        weighting: one of the four above.
        gain: "exponential" is 2^y - 1, "linear" is y, with y = z * top_grade.
        top_grade: the grade that relevance 1 stands for, above 0: 3 for TREC's 0 to 3, 4 for 1 to 5.
        mu: weight of "ndcg-loss2" in "ndcg-loss2++", at least 0.
        k: keep pairs of which one document ranks within k, and cut nDCG there; None keeps all.
        in_batch_negatives: rank all documents of the batch for a query, not only its graded ones.
        options: see `GradedLoss`.

    Raises:
        InputError: an argument is outside its range.

    Example:
        With sentence-transformers' own trainer::

            from datasets import Dataset
            from sentence_transformers import SentenceTransformerTrainer
            from bixse import build_encoder
            from bixse.losses import LambdaLoss

            model = build_encoder("demo")  # or SentenceTransformer("a name or a folder")
            columns = {
                "query": ["copy a file", "sort a list"],
                "document": ["shutil.copy: copy a file", "sorted: a new sorted list"],
                "other": ["shutil.move: move a file", "list.sort: sort in place"],
                "label": [[1.0, 0.3], [0.7, 1.0]],
            }
            dataset = Dataset.from_dict(columns)
            trainer = SentenceTransformerTrainer(model, train_dataset=dataset, loss=LambdaLoss(model))
            trainer.train()
    """

    mean_over: ClassVar[Literal["pairs", "queries"]] = "queries"

    def __init__(
        self,
        model: SentenceTransformer,
        scale: float = DEFAULT_SCALE,
        weighting: Weighting = "ndcg-loss2",
        gain: Literal["exponential", "linear"] = "exponential",
        top_grade: float = 3.0,
        mu: float = 10.0,
        k: int | None = None,
        in_batch_negatives: bool = True,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(model, scale, in_batch_negatives, **options)
        if weighting not in WEIGHTINGS:
            raise InputError(
                f"weighting: got {weighting!r}; expected one of {', '.join(WEIGHTINGS)}; fix: choose one of them"
            )
        if gain not in ("exponential", "linear"):
            raise InputError(f"gain: got {gain!r}; expected 'exponential' or 'linear'; fix: choose one of them")
        if not 0 < top_grade <= 32:
            raise InputError(f"top_grade: got {top_grade}; expected a grade in (0, 32]; fix: 3 for grades 0 to 3")
        if not 0 <= mu < math.inf:
            raise InputError(f"mu: got {mu}; expected a number of at least 0; fix: 10 is usual")
        if k is not None and (isinstance(k, bool) or not isinstance(k, int) or k < 1):
            raise InputError(f"k: got {k!r}; expected a rank of at least 1; fix: leave it out for all ranks")
        self.weighting: Weighting = weighting
        self.gain: Literal["exponential", "linear"] = gain
        self.top_grade = top_grade
        self.mu = mu
        self.k = k

    def pair_weights(self, logits: Tensor, relevance: Tensor, counted: Tensor, targets: GradedTargets) -> PairWeights:
        """The weights of one block, from its ranks under the present scores."""
        ranks = _ranks(logits.masked_fill(~counted, -torch.inf))
        places = torch.arange(logits.shape[1] + 2, dtype=logits.dtype, device=logits.device)
        inverse = 1 / torch.log2(places + 1.0)
        inverse[0] = 0.0  # a distance of 0 is a document and itself; inverse[r] is 1 / D(r)
        gains = self._gains(relevance)
        gains /= self._max_dcg(targets, len(logits), inverse).unsqueeze(1)

        def weights(rows: Tensor, columns: Tensor) -> Tensor:
            rank, own_rank = ranks[rows], ranks[rows, columns].unsqueeze(1)  # (P, N), (P, 1)
            own_gain = gains[rows, columns].unsqueeze(1)
            taken = counted[rows]
            if self.k is not None:
                taken &= (rank <= self.k) | (own_rank <= self.k)
            if self.weighting == "ndcg-loss1":
                taken[torch.arange(len(rows), device=rows.device), columns] = False
                return (own_gain * inverse[own_rank] / math.log(2)).expand_as(rank) * taken
            taken &= relevance[rows] < relevance[rows, columns].unsqueeze(1)
            discount = logits.new_zeros(rank.shape)
            if self.weighting != "ndcg-loss2":
                discount += (inverse[own_rank] - inverse[rank]).abs_()
            if self.weighting != "lambdarank":
                apart = (rank - own_rank).abs_()
                share = 1.0 if self.weighting == "ndcg-loss2" else self.mu
                discount += share * (inverse[apart] - inverse[apart + 1]).abs_()
            return discount.mul_((own_gain - gains[rows]).abs_()).mul_(taken).div_(math.log(2))

        return weights

    def _gains(self, relevance: Tensor) -> Tensor:
        grade = relevance * self.top_grade
        return torch.exp2(grade) - 1 if self.gain == "exponential" else grade

    def _max_dcg(self, targets: GradedTargets, rows: int, inverse: Tensor) -> Tensor:
        """(R,) the largest DCG a row can reach; 1 where no document is relevant."""
        relevant = targets.relevance > 0
        row, relevance = targets.rows[relevant], targets.relevance[relevant].to(inverse.dtype)
        by_relevance = torch.argsort(relevance, descending=True, stable=True)
        order = by_relevance[torch.argsort(row[by_relevance], stable=True)]
        row, relevance = row[order], relevance[order]
        first = torch.searchsorted(row, torch.arange(rows, device=row.device))
        rank = torch.arange(len(row), device=row.device) - first[row] + 1
        gains = self._gains(relevance) * inverse[rank]
        if self.k is not None:
            gains = gains * (rank <= self.k)
        largest = inverse.new_zeros(rows).index_add_(0, row, gains)
        return largest.masked_fill_(largest == 0, 1.0)

    def get_config_dict(self) -> dict[str, Any]:
        """Settings for the model card."""
        own = {name: getattr(self, name) for name in ("weighting", "gain", "top_grade", "mu", "k")}
        return {**super().get_config_dict(), **own}


def _ranks(logits: Tensor) -> Tensor:
    """(R, N) rank of each document in its row, 1 for the highest; equal logits rank in the order of the columns."""
    order = torch.argsort(logits, dim=1, descending=True, stable=True)
    places = torch.arange(1, logits.shape[1] + 1, device=logits.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places)
