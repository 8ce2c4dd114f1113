"""Settings of a conversion, checked before any work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from bixse.preparing.formats import SourceSettings
from bixse.preparing.transforms import (
    Binarise,
    KeepFrom,
    LabelNoise,
    Sample,
    SplitByQuery,
    Transform,
    WithoutDuplicates,
)
from bixse.settings import Flag, named_words

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
    """Name of the task of every row. The default is the task that the source states."""
    skip_invalid: bool = False
    """Leave out unreadable rows and list them in errors.jsonl. The default refuses a file with unreadable rows."""
    noise: float | None = None
    """Probability, 0 to 1, that the best and the worst document of a query exchange their labels; null means none."""
    cutoff: float | None = None
    """Lowest relevance, 0 to 1, of the pairs to keep; null keeps all pairs."""
    size: int | None = None
    """Number of pairs to keep, with tasks and levels of relevance in proportion; null means all pairs."""
    binarise: float | None = None
    """Threshold, 0 to 1. Relevance of at least this becomes 1, lower relevance becomes 0; null means no change."""
    split: Annotated[dict[PartName, float], BeforeValidator(named_words), Flag(metavar="PART=SHARE")] = Field(
        default={}
    )
    """Parts without a common query text, for example train=0.8 dev=0.1 test=0.1; the default is a single part."""
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
