"""The kind of a model, by its files: what reads query and document."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from typing_extensions import TypeIs

ModelKind: TypeAlias = Literal["encoder", "reranker", "late-interaction", "sparse"]
"""One vector per text, query and document read together, one vector per token, a sparse vector per text."""
SAVED_KINDS: dict[str, ModelKind] = {
    "CrossEncoder": "reranker",
    "MultiVectorEncoder": "late-interaction",
    "ColBERT": "late-interaction",
    "SparseEncoder": "sparse",
}
"""`model_type` in the files of sentence-transformers -> kind; any other is an encoder."""


def kind_of(source: str | Path) -> ModelKind:
    """Return the kind of a folder, or of a name that the hub has; "encoder" where the files do not say."""
    settings = _content(source, "config_sentence_transformers.json", dict)
    if "model_type" in settings:
        return SAVED_KINDS.get(str(settings["model_type"]), "encoder")
    if _content(source, "modules.json", list):
        return "encoder"
    # older versions of sentence-transformers save a CrossEncoder as transformers does
    config = _content(source, "config.json", dict)
    bare = str((config.get("architectures") or [""])[0])
    is_classifier = bare.endswith("ForSequenceClassification") and len(config.get("id2label") or ()) == 1
    return "reranker" if is_classifier else "encoder"


def is_encoder(value: object) -> TypeIs[SentenceTransformer]:
    """Return True for a `SentenceTransformer` in memory."""
    library = sys.modules.get("sentence_transformers")  # its import takes seconds, and such a model has imported it
    return library is not None and isinstance(value, library.SentenceTransformer)


def _content(source: str | Path, name: str, kind: type) -> Any:
    """Return the content of a JSON file; empty for a file that is missing or damaged, which the loader names."""
    from sentence_transformers.util import load_file_path  # not at the top: it imports torch

    try:
        path = load_file_path(str(source), name, cache_folder=os.getenv("SENTENCE_TRANSFORMERS_HOME"))
        content = None if path is None else json.loads(Path(path).read_bytes())
    except (OSError, ValueError):
        return kind()
    return content if isinstance(content, kind) else kind()
