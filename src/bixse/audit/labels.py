"""Read labels of a judge or of people from files; unusable labels are counted and never repaired.

`bixse ui` keeps people's labels as events in a file that only grows. One line of JSON per event: `event` (its name),
`person`, `time`, `seconds`, `query_id`, `document_id`, `status`, `grade`, `explanation`, `probability`, `undoes`,
`shows`, `seen` and `plan`. A person's last event about a pair counts, unless it was undone. An event with `seen`
"judge" came after the judge's grade was shown: it is no independent opinion, and no measure of agreement reads it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np

from bixse.data.columns import text_id
from bixse.data.joined import Unjoined
from bixse.data.trec import qrels_rows
from bixse.errors import InputError, InvalidFileError
from bixse.files.rows import FORMATS, files_of, kind_of, read_rows, text_lines
from bixse.files.values import FileColumn
from bixse.relevance import ROUNDING, GradeScale

if TYPE_CHECKING:
    from bixse.audit.audit_settings import LabelSettings


LabelStatus: TypeAlias = Literal["graded", "final", "cannot-tell", "skipped", "undone"]
"""graded: a person's grade; final: the settled grade of a pair on which people differ; other statuses are no labels."""
LABELS: tuple[LabelStatus, ...] = ("graded", "final")


class Word:
    """The part of an event that decides whether it counts."""

    query_id: str
    document_id: str
    event: str | None
    person: str | None
    status: str | None
    grade: float | None
    undoes: str | None

    @property
    def pair(self) -> PairIds:
        return self.query_id, self.document_id


WordType = TypeVar("WordType", bound=Word)


def last_events(events: Iterable[WordType]) -> dict[tuple[str, str], dict[str, WordType]]:
    """Return pair -> person -> the person's last event that was not undone; pairs are in the order of first events."""
    events = list(events)
    undone = {event.undoes for event in events if event.undoes}
    last: dict[PairIds, dict[str, WordType]] = {}
    for event in events:
        if event.status != "undone" and (event.event is None or event.event not in undone):
            words = last.setdefault(event.pair, {})
            # a settled grade belongs to the person "", so that it replaces no person's own grade
            person = "" if event.status == "final" else event.person or ""
            words.pop(person, None)  # the last word must be last in the dictionary
            words[person] = event
    return last


def agreed_grade(words: Mapping[str, Word]) -> float | None:
    """Return the settled grade of a pair, else the median of people's grades; None without grades."""
    final = words.get("")
    if final is not None and final.status == "final":
        return final.grade
    grades = [word.grade for word in words.values() if word.status == "graded" and word.grade is not None]
    # the lower of the middle two: "relevant" is the stronger claim, and a mean is no grade of an ordinal scale
    return median_low(grades) if grades else None


PairIds: TypeAlias = tuple[str, str]
COLUMNS = (
    *(FileColumn(name, "id", needed=False) for name in ("query_id", "document_id")),
    *(FileColumn(name, needed=False) for name in ("query", "document", "status", "judge")),
    *(FileColumn(name, needed=False) for name in ("person", "event", "undoes", "seen", "plan")),
    *(FileColumn(name, "number", needed=False) for name in ("grade", "relevance")),
    FileColumn("repeat", "integer", needed=False, low=0),
    FileColumn("probability", "number", needed=False),
)
_SAME = 1e-3  # files round relevance


@dataclass(frozen=True)
class ImpossibleLabel:
    """A label off the scale. It is listed, never clipped, and never used as a grade."""

    path: str
    row: int  # from 1, without the header
    query_id: str
    document_id: str
    value: float


def impossible_lines(labels: Sequence[ImpossibleLabel]) -> list[str]:
    """Return one line per label for a terminal, for 20 labels at most, then the number of further labels."""
    lines = [
        f"  {label.path}, row {label.row}: query {label.query_id}, document {label.document_id}: {label.value:g}"
        for label in labels[:20]
    ]
    lines += [f"  ... and {len(labels) - 20} more, see the JSON file"] if len(labels) > 20 else []
    return ["", "impossible labels, left out:", *lines] if lines else []


@dataclass(frozen=True)
class Labels:
    """The labels of one side for (query, document) pairs."""

    name: str  # of the judge, or of the file
    path: str
    scale: GradeScale
    grades: Mapping[PairIds, float]  # usable grades only
    relevance: Mapping[PairIds, float]
    """Relevance of the same pairs: from the file, else the position of the grade on the scale."""
    missing: Mapping[PairIds, str] = field(default_factory=dict)
    """Pair without a usable grade -> "off-scale", status of the judge, or "no grade"."""
    impossible: tuple[ImpossibleLabel, ...] = ()
    probability: Mapping[PairIds, float] = field(default_factory=dict)
    """Probability with which a pair was drawn for a label, if the file holds it."""
    plans: frozenset[str] = frozenset()  # of `bixse ui`, by which the pairs were drawn; "" if an event names none
    after_judge: int = 0  # events left out because the person had seen the judge's grade

    @property
    def mapped(self) -> int:
        """The number of pairs whose relevance does not follow from their grade: mapped, or graded on another scale."""
        to_relevance = self.scale.to_relevance
        return sum(abs(self.relevance[pair] - to_relevance(grade)) > _SAME for pair, grade in self.grades.items())

    @property
    def statuses(self) -> dict[str, int]:
        return {"graded": len(self.grades), **dict(Counter(self.missing.values()).most_common())}


@dataclass
class _Row(Word):
    row: int
    query_id: str
    document_id: str
    grade: float | None
    relevance: float | None = None
    status: str | None = None
    probability: float | None = None
    judge: str | None = None
    person: str | None = None
    event: str | None = None
    undoes: str | None = None
    seen: str | None = None
    plan: str | None = None

    @property
    def label(self) -> float | None:
        return self.relevance if self.grade is None else self.grade

    def off_scale(self, scale: GradeScale) -> float | None:
        """Return an impossible grade or relevance, or None."""
        grade, relevance = self.grade, self.relevance
        if grade is not None and not scale.minimum - ROUNDING <= grade <= scale.maximum + ROUNDING:
            return grade
        return relevance if relevance is not None and not 0 <= relevance <= 1 else None

    def on(self, scale: GradeScale) -> tuple[float, float]:
        """Return the grade and relevance of a usable label."""
        if self.grade is None:
            return scale.to_grade(self.relevance or 0.0), self.relevance or 0.0
        grade = min(max(self.grade, scale.minimum), scale.maximum)
        return grade, scale.to_relevance(grade) if self.relevance is None else self.relevance


def read_labels(
    path: str | Path, scale: GradeScale | None = None, otherwise: GradeScale | None = None, independent: bool = False
) -> Labels:
    """Read labels from qrels (TREC or BEIR) or from a table of judgements or graded pairs.

    A table (.parquet, .jsonl, .csv, .tsv) has the columns `query_id` and `document_id`, or the texts `query` and
    `document`, and `grade` or `relevance`. Optional are `status` (only "graded" rows count), `judge`, `repeat` (rows
    above 0 are left out) and `probability`, in (0, 1], with which a pair was drawn for a label. Rows with a `person`,
    as `bixse ui` writes them: each person's last label counts, and several grades become one.
    A stated `scale` must hold the grades. The default makes the file's relevance follow from its grades, else
    `otherwise`, else lowest to highest.
    `independent` leaves out labels that people gave or changed after they saw the judge's grade (`seen` is "judge").

    Raise InvalidFileError with all errors: no id, a grade that is no number, two grades or probabilities of one pair.
    Raise InputError for a file that is unreadable or has no usable label.
    """
    path = Path(path)
    files_of(path, (".parquet",), "a file of labels, or a folder of some in Parquet")
    errors = InvalidFileError(path)
    read = list(_table_rows(path, errors)) if _is_table(path) else [_Row(*row) for row in qrels_rows(path, errors)]
    counted = [row for row in read if not (independent and row.seen)]
    rows = _one_per_pair(_people_as_one(counted), errors)
    if scale is not None:
        scale.check(path, ((row.grade, row.row) for row in rows if row.grade is not None))
    scale = scale or _scale_of_relevance(rows) or otherwise or _scale_of_grades(path, rows)
    grades, relevance, missing, impossible = {}, {}, {}, []
    for row in rows:
        off = row.off_scale(scale)
        if off is not None:
            impossible.append(ImpossibleLabel(str(path), row.row, *row.pair, off))
        if row.label is not None and off is None:
            grades[row.pair], relevance[row.pair] = row.on(scale)
        else:
            missing[row.pair] = "off-scale" if off is not None else row.status or "no grade"
    if not grades:
        raise InputError(
            f"{path}: got {len(missing)} pairs and no usable grade; expected grades from {scale.minimum:g} to "
            f"{scale.maximum:g}; fix: state their scale (--scale LOW HIGH), or grade again"
        )
    judges = {row.judge for row in rows if row.judge}
    name = judges.pop() if len(judges) == 1 else path.stem
    probability = {row.pair: row.probability for row in rows if row.probability is not None}
    plans = frozenset(row.plan or "" for row in rows if row.event is not None and row.probability is not None)
    return Labels(name, str(path), scale, grades, relevance, missing, tuple(impossible), probability, plans,
                  after_judge=len(read) - len(counted))  # fmt: skip


def _is_table(path: Path) -> bool:
    """Return True for a table; a .tsv without a column of labels is qrels."""
    if kind_of(path) != ".tsv":
        return path.is_dir() or kind_of(path) in FORMATS
    _, header, _ = next(text_lines(path, InvalidFileError(path)), (0, "", 0))
    return bool({"grade", "relevance"} & set(header.split("\t")))


def _table_rows(path: Path, errors: InvalidFileError) -> Iterator[_Row]:
    has_labels = False
    for number, row in read_rows(path, COLUMNS, errors):
        ids = (_identifier(number, row, "query", errors), _identifier(number, row, "document", errors))
        grade, relevance, status = row["grade"], row["relevance"], row["status"]
        has_labels |= (grade, relevance, status) != (None, None, None)
        if status not in (None, *LABELS):
            grade = relevance = None
        elif status == "graded" and grade is None and relevance is None:
            errors.add(number, "grade", "no grade with the status 'graded'", "a grade", "correct the status")
        if row["probability"] is not None and not 0 < row["probability"] <= 1:
            got = f"{row['probability']:g}"
            errors.add(number, "probability", got, "above 0 and up to 1", "write how it was drawn")
        if not row["repeat"]:
            rest = ("probability", "judge", "person", "event", "undoes", "seen", "plan")
            yield _Row(number, *ids, grade, relevance, status, **{name: row[name] for name in rest})
    if not has_labels and not (errors.total and errors.columns.keys() & {"grade", "relevance", "status"}):
        errors.lacks(None, ("grade", "relevance"), "a column 'grade' or 'relevance' with values", "rename or add it")


def _people_as_one(rows: Iterable[_Row]) -> Iterator[_Row]:
    """Yield rows without a person as they are, then one row per pair that people labelled."""
    statuses = []
    for row in rows:
        if row.person is None:
            yield row
        else:
            statuses.append(row)
    for pair, words in last_events(statuses).items():
        last = list(words.values())[-1]
        grade = agreed_grade(words)
        status = last.status if grade is None else "graded"
        yield _Row(last.row, *pair, grade, None, status, last.probability, event=last.event, plan=last.plan)


def _identifier(number: int, row: Mapping[str, Any], kind: str, errors: InvalidFileError) -> str:
    identifier, text = row[f"{kind}_id"], row[kind]
    if identifier is None and text is None:
        fix = f"rename or add a column '{kind}_id' of ids, or '{kind}' of texts"
        errors.lacks(number, (f"{kind}_id", kind), f"an id, or the {kind}'s text", fix)
    return identifier or text_id(text or "")


def _one_per_pair(rows: Iterable[_Row], errors: InvalidFileError) -> list[_Row]:
    """Return one row per pair; a label replaces a missing one, and two labels or probabilities are an error."""
    rows_by_pair: dict[PairIds, _Row] = {}
    for row in rows:
        first = rows_by_pair.setdefault(row.pair, row)
        if first.probability != row.probability:
            got = f"{row.probability} after {first.probability} for the pair {row.pair}"
            errors.add(row.row, "probability", got, "one probability per pair", "repeat it in each of its rows")
        if row.label is None:
            continue
        if first.label is None:
            rows_by_pair[row.pair] = row
        elif (first.grade, first.relevance) != (row.grade, row.relevance):
            got = f"{row.label:g} where row {first.row} has {first.label:g} for the pair {row.pair}"
            errors.add(row.row, "grade", got, "one grade per pair", "keep one of the two rows")
    errors.raise_any()
    return list(rows_by_pair.values())


def _scale_of_grades(path: Path, rows: Sequence[_Row]) -> GradeScale:
    """Return the scale from the lowest to the highest label; 0 to 1 for a file with relevance and no grade."""
    values = [row.label for row in rows if row.label is not None]
    if values and all(row.grade is None for row in rows):
        return GradeScale(0, 1)
    if not values or min(values) == max(values) or not all(map(math.isfinite, values)):
        got = f"only the label {values[0]:g}" if values else "no label"
        raise InputError(f"{path}: got {got}; expected labels of two grades or more; fix: state the scale (--scale)")
    return GradeScale(min(values), max(values))


def _scale_of_relevance(rows: Sequence[_Row]) -> GradeScale | None:
    """Return the scale of integers by which every row's relevance follows from its grade."""
    both = [(row.grade, row.relevance) for row in rows if row.grade is not None and row.relevance is not None]
    grades, relevance = np.array(both, dtype=np.float64).reshape(-1, 2).T
    if not both or np.ptp(relevance) < _SAME:
        return None
    step, low = np.polyfit(relevance, grades, 1)
    minimum, maximum = round(float(low)), round(float(low + step))
    if maximum <= minimum:
        return None
    fits = np.allclose((grades - minimum) / (maximum - minimum), relevance, rtol=0, atol=_SAME)
    return GradeScale(minimum, maximum) if fits else None


def labels_of(settings: LabelSettings, judges: Iterable[Path]) -> tuple[Labels, list[Labels]]:
    """Read the labels of people and of each judge; judges of one name are named by their files."""
    scale = GradeScale(*settings.scale) if settings.scale else None
    labels = read_labels(settings.human, scale, independent=True)
    labels_of_judges = [read_labels(path, otherwise=labels.scale) for path in judges]
    names = [judge.name for judge in labels_of_judges]
    return labels, [
        replace(judge, name=str(Path(judge.path).with_suffix(""))) if names.count(judge.name) > 1 else judge
        for judge in labels_of_judges
    ]


def unjoined_labels(judge: str, judged: Collection[Any], labelled: Collection[Any]) -> Unjoined:
    """Return the pairs of the smaller side, a judge's or people's, that the other side lacks."""
    if len(judged) < len(labelled):
        return Unjoined.of(f"pairs of {judge} without a human label", judged, labelled)
    return Unjoined.of(f"human labels of pairs that {judge} lacks", labelled, judged)
