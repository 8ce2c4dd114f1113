"""The sum of a loss over lengths of the embeddings, so that they can be cut after training."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from torch.nn.functional import normalize

from bixse.encoders.processes import all_reduce_sum, world_size
from bixse.losses.base import GradedLoss, global_mean_weight

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import Tensor

    from bixse.losses.targets import GradedTargets


class MatryoshkaLoss(GradedLoss):
    """The sum of a loss over lengths of the embeddings (Kusupati et al. 2022, arXiv:2205.13147).

    L = sum_d L(q[:d], x[:d]), each part L2-normalised again, over `dimensions` and the complete embedding. The encoder
    runs once. As in sentence-transformers' class of this name, all lengths have weight 1, and one scale and bias. The
    log holds each value as `loss_LENGTH`. `loss` is a loss on the same encoder.

    Example:
        >>> from torch import nn
        >>> from bixse.losses import BiXSELoss, MatryoshkaLoss
        >>> loss = MatryoshkaLoss(model := nn.Identity(), BiXSELoss(model), [128, 256])
        >>> loss.dimensions
        (256, 128)
    """

    def __init__(self, model: SentenceTransformer, loss: GradedLoss, dimensions: Sequence[int]) -> None:
        super().__init__(model)
        # a plain attribute, no submodule of the inner loss: the encoder would be listed and saved twice
        del loss.model
        object.__setattr__(loss, "model", model)
        self.loss, self.options = loss, loss.options
        self.learned_otherwise, self.learns_differences = loss.learned_otherwise, loss.learns_differences
        self.dimensions = tuple(sorted(dimensions, reverse=True))

    def compute_loss_from_embeddings(self, queries: Tensor, documents: Tensor, targets: GradedTargets) -> Tensor:
        """Return the sum, already divided over all processes."""
        total = queries.new_zeros(())
        figures: dict[str, Tensor] = {}
        for length in (queries.shape[1], *self.dimensions):  # the complete embedding sets the bias
            q, x = (normalize(part[:, :length], dim=-1) for part in (queries, documents))
            value = self.loss.compute_loss_from_embeddings(q, x, targets)
            value = value * global_mean_weight(self.loss.denominator).to(value)  # differs between processes
            figures = {**self.loss.statistics, **figures, f"loss_{length}": all_reduce_sum(value) / world_size()}
            total = total + value
        self.statistics = figures
        self.denominator = total.detach().new_ones(())  # the same in all processes: the parts are already divided
        return total

    with_head: Any = property(attrgetter("loss"))
    trained_head: Any = property(attrgetter("loss.trained_head"))

    def get_config_dict(self) -> dict[str, Any]:
        return {**self.loss.get_config_dict(), "dimensions": self.dimensions}
