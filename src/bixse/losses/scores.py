"""Any loss on scores that are no cosines of two vectors: late interaction and sparse embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers import MultiVectorEncoder, SparseEncoder
from sentence_transformers.base.losses.merged_forward import embed_columns, embed_columns_padded
from sentence_transformers.util import maxsim
from torch import Tensor, nn

from bixse.errors import InputError, ModelError
from bixse.losses.base import table_of_labels
from bixse.losses.catalogue import build_loss
from bixse.losses.targets import GradedTargets

if TYPE_CHECKING:
    from bixse.encoders.embedding import Features
    from bixse.losses.base import GradedLoss


class ScoreLoss(nn.Module):
    """A loss of bixse on a `MultiVectorEncoder` or a `SparseEncoder` of sentence-transformers, for its trainer.

    The score takes the place of the cosine: s_ij = alpha score(q_i, d_j) + beta.

    - Late interaction: the mean over the query's tokens of the highest cosine with a token of the document. It lies in
      [-1, 1] as a cosine does, so that alpha, beta and thresholds hold for short and long queries. The model's
      similarity becomes "meanmaxsim", which is saved with it.
    - Sparse: the dot product. It has no bound: use a scale near 1. sentence-transformers' `SpladeLoss` takes this loss
      as its inner loss. Use `BatchSamplers.NO_DUPLICATES` then, as it passes on embeddings without their texts.

    Every other document of the batch is a negative. Labels are (B,) or (B, K) relevance in [0, 1]. `loss` is a name of
    `LOSSES`, `options` are those of `build_loss`. With bixse, `SaveRelevanceHead` saves scale and bias. Raises
    ModelError for another model, InputError for labels that do not fit.

    Example:
        ::

            from sentence_transformers import MultiVectorEncoder, MultiVectorEncoderTrainer

            model = MultiVectorEncoder("answerdotai/ModernBERT-base")
            loss = ScoreLoss(model, "bixse", scale=10.0)
            dataset = load_graded_pairs("pairs.jsonl").to_dataset()
            MultiVectorEncoderTrainer(model, train_dataset=dataset, loss=loss).train()
    """

    def __init__(
        self,
        model: MultiVectorEncoder | SparseEncoder,
        loss: str = "bixse",
        mini_batch_size: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if not isinstance(model, (MultiVectorEncoder, SparseEncoder)):
            raise ModelError(
                f"loss: got {type(model).__name__} as the model; expected a MultiVectorEncoder or a SparseEncoder; "
                "fix: use BiXSELoss for a SentenceTransformer"
            )
        self.model: Any = model
        self.mini_batch_size = mini_batch_size
        unread = sorted({"dimensions", "gradient_cache"} & options.keys())
        if mini_batch_size is not None and isinstance(model, SparseEncoder):
            unread.append("mini_batch_size")
        if unread:
            raise InputError(
                f"loss: got {unread[0]} for {type(model).__name__}, which does not read it; expected none; "
                "fix: leave it out"
            )
        # float32: on a GPU the products would round the scores themselves to bf16
        self.loss: GradedLoss = build_loss(loss, nn.Identity(), **{"products": "float32", **options})  # type: ignore[arg-type]
        if isinstance(model, MultiVectorEncoder):
            model.similarity_fn_name = "meanmaxsim"

    def forward(self, sentence_features: Iterable[Features], labels: Tensor) -> Tensor:
        """Return the loss of one batch: the first feature set holds the queries, the others documents."""
        queries, *documents = [dict(features) for features in sentence_features]  # the model writes into them
        first, targets = self.loss.targets_of_labels(queries, documents, labels)
        # scores: (B, N), one column of documents after the other
        if isinstance(self.model, SparseEncoder):
            embedded = embed_columns(self.model, [queries, *documents])
            scores = _dot(embedded[0], torch.cat(embedded[1:]))
        else:
            asked = self.model(dict(queries), task=queries.get("task", "query"))
            columns, masks = embed_columns_padded(self.model, documents, self.mini_batch_size, "document")
            of_columns = [
                maxsim(asked["token_embeddings"], column, asked["attention_mask"].bool(), mask, length_normalize=True)
                for column, mask in zip(columns, masks, strict=True)
            ]
            scores = torch.cat(of_columns, dim=1)
        return self._of_scores(scores[:, first], targets)

    def compute_loss_from_embeddings(self, embeddings: Sequence[Tensor], labels: Tensor) -> Tensor:
        """Return the loss of (B, D) sparse queries and one or more (B, D) columns of documents, for `SpladeLoss`."""
        queries, *documents = embeddings
        rows, number = len(queries), len(documents)
        relevance = table_of_labels(labels, rows, number).T.reshape(-1)
        row = torch.arange(rows, device=labels.device).repeat(number)
        column = torch.arange(rows * number, device=labels.device)
        targets = GradedTargets.from_entries(row, column, relevance, (rows, rows * number))
        return self._of_scores(_dot(queries, torch.cat(documents)), targets)

    def _of_scores(self, scores: Tensor, targets: GradedTargets) -> Tensor:
        # the scores as embeddings of the queries, and one axis per document: their products are the scores again, so
        # that every loss, its bias and its log need no second form; N x N numbers are few next to the encoder's
        with torch.autocast(scores.device.type, enabled=False):  # bf16 logits near -6 have steps of 0.03
            axes = torch.eye(scores.shape[1], device=scores.device)
            return self.loss.compute_loss_from_embeddings(scores.float(), axes, targets)

    @property
    def with_head(self) -> GradedLoss:
        """Return the loss that learns scale and bias."""
        return self.loss

    @property
    def statistics(self) -> dict[str, Tensor]:
        """Figures of the last batch for a log."""
        return self.loss.statistics

    def get_config_dict(self) -> dict[str, Any]:
        return {"loss": type(self.loss).__name__, **self.loss.get_config_dict()}


def _dot(queries: Tensor, documents: Tensor) -> Tensor:
    dense = [part.to_dense() if part.is_sparse else part for part in (queries, documents)]
    return dense[0].float() @ dense[1].float().T
