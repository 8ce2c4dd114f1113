"""InfoNCE: each positive against the documents that are no positives of its query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bixse.errors import InputError
from bixse.losses.engines.row_chunks import ChunkResult, RowWiseLoss
from bixse.losses.options import DEFAULT_SCALE, LossOptions

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.losses.targets import GradedTargets


class InfoNCELoss(RowWiseLoss):
    """Softmax cross-entropy of each positive against the batch's documents (BiXSE paper, equation 1).

    L = -(1/P) sum over the P positive entries of log [ exp(s_ij) / (exp(s_ij) + sum_k exp(s_ik)) ], s = scale * cos,
    k over the documents that are no positives of query i. A entry is positive when its relevance is at least `cutoff`.
    Two positives of one query do not compete. (van den Oord et al. 2018, arXiv:1807.03748, equation 4.)

    Args:
        model: the encoder that is trained.
        scale: 1 / temperature, above 0.
        cutoff: relevance in (0, 1] from which a document is a positive.
        options: see `GradedLoss`.

    Raises:
        InputError: scale or cutoff outside its range.

    Example:
        With sentence-transformers' own trainer::

            from datasets import Dataset
            from sentence_transformers import SentenceTransformerTrainer
            from bixse import build_encoder
            from bixse.losses import InfoNCELoss

            model = build_encoder("demo")  # or SentenceTransformer("a name or a folder")
            columns = {
                "query": ["copy a file", "sort a list"],
                "document": ["shutil.copy: copy a file", "sorted: a new sorted list"],
                "label": [1.0, 0.7],
            }
            dataset = Dataset.from_dict(columns)
            trainer = SentenceTransformerTrainer(model, train_dataset=dataset, loss=InfoNCELoss(model))
            trainer.train()
    """

    def __init__(
        self,
        model: SentenceTransformer,
        scale: float = DEFAULT_SCALE,
        cutoff: float = 0.5,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(model, scale, **options)
        if not 0 < cutoff <= 1:
            raise InputError(f"cutoff: got {cutoff}; expected a relevance in (0, 1]; fix: 0.5 is usual")
        self.cutoff = cutoff

    @property
    def positive_threshold(self) -> float:
        """A query needs a positive: a document of relevance at least `cutoff`."""
        return self.cutoff

    def chunk_result(self, logits: Tensor, targets: GradedTargets) -> ChunkResult:
        """One term a positive; with n the log-sum-exp of the row's negatives it is softplus(n - s)."""
        positive = targets.relevance >= self.cutoff
        rows, columns = targets.rows[positive], targets.columns[positive]
        chosen = logits[rows, columns]
        no_negative = positive | targets.relevance.isnan()
        logits[targets.rows[no_negative], targets.columns[no_negative]] = -torch.inf
        negatives = torch.logsumexp(logits, dim=1)
        gap = negatives[rows] - chosen
        share = gap.sigmoid()  # (P,): the pull on the positive, and the push on its negatives together
        push = torch.zeros_like(negatives).index_add_(0, rows, share)
        finite = negatives.masked_fill(negatives.isinf(), 0.0)  # a row without a negative
        gradient = logits.sub_(finite.unsqueeze(1)).exp_().mul_(push.unsqueeze(1))
        gradient[rows, columns] = -share
        return ChunkResult(softplus(gap).sum(dtype=torch.float64), len(rows), gradient)

    def get_config_dict(self) -> dict[str, Any]:
        """Settings for the model card."""
        return {**super().get_config_dict(), "cutoff": self.cutoff}
