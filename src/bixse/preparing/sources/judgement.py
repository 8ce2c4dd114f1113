"""`Judgement`: what somebody's judge made of one pair, the row that every outside format becomes."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bixse.data.graded_pairs import Pair
from bixse.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bixse.relevance import GradeScale


@dataclass(frozen=True)
class Judgement:
    """What somebody's judge made of one (query, document) pair; ids and texts are None where the file lacks them.

    Example:
        >>> from bixse.relevance import GradeScale
        >>> row = Judgement("q1", "d1", GradeScale(0, 3), grade=1.5)
        >>> row.relevance, row.pair
        (0.5, None)
    """

    query_id: str
    document_id: str
    scale: GradeScale
    """What the grades mean."""
    query: str | None = None
    document: str | None = None
    grade: float | None = None
    """The (fractional) grade, within the scale; None unless the status is "graded"."""
    status: str = "graded"
    """"graded", or why there is no grade: "no-option", "off-scale", "no-probabilities", ... as judges answer."""
    probabilities: tuple[float, ...] = ()
    """Raw probability of each grade from lowest to highest, evenly spaced on the scale; empty where not known."""
    orders: tuple[tuple[str, tuple[float, ...]], ...] = ()
    """Where a pair was asked in several orders: name of the order, and its raw probabilities."""
    low: float | None = None
    """The least the grade can be where the file tells, or None."""
    high: float | None = None
    """The most, or None."""
    judge: str = ""
    """Who judged, as far as the file tells."""
    task: str | None = None
    text: str = ""
    """What the judge wrote, cut to 200 characters."""
    detail: str = ""
    """Why there is no grade, for people."""
    row: int | None = None
    """1-based row (line) in its file, or None."""

    @property
    def relevance(self) -> float | None:
        """The grade on [0, 1], or None."""
        return None if self.grade is None else self.scale.to_relevance(self.grade)

    @property
    def pair(self) -> Pair | None:
        """The pair by itself, or None where a text is not known."""
        if self.query is None or self.document is None:
            return None
        return Pair(self.query_id, self.query, self.document_id, self.document, self.task)


class JudgementRows:
    """Judgements that are already in memory, instead of a source.

    Args:
        rows: at least one, all on one scale.
        name: of their format.
        path: the file they are from.
        content: hash of it; None takes one of the rows.
        settings: what else decided them.
    """

    def __init__(
        self,
        rows: Sequence[Judgement],
        name: str = "rows",
        path: Path | None = None,
        content: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        scales = {row.scale for row in rows}
        if len(scales) != 1:
            found = f"{len(scales)} scales" if rows else "no rows"
            raise InputError(f"judgements: got {found}; expected rows of one scale; fix: map the grades first")
        self.name, self.path, self.scale = name, path or Path(name), scales.pop()
        self.settings = {"format": name, "scale": [self.scale.minimum, self.scale.maximum], **(settings or {})}
        self._rows, self._content = rows, content

    def rows(self) -> Iterator[Judgement]:
        return iter(self._rows)

    def warnings(self) -> list[str]:
        return ungraded(self.path.name, Counter(row.status for row in self._rows))

    def content_hash(self) -> str:
        """SHA-256 of the file, or over every field of every row."""
        written = "".join(map(repr, self._rows)).encode("utf-8", "surrogatepass")
        return self._content or hashlib.sha256(written).hexdigest()


def ungraded(name: str, statuses: Counter[str]) -> list[str]:
    """A warning of judgements without a grade, by status."""
    unusable = {status: count for status, count in statuses.most_common() if status != "graded"}
    if not unusable:
        return []
    told = ", ".join(f"{count} {status}" for status, count in unusable.items())
    return [f"{name}: {sum(unusable.values())} of {sum(statuses.values())} judgements carry no grade ({told})"]


def on_scale(grade: float, scale: GradeScale) -> tuple[float | None, str, str]:
    """Grade, status and detail of a stated grade: off the scale there is no grade, and never the nearest one.

    Example:
        >>> from bixse.relevance import GradeScale
        >>> on_scale(2.0, GradeScale(0, 3)), on_scale(10.0, GradeScale(0, 3))
        ((2.0, 'graded', ''), (None, 'off-scale', 'grade 10; the scale is 0 to 3'))
    """
    if scale.minimum <= grade <= scale.maximum:
        return grade, "graded", ""
    return None, "off-scale", f"grade {grade:g}; the scale is {scale.minimum:g} to {scale.maximum:g}"
