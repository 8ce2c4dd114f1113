"""What a model is, as hashes: of the files in its folder, and of everything that its embeddings depend on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from pprint import pformat
from typing import TYPE_CHECKING, Any

import torch

from bixse.encoders.encode import encoding_device
from bixse.encoders.head import HEAD_FILE
from bixse.encoders.instructions import prompt_for
from bixse.encoders.loading.attention import parts_of
from bixse.encoders.loading.build import MODEL_FILES
from bixse.encoders.loading.precision import resolve_precision
from bixse.files.files import file_hash

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

MODEL_SUFFIXES = (".safetensors", ".bin", ".json", ".txt", ".model", ".py", ".jinja")
"""Files of a model folder that its embeddings may depend on: weights, settings, vocabularies, code, templates."""


def model_hashes(model: str | Path) -> dict[str, str]:
    """Content hashes of what a model folder's ranking depends on (not its relevance head).

    Returns {} for a hub name, and for a folder without a model, which may be as large as a disk.
    """
    if not any((Path(model) / name).is_file() for name in MODEL_FILES):
        return {}
    files = sorted(path for path in Path(model).rglob("*") if path.suffix in MODEL_SUFFIXES)
    return {f"model/{path.relative_to(model)}": file_hash(path) for path in files if path.name != HEAD_FILE}


def model_path_settings(model: str | Path) -> tuple[str, ...]:
    """("model",) where a run's setting `model` is a folder, which `model_hashes` identifies; () for a name."""
    return ("model",) if Path(model).is_dir() else ()


def embeddings_key(model: SentenceTransformer, portable: bool = False) -> str:
    """Hash of everything that the embedding of a document depends on beside its text.

    With `portable`, what is of this machine and its setting is left out: the precision computed in, and whether weights
    that are stored in half precision were loaded as float32.
    """
    digest = hashlib.sha256()
    for name, state in sorted(model.state_dict().items()):
        for part in state if isinstance(state, tuple) else (state,):  # a quantised layer keeps weight and bias as one
            if not isinstance(part, torch.Tensor):
                digest.update(f"{name} {part!r}".encode())
                continue
            dtype = torch.float32 if portable and part.is_floating_point() else part.dtype
            tensor = part.dequantize() if part.is_quantized else part
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
    return digest.hexdigest()[:32]


def _tokenizer_content(tokenizer: Any) -> str:
    """All that decides the tokens of a text except the length limit; the same after saving and loading."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    sides = [getattr(tokenizer, name, None) for name in ("truncation_side", "padding_side")]
    if hasattr(backend, "to_str"):
        content = json.loads(backend.to_str())
        kept = {name: value for name, value in content.items() if name not in ("truncation", "padding")}  # of a call
        return json.dumps([sides, kept], sort_keys=True)
    words = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else {}
    special = getattr(tokenizer, "special_tokens_map", {})
    return json.dumps([type(tokenizer).__name__, sides, words, special], sort_keys=True, default=str)
