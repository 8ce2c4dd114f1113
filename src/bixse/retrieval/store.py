"""Document embeddings on disk, so that a corpus is encoded once a model."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bixse.data.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer

    from bixse.data.collection import Document

STORE_FOLDER = ".bixse-embeddings"
"""Folder inside a collection folder."""


def embeddings_key(model: SentenceTransformer, corpus: Mapping[str, Document]) -> str:
    """Hash of everything document embeddings depend on: weights, modules, prompts, length limit, ids and texts.

    Args:
        model: the encoder.
        corpus: document id -> document.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).float().numpy().tobytes())
    for module in model:
        backbone = getattr(getattr(module, "auto_model", None), "config", None)
        own: dict[str, Any] = getattr(module, "get_config_dict", dict)()
        settings = (own, {n: v for n, v in backbone.to_dict().items() if n != "_name_or_path"} if backbone else {})
        digest.update(json.dumps([type(module).__name__, settings], sort_keys=True, default=str).encode())
    digest.update(repr((model.max_seq_length, sorted((model.prompts or {}).items()))).encode())
    for identifier, document in corpus.items():
        digest.update(repr((identifier, document.content)).encode())
    return digest.hexdigest()[:32]


class EmbeddingStore:
    """Embeddings of one collection by model; a damaged or missing file simply means encoding again.

    Args:
        collection: the collection folder; embeddings lie in `.bixse-embeddings` inside it.
    """

    def __init__(self, collection: Path) -> None:
        self.folder = collection / STORE_FOLDER

    def load(self, key: str) -> NDArray[np.float32] | None:
        """The (N, D) embeddings stored under a key, or None."""
        path = self.folder / f"{key}.safetensors"
        if not path.is_file():
            return None
        try:
            with safe_open(str(path), framework="numpy") as file:
                embeddings: NDArray[np.float32] = file.get_tensor("documents")
        except (SafetensorError, OSError):
            return None
        return embeddings

    def save(self, key: str, embeddings: NDArray[np.float32], document_ids: Sequence[str]) -> None:
        """Store (N, D) embeddings and their ids.

        Raises:
            StorageError: the folder cannot be written.
        """
        content = save(
            {"documents": np.ascontiguousarray(embeddings)}, {"document_ids": json.dumps(list(document_ids))}
        )
        write_atomically(self.folder / f"{key}.safetensors", content)
