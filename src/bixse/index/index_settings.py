"""Settings of `bixse index`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from bixse.engine import EngineSettings
from bixse.search.retrieval_settings import EncodingSettings
from bixse.settings import Flag, Reads


class IndexSettings(EncodingSettings, EngineSettings):
    """Settings of `bixse index`.

    Example:
        >>> IndexSettings(model="demo", collection="data").processes
        1
    """

    model: Annotated[str, Flag(metavar="MODEL", positional=True), Reads("model")]
    """Model folder, Hugging Face name, or demo (the small model of bixse[demo])."""
    collection: Annotated[Path, Flag(metavar="DIR"), Reads("corpus")]
    """Folder with corpus.jsonl, or the file itself."""
    max_length: Annotated[int | None, Flag(metavar="TOKENS")] = None
    """Maximum number of tokens read per text; null is the limit of the model."""

    dimensions: Annotated[int | None, Flag(metavar="D")] = Field(default=None, ge=2)
    """Number of dimensions that embeddings are cut to; null keeps them complete."""

    @property
    def corpus(self) -> Path:
        """Return the file of documents."""
        return self.collection if self.collection.is_file() else self.collection / "corpus.jsonl"
