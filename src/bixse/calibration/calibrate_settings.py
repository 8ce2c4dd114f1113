"""`CalibrateSettings`: the settings of `bixse calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from bixse.errors import SEEDS
from bixse.settings import Flag, Settings

if TYPE_CHECKING:
    from typing import Self

POSITIVE_FROM = 0.5
"""Default relevance from which a document counts as relevant."""
Precision = Annotated[float, Field(gt=0, le=1)]
Probability = Annotated[float, Field(gt=0, lt=1)]


class CalibrateSettings(Settings):
    """Settings of `bixse calibrate`."""

    model: Annotated[str, Flag(metavar="MODEL", positional=True)]
    """Model folder, Hugging Face name, or demo (the small model of bixse[demo])."""
    pairs: Annotated[Path, Flag(metavar="FILE")]
    """Graded pairs that were not trained on (.parquet .jsonl .csv .tsv)."""
    task: str | None = None
    """Task whose instructions stand before queries (and documents)."""
    negatives: int | None = Field(default=None, ge=1)
    """Random documents of the collection that are added per query as irrelevant pairs, never one judged for it."""
    collection: Annotated[Path | None, Flag(metavar="DIR")] = None
    """Folder with corpus.jsonl, queries.jsonl and qrels, that negatives are drawn from."""
    prior: Annotated[float | None, Flag(metavar="SHARE")] = Field(default=None, gt=0, lt=1)
    """Mean relevance of all that will be scored: probabilities are moved from the pairs' own mean to it; null leaves
    them as in the pairs."""
    at_precision: Annotated[tuple[Precision, ...], Flag(metavar="P")] = ()
    """Find and save the lowest probability from which at least this share of the documents is relevant; one or
    several."""
    export: Annotated[tuple[Probability, ...], Flag(metavar="P")] = ()
    """Write the cosines at which these probabilities, and the thresholds of at_precision, are reached, and how to cut
    there in LangChain, LlamaIndex, Haystack, Qdrant, Elasticsearch, OpenSearch and pgvector; into export/ of the
    output folder."""
    positive_from: Annotated[float, Flag(metavar="Z")] = Field(default=POSITIVE_FROM, gt=0, le=1)
    """Relevance from which a document counts as relevant for at_precision."""
    anyway: bool = False
    """Save the calibration even where, on held-out queries, it is no better than before or than a constant."""
    seed: int = Field(default=0, ge=0, lt=SEEDS)
    """Random seed of the split of the queries into halves, and of negatives."""

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if (self.negatives is None) != (self.collection is None):
            given, absent = ("negatives", "collection")[:: 1 if self.collection is None else -1]
            raise ValueError(f"got {given} without {absent}; expected both; fix: add {absent}, or drop {given}")
        return self
