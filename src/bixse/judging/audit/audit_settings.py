"""Settings of `bixse grade audit` and `bixse grade calibrate`: human labels, scales, figures and files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from bixse.errors import SEEDS
from bixse.settings import Flag, Settings

if TYPE_CHECKING:
    from typing import Self

Ends = Annotated[tuple[float, float] | None, Flag(metavar="GRADE")]
MapKind: TypeAlias = Literal["platt", "isotonic"]
"""platt: one logistic curve (Platt 1999); isotonic: steps and slopes that only rise (Zadrozny and Elkan 2002)."""


class LabelSettings(Settings):
    """Human labels, the scales of both sides, and the lowest relevant grade."""

    human: Annotated[Path, Flag(metavar="QRELS")]
    """Human labels: qrels (TREC, BEIR) or a table of query_id, document_id, grade."""
    scale: Ends = None
    """Lowest and highest grade of the human labels; null: the lowest to the highest label found."""
    judge_scale: Ends = None
    """Lowest and highest grade of the judge; null: as its file says, else that of the human labels."""
    rubric: str | None = None
    """Rubric whose scale the judge used, instead of judge_scale."""
    relevant_from: Annotated[float | None, Flag(metavar="GRADE")] = None
    """Human grade from which a pair is relevant; null: the lowest in the upper half of the scale, 2 on 0 to 3."""

    @model_validator(mode="after")
    def _one_judge_scale(self) -> Self:
        return self.at_most_one("rubric", "judge_scale")


class AuditSettings(LabelSettings):
    """Settings of `bixse grade audit`.

    Example:
        >>> AuditSettings(human="qrels.txt", judge=["judgements.parquet"]).samples
        1000
    """

    judge: Annotated[tuple[Path, ...], Field(min_length=1), Flag(metavar="FILE")]
    """The judge's labels: judgements.parquet of `bixse grade`, graded pairs, or qrels; several are compared."""
    runs: Annotated[tuple[Path, ...], Flag(metavar="FILE")] = ()
    """TREC runs to rank by nDCG@10 under human and under judge labels."""
    pairs: Annotated[Path | None, Flag(metavar="FILE")] = None
    """Graded pairs with texts, to show disagreements."""
    collection: Annotated[Path | None, Flag(metavar="DIR")] = None
    """Collection with texts, to show disagreements."""
    samples: int = Field(default=1000, ge=1)
    """Resamples of the queries for the intervals."""
    seed: int = Field(default=0, ge=0, lt=SEEDS)
    """Random seed of the resampling."""

    @model_validator(mode="after")
    def _one_source_of_texts(self) -> Self:
        return self.at_most_one("pairs", "collection")


class GradeMapSettings(LabelSettings):
    """Settings of `bixse grade calibrate`.

    Example:
        >>> GradeMapSettings(human="qrels.txt", judgements="judgements.parquet").kind
        'platt'
    """

    judgements: Annotated[Path, Flag(metavar="FILE")]
    """The judge's labels: judgements.parquet of `bixse grade`, or qrels."""
    kind: MapKind = "platt"
    """platt: a logistic curve; isotonic: steps."""
    target: Literal["relevant", "graded"] = "relevant"
    """Meaning of a mapped relevance: the probability that people find the pair relevant, or their mean grade on
    [0, 1]."""
    sample: int | None = Field(default=None, ge=1)
    """Number of random human labels to fit on; all are measured. null fits on all."""
    seed: int = Field(default=0, ge=0, lt=SEEDS)
    """Random seed of the sample and of the split of the queries."""
    apply: Annotated[Path | None, Flag(metavar="FILE")] = None
    """Graded pairs to map: written to pairs.parquet, their own grade in `grade`."""
    force: bool = False
    """Also write a map that does not help on held-out queries."""
