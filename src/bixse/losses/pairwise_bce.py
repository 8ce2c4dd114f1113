"""Pairwise BCE: of two documents of a query the more relevant one scores higher."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from bixse.losses.engines.pairwise import PairwiseLoss

if TYPE_CHECKING:
    from torch import Tensor

    from bixse.losses.engines.pairwise import PairWeights
    from bixse.losses.targets import GradedTargets


class PairwiseBCELoss(PairwiseLoss):
    """Binary cross-entropy of "j is more relevant than k" (RankNet, Burges et al. 2005, equation 3).

    L = (1/P) sum over the P pairs with z_ij > z_ik of -log sigma(s_ij - s_ik), s = scale * cos. Also the student's
    loss of PairDistill (Huang and Chen 2024) with the teacher's order as target.

    Args:
        model: the encoder that is trained.
        scale: logit scale, above 0: the slope of the sigmoid.
        in_batch_negatives: pair a query's documents with all others of the batch too, not only with one another.
        options: see `GradedLoss`.

    Raises:
        InputError: scale outside its range.

    Example:
        With sentence-transformers' own trainer::

            from datasets import Dataset
            from sentence_transformers import SentenceTransformerTrainer
            from bixse import build_encoder
            from bixse.losses import PairwiseBCELoss

            model = build_encoder("demo")  # or SentenceTransformer("a name or a folder")
            columns = {
                "query": ["copy a file", "sort a list"],
                "document": ["shutil.copy: copy a file", "sorted: a new sorted list"],
                "other": ["shutil.move: move a file", "list.sort: sort in place"],
                "label": [[1.0, 0.3], [0.7, 1.0]],
            }
            dataset = Dataset.from_dict(columns)
            trainer = SentenceTransformerTrainer(model, train_dataset=dataset, loss=PairwiseBCELoss(model))
            trainer.train()
    """

    mean_over: ClassVar[Literal["pairs", "queries"]] = "pairs"

    def pair_weights(self, logits: Tensor, relevance: Tensor, counted: Tensor, targets: GradedTargets) -> PairWeights:
        """1 for each pair of different relevance."""

        def weights(rows: Tensor, columns: Tensor) -> Tensor:
            lower = relevance[rows] < relevance[rows, columns].unsqueeze(1)
            return lower.logical_and_(counted[rows]).to(logits.dtype)

        return weights
