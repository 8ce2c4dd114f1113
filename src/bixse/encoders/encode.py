"""Encode texts for search: sorted by length, each text once, in the chosen precision."""

from __future__ import annotations

import hashlib
import json
from pprint import pformat
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sentence_transformers.util import batch_to_device

from bixse.encoders.embedding import embed_features
from bixse.encoders.instructions import prompt_for
from bixse.encoders.loading.backbones import parts_of
from bixse.encoders.loading.precision import autocast, resolve_precision

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer

    from bixse.encoders.loading.precision import Precision
    from bixse.relevance import Kind

TEXTS_PER_BLOCK = 512
"""Texts tokenised together. They are sorted by length, so that a block has little padding."""


def encode_texts(
    model: SentenceTransformer,
    texts: Sequence[str],
    kind: Kind,
    precision: str | None = None,
    progress: Callable[[int], None] | None = None,
    prompt: str | None = None,
) -> NDArray[np.float32]:
    """Embed N texts, (N, D) L2-normalised, as `encode_query` or `encode_document` would.

    A text without tokens is embedded as 0. `progress` gets the number of texts since its last call. `prompt` replaces
    the prompt of the model; "" means no prompt.
    """
    return encode_and_count(model, texts, kind, precision, progress, prompt)[0]


def encode_and_count(
    model: SentenceTransformer,
    texts: Sequence[str],
    kind: Kind,
    precision: str | None = None,
    progress: Callable[[int], None] | None = None,
    prompt: str | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Embed texts as `encode_texts` does; also return (N,) 1 for a text that is longer than the model reads, else 0."""
    row_of = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    distinct = list(row_of)
    before = prompt_for(model, kind) if prompt is None else prompt or None
    if progress is not None and len(distinct) < len(texts):
        progress(len(texts) - len(distinct))
    parts = encode_here(model, distinct, kind, before, resolve_precision(precision, model.device), progress)
    if len(distinct) < len(texts):
        rows = [row_of[text] for text in texts]
        return parts[0][rows], parts[1][rows]
    return parts


@torch.no_grad()  # no inference mode: it makes buffers of a sharded encoder that training cannot use
def encode_here(
    model: SentenceTransformer,
    texts: Sequence[str],
    kind: Kind,
    prompt: str | None,
    precision: Precision,
    progress: Callable[[int], None] | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Embed distinct texts, each after `prompt`; see `encode_and_count`."""
    was_training = model.training
    model.eval()
    order = by_length(texts)
    dimensions = model.get_embedding_dimension() or 0
    embeddings = np.zeros((len(texts), dimensions), dtype=np.float32)
    is_cut = np.zeros(len(texts), dtype=np.float32)
    try:
        for start in range(0, len(texts), TEXTS_PER_BLOCK):
            rows = order[start : start + TEXTS_PER_BLOCK]
            features = model.preprocess([texts[row] for row in rows], prompt=prompt, task=kind)
            # slow tokenizers do not tell what they cut
            is_cut[rows] = [bool(part.overflowing) for part in getattr(features, "encodings", None) or ()] or 0
            features = batch_to_device(dict(features), model.device)
            with autocast(model.device, precision):
                block = embed_features(model, features)
            embeddings[rows] = torch.nn.functional.normalize(block.float(), dim=-1).cpu().numpy()
            if progress is not None:
                progress(len(rows))
    finally:
        model.train(was_training)
    return embeddings, is_cut


def by_length(texts: Sequence[str]) -> NDArray[np.int64]:
    """Return the (N,) positions of the texts, shortest first."""
    return np.argsort([len(text) for text in texts], kind="stable")


def _add_weights(digest: Any, model: torch.nn.Module, portable: bool = False) -> None:
    for name, state in sorted(model.state_dict().items()):
        for part in state if isinstance(state, tuple) else (state,):  # a quantised layer keeps weight and bias as one
            if not isinstance(part, torch.Tensor):
                digest.update(f"{name} {part!r}".encode())
                continue
            # some machines load half-precision weights as float32, others do not
            dtype = torch.float32 if portable and part.is_floating_point() else part.dtype
            tensor = part.dequantize() if part.is_quantized else part
            digest.update(f"{name} {dtype}".encode())
            digest.update(tensor.detach().cpu().contiguous().view(-1).float().numpy().tobytes())


def embeddings_key(model: SentenceTransformer, portable: bool = False) -> str:
    """Hash everything that a document's embedding depends on, but not its text; `portable` leaves out the precision."""
    digest = hashlib.sha256()
    _add_weights(digest, model, portable)
    for module in parts_of(model):
        backbone = getattr(getattr(module, "auto_model", None), "config", None)
        options: dict[str, Any] = getattr(module, "get_config_dict", dict)()
        # without _name_or_path: a moved folder has equal embeddings
        settings = (options, {n: v for n, v in backbone.to_dict().items() if n != "_name_or_path"} if backbone else {})
        digest.update(pformat([type(module).__name__, settings]).encode())  # sorts keys, also in a router
        digest.update(_tokenizer_content(getattr(module, "tokenizer", None)).encode())
        digest.update(repr(getattr(module, "max_seq_length", None)).encode())
    in_bf16 = not portable and resolve_precision(device=model.device) == "bfloat16"
    digest.update(repr((prompt_for(model, "document"), model.truncate_dim, in_bf16)).encode())
    return digest.hexdigest()[:32]


def _tokenizer_content(tokenizer: Any) -> str:
    """Return the settings that decide the tokens of a text, without the length limit; equal after saving."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    sides = [getattr(tokenizer, name, None) for name in ("truncation_side", "padding_side")]
    if hasattr(backend, "to_str"):
        content = json.loads(backend.to_str())
        # every call sets truncation and padding anew
        lasting = {name: part for name, part in content.items() if name not in ("truncation", "padding")}
        return json.dumps([sides, lasting], sort_keys=True)
    words = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else {}
    special = getattr(tokenizer, "special_tokens_map", {})
    return json.dumps([type(tokenizer).__name__, sides, words, special], sort_keys=True, default=str)
