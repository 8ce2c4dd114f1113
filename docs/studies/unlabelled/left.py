"""Train with a loss that left bixse after 1.0.0rc1: `bixse train`, with one more loss in the catalogue.

    python docs/studies/unlabelled/left.py cadet --config data/pydocs-1-cadet-0.yaml --out runs/pydocs-1-cadet-0

The first word is a key of LEFT, the others are those of `bixse train`, in one process. measure.py calls this.
"""

import sys
from typing import Any

import torch
from torch import Tensor

from bixse import losses
from bixse.cli.main import main
from bixse.losses.catalogue import LOSSES, LossEntry


class SpreadOutLoss(losses.BiXSELoss):
    """BiXSE + global orthogonal regularisation (Zhang et al. 2017, arXiv:1708.06320)."""

    def compute_loss_from_embeddings(self, queries: Tensor, documents: Tensor, targets: Any) -> Tensor:
        loss = super().compute_loss_from_embeddings(queries, documents, targets)
        for texts in (queries, documents):
            cosines = (texts @ texts.T)[~torch.eye(len(texts), dtype=torch.bool, device=texts.device)]
            loss = loss + (cosines.mean() ** 2 + torch.relu(cosines.square().mean() - 1 / texts.shape[1])) / 2
        return loss


class CadetLoss(losses.DistillKLLoss):
    """KL divergence + 0.1 InfoNCE (CADET, arXiv:2505.19274)."""

    def compute_loss_from_embeddings(self, *batch: Any) -> Tensor:
        infonce = losses.InfoNCELoss(torch.nn.Identity(), scale=self.options.scale)
        return super().compute_loss_from_embeddings(*batch) + 0.1 * infonce.compute_loss_from_embeddings(*batch)


class WassersteinLoss(losses.GradedLoss):
    """The squared 2-Wasserstein distance of the Gaussians of scores and grades 0 to 3 (SyCL, arXiv:2503.23239)."""

    def compute_loss_from_embeddings(self, queries: Tensor, documents: Tensor, targets: Any) -> Tensor:
        relevance, weight = targets.dense(torch.float64)
        scores = (self.options.scale * (queries @ documents.T).double(), 3.0 * relevance)
        rows = [part.masked_fill(weight == 0, -torch.inf).softmax(dim=1) for part in scores]
        x, y = (part - part.mean(dim=0) for part in rows)
        spread = x.square().sum() + y.square().sum() - 2 * torch.linalg.svdvals(x @ y.T).sum()
        self.denominator = queries.detach().new_ones(())
        gap = (rows[0].mean(dim=0) - rows[1].mean(dim=0)).square().sum()
        return (gap + spread / max(1, len(x) - 1)).to(queries.dtype)


LEFT = {"spread-out": SpreadOutLoss, "cadet": CadetLoss}
LEFT |= dict.fromkeys(("wasserstein", "wasserstein-6"), WassersteinLoss)

if __name__ == "__main__":
    word, kind = sys.argv[1], LEFT[sys.argv[1]]
    setattr(losses, kind.__name__, kind)
    LOSSES[word] = LossEntry(kind.__name__)
    sys.exit(main(["train", "--loss", word, *sys.argv[2:]]))
