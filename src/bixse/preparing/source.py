"""Read a file or folder in one of the formats as tables of judgements."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from bixse.data.graded_pairs import Pair
from bixse.data.joined import Unjoined
from bixse.data.trec import QRELS_HEADER, qrels_rows
from bixse.errors import InputError, InvalidFileError, shorten
from bixse.files.files import file_hash, hash_files, is_unicode, storage_errors
from bixse.files.rows import files_of, raw_rows, stem_of
from bixse.preparing.formats import (
    DOCUMENT,
    FORMATS,
    QUERY,
    SourceSettings,
    file_in_folder,
    known_files,
    task_name,
    texts_in,
)
from bixse.preparing.mapping import ID_OF_A_DOCUMENT, ID_OF_A_QUERY, RowMapping
from bixse.preparing.score_scale import MAPS, FileScores, check_scores, parse_score_map
from bixse.relevance import GradeScale

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Reached: TypeAlias = Callable[[Path, int], None]
"""A callback that gets a file and the number of bytes read."""
BLOCK_CHARACTERS = 1 << 21
"""Characters of JSON per block, since each JSON function of a query holds one parsed block."""
ROWS_AT_ONCE = 40_000
"""Maximum number of rows mapped together: planning the queries takes as long as some thousand rows."""


@dataclass(frozen=True)
class Judgement:
    """The answer of a judge to one (query, document) pair; the rows of every external format become judgements."""

    query_id: str
    document_id: str
    scale: GradeScale
    query: str | None = None
    document: str | None = None
    grade: float | None = None
    """The (fractional) grade, within the scale; None unless the status is "graded"."""
    status: str = "graded"
    """"graded", or the reason for no grade: "no-option", "off-scale", "no-probabilities", ... as judges answer."""
    probabilities: tuple[float, ...] = ()
    """Raw probability of each grade from lowest to highest, evenly spaced on the scale; empty if unknown."""
    orders: tuple[tuple[str, tuple[float, ...]], ...] = ()
    """Name of each input order and its raw probabilities, if the pair was asked in several orders."""
    low: float | None = None
    """Lowest possible grade, if the file states it."""
    high: float | None = None
    """Highest possible grade, if the file states it."""
    judge: str = ""
    task: str | None = None
    text: str = ""
    """Answer of the judge, cut to 200 characters."""
    detail: str = ""
    row: int | None = None
    """1-based row (line) in its file."""

    @property
    def relevance(self) -> float | None:
        """Return the grade on [0, 1], or None without a grade."""
        return None if self.grade is None else self.scale.to_relevance(self.grade)

    @property
    def pair(self) -> Pair | None:
        """Return the pair, or None if a text is not known."""
        if self.query is None or self.document is None:
            return None
        return Pair(self.query_id, self.query, self.document_id, self.document, self.task)


def ungraded(name: str, statuses: Counter[str]) -> list[str]:
    """Return a warning about judgements without a grade, per status."""
    unusable = {status: count for status, count in statuses.most_common() if status != "graded"}
    if not unusable:
        return []
    counts = ", ".join(f"{count} {status}" for status, count in unusable.items())
    return [f"{name}: {sum(unusable.values())} of {sum(statuses.values())} judgements carry no grade ({counts})"]


class Source:
    r"""A file or folder of judgements in one of the formats of `formats.toml`.

    A judgement that cannot be used has a status and no grade. A row that cannot be read is an error. All errors of a
    file are raised together at its end, so results are valid only after the last row.

    Example:
        >>> import json
        >>> path = Path(tempfile.mkdtemp()) / "nq.jsonl"
        >>> row = {"query": "copy a folder", "pos": ["copytree"], "neg": ["walk"], "pos_scores": [87.5],
        ...        "neg_scores": [25]}
        >>> _ = path.write_text(json.dumps(row))
        >>> source = Source(SourceSettings(source="flagembedding", path=path, score_map="percent"))
        >>> [(row.document, row.relevance, row.task) for row in source.rows()]
        [('copytree', 0.875, 'nq'), ('walk', 0.25, 'nq')]
    """

    def __init__(self, settings: SourceSettings) -> None:
        self.chosen, self.name, self.path = settings, settings.source, settings.path
        self.form = FORMATS[self.name]
        if settings.columns:
            self.form = self.form.with_columns(settings.columns)
        self.statuses: Counter[str] = Counter()
        """Number of judgements per status in the current or last reading."""
        self._noted = self._scores_aside = self._rows = 0
        self._warnings: list[str] = []
        self._lost: dict[str, tuple[int, str]] = {}
        """Expected value -> number of rows with an id that is not among the texts, and the first such id."""
        self._find_files()
        self.scale = settings.grade_scale or GradeScale(*(self.form.scale or (0, 1)))
        self.score_map = parse_score_map(settings.score_map) if settings.score_map is not None else None
        if self.form.needs_map and self.score_map is None:
            raise InputError(
                f"{self.path}: got no score map; expected one of {', '.join(MAPS)}; fix: choose one by what the scores "
                f"are: {'; '.join(f'{name}: {what}' for name, what in MAPS.items())}"
            )

    def _find_files(self) -> None:
        form, folder = self.form, self.form.folder
        if folder:
            self.files = [file_in_folder(self.path, folder["rows"], self.chosen.qrels)]
            self.corpus, self.queries = ([file_in_folder(self.path, folder[key])] for key in ("corpus", "queries"))
        else:
            self.files = files_of(self.path, form.suffixes, form.files)
            self.corpus, self.queries = (
                [] if path is None else files_of(path, what="a file of texts, or a folder of them")
                for path in (self.chosen.corpus, self.chosen.queries)
            )
        self._file_notes: list[str] = []
        if form.tasks:
            self.files, self._file_notes = known_files(form, self.path, self.files)

    @property
    def settings(self) -> Mapping[str, Any]:
        """Return the settings that decide the rows besides the content of the files, as plain JSON values."""
        return {
            "format": self.name,
            "scale": [self.scale.minimum, self.scale.maximum],
            "stated": self.chosen.grade_scale is not None,
            "map": str(self.score_map) if self.score_map else None,
            "columns": self.chosen.columns or None,
        }

    def inputs(self) -> dict[str, Path]:
        """Return name -> file for every file that decides the rows."""
        if self.form.folder:
            files = (*self.files, *self.corpus, *self.queries)
            return {str(file.relative_to(self.path)): file for file in files}
        inputs = {file.name if file == self.path else str(file.relative_to(self.path)): file for file in self.files}
        for kind, texts in (("corpus", self.corpus), ("queries", self.queries)):
            for number, file in enumerate(texts):
                # Files of different folders may have the same name.
                twice = sum(other.name == file.name for other in texts) > 1
                inputs[f"{kind}/{number}/{file.name}" if twice else f"{kind}/{file.name}"] = file
        return inputs

    def content_hash(self) -> str:
        """Return the SHA-256 of the file, or of the names and contents of several files."""
        if self.files == [self.path]:
            return file_hash(self.path)
        listed = "".join(f"{name}\0{digest}\0" for name, digest in hash_files(self.inputs()).items())
        return hashlib.sha256(listed.encode("utf-8", "surrogateescape")).hexdigest()

    def open(
        self, folder: Path, errors_of: Callable[[Path], InvalidFileError], reached: Reached | None = None
    ) -> RowMapping:
        """Open a database in `folder`, which the caller closes, and read the texts that rows name by id."""
        self.statuses, self._warnings = Counter(), list(self._file_notes)
        self._noted = self._scores_aside = self._rows = 0
        self._lost = {}
        with storage_errors(folder):
            mapping = RowMapping(self.chosen, self.form, self.scale, self.score_map, folder)
            for table, files, columns in (("documents", self.corpus, DOCUMENT), ("queries", self.queries, QUERY)):
                lists = [errors_of(file) for file in files]
                for number, (file, errors) in enumerate(zip(files, lists, strict=True)):
                    mapping.add_texts(
                        table, number, texts_in(file, columns, errors, partial(reached or _unheard, file))
                    )
                for number, row, name in mapping.repeated_texts(table):
                    fix = "give each text its own id, or drop the repeat"
                    lists[number].add(row, "id", f"{shorten(name)} again with another text", "one text per id", fix)
        return mapping

    def read(
        self, mapping: RowMapping, file: Path, errors: InvalidFileError, reached: Reached | None = None
    ) -> Iterator[pa.Table]:
        """Yield the judgements of a file as tables; `errors` takes the unreadable rows.

        Raise InputError if the file cannot be read, or its scores carry no grades.
        """
        form, scores, off = self.form, FileScores(), list[tuple[float, object]]()
        task = {"file": task_name(file), "folder": self.path.resolve().name}.get(form.task_from)
        judge = form.judge.replace("{file}", file.stem)
        for rows, position in self._blocks(file, errors):
            (reached or _unheard)(file, position)
            table, faults, noted = mapping.judgements(rows, form.tasks.get(task or "", task), judge)
            self._rows += len(rows)
            for error in faults:
                errors.add(*astuple(error))
            for expected in (ID_OF_A_QUERY, ID_OF_A_DOCUMENT):
                lost = {error.row: error.got for error in faults if error.expected == expected}
                count, first = self._lost.get(
                    expected, (0, next(iter(lost.values()), "").rpartition(", ")[0].strip('"'))
                )
                if lost:
                    self._lost[expected] = count + len(lost), first
            self.statuses.update(table["status"].to_pylist())
            self._noted += noted
            scores.add(table)
            if self.chosen.grade_scale is not None:
                impossible = table.filter(pc.equal(table["status"], "off-scale"))
                off += zip(impossible["score"].to_pylist(), impossible["row"].to_pylist(), strict=True)
            if self.score_map is not None and self.score_map.kind == "binary" and form.judge == "binary labels":
                self._scores_aside += table.num_rows - table["score"].null_count
            yield table
        self.scale.check(file, off)
        self._tell(file, scores, bool(errors.total))

    def _blocks(self, file: Path, errors: InvalidFileError) -> Iterator[tuple[pa.Table, int]]:
        """Yield tables of row numbers and their JSON, and the bytes read."""
        form, numbers, lines = self.form, [], []
        rows: Iterator[tuple[int, dict[str, Any], int]]
        if form.query_by_id:
            judged = qrels_rows(file, errors, several=self.chosen.dedup)
            rows = ((row, dict(zip(QRELS_HEADER, values, strict=True)), 0) for row, *values in judged)
        else:
            rows = raw_rows(file, errors, form.needed, None if form.optional == ("*",) else form.optional)
        size = position = 0
        for number, row, position in rows:
            if (line := _encoded(number, row, errors)) is None:
                continue
            numbers.append(number)
            lines.append(line)
            size += len(line)
            if len(lines) == ROWS_AT_ONCE or size > BLOCK_CHARACTERS:
                yield pa.table({"row": numbers, "json": lines}), position
                numbers, lines, size = [], [], 0
        if lines:
            yield pa.table({"row": numbers, "json": lines}), position

    def _tell(self, file: Path, scores: FileScores, invalid: bool) -> None:
        if not self.form.needs_map:
            return
        if self.score_map is not None and self.score_map.kind != "binary":
            positive, negative = scores.sides()
            try:
                warnings = (
                    check_scores(positive, negative, self.score_map, f"scores of {file.name}") if scores.any else []
                )
            except InputError as error:
                if not invalid:
                    raise
                warnings = [str(error)]  # rows with errors are missing, so the other scores may be all equal
            self._warnings += [f"{file.name}: {warning}" for warning in warnings]
            if scores.crossed:
                self._warnings.append(f"{file.name}: {scores.crossed} rows score a negative above a positive")
        if task_name(file) != stem_of(file):
            self._warnings.append(
                f"{file.name}: marked as without in-batch negatives: rows of one file answer each other's queries; "
                "train these tasks separately, with a loss that compares only the documents of one query"
            )

    def rows(self) -> Iterator[Judgement]:
        """Yield the judgements in file order; raise the errors of a file after its last row."""
        for table in self._tables():
            yield from (self._judgement(row) for row in table.to_pylist())
        if not self.statuses:
            raise InputError(f"{self.path}: got no rows; expected {self.form.files}; fix: check the export")

    def _tables(self) -> Iterator[pa.Table]:
        with tempfile.TemporaryDirectory() as folder:
            lists: dict[Path, InvalidFileError] = {}
            mapping = self.open(Path(folder), lambda path: lists.setdefault(path, InvalidFileError(path)))
            try:
                # Errors of texts come first: they would repeat as errors of the rows that name the texts.
                for errors in lists.values():
                    errors.raise_any()
                for file in self.files:
                    errors = InvalidFileError(file)
                    yield from self.read(mapping, file, errors)
                    errors.raise_any()
            finally:
                mapping.database.close()

    def _judgement(self, row: Mapping[str, Any]) -> Judgement:
        names = ("query_id", "document_id", "query", "document", "grade", "status", "judge", "task", "text", "detail")
        orders = json.loads(row["orders"]) if row["orders"] else {}
        return Judgement(
            scale=self.scale,
            row=row["row"],
            probabilities=tuple(row["probabilities"] or ()),
            orders=tuple((order, tuple(shares)) for order, shares in orders.items()),
            **{name: row[name] for name in names},
        )

    def unjoined(self) -> list[str]:
        """Return the number of rows whose query or document is not among the texts."""
        name = {ID_OF_A_QUERY: "query without a text", ID_OF_A_DOCUMENT: "document that the corpus lacks"}
        return [
            f"{self.path.name}: {Unjoined(f'judgements of a {name[expected]}', count, self._rows, first)}"
            for expected, (count, first) in self._lost.items()
        ]

    def warnings(self) -> list[str]:
        name = self.files[0].name if self.form.folder else self.path.name
        warnings = [*self.unjoined(), *ungraded(name, self.statuses)]
        if self._noted:
            warnings.append(f"{self.path.name}: {self.form.note['text'].format(count=self._noted)}")
        if self._scores_aside:
            warnings.append(f"{self.path.name}: {self._scores_aside} texts have scores, which the map 'binary' ignores")
        return [*warnings, *self._warnings]


def _unheard(_file: Path, _position: int) -> None:
    """Ignore the progress."""


def _encoded(number: int, row: dict[str, Any], errors: InvalidFileError) -> str | None:
    line = _JSON.encode(row)
    if is_unicode(line):
        return line
    key = next((key for key, value in row.items() if not is_unicode(_JSON.encode(value))), None)
    shown = shorten(row if key is None else row[key])
    errors.add(number, key, shown, "text that UTF-8 can write", "drop half a surrogate pair")
    return None


def _not_json(value: object) -> dict[str, str]:
    """Return an object for a value of Parquet that JSON lacks: it is neither text nor number nor id."""
    return {type(value).__name__: shorten(value)}


_JSON = json.JSONEncoder(ensure_ascii=False, default=_not_json)
