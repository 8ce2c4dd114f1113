"""The 2-Wasserstein loss of SyCL: predicted and graded distributions over the documents of a batch, as Gaussians."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from pydantic import Field

from bixse.encoders.processes import all_rows
from bixse.losses.base import GradedLoss
from bixse.losses.catalogue import LossOptions

if TYPE_CHECKING:
    from torch import Tensor

    from bixse.losses.targets import GradedTargets


class WassersteinOptions(LossOptions):
    """Options of `WassersteinLoss`."""

    top_grade: float = Field(default=3.0, gt=0, le=32)
    """Grade of relevance 1: SyCL has the levels 0 to 3."""


class WassersteinLoss(GradedLoss):
    """The squared 2-Wasserstein distance of two Gaussians over the batch (SyCL, Esfandiarpoor et al. 2025).

    P and T, (B, N), are the softmax of each row of scale * cos and of top_grade * z, without masked entries. With their
    means p, t over the queries, and the deviations X, Y of their rows from them (arXiv:2503.23239):

    L = |p - t|^2 + 1 / (B - 1) [ |X|^2 + |Y|^2 - 2 |X Y^T|_* ],  |.|_* the sum of the singular values

    The (B, N) matrices of all processes are kept, unlike in the other losses.
    """

    options_class = WassersteinOptions
    options: WassersteinOptions

    def compute_loss_from_embeddings(self, queries: Tensor, documents: Tensor, targets: GradedTargets) -> Tensor:
        """Return the loss of (B, D) queries and (N, D) documents, both L2-normalised."""
        targets.check_fits("loss", queries, documents)
        # float64, as SyCL has: the difference of nearly equal sums of small squares
        relevance, weight = targets.dense(torch.float64)
        masked = weight == 0
        logits = self.options.scale * (queries @ documents.T).double()
        rows = [logits, self.options.top_grade * relevance]
        predicted, wanted = (all_rows(row.masked_fill(masked, -torch.inf).softmax(dim=1)) for row in rows)
        means = predicted.mean(dim=0), wanted.mean(dim=0)
        x, y = predicted - means[0], wanted - means[1]
        spread = x.square().sum() + y.square().sum() - 2 * torch.linalg.svdvals(x @ y.T).sum()
        self.denominator = queries.detach().new_ones(())  # the loss is the same in all processes
        self.statistics = {}
        loss = (means[0] - means[1]).square().sum() + spread / max(1, len(x) - 1)
        return loss.to(queries.dtype)
