"""Pairs of a query's documents, enumerated sparsely: only a document with relevance above 0 can win one."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, Unpack

import torch
from torch.nn.functional import logsigmoid

from bixse.losses.engines.row_chunks import ChunkResult, RowWiseLoss
from bixse.losses.options import DEFAULT_SCALE, LossOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sentence_transformers import SentenceTransformer
    from torch import Tensor

    from bixse.losses.targets import GradedTargets

    PairWeights: TypeAlias = Callable[[Tensor, Tensor], Tensor]


class PairwiseLoss(RowWiseLoss):
    """Base of the losses on pairs: a weighted sum of softplus(-(s_j - s_k)), document j above document k.

    A dense form takes a B x N x N tensor. Here each document j with relevance above 0 meets its row once: the work
    is (number of such documents) x N entries, a block at a time.

    Args:
        model: the encoder that is trained.
        scale: logit scale, above 0: the slope of the sigmoid.
        in_batch_negatives: pair a query's documents with all others of the batch too, not only with one another.
        options: see `GradedLoss`.

    Raises:
        InputError: scale outside its range.
    """

    mean_over: ClassVar[Literal["pairs", "queries"]]
    """What the sum is divided by: pairs that weigh something, or queries with a document of relevance above 0."""

    def __init__(
        self,
        model: SentenceTransformer,
        scale: float = DEFAULT_SCALE,
        in_batch_negatives: bool = True,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(model, scale, **options)
        self.in_batch_negatives = in_batch_negatives

    @property
    def requires(self) -> str:
        """What a query must bring."""
        return super().requires if self.in_batch_negatives else "two documents of different relevance"

    def is_informative(self, relevance: Sequence[float]) -> bool:
        """A query needs two documents of different relevance; the batch's others may be one of them."""
        return super().is_informative(relevance) if self.in_batch_negatives else len(set(relevance)) > 1

    @abstractmethod
    def pair_weights(self, logits: Tensor, relevance: Tensor, counted: Tensor, targets: GradedTargets) -> PairWeights:
        """What the pairs of a block of rows weigh.

        Args:
            logits: (R, N).
            relevance: (R, N) in [0, 1].
            counted: (R, N) bool, the documents that take part.
            targets: the same relevance, sparse.

        Returns:
            A function from (P,) rows and (P,) columns of winners to (P, N) weights, 0 where there is no pair.
        """

    def chunk_result(self, logits: Tensor, targets: GradedTargets) -> ChunkResult:
        """One term per pair; the winners of a block are met a block's worth at a time."""
        relevance, weight = targets.dense(logits.dtype)
        counted = (weight if self.in_batch_negatives else targets.graded(logits.dtype)).bool()
        weights = self.pair_weights(logits, relevance, counted, targets)
        winner = targets.relevance > 0
        winners = zip(targets.rows[winner].split(len(logits)), targets.columns[winner].split(len(logits)), strict=True)
        gradient = torch.zeros_like(logits)
        value, pairs = logits.new_zeros((), dtype=torch.float64), 0
        for rows, columns in winners:
            weighed = weights(rows, columns)  # (P, N)
            behind = logits[rows].sub_(logits[rows, columns].unsqueeze(1))  # s_k - s_j
            value -= logsigmoid(-behind).mul_(weighed).sum(dtype=torch.float64)
            push = behind.sigmoid_().mul_(weighed)
            gradient.index_add_(0, rows, push)
            gradient.index_put_((rows, columns), -push.sum(dim=1), accumulate=True)
            pairs += int(weighed.count_nonzero())
        queries = len(targets.rows[winner].unique())
        return ChunkResult(value, pairs if self.mean_over == "pairs" else queries, gradient)

    def get_config_dict(self) -> dict[str, Any]:
        """Settings for the model card."""
        return {**super().get_config_dict(), "in_batch_negatives": self.in_batch_negatives}
