"""`AdaptSettings`: the settings of `bixse adapt`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from bixse.errors import SEEDS
from bixse.settings import Flag, Settings


class AdaptSettings(Settings):
    """Settings of `bixse adapt`."""

    vectors: Annotated[Path, Flag(metavar="FILE")]
    """Vectors of all documents: id, vector (.parquet .jsonl .csv .tsv)."""
    queries: Annotated[Path, Flag(metavar="FILE")]
    """Vectors of the queries of all pairs: id, vector, by the same model."""
    pairs: Annotated[Path, Flag(metavar="FILE")]
    """Graded pairs to learn from: query_id, document_id, relevance from 0 to 1."""
    vectors_of: Annotated[str, Flag(metavar="NAME")] = Field(min_length=1)
    """The model of the vectors, in words. The adapter is refused for vectors of another name."""
    dev: Annotated[Path | None, Flag(metavar="FILE")] = None
    """Graded pairs of other queries, which choose and check the adapter. Null holds out 30 % of the queries."""
    rank: int = Field(default=32, ge=1)
    """Rank of the map, at most the dimensions of the vectors."""
    steps: int = Field(default=160, ge=1)
    """Maximum number of steps. Dev chooses between this number, its half, its quarter, and so on."""
    learning_rate: float = Field(default=1e-3, gt=0, le=1)
    """Learning rate of the map (Adam)."""
    seed: int = Field(default=0, ge=0, lt=SEEDS)
    """Random seed of the initial map, of batches and of held-out queries."""
