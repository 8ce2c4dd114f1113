"""InfoNCE and Soft InfoNCE: softmax over the documents of the batch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bixse.errors import InputError
from bixse.losses.base import GradedLoss, InBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sentence_transformers import SentenceTransformer

    from bixse.losses.targets import GradedTargets


class InfoNCELoss(GradedLoss):
    """Softmax cross-entropy of each positive against the batch's documents (BiXSE paper, equation 1).

    L = -(1/P) sum over the P positive cells of log [ exp(s_ij) / (exp(s_ij) + sum_k exp(s_ik)) ], s = scale * cos,
    k over the documents that are no positives of query i. A cell is positive when its relevance is at least `cutoff`.
    Two positives of one query do not compete. (van den Oord et al. 2018, arXiv:1807.03748.)

    Args:
        model: the encoder that is trained.
        scale: 1 / temperature, above 0.
        cutoff: relevance in (0, 1] from which a document is a positive.
        in_batch: "known" lets known positives of other rows count, "paper" treats them as negatives.
        texts_per_pass: texts of one pass through the encoder.

    Raises:
        InputError: scale or cutoff outside its range.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        scale: float = 20.0,
        cutoff: float = 0.5,
        in_batch: InBatch = "known",
        texts_per_pass: int = 32,
    ) -> None:
        super().__init__(model, in_batch, texts_per_pass)
        _check_scale(scale)
        if not 0 < cutoff <= 1:
            raise InputError(f"cutoff: got {cutoff}; expected a relevance in (0, 1]; to mend: 0.5 is usual")
        self.scale = scale
        self.cutoff = cutoff

    def can_use(self, relevance: Sequence[float]) -> bool:
        """A query needs a positive: a document of relevance at least `cutoff`."""
        return any(z >= self.cutoff for z in relevance)

    def compute_loss_from_embeddings(self, queries: Tensor, documents: Tensor, targets: GradedTargets) -> Tensor:
        """Mean over the positive cells of (B, D) queries and (N, D) documents; 0 without a positive."""
        logits = self.scale * queries.float() @ documents.float().T  # (B, N)
        relevance, weight = targets.dense()
        positive = (relevance >= self.cutoff) & weight.bool()
        self.statistics = _mean_logits(logits, relevance, weight)
        if not bool(positive.any()):
            return logits.sum() * 0.0
        competing = logits.masked_fill(positive | ~weight.bool(), -torch.inf)
        negatives = torch.logsumexp(competing, dim=1, keepdim=True).expand_as(logits)[positive]
        chosen = logits[positive]
        return (torch.logaddexp(chosen, negatives) - chosen).mean()

    def get_config_dict(self) -> dict[str, Any]:
        """Settings for the model card."""
        return {**super().get_config_dict(), "scale": self.scale, "cutoff": self.cutoff}


class SoftInfoNCELoss(GradedLoss):
    """Softmax cross-entropy against the graded relevance of a row, normalised to sum 1.

    L = -(1/R) sum_i sum_j t_ij log softmax_j(s_ij), t_ij = z_ij / sum_k z_ik, over the R rows with a relevant
    document: the one-hot target of InfoNCE replaced by the teacher's soft labels, as in Cheng et al. 2023.

    Args:
        model: the encoder that is trained.
        scale: 1 / temperature, above 0.
        in_batch: "known" uses every grade the batch knows, "paper" only a row's own documents (all else 0).
        texts_per_pass: texts of one pass through the encoder.

    Raises:
        InputError: scale outside its range.
    """

    def __init__(
        self, model: SentenceTransformer, scale: float = 20.0, in_batch: InBatch = "known", texts_per_pass: int = 32
    ) -> None:
        super().__init__(model, in_batch, texts_per_pass)
        _check_scale(scale)
        self.scale = scale

    def compute_loss_from_embeddings(self, queries: Tensor, documents: Tensor, targets: GradedTargets) -> Tensor:
        """Mean over the rows with a relevant document; 0 without one."""
        logits = self.scale * queries.float() @ documents.float().T  # (B, N)
        relevance, weight = targets.dense()
        relevance = relevance.to(logits.dtype)
        self.statistics = _mean_logits(logits, relevance, weight)
        total = relevance.sum(dim=1, keepdim=True)
        usable = total.squeeze(1) > 0
        if not bool(usable.any()):
            return logits.sum() * 0.0
        log_probability = torch.log_softmax(logits.masked_fill(~weight.bool(), -torch.inf), dim=1)
        terms = relevance * log_probability.masked_fill(~weight.bool(), 0.0) / total.clamp_min(1e-12)
        return -terms.sum(dim=1)[usable].mean()

    def get_config_dict(self) -> dict[str, Any]:
        """Settings for the model card."""
        return {**super().get_config_dict(), "scale": self.scale}


def _check_scale(scale: float) -> None:
    if not 0 < scale < math.inf:
        raise InputError(f"scale: got {scale}; expected a number above 0; to mend: 20 is temperature 0.05")


@torch.no_grad()
def _mean_logits(logits: Tensor, relevance: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """Mean logit of the cells with relevance >= 0.5 and of the other counted cells, for the log."""
    relevant = (relevance >= 0.5) & weight.bool()
    others = ~relevant & weight.bool()
    return {"mean_logit_relevant": logits[relevant].mean(), "mean_logit_irrelevant": logits[others].mean()}
