"""Read a file or folder in one of the formats as judgements."""

from __future__ import annotations

import json
import string
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from bixse.converting.formats import ABSENT, FILL, FORMATS, Format, Judgement, SourceRow
from bixse.converting.score_scale import Grading, check_scores
from bixse.data.columns import text_id
from bixse.data.joined import Unjoined
from bixse.data.trec import QRELS_HEADER, qrels_rows
from bixse.errors import InputError, InvalidFileError, RowError, did_you_mean, shorten
from bixse.files.files import storage_errors
from bixse.files.rows import files_of, other_form, raw_rows, stem_of

if TYPE_CHECKING:
    from bixse.converting.convert_settings import ConvertSettings
    from bixse.converting.texts import TextsById
    from bixse.progress import ProgressBars

ERRORS = "errors"
"""Name of the file of all errors, as JSON lines, in the work folder."""
ROWS_AT_ONCE = 40_000
"""Maximum number of rows whose texts are looked up together: each look-up reads all ids of the corpus."""
CHARACTERS_AT_ONCE = 1 << 22
"""Maximum number of characters of texts per block of rows, about."""
_PARTS_OF_NAMES = ("_split1", "_split2", "_no_in_batch_neg")
"""Suffixes of file names: halves of E5's symmetric tasks, and BGE's files whose rows must not be in-batch negatives."""


class Source:
    """A file or folder of judgements in one of the `FORMATS`, which is read once.

    A judgement that cannot be used has a status and no grade. A row that cannot be read is an error in `errors`, so
    results are valid only after the last row.
    """

    def __init__(self, settings: ConvertSettings, progress: ProgressBars | None = None) -> None:
        self.chosen, self.name, self.path = settings, settings.source, settings.path
        self.form = FORMATS[self.name].with_columns(settings.columns) if settings.columns else FORMATS[self.name]
        self.errors: list[InvalidFileError] = []
        """Errors per file, in reading order."""
        self.counts: dict[str, Mapping[str, int]] = {}
        """Counts of judgements and errors per file of rows, by its name in `inputs`."""
        self._progress = progress
        self._warnings: list[str] = []
        form, folder = self.form, self.form.folder
        if folder:
            self.files = [file_in_folder(self.path, folder["rows"], settings.qrels)]
            self.corpus, self.queries = ([file_in_folder(self.path, folder[key])] for key in ("corpus", "queries"))
        else:
            self.files = files_of(self.path, form.suffixes, form.files)
            self.corpus, self.queries = (
                [] if path is None else files_of(path, what="a file of texts, or a folder of them")
                for path in (settings.corpus, settings.queries)
            )
        if form.tasks:
            self.files, self._warnings = known_files(form, self.path, self.files)
        self._names = {file: name for name, file in self.inputs().items()}
        self.grading = Grading(settings, self.form)
        self.scale = self.grading.scale
        self.statuses: Counter[str] = Counter()
        """Number of judgements per status."""
        self._notes: Counter[tuple[Path, str]] = Counter()
        """File or folder, and what its warning counts -> the count."""
        self._texts: dict[str, TextsById] = {}
        self._rows = 0
        self._lost: dict[str, tuple[int, str]] = {}
        """Kind of a text -> number of rows with an id that is not among the texts, and the first such id."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """Return the settings that decide the rows besides the content of the files, as plain JSON values."""
        return {
            "format": self.name,
            "scale": [self.scale.minimum, self.scale.maximum],
            "stated": self.chosen.scale is not None,
            "map": str(self.grading.score_map) if self.grading.score_map else None,
            "columns": self.chosen.columns or None,
        }

    def inputs(self) -> dict[str, Path]:
        """Return name -> file for every file that decides the rows."""
        if self.form.folder:
            return {str(file.relative_to(self.path)): file for file in (*self.files, *self.corpus, *self.queries)}
        inputs = {file.name if file == self.path else str(file.relative_to(self.path)): file for file in self.files}
        for kind, texts in (("corpus", self.corpus), ("queries", self.queries)):
            names = Counter(file.name for file in texts)
            for number, file in enumerate(texts):
                # Files of different folders may have the same name.
                inputs[f"{kind}/{number}/{file.name}" if names[file.name] > 1 else f"{kind}/{file.name}"] = file
        return inputs

    @property
    def total(self) -> int:
        """Return the number of errors so far."""
        return sum(errors.total for errors in self.errors)

    @contextmanager
    def texts(self, folder: Path) -> Iterator[None]:
        """Read the texts that rows name by id, into databases in `folder` that are open until the end.

        All errors, those of the rows too, are written to a file there.
        """
        from bixse.converting.texts import DOCUMENT, QUERY, TextsById, texts_in

        bar = Bar(self._progress, "read texts", (*self.corpus, *self.queries))
        with storage_errors(folder), (folder / ERRORS).open("w", encoding="utf-8") as self._log, ExitStack() as stack:
            for kind, files, columns in (("document", self.corpus, DOCUMENT), ("query", self.queries, QUERY)):
                if not files:
                    continue
                self._texts[kind] = texts = TextsById(folder / kind)
                stack.callback(texts.database.close)
                lists = [self._errors_of(file) for file in files]
                for number, (file, errors) in enumerate(zip(files, lists, strict=True)):
                    texts.add(number, texts_in(file, columns, errors, partial(bar.reached, file)))
                for number, row, name in texts.repeated():
                    fix = "give each text its own id, or drop the repeat"
                    lists[number].add(row, "id", f"{shorten(name)} again with another text", "one text per id", fix)
            yield

    def _errors_of(self, file: Path) -> InvalidFileError:
        self.errors.append(_WrittenError(file, self._names[file], self._log))
        return self.errors[-1]

    def judgements(self) -> Iterator[list[Judgement]]:
        """Yield the judgements of all files in blocks, while `texts` is open.

        Raise InputError if a file cannot be read, or its scores carry no grades.
        """
        bar = Bar(self._progress, f"read {self.name}", self.files)
        for file in self.files:
            errors, before = self._errors_of(file), self.statuses.copy()
            yield from self._read(file, errors, partial(bar.reached, file))
            bar.reached(file, file.stat().st_size)
            new = self.statuses - before
            counts = {"judgements": sum(new.values()), "graded": new["graded"], "errors": errors.total}
            self.counts[self._names[file]] = counts

    def _read(self, file: Path, errors: InvalidFileError, reached: Callable[[int], None]) -> Iterator[list[Judgement]]:
        """Yield the judgements of a file in blocks; `errors` takes the unreadable rows."""
        scores, off_scale = (array("d"), array("d")), list[tuple[float, object]]()
        task = {"file": task_name(file), "folder": self.path.resolve().name}.get(self.form.task)
        task, judge = self.form.tasks.get(task or "", task), self.form.judge.replace("{file}", file.stem)
        for rows, position in self._blocks(file, errors):
            reached(position)
            self._look_up(rows)
            usable: list[Judgement] = []
            for row in rows:
                for column, *fault in sorted(row.errors):
                    errors.add(row.number, column or None, *fault)
                if row.note:
                    self._notes[self.path, f"rows {row.note}"] += 1
                if row.errors:
                    continue
                usable += row.judgements
                if self.form.needs_map and self.grading.teacher is not None:
                    self._see(file, row.judgements, scores)
                if self.chosen.scale is not None:
                    off = (item for item in row.judgements if item.status == "off-scale")
                    off_scale += [(item.score or 0.0, row.number) for item in off]
            for item in usable:
                self._complete(item, task, judge)
            if self.grading.is_binary:
                ignored = sum(item.score is not None and item.label is not None for item in usable)
                self._notes[self.path, "texts have scores, which the map 'binary' ignores"] += ignored
            self._rows += len(rows)
            self.statuses.update(item.status for item in usable)
            yield usable
        self.scale.check(file, off_scale)
        self._tell(file, scores, bool(errors.total))

    def _blocks(self, file: Path, errors: InvalidFileError) -> Iterator[tuple[list[SourceRow], int]]:
        """Yield rows with their judgements, without texts that are looked up; and the bytes read."""
        form = self.form
        rows: Iterator[tuple[int, dict[str, Any], int]]
        if form.is_qrels:
            judged = qrels_rows(file, errors, several=self.chosen.dedup)
            rows = ((number, dict(zip(QRELS_HEADER, values, strict=True)), 0) for number, *values in judged)
        else:
            rows = raw_rows(file, errors, form.columns)
        block: list[SourceRow] = []
        size = position = 0
        for number, values, position in rows:
            row = SourceRow(number, values, self.chosen.text_ids)
            row.judgements += form.read(row)
            if not row.judgements and not row.errors:
                row.refuse("".join(form.signs[-1:]), ABSENT, "a text", FILL)
            for item in row.judgements:
                self.grading.grade(row, item)
                size += len(item.query or "") + len(item.document or "")
            row.clear()  # columns that no format reads may be large
            block.append(row)
            if len(block) == ROWS_AT_ONCE or size > CHARACTERS_AT_ONCE:
                yield block, position
                block, size = [], 0
        if block:
            yield block, position

    def _look_up(self, rows: list[SourceRow]) -> None:
        """Give judgements the texts that they name by id."""
        for kind in ("query", "document"):
            named = [
                (row, item, name)
                for row in rows
                for item in row.judgements
                if getattr(item, kind) is None and (name := getattr(item, f"{kind}_id"))
            ]
            texts = self._texts[kind].of({name for *_, name in named}) if named and kind in self._texts else {}
            lost: dict[int, str] = {}
            for row, item, name in named:
                column = item.column if kind == "document" else QRELS_HEADER[0]
                if name in texts and texts[name].strip():
                    setattr(item, kind, texts[name])
                elif name in texts:
                    fix = "fill the document in, or drop it here"
                    row.add(column, f"{shorten(name)}, an empty document", "a text", fix)
                elif kind in self._texts:
                    lost.setdefault(row.number, name)
                    got, fix = f"{shorten(name)}, without a text", f"add the {kind}, or drop its rows"
                    row.add(column, got, f"the id of a {kind}", fix)
                else:
                    got, fix = f"the id {shorten(name)} without a text", "give the corpus too (--corpus FILE)"
                    row.add(column, got, "a text, or a corpus", fix)
            if lost:
                count, first = self._lost.get(kind, (0, next(iter(lost.values()))))
                self._lost[kind] = count + len(lost), first

    def _complete(self, item: Judgement, task: str | None, judge: str) -> None:
        """Add the ids, and the task and the judge of a file."""
        item.document = (item.document or "").strip(string.whitespace)
        if self.chosen.text_ids or not item.query_id:
            item.query_id = text_id(item.query or "")
        if self.chosen.text_ids or not item.document_id:
            item.document_id = text_id(item.document)
        item.task, item.judge = self.chosen.task or item.task or task, item.judge or judge or None

    def _see(self, file: Path, row: Sequence[Judgement], scores: tuple[array[float], array[float]]) -> None:
        """Add the scores of a row to those of the positives and the negatives of its file: 8 bytes per score."""
        high, low = ([item.score for item in row if item.label == label and item.score is not None] for label in (1, 0))
        scores[0].extend(high)
        scores[1].extend(low)
        crossed = bool(high and low and max(low) > min(high))
        self._notes[file, "rows score a negative above a positive"] += crossed

    def _tell(self, file: Path, scores: tuple[array[float], array[float]], invalid: bool) -> None:
        """Add warnings on the scores of a file and on its name."""
        if any(scores) and self.grading.teacher is not None:
            try:
                warnings = check_scores(*scores, self.grading.teacher, f"scores of {file.name}")
            except InputError as error:
                if not invalid:
                    raise
                warnings = [str(error)]  # rows with errors are missing, so the other scores may be all equal
            self._warnings += [f"{file.name}: {warning}" for warning in warnings]
        if self.form.needs_map and task_name(file) != stem_of(file):
            self._warnings.append(
                f"{file.name}: marked as without in-batch negatives: rows of one file answer each other's queries; "
                "train these tasks separately, with a loss that compares only the documents of one query"
            )

    def unjoined(self) -> list[str]:
        """Return the number of rows whose query or document is not among the texts."""
        return [
            f"{self.path.name}: {Unjoined(f'judgements of a {kind} without a text', count, self._rows, first)}"
            for kind, (count, first) in sorted(self._lost.items(), reverse=True)
        ]

    def warnings(self) -> list[str]:
        unusable = {status: count for status, count in self.statuses.most_common() if status != "graded"}
        warnings = self.unjoined()
        if unusable:
            name = self.files[0].name if self.form.folder else self.path.name
            counts = ", ".join(f"{count} {status}" for status, count in unusable.items())
            total = f"{sum(unusable.values())} of {sum(self.statuses.values())}"
            warnings.append(f"{name}: {total} judgements carry no grade ({counts})")
        warnings += [f"{path.name}: {count} {note}" for (path, note), count in self._notes.items() if count]
        return [*warnings, *self._warnings]


class _WrittenError(InvalidFileError):
    """The errors of one file, each also written to a file of JSON lines."""

    def __init__(self, path: Path, name: str, out: TextIO) -> None:
        super().__init__(path)
        self._name, self._out = name, out

    def add(self, row: int | None, column: str | None, got: str, expected: str, fix: str) -> None:
        super().add(row, column, got, expected, fix)
        self._out.write(json.dumps({"file": self._name, **asdict(RowError(row, column, got, expected, fix))}) + "\n")


class Bar:
    """A progress bar over the bytes of several files."""

    def __init__(self, progress: ProgressBars | None, title: str, files: Iterable[Path]) -> None:
        total = sum(file.stat().st_size for file in files if file.is_file())
        self._step = progress(title, total) if progress is not None and total else None
        self._reached: dict[Path, int] = {}

    def advance(self, count: int) -> None:
        if self._step is not None and count > 0:
            self._step(count)

    def reached(self, file: Path, position: int) -> None:
        self.advance(position - self._reached.get(file, 0))
        self._reached[file] = max(position, self._reached.get(file, 0))


def file_in_folder(folder: Path, names: Sequence[str], split: str | None = None) -> Path:
    """Return the file with one of these names in a data set's folder; `split` selects among the files of a pattern."""
    available = {file.stem: file for name in names for file in sorted(folder.glob(name))}
    if not available:
        other = other_form(folder / names[0].replace("*", split or "test"))
        got = "no such folder" if not folder.exists() else "a file" if folder.is_file() else "no such file in it"
        raise InputError(
            f"{folder}: got {other[0] if other else got}; expected a folder with {' or '.join(names)}; fix: "
            + (f"write it with `{other[1]}`" if other else "check the path")
        )
    if "*" not in names[0] or (split is None and len(available) == 1):
        return next(iter(available.values()))
    if split not in available:
        got = f"{len(available)} splits" if split is None else f"split {split!r}"
        raise InputError(
            f"{folder}: got {got}; expected one of {', '.join(available)}; fix: --qrels and one of them"
            + (f" ({did_you_mean(split, available)})" if split else "")
        )
    return available[split]


def known_files(form: Format, path: Path, files: list[Path]) -> tuple[list[Path], list[str]]:
    """Return the files of a format with known file names, and warnings."""
    names = {stem_of(file) for file in files}
    # A data set may hold a file and its halves, whose rows would be read twice.
    halves = [file for file in files if task_name(file) != stem_of(file) and task_name(file) in names]
    complete = [file for file in files if file not in halves]
    other = [file.name for file in complete if task_name(file) not in form.tasks]
    if len(other) == len(complete):
        raise InputError(
            f"{path}: got {', '.join(other[:3])}; expected files of the source {form.name} "
            f"({', '.join(f'{name}.jsonl' for name in form.tasks)}); fix: check the path, or read other triplets as "
            "the source sentence-transformers"
        )
    warnings = []
    if halves:
        warnings.append(f"{', '.join(file.name for file in halves)}: left out, another file has the rows of both")
    if other:
        warnings.append(f"{', '.join(other)}: not a file of {form.name}; its name is the task")
    return complete, warnings


def task_name(file: Path) -> str:
    """Return the name of a file without the suffixes for halves and for in-batch negatives."""
    name = stem_of(file)
    return next((name.removesuffix(end) for end in _PARTS_OF_NAMES if name.endswith(end)), name)
