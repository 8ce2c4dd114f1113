"""Settings of `bixse index`, and of a corpus that is encoded in shards, which other verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from bixse.scale.engines.engine_settings import EngineSettings
from bixse.search.retrieval_settings import EncodingSettings
from bixse.settings import Flag

if TYPE_CHECKING:
    from typing import Self

StoredType: TypeAlias = Literal["float32", "float16"]
"""Dtype of stored embeddings."""
RECALL_TARGET = 0.95
"""Recall below which an approximate index gives a warning."""


class ShardedEncodingSettings(EncodingSettings, EngineSettings):
    """The settings of a corpus that is encoded part by part: here, by several ranks, or on a Ray cluster."""

    @model_validator(mode="after")
    def _devices_of_this_machine(self) -> Self:
        if self.engine == "ray" and self.devices is not None:
            raise ValueError("got devices with engine ray; expected them with local or ranks; fix: num_gpus for ray")
        return self

    def chosen_devices(self) -> tuple[list[str] | None, list[str]]:
        """Return None with Ray, since its processes are on other machines."""
        return (None, []) if self.engine == "ray" else super().chosen_devices()


class IndexSettings(ShardedEncodingSettings):
    """Settings of `bixse index`.

    Example:
        >>> IndexSettings(model="demo", collection="data").dtype
        'float32'
    """

    model: Annotated[str, Flag(metavar="MODEL", positional=True)]
    """Model folder, Hugging Face name, or demo (the small model of bixse[demo])."""
    collection: Annotated[Path, Flag(metavar="DIR")]
    """Folder with corpus.jsonl."""
    dtype: StoredType = "float32"
    """Of stored embeddings: float32, or float16 for half the disk."""
    max_length: Annotated[int | None, Flag(metavar="TOKENS")] = None
    """Read only the first TOKENS of a text."""
    recall_target: float = Field(default=RECALL_TARGET, ge=0, le=1)
    """With a vector database: warn where its approximate search finds fewer of the exact 10 or 100 best documents."""
    recall_queries: Annotated[Path | None, Flag(metavar="FILE")] = None
    """Queries on which that recall is measured; null: titles of documents."""
