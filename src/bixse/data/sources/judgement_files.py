"""`Judgement`: the row every outside format becomes, and `JudgementSource`: what every reader offers."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bixse.data.graded_pairs import Pair
from bixse.data.io.files import file_hash
from bixse.data.sources.reading import RowErrors, files_of, unreadable
from bixse.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from bixse.data.collection import Document
    from bixse.relevance import GradeScale


@dataclass(frozen=True)
class Judgement:
    """What somebody's judge made of one (query, document) pair.

    Example:
        >>> from bixse.relevance import GradeScale
        >>> row = Judgement("q1", "d1", GradeScale(0, 3), grade=1.5)
        >>> row.relevance, row.pair
        (0.5, None)
    """

    query_id: str
    """Id of the query; the start of a hash of its text where the file has none."""
    document_id: str
    """Id of the document; likewise."""
    scale: GradeScale
    """What the grades mean."""
    query: str | None = None
    """Text of the query, or None where the file has ids alone."""
    document: str | None = None
    """Text of the document, or None."""
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
    """Name of the task, or None."""
    row_group: str | None = None
    """What rows of one question share in the file (LightBlue's `row_id`), or None."""
    text: str = ""
    """What the judge wrote, cut to 200 characters."""
    detail: str = ""
    """Why there is no grade, for people."""
    row: int | None = None
    """1-based row (line) in its file, or None."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What else the row says: language, label, the raw score."""

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


class JudgementSource(ABC):
    """A file (or folder of files) of judgements in one outside format.

    Rows are read as they are asked for and none is kept. A row whose judgement cannot be used comes with a status and
    no grade; a row that cannot be read is a fault, and all faults of a file are raised together at its end. So nothing
    made of the rows counts before the last one was taken.

    Raises:
        InputError: the path is missing.
    """

    name: ClassVar[str]
    """Name of the format, as `replay:NAME:PATH` takes it."""
    file_format: ClassVar[str]
    """Kind of file and its keys, in one line."""
    citation: ClassVar[str]
    """Where the format is from."""
    suffixes: ClassVar[tuple[str, ...]] = ()
    """Suffixes of the files to read where a folder is given; empty: no folder is taken."""
    licence: ClassVar[str] = "that of its texts"
    """Under what conditions the data are given out, as far as known."""
    task_shares: ClassVar[Mapping[str, float]] = {}
    """Task -> share of its queries in an epoch, where the people behind the data state one."""
    instructions: ClassVar[str | None] = None
    """Table of task instructions that names its tasks, as `bixse train` takes it."""

    def __init__(self, path: str | Path, scale: GradeScale) -> None:
        self.path = Path(path)
        self.scale = scale
        self.files = files_of(self.path, self.suffixes, self.file_format)
        self.statuses: Counter[str] = Counter()
        """Rows by status, of the reading under way or last done."""
        self.notes: Counter[str] = Counter()
        """What else was counted in it: see `warnings`."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """What decides the rows besides the content of the files, as plain JSON values."""
        return {"format": self.name, "scale": [self.scale.minimum, self.scale.maximum]}

    def rows(self) -> Iterator[Judgement]:
        """The judgements in the order of the files.

        Raises:
            InputError: a file cannot be read, or there is no row at all.
            InvalidFileError: after the last row of a file, every row of it that could not be read.
        """
        self.statuses, self.notes = Counter(), Counter()
        lists: dict[Path, RowErrors] = {}
        self.prepare(lambda path: lists.setdefault(path, RowErrors(path)))
        for faults in lists.values():
            faults.raise_any()
        for file in self.files:
            faults = RowErrors(file)
            yield from self.read(file, faults)
            faults.raise_any()
        if not self.statuses:
            raise InputError(f"{self.path}: got no rows; expected {self.file_format}; fix: check the export")

    def prepare(self, faults_of: Callable[[Path], RowErrors]) -> None:  # noqa: B027
        """Do what comes before the first row: look at all scores, or at the texts that rows name by their ids.

        Args:
            faults_of: gives the list that takes the faults of a file.

        Raises:
            InputError: a file cannot be read, or what is in it cannot be used at all.
        """

    def close(self) -> None:  # noqa: B027
        """Let go of what `prepare` took."""

    def read(self, file: Path, faults: RowErrors) -> Iterator[Judgement]:
        """The judgements of one file, counted by status; what cannot be read goes to `faults`.

        Raises:
            InputError: the file cannot be read.
        """
        for judgement in self._read(file, faults):
            self.statuses[judgement.status] += 1
            yield judgement

    def inputs(self) -> dict[str, Path]:
        """Name -> every file that decides the rows."""
        if self.files == [self.path]:
            return {self.path.name: self.path}
        return {str(file.relative_to(self.path)): file for file in self.files}

    def hashes(self, step: Callable[[int], None] | None = None) -> dict[str, str]:
        """Name -> SHA-256 of every input; `step` is told how many more bytes were read.

        Raises:
            InputError: a file cannot be read.
        """
        found = {}
        for name, file in self.inputs().items():
            try:
                found[name] = file_hash(file, step)
            except OSError as error:
                raise unreadable(file, error) from error
        return found

    def all_documents(self) -> Iterator[tuple[str, Document]] | None:
        """Ids and texts of every document where the source has a corpus, after `prepare`; None where it has none."""
        return None

    @abstractmethod
    def _read(self, file: Path, faults: RowErrors) -> Iterator[Judgement]:
        """The rows of one file; what cannot be read goes to `faults`."""

    def warnings(self) -> list[str]:
        """What people should know about the rows that were read."""
        unusable = {status: count for status, count in self.statuses.most_common() if status != "graded"}
        if not unusable:
            return []
        told = ", ".join(f"{count} {status}" for status, count in unusable.items())
        return [
            f"{self.path.name}: {sum(unusable.values())} of {sum(self.statuses.values())} judgements carry no grade "
            f"({told})"
        ]

    def content_hash(self) -> str:
        """SHA-256 of the file, or of the names and contents of a folder's files."""
        if self.files == [self.path]:
            return file_hash(self.path)
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(f"{file.relative_to(self.path)}\0{file_hash(file)}\0".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()


class JudgementRows(JudgementSource):
    """Judgements that are already in memory, in the place of a file.

    Raises:
        InputError: no row, or rows on two scales.
    """

    name = "rows"
    file_format = "judgements in memory"
    citation = ""

    def __init__(self, rows: Sequence[Judgement]) -> None:
        scales = {row.scale for row in rows}
        if len(scales) != 1:
            found = f"{len(scales)} scales" if rows else "no rows"
            raise InputError(f"judgements: got {found}; expected rows of one scale; fix: map the grades first")
        self.path, self.files, self.scale = Path(self.name), [], scales.pop()
        self.statuses, self.notes = Counter(), Counter()
        self._rows = rows

    def rows(self) -> Iterator[Judgement]:
        """The judgements in their order."""
        self.statuses = Counter(row.status for row in self._rows)
        yield from self._rows

    def _read(self, file: Path, faults: RowErrors) -> Iterator[Judgement]:
        return iter(self._rows)

    def content_hash(self) -> str:
        """SHA-256 over every field of every row."""
        digest = hashlib.sha256()
        for row in self._rows:
            digest.update(repr(row).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def placed(grade: float, scale: GradeScale) -> tuple[float | None, str, str]:
    """Grade, status and detail of a stated grade: off the scale it is no grade, and never the nearest one.

    Example:
        >>> from bixse.relevance import GradeScale
        >>> placed(2.0, GradeScale(0, 3)), placed(10.0, GradeScale(0, 3))
        ((2.0, 'graded', ''), (None, 'off-scale', 'grade 10; the scale is 0 to 3'))
    """
    if scale.minimum <= grade <= scale.maximum:
        return grade, "graded", ""
    return None, "off-scale", f"grade {grade:g}; the scale is {scale.minimum:g} to {scale.maximum:g}"
