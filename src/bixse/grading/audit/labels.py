"""Reading labels to audit: judgements of a judge or of people, with what is unusable set apart and never repaired."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from bixse.data.graded_pairs import text_id
from bixse.data.row_files.read import FORMATS, files_of, kind_of, read_rows, text_lines
from bixse.data.row_files.values import FileColumn
from bixse.data.trec import qrels_rows
from bixse.errors import InputError, InvalidFileError
from bixse.relevance import GradeScale

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Pair: TypeAlias = tuple[str, str]
"""Query id and document id."""
COLUMNS = (
    *(FileColumn(name, "id", needed=False) for name in ("query_id", "document_id")),
    *(FileColumn(name, needed=False) for name in ("query", "document", "status", "judge")),
    *(FileColumn(name, "number", needed=False) for name in ("grade", "relevance")),
    FileColumn("repeat", "integer", needed=False, low=0),
)
"""Columns of tables that are read."""
_SAME = 1e-3
"""How far a relevance may lie from its grade's before it is another one (files round)."""
_ROUNDING = 1e-9
"""How far a mean of grades may pass the end of its scale by rounding."""


@dataclass(frozen=True)
class ImpossibleLabel:
    """A label off the scale: listed, never clipped, never taken as a grade."""

    path: str
    """The file."""
    row: int
    """Row of the file from 1: a line of qrels and JSONL; a header does not count."""
    query_id: str
    document_id: str
    value: float
    """What stands there."""


def impossible_lines(labels: Sequence[ImpossibleLabel], most: int = 20) -> list[str]:
    """What the terminal says of labels off their scale: one line each, then how many more; nothing without any."""
    lines = [
        f"  {label.path}, row {label.row}: query {label.query_id}, document {label.document_id}: {label.value:g}"
        for label in labels[:most]
    ]
    lines += [f"  ... and {len(labels) - most} more, see the JSON file"] if len(labels) > most else []
    return ["", "impossible labels, left out:", *lines] if lines else []


@dataclass(frozen=True)
class Labels:
    """One side's labels of (query, document) pairs."""

    name: str
    """The judge's name, or that of the file."""
    path: str
    """Where they were read."""
    scale: GradeScale
    """Their scale."""
    grades: Mapping[Pair, float]
    """Usable grades, all on the scale."""
    relevance: Mapping[Pair, float]
    """Relevance of the same pairs: the file's own, else the grade's place on the scale."""
    missing: Mapping[Pair, str] = field(default_factory=dict)
    """Pairs without a usable grade, and why: "off-scale", the judge's status, or "no grade"."""
    again: Mapping[Pair, float] = field(default_factory=dict)
    """Grades of the pairs that were asked a second time (column `repeat` 1)."""
    impossible: tuple[ImpossibleLabel, ...] = ()
    """Every label off the scale."""
    mapped: int = 0
    """Pairs whose relevance is not their grade's place on the scale: mapped, or graded on another scale."""

    @property
    def statuses(self) -> dict[str, int]:
        """How many pairs ended how; "graded" first."""
        return {"graded": len(self.grades), **dict(Counter(self.missing.values()).most_common())}


@dataclass
class _Row:
    """One row as it stands in a file."""

    row: int
    pair: Pair
    grade: float | None
    relevance: float | None = None
    status: str | None = None
    judge: str | None = None
    repeat: int = 0


def read_labels(path: str | Path, scale: GradeScale | None = None, otherwise: GradeScale | None = None) -> Labels:
    r"""Read labels from qrels (TREC or BEIR) or from a table of judgements or graded pairs.

    A table (.parquet, .jsonl, .csv, .tsv) has the columns `query_id`, `document_id` and `grade` or `relevance`;
    `status` (only "graded" rows count), `judge` and `repeat` are read where they are there, and ids are made from the
    texts `query` and `document` where they are not.

    Args:
        path: the file.
        scale: of the grades. None takes the scale by which the file's relevance follows from its grades.
        otherwise: the scale where the file does not say; None takes the lowest to the highest label found.

    Raises:
        InputError: the file cannot be read or holds no usable label.
        InvalidFileError: every error together: no id, a grade that is no number, a pair with two grades.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "judge.txt"
        >>> _ = file.write_text("q1 0 d1 3\nq1 0 d2 10\n")
        >>> labels = read_labels(file, GradeScale(0, 3))
        >>> labels.grades, labels.missing, labels.impossible[0].row
        ({('q1', 'd1'): 3.0}, {('q1', 'd2'): 'off-scale'}, 2)
    """
    path = Path(path)
    files_of(path, (), "a file of labels")
    rows = _merged(path, _table_rows(path) if _is_table(path) else _qrels_rows(path))
    if scale is None:
        scale = _scale_of_relevance(rows) or otherwise or _scale_found(path, rows)
    first = {row.pair: row for row in rows if row.repeat == 0}
    impossible = tuple(
        ImpossibleLabel(str(path), row.row, *row.pair, value)
        for row in rows
        if (value := _off_scale(row, scale)) is not None
    )
    off = {(label.query_id, label.document_id) for label in impossible}
    usable = {pair: row for pair, row in first.items() if _has_label(row) and _off_scale(row, scale) is None}
    if not usable:
        found = f"{len(first)} pairs and no usable grade"
        raise InputError(
            f"{path}: got {found}; expected grades from {scale.minimum:g} to {scale.maximum:g}; "
            "fix: state the scale of these grades, or grade again"
        )
    grades = {pair: _grade(row, scale) for pair, row in usable.items()}
    relevance = {
        pair: scale.to_relevance(grades[pair]) if row.relevance is None else row.relevance
        for pair, row in usable.items()
    }
    return Labels(
        name=_name(path, rows),
        path=str(path),
        scale=scale,
        grades=grades,
        relevance=relevance,
        missing={
            pair: "off-scale" if pair in off else row.status or "no grade"
            for pair, row in first.items()
            if pair not in usable
        },
        again={
            row.pair: _grade(row, scale)
            for row in rows
            if row.repeat == 1 and _has_label(row) and _off_scale(row, scale) is None
        },
        impossible=impossible,
        mapped=sum(abs(relevance[pair] - scale.to_relevance(grade)) > _SAME for pair, grade in grades.items()),
    )


def _is_table(path: Path) -> bool:
    """Whether a file is read as a table; everything else, and a .tsv without a column of labels, is qrels."""
    if kind_of(path) != ".tsv":
        return kind_of(path) in FORMATS
    _, header, _ = next(text_lines(path, InvalidFileError(path)), (0, "", 0))
    return bool({"grade", "relevance"} & set(header.split("\t")))


def _table_rows(path: Path) -> list[_Row]:
    """The rows of a table as labels; raises InvalidFileError with every invalid row."""
    errors = InvalidFileError(path)
    found: list[_Row] = []
    says_anything = False
    for number, row in read_rows(path, COLUMNS, errors):
        pair = (_identifier(number, row, "query", errors), _identifier(number, row, "document", errors))
        grade, relevance, status = row["grade"], row["relevance"], row["status"]
        says_anything |= (grade, relevance, status) != (None, None, None)
        if status not in (None, "graded"):
            grade = relevance = None
        elif status == "graded" and grade is None and relevance is None:
            errors.add(number, "grade", "no grade with the status 'graded'", "a grade", "correct the status")
        found.append(_Row(number, pair, grade, relevance, status, row["judge"], row["repeat"] or 0))
    if not says_anything and not errors.total:
        errors.add(None, None, "no label", "a column 'grade' or 'relevance' with values", "rename or add it")
    errors.raise_any()
    return found


def _qrels_rows(path: Path) -> list[_Row]:
    errors = InvalidFileError(path)
    found = [_Row(number, (query, document), grade) for number, query, document, grade in qrels_rows(path, errors)]
    errors.raise_any()
    return found


def _merged(path: Path, rows: Iterable[_Row]) -> list[_Row]:
    """One row per pair and asking; a label wins over none, and two that differ are an error."""
    kept: dict[tuple[Pair, int], _Row] = {}
    errors = InvalidFileError(path)
    for row in rows:
        first = kept.setdefault((row.pair, row.repeat), row)
        if first is row or not _has_label(row):
            continue
        if not _has_label(first):
            kept[row.pair, row.repeat] = row
        elif (first.grade, first.relevance) != (row.grade, row.relevance):
            got = f"{_label(row):g} where row {first.row} has {_label(first):g} for the pair {row.pair}"
            errors.add(row.row, "grade", got, "one grade per pair", "keep one of the two rows")
    errors.raise_any()
    return list(kept.values())


def _scale_found(path: Path, rows: Sequence[_Row]) -> GradeScale:
    """The scale from the lowest to the highest label; 0 to 1 for a file with relevance and no grade."""
    values = [_label(row) for row in rows if _has_label(row)]
    if values and all(row.grade is None for row in rows):
        return GradeScale(0, 1)
    if not values or min(values) == max(values) or not all(map(math.isfinite, values)):
        found = f"only the label {values[0]:g}" if values else "no label"
        raise InputError(f"{path}: got {found}; expected labels of two grades or more; fix: state the scale")
    return GradeScale(min(values), max(values))


def _scale_of_relevance(rows: Sequence[_Row]) -> GradeScale | None:
    """The scale of whole numbers that puts every row's grade where its relevance is; None where there is none."""
    both = [(row.grade, row.relevance) for row in rows if row.grade is not None and row.relevance is not None]
    if not both:
        return None
    (low, low_place), (high, high_place) = min(both), max(both)
    if high_place - low_place < _SAME or high <= low:
        return None
    step = (high - low) / (high_place - low_place)
    minimum = round(low - low_place * step)
    maximum = round(minimum + step)
    if maximum <= minimum:
        return None
    fits = all(abs((grade - minimum) / (maximum - minimum) - place) <= _SAME for grade, place in both)
    return GradeScale(minimum, maximum) if fits else None


def _has_label(row: _Row) -> bool:
    return row.grade is not None or row.relevance is not None


def _label(row: _Row) -> float:
    return row.grade if row.grade is not None else float(row.relevance or 0.0)


def _grade(row: _Row, scale: GradeScale) -> float:
    """The usable grade of a row."""
    if row.grade is None:
        return scale.to_grade(float(row.relevance or 0.0))
    return min(max(row.grade, scale.minimum), scale.maximum)  # a mean of grades may pass the end by rounding


def _off_scale(row: _Row, scale: GradeScale) -> float | None:
    """The value that no grade or relevance can have, or None."""
    if row.grade is not None and not scale.minimum - _ROUNDING <= row.grade <= scale.maximum + _ROUNDING:
        return row.grade
    return row.relevance if row.relevance is not None and not 0 <= row.relevance <= 1 else None


def _name(path: Path, rows: Iterable[_Row]) -> str:
    """The one judge that the rows name, else the file's name."""
    judges = {row.judge for row in rows if row.judge}
    return judges.pop() if len(judges) == 1 else path.stem


def _identifier(number: int, row: Mapping[str, Any], kind: str, errors: InvalidFileError) -> str:
    identifier, text = row[f"{kind}_id"], row[kind]
    if identifier is None and text is None:
        errors.add(number, f"{kind}_id", "nothing", f"an id, or the {kind}'s text", "add a column of ids or of texts")
    return identifier or text_id(text or "")
