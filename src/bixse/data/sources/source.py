"""`Source`: a file or folder in one of the formats, read as tables of judgements."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from bixse.data.io.files import file_hash, is_unicode, storage_errors
from bixse.data.row_files.read import files_of, stem_of
from bixse.data.sources.formats import SourceOptions, checked_options
from bixse.data.sources.judgement import Judgement, ungraded
from bixse.data.sources.mapping import RowMapping
from bixse.data.sources.row_functions import ROW_FUNCTIONS
from bixse.data.sources.score_scale import FileScores, check_scores, histogram, parse_score_map, summarise_scores
from bixse.data.sources.source_files import known_files, of_folder, rows_of, task_name, text_files
from bixse.data.sources.source_hub import HUB, hub_folder
from bixse.data.sources.texts import documents_in, queries_in
from bixse.errors import InputError, InvalidFileError, RowError, shorten
from bixse.relevance import GradeScale

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import duckdb


Reached: TypeAlias = Callable[[Path, int], None]
"""Is told how many bytes of a file were read."""
ROWS_AT_ONCE = 20_000
"""Rows of a file that are mapped together, at most."""
CHARACTERS_AT_ONCE = 1 << 22
"""Characters of them, about."""


class Source:
    r"""Judgements in one of the formats of `formats.toml`.

    A row whose judgement cannot be used comes with a status and no grade. A row that cannot be read is an error; all
    errors of a file are told together, so nothing made of the rows counts before the last one was taken.

    Args:
        name: one of `FORMATS`.
        path: file or folder, or `hub:owner/name` for a data set of the Hugging Face Hub.
        options: what some formats need.
        download: whether data may be fetched.

    Raises:
        InputError: no such format or path, an option that the format does not take, or one that is missing.

    Example:
        >>> import json
        >>> path = Path(tempfile.mkdtemp()) / "nq.jsonl"
        >>> row = {"query": "copy a folder", "pos": ["copytree"], "neg": ["walk"], "pos_scores": [87.5],
        ...        "neg_scores": [25]}
        >>> _ = path.write_text(json.dumps(row))
        >>> source = Source("flagembedding", path, SourceOptions(score_map="percent"))
        >>> [(row.document, row.relevance, row.task) for row in source.rows()]
        [('copytree', 0.875, 'nq'), ('walk', 0.25, 'nq')]
    """

    def __init__(
        self, name: str, path: str | Path, options: SourceOptions | None = None, download: bool = False
    ) -> None:
        self.name, options = name, options or SourceOptions()
        self.form = checked_options(name, path, options)
        if options.columns is not None:
            self.form = self.form.with_columns(options.columns)
        self.path = hub_folder(name, str(path), download) if str(path).startswith(HUB) else Path(path)
        self.statuses: Counter[str] = Counter()
        """Judgements by status, of the reading under way or last done."""
        self.notes: Counter[str] = Counter()
        """What else was counted in it: see `warnings`."""
        self.told: list[str] = []
        """Warnings about files as a whole."""
        self._find_files(options)
        fixed = None if self.form.scale is None else GradeScale(*self.form.scale)
        self.stated = options.scale is not None
        self.scale = options.scale or fixed or GradeScale(0, 1)
        self.score_map = parse_score_map(options.score_map) if options.score_map is not None else None
        self._columns = options.columns
        self._mapping: RowMapping | None = None
        if self.form.needs_map and self.score_map is None:
            raise InputError(
                f"{path}: got no score map; expected prob, percent, logit, platt:SLOPE,INTERCEPT or binary; "
                f"fix: choose one by what the scores are\n{self._look()}"
            )

    def _find_files(self, options: SourceOptions) -> None:
        form = self.form
        if form.folder:
            self.files = [of_folder(self.path, form.folder["rows"], options.qrels)]
            self.corpus, self.queries = ([of_folder(self.path, form.folder[key])] for key in ("corpus", "queries"))
        else:
            self.files = files_of(self.path, form.suffixes, form.files)
            self.corpus, self.queries = text_files(options.corpus), text_files(options.queries)
        if form.tasks:
            self.files, self.told = known_files(form, self.path, self.files)
        self._file_notes = self.told

    @property
    def split(self) -> str:
        """Name of the split that is read, where it is one of a collection."""
        return self.files[0].stem if self.form.folder and self.form.query_by_id else "test"

    @property
    def settings(self) -> Mapping[str, Any]:
        """What decides the rows besides the content of the files, as plain JSON values."""
        return {
            "format": self.name,
            "scale": [self.scale.minimum, self.scale.maximum],
            "stated": self.stated,
            "map": str(self.score_map) if self.score_map else None,
            "columns": vars(self._columns) if self._columns else None,
        }

    def inputs(self) -> dict[str, Path]:
        """Name -> every file that decides the rows."""
        if self.form.folder:
            files = (*self.files, *self.corpus, *self.queries)
            return {str(file.relative_to(self.path)): file for file in files}
        found = {file.name if file == self.path else str(file.relative_to(self.path)): file for file in self.files}
        for kind, texts in (("corpus", self.corpus), ("queries", self.queries)):
            for place, file in enumerate(texts):
                twice = sum(other.name == file.name for other in texts) > 1
                found[f"{kind}/{place}/{file.name}" if twice else f"{kind}/{file.name}"] = file
        return found

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
                raise InputError(
                    f"{file}: got {error.strerror!r}; expected a readable file; fix: check the path, or fetch it again"
                ) from error
        return found

    def content_hash(self) -> str:
        """SHA-256 of the file, or of the names and contents of several."""
        if self.files == [self.path]:
            return file_hash(self.path)
        listed = "".join(f"{name}\0{digest}\0" for name, digest in self.hashes().items())
        return hashlib.sha256(listed.encode("utf-8", "surrogateescape")).hexdigest()

    def prepare(
        self,
        folder: Path,
        errors_of: Callable[[Path], InvalidFileError],
        text_ids: bool = False,
        reached: Reached | None = None,
    ) -> RowMapping:
        """Open the database, and read the texts that rows name by id.

        Args:
            folder: for what does not fit into memory.
            errors_of: gives the list that takes the errors of a file.
            text_ids: make ids from the texts.
            reached: is told how many bytes of which file were read.

        Raises:
            InputError: a file cannot be read.
            StorageError: no room for the texts.
        """
        self.statuses, self.notes, self.told = Counter(), Counter(), list(self._file_notes)
        with storage_errors(folder):
            mapping = RowMapping(
                self.form, self.scale, self.stated, self.score_map, folder, bool(self.corpus), text_ids
            )
            for table, files, read in (("documents", self.corpus, documents_in), ("queries", self.queries, queries_in)):
                lists = [errors_of(file) for file in files]
                for place, (file, errors) in enumerate(zip(files, lists, strict=True)):
                    mapping.add_texts(table, place, read(file, errors, partial(reached or _unheard, file)))
                for place, row, found in mapping.repeated_texts(table):
                    fix = "give each text its own id, or drop the repeat"
                    lists[place].add(row, "id", f"{shorten(found)} again with another text", "one text per id", fix)
        self._mapping = mapping
        return mapping

    def read(
        self, file: Path, errors: InvalidFileError, limit: int | None = None, reached: Reached | None = None
    ) -> Iterator[pa.Table]:
        """The judgements of one file as tables, counted by status; what cannot be read goes to `errors`.

        Args:
            file: one of `files`.
            errors: receives the errors, those of the first `limit` judgements.
            limit: judgements to read.
            reached: is told how many bytes of the file were read.

        Raises:
            InputError: the file cannot be read, or its scores carry no grades.
        """
        assert self._mapping is not None, "prepare comes first"
        mapping, form = self._mapping, self.form
        task = {"file": task_name(file), "folder": self.path.resolve().name}.get(form.task_from)
        judge = form.judge.replace("{file}", file.stem)
        scores = FileScores()
        for rows, unread, position in self._chunks(file, min(limit or ROWS_AT_ONCE, ROWS_AT_ONCE)):
            (reached or _unheard)(file, position)
            table, found = mapping.map(rows, form.tasks.get(task or "", task), judge)
            found = sorted([*unread, *found], key=lambda error: (error.row or 0, error.column or ""))
            if limit is not None and table.num_rows >= limit:
                table = table.slice(0, limit)
                found = [error for error in found if (error.row or 0) <= table["row"][-1].as_py()]
            for error in found:
                errors.add(*astuple(error))
            self.statuses.update(table["status"].to_pylist())
            scores.add(table)
            if self.score_map is not None and self.score_map.kind == "binary" and form.judge == "binary labels":
                self.notes["scores left aside"] += table.num_rows - table["score"].null_count
            yield table
            limit = None if limit is None else limit - table.num_rows
            if limit == 0:
                break
        self._tell(file, scores, bool(errors.total))

    def _chunks(self, file: Path, most: int) -> Iterator[tuple[pa.Table, list[RowError], int]]:
        """The rows of a file as JSON, some thousand at a time, errors of those that cannot be read, bytes read."""
        unread = _UnreadRowsError(file)
        function = ROW_FUNCTIONS.get(self.form.python)
        numbers: list[int] = []
        lines: list[str] = []
        size = position = 0
        for number, row, position in rows_of(self.form, file, unread):
            before = unread.total
            kept = row if function is None else function(number, row, unread, self.notes)
            if kept is None or unread.total > before:
                continue
            line = _JSON.encode(kept)
            if not is_unicode(line):
                key = next((key for key, value in row.items() if not is_unicode(_JSON.encode(value))), None)
                shown = shorten(row if key is None else row[key])
                unread.add(number, key, shown, "text that UTF-8 can write", "drop half a surrogate pair")
                continue
            numbers.append(number)
            lines.append(line)
            size += len(line)
            if len(lines) + len(unread.found) >= most or size >= CHARACTERS_AT_ONCE:
                yield _json_table(numbers, lines), unread.take(), position
                numbers, lines, size = [], [], 0
        if lines or unread.found:
            yield _json_table(numbers, lines), unread.take(), position

    def _tell(self, file: Path, scores: FileScores, faulty: bool) -> None:
        """Warnings about the scores of a file, and about what its name says."""
        if self.form.needs_map and self.score_map is not None and self.score_map.kind != "binary":
            positive, negative = scores.sides()
            try:
                told = check_scores(positive, negative, self.score_map, f"scores of {file.name}") if scores.any else []
            except InputError as error:
                if not faulty:
                    raise
                told = [str(error)]  # rows are missing for their errors: what is left need not be all alike
            self.told += [f"{file.name}: {warning}" for warning in told]
            if scores.crossed:
                self.told.append(f"{file.name}: {scores.crossed} rows score a negative above a positive")
        if self.form.needs_map and task_name(file) != stem_of(file):
            self.told.append(
                f"{file.name}: marked as without in-batch negatives: rows of one file answer each other's queries; "
                "train these tasks apart, with a loss of a query's own documents"
            )

    @property
    def database(self) -> duckdb.DuckDBPyConnection:
        """The database that `prepare` opened; its table `documents` holds the corpus."""
        assert self._mapping is not None, "prepare comes first"
        return self._mapping.database

    def close(self) -> None:
        """Close the database."""
        if self._mapping is not None:
            self._mapping.close()

    def rows(self) -> Iterator[Judgement]:
        """The judgements in the order of the files.

        Raises:
            InputError: a file cannot be read, or there is no row at all.
            InvalidFileError: after the last row of a file, every row of it that could not be read.
        """
        with tempfile.TemporaryDirectory() as folder:
            lists: dict[Path, InvalidFileError] = {}
            mapping = self.prepare(Path(folder), lambda path: lists.setdefault(path, InvalidFileError(path)))
            try:
                for errors in lists.values():
                    errors.raise_any()
                for file in self.files:
                    errors = InvalidFileError(file)
                    for table in self.read(file, errors):
                        yield from (self._judgement(row) for row in table.to_pylist())
                    errors.raise_any()
            finally:
                mapping.close()
        if not self.statuses:
            raise InputError(f"{self.path}: got no rows; expected {self.form.files}; fix: check the export")

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

    def warnings(self) -> list[str]:
        """What people should know about the rows that were read."""
        counted = [
            f"{self.path.name}: {text.format(count=count)}"
            for note, text in self.form.notes.items()
            if (count := self.notes[note])
        ]
        if count := self.notes["scores left aside"]:
            counted.append(f"{self.path.name}: {count} texts have scores, which the map 'binary' leaves aside")
        name = self.files[0].name if self.form.folder else self.path.name
        return [*ungraded(name, self.statuses), *counted, *self.told]

    def _look(self) -> str:
        """What the scores look like, with a histogram, for people."""
        scores = FileScores()
        self.form = replace(self.form, options=())  # nothing need be stated to look
        with tempfile.TemporaryDirectory() as folder:
            mapping = self.prepare(Path(folder), InvalidFileError)
            for file in self.files:
                errors = InvalidFileError(file)
                for rows, unread, _ in self._chunks(file, ROWS_AT_ONCE):
                    table, found = mapping.map(rows, None, "")
                    for error in (*unread, *found):
                        errors.add(*astuple(error))
                    scores.add(table)
                errors.raise_any()
            mapping.close()
        if not scores.any:
            return "no scores in the file: labels alone (binary)"
        told = [summarise_scores(*scores.sides()).describe()]
        told += [f"{scores.crossed} rows score a negative above a positive"] if scores.crossed else []
        return "\n".join([*told, histogram(np.concatenate(scores.sides()))])


class _UnreadRowsError(InvalidFileError):
    """The errors of some rows, all kept until it is known whether they count."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.found: list[RowError] = []

    def add(self, row: int | None, column: str | None, got: str, expected: str, fix: str) -> None:
        super().add(row, column, got, expected, fix)
        self.found.append(RowError(row, column, got, expected, fix))

    def take(self) -> list[RowError]:
        """What was found since the last time."""
        found, self.found = self.found, []
        return found


def _unheard(_file: Path, _position: int) -> None:
    """Nobody wants to know how far the reading has come."""


def _json_table(numbers: list[int], lines: list[str]) -> pa.Table:
    return pa.table({"row": pa.array(numbers, pa.int64()), "json": pa.array(lines, pa.string())})


def _not_json(value: object) -> dict[str, str]:
    """What Parquet can hold and JSON cannot: an object, which is neither text nor number nor id."""
    return {type(value).__name__: str(value)}


_JSON = json.JSONEncoder(ensure_ascii=False, default=_not_json)
