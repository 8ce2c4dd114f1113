"""The trainer of rerankers, `PairTrainer`: query and document are read together, by a CrossEncoder."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from sentence_transformers.cross_encoder import CrossEncoderTrainer, losses

from bixse.encoders.head import RelevanceHead
from bixse.encoders.loading.backbones import reading_at_most
from bixse.encoders.platt import fit_platt
from bixse.training.config import RERANKER_LOSSES
from bixse.training.loop.trainer import GradedTrainer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bixse.data.graded_pairs import GradedPairs
    from bixse.encoders.scorers import Reranker
    from bixse.training.loop.batches import DrawnGroup

TOP_GRADE = 3.0
"""Label of relevance 1 in a loss over a query's documents. On [0, 1] its targets would be nearly flat."""
PAIRS_FITTED = 2000
"""Approximate number of training pairs to fit a head on."""


def pair_loss(name: str, model: Reranker) -> Any:
    """Return a loss of `RERANKER_LOSSES` with what `check_pairs` and `PairTrainer` read of a loss of ours."""
    loss = getattr(losses, RERANKER_LOSSES[name])(model)
    loss.listwise = name != "bce"
    loss.requires = "two documents of different relevance"
    loss.learned_otherwise = "nothing" if name == "lambda" else "at most that documents are equally relevant"
    loss.is_informative = lambda grades: not loss.listwise or max(grades) > min(grades)
    return loss


class PairCollator:
    """Collate drawn groups into texts, which the losses of sentence-transformers tokenise, and labels.

    `listwise` losses get a query with the list of its documents, and labels from 0 to `TOP_GRADE`. Other losses get
    one query per document, and relevance.
    """

    valid_label_columns = ("label",)

    def __init__(self, pairs: GradedPairs, listwise: bool) -> None:
        self.pairs, self.listwise = pairs, listwise

    def __call__(self, groups: Sequence[DrawnGroup]) -> dict[str, Any]:
        rows = np.concatenate([group.rows for group in groups])
        relevance = torch.from_numpy(self.pairs.relevance[rows].astype(np.float32))
        batch: dict[str, Any] = {"query": self.pairs.texts("query", rows)}
        batch |= {"document": self.pairs.texts("document", rows), "label": relevance}
        if self.listwise:
            batch["query"] = [self.pairs.texts("query", group.rows[:1])[0] for group in groups]
            batch["document"] = [self.pairs.texts("document", group.rows) for group in groups]
            batch["label"] = list((TOP_GRADE * relevance).split([len(group.rows) for group in groups]))
        batch["counts"] = torch.tensor([len(groups), len(rows), 0, 0, 0, 0])  # only the loss knows the tokens
        batch["numbers"] = torch.tensor([group.number for group in groups]), torch.from_numpy(rows)
        return {**batch, "mean_target": relevance.mean()}


class PairTrainer(GradedTrainer, CrossEncoderTrainer):  # type: ignore[misc]
    """Train a reranker on `GradedPairs` with a loss of sentence-transformers for a CrossEncoder.

    Batches, checkpoints and log are those of `GradedTrainer`, the loss is computed as in `CrossEncoderTrainer`.
    """

    model_class = CrossEncoderTrainer.model_class
    model_card_data_class = CrossEncoderTrainer.model_card_data_class  # type: ignore[assignment]
    model_card_callback_class = CrossEncoderTrainer.model_card_callback_class  # type: ignore[assignment]

    def make_collator(self, model: Any, args: Any, loss: Any) -> PairCollator:
        return PairCollator(self.pairs, loss.listwise)

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """Train on one batch, cut at the length of training."""
        self.loss.statistics = {"mean_target": inputs.pop("mean_target")}
        with reading_at_most(self.model, self.args.train_max_length):
            return super().training_step(model, inputs, *args, **kwargs)

    def head(self, prior: float | None) -> RelevanceHead:
        """Return the sigmoid of the logit for binary cross-entropy, else a fit on training pairs."""
        head, pairs = RelevanceHead(1.0, 0.0, trained_prior=prior, prior=prior), self.pairs
        if self.loss.listwise:
            rows = np.arange(0, len(pairs), -(-len(pairs) // PAIRS_FITTED))
            model = cast("Reranker", self.loss.model)
            logits = model.logits(pairs.texts("query", rows), pairs.texts("document", rows))
            slope, intercept = fit_platt(logits, pairs.relevance[rows])
            fitted_on = f"{len(rows)} pairs that it was trained on"
            head = replace(head, slope=slope, intercept=intercept, calibrated_on=fitted_on)
        return head
