"""Margin MSE: differences of scores against differences of relevance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Unpack

import torch

from bixse.errors import InputError
from bixse.losses.engines.row_chunks import ChunkResult, RowWiseLoss
from bixse.losses.options import DEFAULT_SCALE, LossOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sentence_transformers import SentenceTransformer
    from torch import Tensor

    from bixse.losses.targets import GradedTargets


class MarginMSELoss(RowWiseLoss):
    """Mean squared error of the margin between two documents of a query (Hofstätter et al. 2020, arXiv:2010.02666).

    L = (1/P) sum over the P pairs j < k of a query's documents of [ (s_ij - s_ik) - m (z_ij - z_ik) ]^2, with
    s = scale * cos and m = scale * margin. The sum has a closed form, so no pair is ever formed.

    Args:
        model: the encoder that is trained.
        scale: unit of the scores, above 0; multiplies the loss by its square and changes nothing else.
        margin: difference of cosines that a difference in relevance of 1 is to reach, in (0, 2].
        in_batch_negatives: also pair a query's documents with all others of the batch; the BiXSE paper leaves
            them out because they harm.
        options: see `GradedLoss`.

    Raises:
        InputError: scale or margin outside its range.

    Example:
        With sentence-transformers' own trainer::

            from datasets import Dataset
            from sentence_transformers import SentenceTransformerTrainer
            from bixse import build_encoder
            from bixse.losses import MarginMSELoss

            model = build_encoder("demo")  # or SentenceTransformer("a name or a folder")
            columns = {
                "query": ["copy a file", "sort a list"],
                "document": ["shutil.copy: copy a file", "sorted: a new sorted list"],
                "other": ["shutil.move: move a file", "list.sort: sort in place"],
                "label": [[1.0, 0.3], [0.7, 1.0]],
            }
            dataset = Dataset.from_dict(columns)
            trainer = SentenceTransformerTrainer(model, train_dataset=dataset, loss=MarginMSELoss(model))
            trainer.train()
    """

    def __init__(
        self,
        model: SentenceTransformer,
        scale: float = DEFAULT_SCALE,
        margin: float = 1.0,
        in_batch_negatives: bool = False,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(model, scale, **options)
        if not 0 < margin <= 2 or math.isnan(margin):
            raise InputError(f"margin: got {margin}; expected a difference of cosines in (0, 2]; fix: 1 is usual")
        self.margin = margin
        self.in_batch_negatives = in_batch_negatives

    @property
    def requires(self) -> str:
        """What a query must bring."""
        return "a graded document" if self.in_batch_negatives else "two graded documents"

    def is_informative(self, relevance: Sequence[float]) -> bool:
        """A query needs two graded documents; one where the batch's others count too."""
        return len(relevance) >= (1 if self.in_batch_negatives else 2)

    def chunk_result(self, logits: Tensor, targets: GradedTargets) -> ChunkResult:
        """One term per pair of which at least one document is graded.

        Of g graded documents a and u others b, with errors taken from the mean of the graded ones, the pairs sum to
        (g + u) sum_a e_a^2 + g sum_b e_b^2.
        """
        relevance, counted = targets.dense(logits.dtype)
        graded = targets.graded(logits.dtype)
        slate = counted if self.in_batch_negatives else graded
        number = graded.sum(dim=1, keepdim=True)  # (R, 1)
        others = slate.sum(dim=1, keepdim=True) - number
        errors = logits.sub_(relevance.mul_(self.scale * self.margin))
        errors.sub_((errors * graded).sum(dim=1, keepdim=True) / number.clamp_min(1.0)).mul_(slate)
        weighed = (graded * others).add_(number).mul_(errors)
        value = (weighed * errors).sum(dtype=torch.float64)
        gradient = weighed.sub_(graded.mul_(errors.sum(dim=1, keepdim=True))).mul_(2.0)
        pairs = (number * (number - 1) / 2 + number * others).sum(dtype=torch.float64)
        return ChunkResult(value, pairs, gradient)

    def get_config_dict(self) -> dict[str, Any]:
        """Settings for the model card."""
        own = {"margin": self.margin, "in_batch_negatives": self.in_batch_negatives}
        return {**super().get_config_dict(), **own}
