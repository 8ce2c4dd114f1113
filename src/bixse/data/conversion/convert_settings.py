"""Settings of a conversion, checked before any work."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from bixse.data.sources.formats import FORMATS, SourceOptions, TableColumns
from bixse.data.transforms.column_transforms import Binarise, KeepFrom, LabelNoise, Sample, SplitByQuery, Transform
from bixse.data.transforms.column_transforms import WithoutDuplicates as WithoutDuplicates
from bixse.errors import InputError, did_you_mean, shorten
from bixse.relevance import GradeScale

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Form = Literal["pairs", "collection"]
"""What is written: graded pairs for `bixse train`, or a collection folder for `bixse evaluate`."""
PATHS = ("path", "corpus", "queries")
"""Settings that only say where an input lies."""


@dataclass(frozen=True)
class ConvertSettings:
    """Settings of a conversion.

    Transforms are applied in this order: dedup, noise, cutoff, size, binarise, split. Another order takes two
    conversions, the second one of the source "pairs".

    Raises:
        InputError: an unknown source, or a number out of range.

    Example:
        >>> ConvertSettings("e5", "echo-data", cutoff=0.7, split={"train": 0.9, "dev": 0.1}).form
        'pairs'
    """

    source: str
    """Name of the format, one of `bixse.data.sources.formats.FORMATS`."""
    path: str | Path
    """File or folder, or `hub:owner/name`."""
    task: str | None = None
    """Task of every row, in the place of what the source says."""
    scale: tuple[float, float] | None = None
    """Lowest and highest grade, where the source does not say."""
    score_map: str | None = None
    """From a teacher's scores to relevance: prob, percent, logit, platt:SLOPE,INTERCEPT or binary."""
    corpus: Path | None = None
    """File or folder of the documents that rows name by id."""
    queries: Path | None = None
    """File of the queries that rows name by id."""
    qrels: str | None = None
    """Which split of a collection is read."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Names of a table's columns, by those of `TableColumns`."""
    text_ids: bool = False
    """Make ids from the texts instead of taking the source's."""
    limit: int | None = None
    """Read only so many judgements."""
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
    split: Mapping[str, float] = field(default_factory=dict)
    """Part -> its share, together 1; no query text stands in two parts."""
    seed: int = 0
    """Of noise, sample and split."""
    form: Form = "pairs"
    """What is written."""
    skip_faulty: bool = False
    """Leave out rows that cannot be read and write them down, instead of refusing."""
    download: bool = False
    """Fetch data sets of the Hub."""

    def __post_init__(self) -> None:
        """Check what can be checked without reading a file."""
        if self.source not in FORMATS:
            hint = did_you_mean(self.source, FORMATS, "see `bixse convert --list`")
            raise InputError(f"source: got {shorten(self.source)}; expected one of {', '.join(FORMATS)}; fix: {hint}")
        if self.limit is not None and self.limit < 1:
            raise InputError(f"--limit: got {self.limit}; expected at least 1; fix: leave it out for all rows")
        known = set(TableColumns.__dataclass_fields__)
        if self.scale is not None and not all(map(math.isfinite, (GradeScale(*self.scale).maximum, self.scale[0]))):
            raise InputError(
                f"--scale: got {self.scale[0]:g} to {self.scale[1]:g}; expected two finite numbers; fix: give the "
                "lowest and the highest grade"
            )
        for name in self.columns:
            if name not in known:
                raise InputError(
                    f"columns: got {name!r}; expected one of {', '.join(sorted(known))}; "
                    f"fix: {did_you_mean(name, known)}"
                )
        for name in self.split:
            if not name or not name.replace("-", "").replace("_", "").isalnum():
                raise InputError(
                    f"--split: got the part {name!r}; expected a name of letters, digits, - and _, since it names a "
                    "file; fix: for example train=0.8 dev=0.2"
                )
        if self.task is not None and not self.task.strip():
            raise InputError("--task: got an empty name; expected one; fix: leave it out")
        if self.form not in ("pairs", "collection"):
            raise InputError(f"form: got {self.form!r}; expected pairs or collection; fix: choose one")
        self.transforms()
        self.parts()

    def options(self) -> SourceOptions:
        """What the source needs beside its path."""
        return SourceOptions(
            scale=GradeScale(*self.scale) if self.scale is not None and self.takes_scale else None,
            score_map=self.score_map,
            corpus=self.corpus,
            queries=self.queries,
            qrels=self.qrels,
            columns=TableColumns(**self.columns) if self.columns else None,
        )

    @property
    def takes_scale(self) -> bool:
        """Whether the scale is the source's; that of "pairs" is for the qrels of a collection alone."""
        return not (self.source == "pairs" and self.form == "collection")

    def transforms(self) -> list[Transform]:
        """The transforms in their order, without the split."""
        found: list[Transform] = []
        if self.dedup:
            found.append(WithoutDuplicates())
        if self.noise is not None:
            found.append(LabelNoise(self.noise, self.seed))
        if self.cutoff is not None:
            found.append(KeepFrom(self.cutoff))
        if self.size is not None:
            found.append(Sample(self.size, self.seed))
        if self.binarise is not None:
            found.append(Binarise(self.binarise))
        return found

    def parts(self) -> SplitByQuery | None:
        """The split, where there is one."""
        return SplitByQuery(dict(self.split), self.seed) if self.split else None
