"""Document embeddings on disk, so that a model encodes a corpus once."""

from __future__ import annotations

import contextlib
import hashlib
import json
from itertools import islice
from pprint import pformat
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bixse.data.io.cache import EMBEDDINGS_FOLDER, cache_folder
from bixse.data.io.files import write_atomically
from bixse.encoders.encode import encode_texts, encoding_device
from bixse.encoders.loading.parts import parts_of
from bixse.encoders.loading.precision import resolve_precision
from bixse.encoders.prompts import prompt_for
from bixse.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer

    from bixse.data.collection import Document

DOCUMENTS_PER_BLOCK = 16_384
"""Documents encoded, kept and searched together; at 1,024 dimensions their embeddings take 67 MB."""


def embeddings_key(model: SentenceTransformer, corpus: Mapping[str, Document], portable: bool = False) -> str:
    """Hash of everything document embeddings depend on.

    That is: the weights, the modules and their settings, the tokenizers, the document prompt, the length limit, the
    dimensions, the numbers computed with, and the ids and texts.

    Args:
        model: the encoder.
        corpus: document id -> document.
        portable: leave out what is of this machine and its setting: the numbers computed with, and whether weights that
            are stored in half precision were loaded as float32.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        dtype = torch.float32 if portable and tensor.is_floating_point() else tensor.dtype
        digest.update(f"{name} {dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).float().numpy().tobytes())
    for module in parts_of(model):
        backbone = getattr(getattr(module, "auto_model", None), "config", None)
        own: dict[str, Any] = getattr(module, "get_config_dict", dict)()
        settings = (own, {n: v for n, v in backbone.to_dict().items() if n != "_name_or_path"} if backbone else {})
        digest.update(pformat([type(module).__name__, settings]).encode())  # sorts keys, those of a router too
        digest.update(_tokenizer_content(getattr(module, "tokenizer", None)).encode())
        digest.update(repr(getattr(module, "max_seq_length", None)).encode())
    in_bf16 = not portable and resolve_precision(device=encoding_device(model)) == "bfloat16"
    digest.update(repr((prompt_for(model, "document"), model.truncate_dim, in_bf16)).encode())
    for identifier, document in corpus.items():
        digest.update(repr((identifier, document.content)).encode())
    return digest.hexdigest()[:32]


def _tokenizer_content(tokenizer: Any) -> str:
    """All that decides which tokens per text becomes, except the length limit; the same after saving and loading."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    sides = [getattr(tokenizer, name, None) for name in ("truncation_side", "padding_side")]
    if hasattr(backend, "to_str"):
        content = json.loads(backend.to_str())
        kept = {name: value for name, value in content.items() if name not in ("truncation", "padding")}  # of a call
        return json.dumps([sides, kept], sort_keys=True)
    words = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else {}
    special = getattr(tokenizer, "special_tokens_map", {})
    return json.dumps([type(tokenizer).__name__, sides, words, special], sort_keys=True, default=str)


class EmbeddingStore:
    """Document embeddings by key; a damaged or missing file simply means encoding again.

    Args:
        cache: folder that the embeddings are kept below, or "none"; None: see `bixse.data.io.cache.cache_folder`.
    """

    def __init__(self, cache: str | Path | None = None) -> None:
        root = cache_folder(cache)
        self.folder = None if root is None else root / EMBEDDINGS_FOLDER
        """Where the files lie; None where nothing is kept."""

    def load(self, key: str) -> NDArray[np.float32] | None:
        """The (N, D) embeddings stored under a key, or None."""
        if self.folder is None or not (path := self.folder / f"{key}.safetensors").is_file():
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
        if self.folder is None:
            return
        content = save(
            {"documents": np.ascontiguousarray(embeddings)}, {"document_ids": json.dumps(list(document_ids))}
        )
        write_atomically(self.folder / f"{key}.safetensors", content)


def encode_blocks(
    model: SentenceTransformer,
    documents: Iterable[tuple[str, str]],
    store: EmbeddingStore,
    progress: Callable[[int], None] | None = None,
) -> Iterator[tuple[list[str], NDArray[np.float32]]]:
    """Embed documents in blocks of `DOCUMENTS_PER_BLOCK`; one that this very model embedded before is read.

    Memory holds one block. Each block is stored as soon as it is encoded, so that a killed process loses one; where
    the store cannot be written, documents are encoded anew each time.

    Args:
        model: the encoder.
        documents: id and text of each document.
        store: where embeddings are kept.
        progress: called with the number of documents done since the last call.

    Yields:
        Ids of a block and its embeddings, (n, D), L2-normalised.
    """
    encoder_key = embeddings_key(model, {}) if store.folder is not None else ""
    rest = iter(documents)
    while block := list(islice(rest, DOCUMENTS_PER_BLOCK)):
        ids, texts = [name for name, _ in block], [text for _, text in block]
        key = hashlib.sha256(repr((encoder_key, block)).encode("utf-8", "surrogatepass")).hexdigest()[:32]
        embeddings = store.load(key)
        if embeddings is None or len(embeddings) != len(ids):
            embeddings = encode_texts(model, texts, "document", progress=progress)
            with contextlib.suppress(StorageError):
                store.save(key, embeddings, ids)
        elif progress is not None:
            progress(len(ids))
        yield ids, embeddings
