"""Settings of `bixse grade audit` and `bixse grade calibrate`: human labels, scales and files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from bixse.settings import Flag, Reads, Settings


class LabelSettings(Settings):
    """Human labels, their scale, and the lowest relevant grade."""

    human: Annotated[Path, Flag(metavar="QRELS")]
    """Human labels: qrels (TREC, BEIR) or a table of query_id, document_id, grade."""
    scale: Annotated[tuple[float, float] | None, Flag(metavar="GRADE")] = None
    """Lowest and highest grade of the human labels; null takes the lowest and the highest label of the file."""
    min_relevant_grade: Annotated[float | None, Flag(metavar="GRADE")] = None
    """Lowest human grade of a relevant pair; null takes the first in the upper half of the scale (2 on 0 to 3)."""


class AuditSettings(LabelSettings):
    """Settings of `bixse grade audit`."""

    judge: Annotated[tuple[Path, ...], Field(min_length=1), Flag(metavar="FILE"), Reads("judgements")]
    """The judge's labels: judgements.parquet of `bixse grade`, graded pairs, or qrels; several files are compared."""
    pairs: Annotated[Path | None, Flag(metavar="FILE"), Reads("pairs")] = None
    """Graded pairs with texts, to show disagreements."""


class GradeMapSettings(LabelSettings):
    """Settings of `bixse grade calibrate`."""

    judgements: Annotated[Path, Flag(metavar="FILE"), Reads("judgements")]
    """The judge's labels: judgements.parquet of `bixse grade`, or qrels."""
    apply: Annotated[Path | None, Flag(metavar="FILE"), Reads("graded")] = None
    """Graded pairs to map. pairs.parquet gets the mapped relevance; its column `grade` keeps the grade of the judge."""
