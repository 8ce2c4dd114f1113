"""What a search index says of itself: the model, the files, how it is searched, and what that finds."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

FORMAT: Literal[1] = 1
"""Version of the manifest."""
Kind: TypeAlias = Literal["exact", "hnsw", "ivf"]
"""How documents are found: all are scored, by a graph of neighbours, or in the nearest of some lists."""
StoredType: TypeAlias = Literal["float32", "float16"]
"""Numbers that embeddings are kept in."""


class _Plain(BaseModel):
    """Frozen, closed to unknown keys, finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class StoredFile(_Plain):
    """One file of the index; it is never written again."""

    name: str = Field(pattern=r"^[a-z]+-[0-9a-f]{16}\.[a-z]+$")
    size: int
    """Bytes."""
    sha256: str


class StoredShard(_Plain):
    """Some documents: their embeddings and their texts."""

    rows: int = Field(ge=1)
    embeddings: StoredFile
    documents: StoredFile

    def files(self) -> tuple[StoredFile, StoredFile]:
        """Both files."""
        return self.embeddings, self.documents


class ModelIdentity(_Plain):
    """What an encoder must be to search an index."""

    name: str
    """Folder or hub name it was loaded from."""
    weights: str
    """Hash of all that document embeddings depend on: weights, modules, tokenizer, document prompt, length limit."""
    prompts: str
    """Hash of all prompts, those of queries too."""
    document_prompt: str | None
    """What stood before the documents."""
    task: str | None
    """Task whose instructions were used."""
    max_length: int | None
    """Tokens of a text that are read; None is the model's own limit."""
    dimensions: int = Field(ge=1)
    """D."""


class Knobs(_Plain):
    """Settings of the approximate kinds; those of the other kind are not used."""

    links: Annotated[int, Field(ge=2, le=512)] = 32
    """hnsw: neighbours of a document (M)."""
    ef_construction: Annotated[int, Field(ge=1)] = 200
    """hnsw: candidates looked at when a document is put in."""
    ef_search: Annotated[int, Field(ge=1)] = 128
    """hnsw: candidates looked at when a query is answered."""
    lists: Annotated[int, Field(ge=1)] | None = None
    """ivf: lists the documents are dealt into; None: 4 times the root of their number."""
    nprobe: Annotated[int, Field(ge=1)] | None = None
    """ivf: lists looked at when a query is answered; None: a quarter of them."""


class Recall(_Plain):
    """How many of the documents that exact search finds are found."""

    at_10: float
    at_100: float
    queries: int
    """How many queries it was measured on."""
    source: str
    """What they were, in words."""
    seed: int
    """Of the draw of the queries."""
    target: float
    """What was wanted of both."""


class Graph(_Plain):
    """The FAISS index; shards behind its rows are searched exactly."""

    file: StoredFile
    rows: int
    """Documents in it: the first ones of the index."""
    knobs: Knobs
    """All set: none is None that this kind uses."""


class Manifest(_Plain):
    """One state of an index."""

    format: Literal[1] = FORMAT
    generation: int
    """Counts the changes."""
    written: str
    """UTC time."""
    origin: str
    """Hash of the model, corpus and settings it was made from."""
    model: ModelIdentity
    kind: Kind
    precision: StoredType
    shard_size: int = Field(ge=1)
    """Documents that are encoded between two savings."""
    shards: tuple[StoredShard, ...]
    deleted: StoredFile | None = None
    """Rows that no longer count."""
    graph: Graph | None = None
    recall: Recall | None = None

    @property
    def rows(self) -> int:
        """Documents in the shards, deleted ones too."""
        return sum(shard.rows for shard in self.shards)

    def files(self) -> list[StoredFile]:
        """Every file it names."""
        single = [self.deleted, self.graph.file if self.graph else None]
        return [file for shard in self.shards for file in shard.files()] + [file for file in single if file is not None]


class Pending(_Plain):
    """A change that is not finished: what it is, and its shards so far."""

    change: str
    """Hash of what the change is made of."""
    shards: tuple[StoredShard | None, ...] = ()
    """None stands for a block of documents that are in the index already."""
