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

    model: Annotated[str | None, Flag(metavar="MODEL", positional=True)] = None
    """Model folder, Hugging Face name, or demo (the small model of bixse[demo]). Null with `scores`."""
    pairs: Annotated[Path | None, Flag(metavar="FILE")] = None
    """Graded pairs that were not trained on (.parquet .jsonl .csv .tsv). Null with `scores`."""
    scores: Annotated[Path | None, Flag(metavar="FILE")] = None
    """Scores of any model with what is relevant, in the place of model and pairs: the columns query, score (or cosine)
    and relevance from 0 to 1 (or relevant, label) or grade (.parquet .jsonl .csv .tsv)."""
    scored_by: Annotated[str | None, Flag(metavar="NAME")] = None
    """The model of `scores`, its dimensions and prompts, in words. The probabilities are refused for any other."""
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
    Snippets there compute the probability, and cut at the highest of them, in LangChain, LlamaIndex, Haystack, Qdrant,
    LanceDB, DuckDB, pgvector, Elasticsearch, OpenSearch, MongoDB Atlas and Vespa."""
    positive_from: Annotated[float, Flag(metavar="Z")] = Field(default=POSITIVE_FROM, gt=0, le=1)
    """Lowest relevance, in (0, 1], that counts as relevant for at_precision."""
    anyway: bool = False
    """Save the calibration even if it is no better on held-out queries than before, or than a constant."""
    seed: int = Field(default=0, ge=0, lt=SEEDS)
    """Random seed that splits the queries into halves and draws negatives."""

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if self.scores is None and (self.model is None or self.pairs is None):
            raise ValueError(
                "got no model with pairs, and no scores; expected one of them; fix: give MODEL and --pairs"
            )
        if self.scores is not None:
            also = [name for name in ("model", "pairs", "task", "negatives", "collection") if getattr(self, name)]
            if also:
                raise ValueError(f"got scores and {also[0]}; expected one of them; fix: leave {also[0]} out")
            if not self.scored_by:
                raise ValueError(
                    "got scores without scored_by; expected the model that they are of, since they mean nothing for "
                    "another; fix: for example scored_by: all-MiniLM-L6-v2, 384 dimensions, no prompt"
                )
        if (self.negatives is None) != (self.collection is None):
            given, absent = ("negatives", "collection")[:: 1 if self.collection is None else -1]
            raise ValueError(f"got {given} without {absent}; expected both; fix: add {absent}, or drop {given}")
        return self
