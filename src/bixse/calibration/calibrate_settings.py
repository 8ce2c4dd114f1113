"""`CalibrateSettings`: the settings of `bixse calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from bixse.errors import SEEDS
from bixse.settings import Flag, Reads, Settings

POSITIVE_FROM = 0.5
"""Default relevance from which a document counts as relevant."""
SPLIT = "dev"
Precision = Annotated[float, Field(gt=0, le=1)]
Probability = Annotated[float, Field(gt=0, lt=1)]


class CalibrateSettings(Settings):
    """Settings of `bixse calibrate`."""

    renamed: ClassVar = {
        "at_recall": "give several precisions and take the cut with your recall: --at-precision 0.3 0.5 0.7 0.8 0.9",
        "negatives": "leave it out: --collection DIR without --pairs samples irrelevant documents",
    }

    model: Annotated[str | None, Flag(metavar="MODEL", positional=True), Reads("model")] = None
    """Model folder, Hugging Face name, or demo (the small model of bixse[demo]). Leave it out with `scores`."""
    pairs: Annotated[Path | None, Flag(metavar="FILE"), Reads("graded")] = None
    """Graded pairs that were not trained on (.parquet .jsonl .csv .tsv), instead of a collection. The probabilities
    are for such pairs, not for search results."""
    collection: Annotated[Path | None, Flag(metavar="DIR"), Reads("collection")] = None
    """Collection folder with judged queries that were not trained on; relevant documents alone are enough. Irrelevant
    documents are sampled: hits of the model and of BM25, and random ones. The probabilities are for its corpus."""
    split: Annotated[str | None, Flag(metavar="NAME")] = None
    """Split of the collection. Null takes dev."""
    scores: Annotated[Path | None, Flag(metavar="FILE"), Reads("scores")] = None
    """Scores of any model, instead of model and pairs (.parquet .jsonl .csv .tsv). The columns are query, score (or
    cosine), and either relevance from 0 to 1 (or relevant, label) or grade."""
    scored_by: Annotated[str | None, Flag(metavar="NAME")] = None
    """The model of `scores`, its dimensions and prompts, in words. Scores under another name get no probabilities."""
    task: str | None = None
    """Task whose instructions precede the texts. Null takes the model's default prompts."""
    dimensions: Annotated[int | None, Flag(metavar="D")] = Field(default=None, ge=2)
    """Number of dimensions that embeddings are cut to. The model stores probabilities and thresholds for each number.
    Null calibrates for complete embeddings."""
    prior: Annotated[float | None, Flag(metavar="SHARE")] = Field(default=None, gt=0, lt=1)
    """Mean relevance, in (0, 1), of the documents that will be scored. Probabilities are moved from the mean of the
    pairs to this mean. Null does not move them."""
    at_precision: Annotated[tuple[Precision, ...], Flag(metavar="P")] = ()
    """Precisions in (0, 1]. For each, the probability threshold that reaches it with the highest recall is saved
    with the model. With a collection it is the precision of search results: documents that a ranking shows."""
    export: Annotated[tuple[Probability, ...], Flag(metavar="P")] = ()
    """Probabilities to write as cosines to export/ of the output folder, in addition to the thresholds of at_precision.
    Code there computes the probability, and drops hits below the highest of these cosines, in LangChain, LlamaIndex,
    Haystack, Qdrant, LanceDB, DuckDB, pgvector, Elasticsearch, OpenSearch, MongoDB Atlas and Vespa."""
    positive_from: Annotated[float, Flag(metavar="Z")] = Field(default=POSITIVE_FROM, gt=0, le=1)
    """Lowest relevance, in (0, 1], that counts as relevant for at_precision."""
    anyway: bool = False
    """Save the calibration even if, on held-out queries, it is no better than the old one or than a constant."""
    seed: int = Field(default=0, ge=0, lt=SEEDS)
    """Random seed that splits the queries into halves and draws random documents."""

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if self.scores is None and (self.model is None or (self.pairs is None) == (self.collection is None)):
            both = self.pairs is not None and self.collection is not None
            raise ValueError(
                f"got {'pairs and collection' if both else 'no model with a collection, and no scores'}; expected one "
                "of them; fix: give MODEL and --collection, MODEL and --pairs, or --scores"
            )
        if self.scores is not None:
            also = [
                name for name in ("model", "pairs", "task", "dimensions", "collection", "split") if getattr(self, name)
            ]
            if also:
                raise ValueError(f"got scores and {also[0]}; expected one of them; fix: leave {also[0]} out")
            if not self.scored_by:
                raise ValueError(
                    "got scores without scored_by; expected the name of their model, since scores of another model "
                    "mean something else; fix: for example scored_by: all-MiniLM-L6-v2, 384 dimensions, no prompt"
                )
        if self.split is not None and self.collection is None:
            raise ValueError("got split without collection; expected both; fix: add collection, or drop split")
        return self
