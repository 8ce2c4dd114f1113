"""The settings of `bixse search`, and the settings of encoding that other verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from bixse.encoders.loading.precision import Setting
from bixse.errors import InputError
from bixse.settings import Flag, Reads, Settings

STDIN = "-"
"""Value of `queries` for queries that are typed or piped."""


class EncodingSettings(Settings):
    """The encoding of texts, and the folder of their embeddings."""

    task: str | None = None
    """Task whose instruction precedes each text. null: the default task of the model, or no instruction."""
    cache: Annotated[str | None, Flag(metavar="DIR")] = None
    """Folder for document embeddings, so that a corpus is encoded once per model. none stores nothing; null takes
    BIXSE_CACHE_DIR, or else the user's cache folder (`bixse doctor` shows it)."""
    precision: Setting = "auto"
    """Dtype that models compute in. auto: the value of BIXSE_PRECISION, else bfloat16 if the CPU or GPU is fast at
    it."""


class SearchSettings(EncodingSettings):
    """The settings of `bixse search`.

    Example:
        >>> SearchSettings(model="runs/index", query="copy a folder").top
        10
    """

    model: Annotated[str, Flag(metavar="INDEX|MODEL", positional=True), Reads("index")]
    """An index: its folder, or lancedb:PATH/TABLE or qdrant:URL/COLLECTION that `bixse index` wrote to. With
    --collection, a model: its folder, its Hugging Face name, or demo (the small model of bixse[demo])."""
    query: Annotated[str | None, Flag(metavar="QUERY", positional=True)] = None
    """The query, in quotes."""
    collection: Annotated[Path | None, Flag(metavar="DIR")] = None
    """Folder with corpus.jsonl, which a model searches without an index."""
    top: int = Field(default=10, ge=1)
    """Number of documents shown."""
    threshold: Annotated[float | None, Flag(metavar="P")] = Field(default=None, ge=0, le=1)
    """Lowest probability of relevance of a shown document, 0 to 1. null shows documents of any probability."""
    at_precision: Annotated[float | None, Flag(metavar="P")] = None
    """Precision, 0 to 1. Documents below its threshold are not shown. `bixse calibrate --at-precision P` stores the
    threshold in the model."""
    queries: Annotated[str | None, Flag(metavar="FILE")] = None
    """File of queries for an index (columns _id and text, or one query per line); - reads standard input."""
    exact: bool = False
    """Score every document of a vector database, without its approximate index."""
    model_at: Annotated[str | None, Reads("model")] = None
    """Folder or name of an index's model, if the model has moved since indexing."""

    @model_validator(mode="after")
    def _has_queries_from_one_source(self) -> Self:
        if self.query is None and self.queries is None:
            raise ValueError("got no query; expected QUERY, or queries with an index; fix: add QUERY")
        return self.at_most_one("query", "queries")

    def check_for(self, is_index: bool) -> None:
        """Refuse, by an InputError, settings that do not apply to an index, or to a model."""
        other = ("cache", "collection") if is_index else ("queries", "exact", "model_at")
        unsuitable = [name for name in other if getattr(self, name) not in (None, False)]
        if unsuitable:
            expected, fix = ("a model", "leave it out") if is_index else ("an index", "make one with `bixse index`")
            flag = f"--{unsuitable[0].replace('_', '-')}"
            raise InputError(f"{flag}: got it for {self.model}; expected it for {expected} alone; fix: {fix}")
        if not is_index and self.collection is None:
            raise InputError(
                f"{self.model}: got no index and no --collection; expected one of them; fix: add --collection DIR, or "
                "make an index with `bixse index MODEL --collection DIR --out INDEX`"
            )
