"""Soft InfoNCE: softmax over the batch against the graded relevance of a query."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from bixse.losses.engines.row_chunks import ChunkResult, RowWiseLoss

if TYPE_CHECKING:
    from torch import Tensor

    from bixse.losses.targets import GradedTargets


class SoftInfoNCELoss(RowWiseLoss):
    """Softmax cross-entropy against the graded relevance of a row, normalised to sum 1.

    L = -(1/R) sum_i sum_j t_ij log softmax_j(s_ij), t_ij = z_ij / sum_k z_ik, over the R rows with a relevant
    document: the one-hot target of InfoNCE replaced by the teacher's soft labels, as in Cheng et al. 2023.

    Args:
        model: the encoder that is trained.
        scale: 1 / temperature, above 0.
        options: see `GradedLoss`.

    Raises:
        InputError: scale outside its range.

    Example:
        With sentence-transformers' own trainer::

            from datasets import Dataset
            from sentence_transformers import SentenceTransformerTrainer
            from bixse import build_encoder
            from bixse.losses import SoftInfoNCELoss

            model = build_encoder("demo")  # or SentenceTransformer("a name or a folder")
            columns = {
                "query": ["copy a file", "sort a list"],
                "document": ["shutil.copy: copy a file", "sorted: a new sorted list"],
                "label": [1.0, 0.7],
            }
            dataset = Dataset.from_dict(columns)
            trainer = SentenceTransformerTrainer(model, train_dataset=dataset, loss=SoftInfoNCELoss(model))
            trainer.train()
    """

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
