"""Tiny models that score pairs: rerankers, late interaction and sparse encoders of random weights."""

import torch

from bixse.encoders.head import RelevanceHead
from bixse.encoders.loading.build import build_scorer
from bixse.encoders.relevance_model import save_whole

EMBEDDING_KINDS = ("late-interaction", "sparse")


def save_reranker(encoder, folder, head=RelevanceHead(1.0, 0.0), seed=0, kind="reranker"):  # noqa: B008 a frozen dataclass
    """Save a model of a kind with random weights as `bixse train` does; without a head if it is None."""
    torch.manual_seed(seed)
    model = build_scorer(kind, encoder, convert=True, device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    model.head = head
    save_whole(model, folder)
    return folder
