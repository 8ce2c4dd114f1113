"""Sums of losses, and terms to add to another loss: an anchor to the base model, and spread-out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from bixse.encoders.processes import all_reduce_sum, all_rows, global_mean_weight, world_size
from bixse.errors import InputError
from bixse.losses.base import BaseUse, GradedLoss

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sentence_transformers import SentenceTransformer

    from bixse.losses.targets import GradedTargets


class SumLoss(GradedLoss):
    """A weighted sum of losses on the same batch: L = sum_k w_k L_k.

    Each term keeps its divisor, its targets and its parameters. The log holds each value, unweighted, as `loss_NAME`,
    and the figures of the terms. Scale and bias of a `BiXSELoss` among the terms become the relevance head.

    Example:
        >>> from bixse.losses import build_loss
        >>> loss = build_loss({"bixse": 1.0, "spread-out": 0.1}, nn.Identity())
        >>> loss.weights
        {'bixse': 1.0, 'spread-out': 0.1}
    """

    def __init__(
        self,
        model: SentenceTransformer,
        terms: Mapping[str, GradedLoss],
        weights: Mapping[str, float],
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        self.weights = dict(weights)
        for term in terms.values():
            # a plain attribute, no submodule of the term: the encoder would be listed and saved once per term
            del term.model
            object.__setattr__(term, "model", model)
        self.terms = nn.ModuleDict(terms)
        self.learned_otherwise = self._terms()[0].learned_otherwise

    def compute_loss_from_embeddings(self, queries: Tensor, documents: Tensor, targets: GradedTargets) -> Tensor:
        """Return the weighted sum, already divided over all processes."""
        total = queries.new_zeros(())
        figures: dict[str, Tensor] = {}
        for name, term in self._named_terms():
            known = targets if term.base_use is not None else replace(targets, unlabelled=None)
            read = self._read(name, queries), self._read(name, documents)
            known = term.masked(read[0].detach(), read[1].detach(), known)
            value = term.compute_loss_from_embeddings(*read, known)
            value = value * global_mean_weight(term.denominator).to(value)  # denominators differ between processes
            figures = {**term.statistics, **figures, f"loss_{name}": all_reduce_sum(value) / world_size()}
            total = total + self.weights[name] * value
        self.statistics = figures
        self.denominator = total.detach().new_ones(())  # the same in all processes: the terms are already divided
        return total

    def masked(self, queries: Tensor, documents: Tensor, targets: GradedTargets) -> GradedTargets:
        """Return the targets unchanged: each term masks its own."""
        return targets

    def _read(self, name: str, embeddings: Tensor) -> Tensor:
        """Return the part of (N, D) embeddings that a term reads."""
        return embeddings

    def _named_terms(self) -> list[tuple[str, GradedLoss]]:
        return list(self.terms.items())  # type: ignore[arg-type]

    def _terms(self) -> list[GradedLoss]:
        return [term for _, term in self._named_terms()]

    @property
    def with_head(self) -> GradedLoss:
        heads = [term.with_head for term in self._terms()]
        return next((head for head in heads if hasattr(head, "logit_bias")), self)

    @property
    def base_use(self) -> BaseUse | None:
        uses = [term.base_use for term in self._terms() if term.base_use is not None]
        return BaseUse(max(use.weight for use in uses), any(use.as_trained for use in uses)) if uses else None

    @property
    def positive_from(self) -> float | None:
        return self._terms()[0].positive_from

    @property
    def requires(self) -> str:
        graded = [term for term in self._terms() if not isinstance(term, UngradedLoss)]
        return " or ".join(dict.fromkeys(term.requires for term in graded))

    def is_informative(self, relevance: Sequence[float]) -> bool:
        return any(term.is_informative(relevance) for term in self._terms())

    def get_config_dict(self) -> dict[str, Any]:
        return {
            **self.options.model_dump(),
            "weights": self.weights,
            **{name: term.get_config_dict() for name, term in self._named_terms()},
        }


class MatryoshkaLoss(SumLoss):
    """The sum of one loss per length of the embeddings (Kusupati et al. 2022, arXiv:2205.13147).

    L = sum_d L_d(q[:d], x[:d]), each part L2-normalised again. The encoder runs once. Each length has a scale and a
    bias of its own, so that its cosines give probabilities. sentence-transformers' class of this name has one
    `BiXSELoss`, with the same two numbers for all lengths, though short vectors have higher cosines.

    `terms` maps dimensions to losses on the encoder; the largest is the complete embedding. Raises InputError for an
    anchor, which needs complete embeddings.

    Example:
        >>> from bixse.losses import BiXSELoss, MatryoshkaLoss
        >>> loss = MatryoshkaLoss(model := nn.Identity(), {8: BiXSELoss(model), 4: BiXSELoss(model)})
        >>> list(loss.with_heads)
        [None, 4]
    """

    def __init__(self, model: SentenceTransformer, terms: Mapping[int, GradedLoss], **options: Any) -> None:
        longest_first = {str(number): terms[number] for number in sorted(terms, reverse=True)}
        super().__init__(model, longest_first, dict.fromkeys(longest_first, 1.0), **options)
        if any(term.base_use is not None and term.base_use.as_trained for term in self._terms()):
            raise InputError(
                "dimensions: got a loss with an anchor, which needs complete embeddings; expected another loss; fix: "
                "leave one of the two out"
            )

    def _read(self, name: str, embeddings: Tensor) -> Tensor:
        return normalize(embeddings[:, : int(name)], dim=-1)

    @property
    def with_heads(self) -> dict[int | None, GradedLoss]:
        (_, whole), *cut = self._named_terms()
        return {None: whole.with_head, **{int(name): term.with_head for name, term in cut}}


class UngradedLoss(GradedLoss):
    """The base of the terms that read no relevance; alone they teach nothing."""

    @property
    def requires(self) -> str:
        return "another loss in the sum, since it reads no relevance"

    def is_informative(self, relevance: Sequence[float]) -> bool:
        return False


class AnchorLoss(UngradedLoss):
    """The distance of all embeddings of the batch from those of the model before training.

    L = 1/2 [ mean over queries of (1 - cos(e, e0)) + mean over documents of (1 - cos(e, e0)) ], with e0 the embedding
    by the base model of as many tokens as training reads. `bixse train` and `GradedTrainer` compute e0.
    """

    @property
    def base_use(self) -> BaseUse:
        return BaseUse(weight=0.0, as_trained=True)

    def compute_loss_from_embeddings(self, queries: Tensor, documents: Tensor, targets: GradedTargets) -> Tensor:
        """Return the loss of (B, D) queries and (N, D) documents, all L2-normalised."""
        base = targets.unlabelled
        if base is None:
            raise InputError(
                "anchor: got a batch without embeddings of the base model; expected embeddings, which GradedTrainer "
                "adds; fix: train with GradedTrainer or `bixse train`"
            )
        pairs = ((queries, base.queries), (documents, base.documents))
        # a sum over at least 1: a process may have no query of a small batch
        distances = [(1 - (now * before).sum(dim=1)).sum() / max(1, len(now)) for now, before in pairs]
        self.denominator = queries.detach().new_tensor(float(len(queries)))
        self.statistics = {}
        return (distances[0] + distances[1]) / 2


class SpreadOutLoss(UngradedLoss):
    """Global orthogonal regularisation: unrelated texts get cosines near 0 (Zhang et al. 2017, arXiv:1708.06320).

    L = mean over queries and documents of [ M1^2 + max(0, M2 - 1/D) ], with M1 the mean cosine between different
    queries (documents) of the batch, M2 their mean squared cosine, and D the dimension. It equals
    sentence-transformers' `GlobalOrthogonalRegularizationLoss`, whose N x N matrix is replaced by sums over D x D.
    """

    def compute_loss_from_embeddings(self, queries: Tensor, documents: Tensor, targets: GradedTargets) -> Tensor:
        """Return the loss of (B, D) queries and (N, D) documents, all L2-normalised."""
        self.denominator = queries.detach().new_ones(())  # the loss is the same in all processes
        self.statistics = {}
        return (self._spread(all_rows(queries)) + self._spread(documents)) / 2

    def _spread(self, embeddings: Tensor) -> Tensor:
        number, dimension = embeddings.shape
        pairs = max(number * (number - 1), 1)  # a batch of one text has no pair, and loss 0
        itself = embeddings.square().sum(dim=1)  # the sums over all pairs hold each text with itself
        mean = (embeddings.sum(dim=0).square().sum() - itself.sum()) / pairs
        second = ((embeddings.T @ embeddings).square().sum() - itself.square().sum()) / pairs
        return mean.square() + torch.relu(second - 1 / dimension)
