"""Encode texts for search: sorted by length, each text once, no autograd, in the precision that is set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from sentence_transformers.util import batch_to_device

from bixse.encoders.embedding import embed_features, take_rows
from bixse.encoders.loading.precision import autocast, resolve_precision
from bixse.encoders.prompts import prompt_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer
    from torch import Tensor

    from bixse.encoders.loading.precision import Precision
    from bixse.encoders.prompts import Kind

TEXTS_PER_BLOCK = 512
"""Texts tokenised together; sorted by length, so a block holds texts of like length."""
FEWEST_TEXTS_SHARED = 64
"""Texts below which they are encoded in this process: to send them to others takes longer."""


class Pool(Protocol):
    """Processes that encode, see `bixse.encoders.pool`."""

    devices: list[str]

    def encode(
        self,
        texts: Sequence[str],
        kind: Kind,
        prompt: str | None,
        precision: Precision,
        progress: Callable[[int], None] | None = None,
    ) -> NDArray[np.float32]:
        """(N, D) embeddings of N texts."""


POOLS: WeakKeyDictionary[SentenceTransformer, Pool] = WeakKeyDictionary()
"""The processes that a model's texts are shared out among; of others this process encodes."""


def encoding_device(model: SentenceTransformer) -> torch.device:
    """Where texts are encoded: the model's own device, or the first one of its processes."""
    pool = POOLS.get(model)
    return torch.device(pool.devices[0]) if pool is not None else model.device


def encode_texts(
    model: SentenceTransformer,
    texts: Sequence[str],
    kind: Kind,
    precision: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> NDArray[np.float32]:
    """Embed texts, L2-normalised, as the model's own `encode_query` or `encode_document` would.

    A model that was given several processes (`bixse.encoders.pool.encode_on`) shares many texts out among them.

    Args:
        model: the encoder; put into evaluation mode for the call.
        texts: N texts. One without any token, which a tokenizer without special tokens makes of an empty text, gets
            the embedding 0.
        kind: chooses the prompt, and the route of a model with a router.
        precision: "float32" or "bfloat16"; "auto" or None: as the process is set, see `resolve_precision`.
        progress: called with the number of texts done since the last call.

    Returns:
        (N, D) float32; D is `truncate_dim` for a model that cuts its embeddings.
    """
    row_of = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    distinct = list(row_of)
    given = (distinct, kind, prompt_for(model, kind), resolve_precision(precision, encoding_device(model)), progress)
    if progress is not None and len(distinct) < len(texts):
        progress(len(texts) - len(distinct))
    pool = POOLS.get(model)
    if pool is not None and len(distinct) >= FEWEST_TEXTS_SHARED:
        embeddings = pool.encode(*given)
    else:
        embeddings = encode_here(model, *given)
    return embeddings if len(distinct) == len(texts) else embeddings[[row_of[text] for text in texts]]


@torch.inference_mode()
def encode_here(
    model: SentenceTransformer,
    texts: Sequence[str],
    kind: Kind,
    prompt: str | None,
    precision: Precision,
    progress: Callable[[int], None] | None = None,
) -> NDArray[np.float32]:
    """Embed texts in this process; arguments as for `encode_texts`, and the prompt before them."""
    was_training = model.training
    model.eval()
    order = by_length(texts)
    dimensions = model.get_embedding_dimension() or 0
    embeddings = np.zeros((len(texts), dimensions), dtype=np.float32)
    try:
        for start in range(0, len(texts), TEXTS_PER_BLOCK):
            rows = order[start : start + TEXTS_PER_BLOCK]
            features = model.preprocess([texts[row] for row in rows], prompt=prompt, task=kind)
            number, with_tokens = len(rows), _with_tokens(features.get("attention_mask"))
            if with_tokens is not None and len(with_tokens) < number:
                rows = rows[with_tokens.numpy()]
                features = take_rows(features, features["attention_mask"], with_tokens)
            if len(rows):
                features = batch_to_device(dict(features), model.device)
                with autocast(model.device, precision):
                    block = embed_features(model, features)
                embeddings[rows] = torch.nn.functional.normalize(block.float(), dim=-1).cpu().numpy()
            if progress is not None:
                progress(number)
    finally:
        model.train(was_training)
    return embeddings


def by_length(texts: Sequence[str]) -> NDArray[np.int64]:
    """Positions of the texts from the shortest to the longest."""
    return np.argsort([len(text) for text in texts], kind="stable")


def _with_tokens(mask: object) -> Tensor | None:
    """The rows that have a token at all; None where that cannot be told."""
    return mask.any(dim=1).nonzero().squeeze(1) if isinstance(mask, torch.Tensor) and mask.ndim == 2 else None
