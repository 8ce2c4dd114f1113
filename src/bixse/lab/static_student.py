"""The static student: a model of token embeddings without layers, which trains in minutes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from bixse.encoders.loading.backbones import backbones
from bixse.encoders.loading.build import build_encoder, quiet_loading
from bixse.encoders.relevance_model import RelevanceModel, save_whole
from bixse.errors import ModelError, OutputExistsError

if TYPE_CHECKING:
    from pathlib import Path

RARE = 1e-5
"""Frequency `a` of a token with weight one half. Chosen on the dev queries of `pydocs` out of 1e-3, 1e-4, 1e-5."""


def save_static_student(folder: Path, model: str = "demo", dimensions: int = 128) -> None:
    """Save a sentence-transformers model whose text embedding is the mean of its tokens' embeddings.

    The table is the centred input embedding of a BERT-like `model`. Each token has the weight a / (a + p) (Arora, Liang
    and Ma 2017, "A Simple but Tough-to-Beat Baseline for Sentence Embeddings"). Its frequency p follows from its rank
    in the vocabulary by Zipf's law. The table is reduced to `dimensions` principal axes and scaled to a mean length of
    1. It trains in minutes instead of hours, but losses may compare differently on `model` itself.
    """
    if folder.exists():
        raise OutputExistsError(f"{folder}: got a path that exists; expected a new one; fix: choose another name")
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
    axes = np.linalg.eigh(vectors.T @ vectors)[1][:, ::-1]  # eigh sorts eigenvalues in ascending order
    vectors = vectors @ axes[:, :dimensions]
    vectors /= np.linalg.norm(vectors, axis=1).mean()
    with quiet_loading():
        module = StaticEmbedding(source.tokenizer, embedding_weights=vectors.astype(np.float32))
        student = RelevanceModel(modules=[module], device="cpu")
        save_whole(student, folder)
