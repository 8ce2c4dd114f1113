"""Settings of a conversion, checked before any work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import BeforeValidator, Field, StringConstraints, field_validator, model_validator

from bixse.data.transforms import Binarise, KeepFrom, LabelNoise, Sample, SplitByQuery, Transform, WithoutDuplicates
from bixse.errors import did_you_mean
from bixse.preparing.formats import FORMATS, HUB, SourceOptions, TableColumns
from bixse.relevance import GradeScale
from bixse.settings import Flag, Settings

if TYPE_CHECKING:
    from typing import Self


PartName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[\w-]+$")]
"""Name of a part, and of its file."""


def _shares(value: Any) -> Any:
    """Parse words such as train=0.8 into parts and shares."""
    if not isinstance(value, (list, tuple)):
        return value
    words = [str(word).partition("=") for word in value]
    if len({name for name, _, _ in words}) < len(words) or not all(share for _, _, share in words):
        raise ValueError("expected PART=SHARE, each part once; fix: as in train=0.8 dev=0.1 test=0.1")
    return {name: share for name, _, share in words}


class ConvertSettings(Settings):
    """Settings of a conversion.

    Transforms apply in this order: dedup, noise, cutoff, size, binarise, split. For another order, convert twice, the
    second time from the source "pairs".

    Raises:
        ValueError: an unknown source, or a value out of range (of pydantic; `ConvertSettings.load` raises ConfigError).
        InputError: settings that contradict each other.

    Example:
        >>> ConvertSettings(source="e5", path="echo-data", cutoff=0.7, split={"train": 0.9, "dev": 0.1}).form
        'pairs'
    """

    renamed: ClassVar[Mapping[str, str]] = {
        **{f"{name}_column": f"write columns: {{{name}: NAME}}" for name in TableColumns.model_fields},
    }

    source: Annotated[str, Flag(positional=True, metavar="SOURCE")]
    """Name of the format, see --list; "pairs" for files of bixse."""
    path: Annotated[Path, Flag(positional=True)]
    """File or folder; hub:owner/name of the Hub."""
    form: Annotated[Literal["pairs", "collection"], Flag(name="as")] = "pairs"
    """Graded pairs for training, or a collection folder for evaluation."""
    task: str | None = Field(default=None, pattern=r"\S")
    """Task of every row, instead of what the source says."""
    scale: Annotated[tuple[float, float] | None, Flag(metavar="GRADE")] = None
    """Lowest and highest grade, where the source does not say."""
    score_map: Annotated[str | None, Flag(metavar="MAP")] = None
    """What a teacher's scores are: prob, percent, logit, platt:SLOPE,INTERCEPT, or binary to take the labels."""
    corpus: Path | None = None
    """File or folder of the documents that rows name by id."""
    queries: Path | None = None
    """File of the queries that rows name by id."""
    qrels: Annotated[str | None, Flag(metavar="SPLIT")] = None
    """Which split of a collection folder is read."""
    columns: Annotated[TableColumns, Flag(flat=True)] = TableColumns()
    """Names of the columns of a table."""
    text_ids: bool = False
    """Make ids from the texts instead of taking the source's."""
    limit: int | None = Field(default=None, ge=1)
    """Read only so many judgements."""
    skip_invalid: bool = False
    """Leave out rows that cannot be read and list them in errors.jsonl, instead of refusing."""
    download: bool = False
    """Fetch data sets of the Hub."""
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
    split: Annotated[dict[PartName, float], BeforeValidator(_shares), Flag(metavar="PART=SHARE")] = Field(default={})
    """Parts that share no query text, as in train=0.8 dev=0.1 test=0.1."""
    seed: int = 0
    """Of noise, sample and split."""

    @field_validator("source")
    @classmethod
    def _known(cls, source: str) -> str:
        if source not in FORMATS:
            hint = did_you_mean(source, FORMATS, "see `bixse convert --list`")
            raise ValueError(f"expected one of {', '.join(FORMATS)}; fix: {hint}")
        return source

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if self.scale is not None:
            GradeScale(*self.scale)
        self.transforms()
        self.parts()
        return self

    @classmethod
    def from_folder(cls, values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        is_hub = str(values.get("path", "")).startswith(HUB)
        return super().from_folder(values, folder) | ({"path": values["path"]} if is_hub else {})

    def options(self) -> SourceOptions:
        return SourceOptions(
            scale=GradeScale(*self.scale) if self.scale is not None and self.takes_scale else None,
            score_map=self.score_map,
            corpus=self.corpus,
            queries=self.queries,
            qrels=self.qrels,
            columns=self.columns if self.columns != TableColumns() else None,
        )

    @property
    def takes_scale(self) -> bool:
        """Return True if `scale` describes the source; for "pairs" it describes the qrels of a collection alone."""
        return not (self.source == "pairs" and self.form == "collection")

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
