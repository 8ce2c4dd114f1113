"""Settings of `bixse index`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from bixse.retrieval.index.manifest import StoredType
from bixse.retrieval.search_settings import EncodingSettings
from bixse.settings import Flag

RECALL_TARGET = 0.95
"""Share of the exact best documents below which an approximate index is warned of."""


class IndexSettings(EncodingSettings):
    """Settings of `bixse index`.

    Example:
        >>> IndexSettings(model="demo", collection="data").index_type
        'exact'
    """

    model: Annotated[str, Flag(metavar="MODEL", positional=True)]
    """Model folder, Hugging Face name, or demo (the small model of bixse[demo])."""
    collection: Annotated[Path, Flag(metavar="DIR")]
    """Folder with corpus.jsonl."""
    dtype: StoredType = "float32"
    """Of stored embeddings: float32, or float16 for half the disk."""
    max_length: Annotated[int | None, Flag(metavar="TOKENS")] = None
    """Read only the first TOKENS of a text."""
    index_type: str = "exact"
    """exact: all are scored; hnsw, ivf or a string of faiss.index_factory: most are found, faster, by FAISS."""
    parameters: Annotated[str | None, Flag(metavar="NAME=N,...")] = None
    """Of FAISS: efSearch=256 for hnsw, nprobe=64 for ivf; more finds more, slower."""
    recall_target: float = Field(default=RECALL_TARGET, ge=0, le=1)
    """Warn where fewer of the exact 10 or 100 best are found."""
    recall_queries: Annotated[Path | None, Flag(metavar="FILE")] = None
    """Queries to measure that on; null: titles of documents."""
