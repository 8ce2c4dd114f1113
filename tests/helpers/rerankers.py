"""Tiny rerankers: the tiny BERT with a random layer on top, whose scores differ."""

import torch

from bixse.encoders.head import RelevanceHead
from bixse.encoders.loading.build import build_reranker
from bixse.encoders.relevance_model import save_whole


def save_reranker(encoder, folder, head=RelevanceHead(1.0, 0.0), seed=0):  # noqa: B008 a frozen dataclass
    """Save a reranker of random weights as `bixse train` does; without a head if it is None."""
    torch.manual_seed(seed)
    model = build_reranker(encoder, new_layer=True, device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    model.head = head
    save_whole(model, folder)
    return folder
