"""The sum of a loss over lengths of the embeddings, so that they can be cut after training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.functional import normalize

from bixse.encoders.processes import all_reduce_sum, global_mean_weight, world_size
from bixse.losses.base import GradedLoss

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sentence_transformers import SentenceTransformer

    from bixse.losses.targets import GradedTargets


class MatryoshkaLoss(GradedLoss):
    """The sum of one loss per length of the embeddings (Kusupati et al. 2022, arXiv:2205.13147).

    L = sum_d L_d(q[:d], x[:d]), each part L2-normalised again. The encoder runs once. Each length has a scale and a
    bias of its own, so that its cosines give probabilities. sentence-transformers' class of this name has one
    `BiXSELoss`, with the same two numbers for all lengths, though short vectors have higher cosines. The log holds each
    value as `loss_LENGTH`.

    `terms` maps dimensions to losses on the encoder; the largest is the complete embedding.

    Example:
        >>> from bixse.losses import BiXSELoss, MatryoshkaLoss
        >>> loss = MatryoshkaLoss(model := nn.Identity(), {8: BiXSELoss(model), 4: BiXSELoss(model)})
        >>> list(loss.with_heads)
        [None, 4]
    """

    def __init__(self, model: SentenceTransformer, terms: Mapping[int, GradedLoss]) -> None:
        super().__init__(model)
        for term in terms.values():
            # a plain attribute, no submodule of the term: the encoder would be listed and saved once per term
            del term.model
            object.__setattr__(term, "model", model)
        self.lengths = sorted(terms, reverse=True)
        self.terms: Any = nn.ModuleDict({str(length): terms[length] for length in self.lengths})
        self.options, self.learned_otherwise = self._first.options, self._first.learned_otherwise

    @property
    def _first(self) -> GradedLoss:
        first: GradedLoss = self.terms[str(self.lengths[0])]
        return first

    def compute_loss_from_embeddings(self, queries: Tensor, documents: Tensor, targets: GradedTargets) -> Tensor:
        """Return the sum, already divided over all processes."""
        total = queries.new_zeros(())
        figures: dict[str, Tensor] = {}
        for length, term in self.terms.items():
            read = [normalize(part[:, : int(length)], dim=-1) for part in (queries, documents)]
            known = term.masked(read[0].detach(), read[1].detach(), targets)
            value = term.compute_loss_from_embeddings(*read, known)
            value = value * global_mean_weight(term.denominator).to(value)  # denominators differ between processes
            figures = {**term.statistics, **figures, f"loss_{length}": all_reduce_sum(value) / world_size()}
            total = total + value
        self.statistics = figures
        self.denominator = total.detach().new_ones(())  # the same in all processes: the terms are already divided
        return total

    def masked(self, queries: Tensor, documents: Tensor, targets: GradedTargets) -> GradedTargets:
        """Return the targets unchanged: each length masks its own."""
        return targets

    @property
    def with_heads(self) -> dict[int | None, GradedLoss]:
        _, *cut = self.lengths
        return {None: self._first, **{length: self.terms[str(length)] for length in cut}}

    @property
    def with_head(self) -> GradedLoss:
        return self._first

    @property
    def positive_from(self) -> float | None:
        return self._first.positive_from

    @property
    def requires(self) -> str:
        return self._first.requires

    def is_informative(self, relevance: Sequence[float]) -> bool:
        return self._first.is_informative(relevance)

    def get_config_dict(self) -> dict[str, Any]:
        return {**self._first.get_config_dict(), "dimensions": self.lengths}
