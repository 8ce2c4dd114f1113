"""Settings of a conversion, checked before any work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from bixse.preparing.formats import SourceSettings, named_words
from bixse.preparing.transforms import (
    Binarise,
    KeepFrom,
    LabelNoise,
    Sample,
    SplitByQuery,
    Transform,
    WithoutDuplicates,
)
from bixse.settings import Flag

if TYPE_CHECKING:
    from typing import Self


PartName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[\w-]+$")]
"""Name of a part, and of its file."""


class ConvertSettings(SourceSettings):
    """Settings of a conversion.

    Transforms apply in this order: dedup, noise, cutoff, size, binarise, split. For another order, convert twice, the
    second time from the source "pairs".

    Raises:
        ValueError: an unknown source, or a value out of range (of pydantic; `ConvertSettings.load` raises ConfigError).
        InputError: settings that contradict each other.

    Example:
        >>> ConvertSettings(source="e5", path="echo-data", cutoff=0.7, split={"train": 0.9, "dev": 0.1}).cutoff
        0.7
    """

    task: str | None = Field(default=None, pattern=r"\S")
    """Task of every row, instead of what the source says."""
    skip_invalid: bool = False
    """Leave out rows that cannot be read and list them in errors.jsonl, instead of refusing."""
    dedup: bool = False
    """One row per pair of texts (NFKC, case folded), with the mean of their relevances."""
    noise: float | None = None
    """Probability that a query's best and worst document exchange their labels."""
    cutoff: float | None = None
    """Keep pairs with at least this relevance."""
    size: int | None = None
    """Keep exactly so many pairs, tasks and levels of relevance in proportion."""
    binarise: float | None = None
    """Relevance becomes 1 from here up and 0 below."""
    split: Annotated[dict[PartName, float], BeforeValidator(named_words), Flag(metavar="PART=SHARE")] = Field(
        default={}
    )
    """Parts that share no query text, as in train=0.8 dev=0.1 test=0.1."""
    seed: int = 0
    """Random seed of noise, sample and split."""

    @model_validator(mode="after")
    def _usable(self) -> Self:
        self.transforms()
        self.parts()
        return self

    def transforms(self) -> list[Transform]:
        wanted = [
            WithoutDuplicates() if self.dedup else None,
            None if self.noise is None else LabelNoise(self.noise, self.seed),
            None if self.cutoff is None else KeepFrom(self.cutoff),
            None if self.size is None else Sample(self.size, self.seed),
            None if self.binarise is None else Binarise(self.binarise),
        ]
        return [transform for transform in wanted if transform is not None]

    def parts(self) -> SplitByQuery | None:
        return SplitByQuery(self.split, self.seed) if self.split else None
