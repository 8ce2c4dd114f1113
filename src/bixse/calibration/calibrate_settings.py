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
    """Task whose instructions precede the texts. Null takes the model's default prompts."""
    negatives: int | None = Field(default=None, ge=1)
    """Number of random unjudged documents added per query as irrelevant pairs. Null adds none."""
    collection: Annotated[Path | None, Flag(metavar="DIR")] = None
    """Collection folder from which `negatives` are drawn."""
    prior: Annotated[float | None, Flag(metavar="SHARE")] = Field(default=None, gt=0, lt=1)
    """Mean relevance of the documents that will be scored, in (0, 1). Probabilities are moved to it from the mean of
    the pairs. Null does not move them."""
    at_precision: Annotated[tuple[Precision, ...], Flag(metavar="P")] = ()
    """Precisions in (0, 1]. For each, the lowest probability threshold that reaches it is saved with the model."""
    export: Annotated[tuple[Probability, ...], Flag(metavar="P")] = ()
    """Probabilities whose cosines are written to export/ of the output folder, with the thresholds of at_precision.
    Snippets there cut at the highest of them in LangChain, LlamaIndex, Haystack, Qdrant, Elasticsearch, OpenSearch and
    pgvector."""
    positive_from: Annotated[float, Flag(metavar="Z")] = Field(default=POSITIVE_FROM, gt=0, le=1)
    """Lowest relevance, in (0, 1], that counts as relevant for at_precision."""
    anyway: bool = False
    """Save the calibration even if it is no better on held-out queries than before, or than a constant."""
    seed: int = Field(default=0, ge=0, lt=SEEDS)
    """Random seed that splits the queries into halves and draws negatives."""

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if (self.negatives is None) != (self.collection is None):
            given, absent = ("negatives", "collection")[:: 1 if self.collection is None else -1]
            raise ValueError(f"got {given} without {absent}; expected both; fix: add {absent}, or drop {given}")
        return self
