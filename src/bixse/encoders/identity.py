"""Which checkpoint a model is: hashes of the files its embeddings depend on."""

from __future__ import annotations

from pathlib import Path

from bixse.data.io.files import file_hash
from bixse.encoders.head import HEAD_FILE

MODEL_SUFFIXES = (".safetensors", ".bin", ".json", ".txt", ".model", ".py", ".jinja")
"""Files of a model folder that its embeddings may depend on: weights, settings, vocabularies, code, templates."""


def model_hashes(model: str | Path) -> dict[str, str]:
    """Content hashes of what a model folder's ranking depends on (not its relevance head); {} for a hub name."""
    if not Path(model).is_dir():
        return {}
    files = sorted(path for path in Path(model).rglob("*") if path.suffix in MODEL_SUFFIXES)
    return {f"model/{path.relative_to(model)}": file_hash(path) for path in files if path.name != HEAD_FILE}


def model_path_settings(model: str | Path) -> tuple[str, ...]:
    """("model",) where a run's setting `model` is a folder, which `model_hashes` identifies; () for a name."""
    return ("model",) if Path(model).is_dir() else ()
