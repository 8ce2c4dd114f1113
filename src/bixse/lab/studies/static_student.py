"""A student of static token embeddings: the token table of the demo model, trained in seconds on a laptop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from bixse.encoders.loading.attention import backbones
from bixse.encoders.loading.build import build_encoder, quiet_loading
from bixse.encoders.relevance_model import RelevanceModel, save_whole
from bixse.errors import ModelError, OutputExistsError

if TYPE_CHECKING:
    from pathlib import Path

RARE = 1e-5
"""Frequency a of a token whose weight is one half; chosen on the dev queries of `pydocs` out of 1e-3, 1e-4, 1e-5."""


def save_static_student(folder: Path, model: str = "demo", dimensions: int = 128) -> None:
    """Save a sentence-transformers model whose text embedding is the mean of its tokens' embeddings.

    The table is the input embedding of a BERT-like `model`, centred, each token weighted by a / (a + p) (Arora, Liang
    and Ma 2017, "A Simple but Tough-to-Beat Baseline for Sentence Embeddings"), its frequency p taken from its rank in
    the vocabulary by Zipf's law, reduced to `dimensions` principal axes, and scaled to a mean length of 1. How losses
    compare on it need not be how they compare on the model, which takes hours where this takes minutes.
    """
    if folder.exists():
        raise OutputExistsError(f"{folder}: got a name that is taken; expected a free one; fix: choose another")
    source = build_encoder(model, device="cpu")
    parts = backbones(source)
    table = parts[0].auto_model.get_input_embeddings() if parts else None
    if table is None or getattr(table, "weight", None) is None:
        raise ModelError(
            f"model {model!r}: got no table of token embeddings; expected a transformers backbone; "
            "fix: name another model"
        )
    vectors = table.weight.detach().double().numpy()
    frequency = 1 / np.arange(2, len(vectors) + 2)
    weight = RARE / (RARE + frequency / frequency.sum())
    vectors = (vectors - vectors.mean(axis=0)) * weight[:, None]
    axes = np.linalg.eigh(vectors.T @ vectors)[1][:, ::-1]
    vectors = vectors @ axes[:, :dimensions]
    vectors /= np.linalg.norm(vectors, axis=1).mean()
    with quiet_loading():
        module = StaticEmbedding(source.tokenizer, embedding_weights=vectors.astype(np.float32))
        student = RelevanceModel(modules=[module], device="cpu")
        save_whole(student, folder)
