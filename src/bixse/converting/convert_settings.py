"""Settings of a conversion, checked before any work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from bixse.converting.formats import FORMATS, TABLE_COLUMNS
from bixse.converting.transforms import steps_of
from bixse.data.draws import check_shares
from bixse.errors import InputError, did_you_mean
from bixse.relevance import GradeScale
from bixse.settings import Flag, Settings, Shares, named_words


class ConvertSettings(Settings):
    """Settings of a conversion: the files to read, facts that they do not state, and transforms.

    Transforms apply in this order: dedup, noise, cutoff, size, binarise, split. For another order, convert twice, the
    second time from the source "pairs".

    Raises:
        ValueError: an unknown source, or a value out of range (of pydantic; `ConvertSettings.load` raises ConfigError).
        InputError: settings that contradict each other.

    Example:
        >>> ConvertSettings(source="e5", path="echo-data", cutoff=0.7, split={"train": 0.9, "dev": 0.1}).cutoff
        0.7
    """

    source: Annotated[str, Flag(positional=True, metavar="SOURCE")]
    """Name of the format, for example beir, table or sentence-transformers; "pairs" for files of bixse."""
    path: Annotated[Path, Flag(positional=True, metavar="PATH")]
    """File or folder."""
    scale: Annotated[tuple[float, float] | None, Flag(metavar="GRADE")] = None
    """Lowest and highest possible grade, for a source that does not state them."""
    score_map: Annotated[str | None, Flag(metavar="MAP")] = None
    """Map from scores of a teacher to relevance: prob, percent, logit, platt:SLOPE,INTERCEPT, or binary (labels)."""
    corpus: Path | None = None
    """File or folder of the documents that rows name by id."""
    queries: Path | None = None
    """File of the queries that rows name by id."""
    qrels: Annotated[str | None, Flag(metavar="SPLIT")] = None
    """Split of a collection folder; not needed for a folder with a single split."""
    columns: Annotated[dict[str, str], BeforeValidator(named_words), Flag(metavar="COLUMN=NAME")] = Field(default={})
    """Names of the columns of a table, for example query=search grade=stars."""
    text_ids: bool = False
    """Make ids from the texts. The default takes the ids of the source."""
    dedup: bool = False
    """Write one row per pair of texts (NFKC, case folded), with the mean of the relevances."""
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
    split: Shares = Field(default={})
    """Parts without a common query text, for example train=0.8 dev=0.1 test=0.1; the default is a single part."""
    seed: int = 0
    """Random seed of noise, sample and split."""

    @field_validator("source")
    @classmethod
    def _known(cls, source: str) -> str:
        if source not in FORMATS:
            hint = did_you_mean(source, FORMATS, "docs/reference/convert.md describes them")
            raise ValueError(f"expected one of {', '.join(FORMATS)}; fix: {hint}")
        return source

    @field_validator("columns")
    @classmethod
    def _differ(cls, columns: Mapping[str, str]) -> Mapping[str, str]:
        names = [columns.get(name, name) for name in TABLE_COLUMNS]
        if unknown := set(columns) - set(TABLE_COLUMNS):
            hint = did_you_mean(min(unknown), TABLE_COLUMNS)
            raise ValueError(f"expected names for columns among {', '.join(TABLE_COLUMNS)}; fix: {hint}")
        if len(set(names)) < len(names):
            raise ValueError(f"expected different columns, not {', '.join(names)}; fix: name each column once")
        return columns

    @property
    def grade_scale(self) -> GradeScale | None:
        """The stated scale of the grades in the files."""
        return None if self.scale is None else GradeScale(*self.scale)

    @model_validator(mode="after")
    def _suits_the_source(self) -> Self:
        form, path = FORMATS[self.source], self.path
        for option in ("scale", "score_map", "corpus", "queries", "qrels", "columns"):
            if getattr(self, option) not in (None, {}) and option not in form.options:
                owners = ", ".join(other for other, entry in FORMATS.items() if option in entry.options)
                texts = option in ("corpus", "queries")
                raise InputError(
                    f"source {self.source}: got {_flag(option)}; expected none, since "
                    f"{'each row has its texts' if texts else 'the files state it'}; fix: leave it out (it is for "
                    f"{owners}){'; a table gets them with pandas: table.merge(corpus, ...)' if texts else ''}"
                )
        missing = [name for name in ("queries", "corpus") if name in form.options and getattr(self, name) is None]
        if form.is_qrels and missing:
            flags = " and no ".join(map(_flag, missing))
            raise InputError(
                f"{path}: got no {flags}; expected the files of topics and of documents, since rows hold ids alone; "
                f"fix: give {flags.replace(' no ', ' ')}"
            )
        if form.needs_scale and self.grade_scale is None:
            raise InputError(
                f"{path}: got no scale; expected that of its grades (it cannot be inferred: a grade that was never "
                "given leaves no trace); fix: state the lowest and the highest grade, for example --scale 0 3"
            )
        if self.scale is not None and self.score_map is not None:
            raise InputError(f"{path}: got a scale and a score map; expected one of them; fix: leave one out")
        return self

    @model_validator(mode="after")
    def _usable(self) -> Self:
        steps_of(vars(self))
        if self.split:
            check_shares(self.split, self.seed)
        return self


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"
