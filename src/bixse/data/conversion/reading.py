"""First stage of a conversion: every file of a source becomes a Parquet part, and a part that is whole is kept."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from bixse.data.io.files import put_in_place, storage_errors, write_atomically
from bixse.data.io.parquet import table_writer
from bixse.data.sources.source_files import looks_like
from bixse.errors import ERRORS_SHOWN, InputError, InvalidFileError, RowError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path
    from typing import TextIO

    from bixse.data.conversion.convert_settings import ConvertSettings
    from bixse.data.sources.source import Source
    from bixse.progress import ProgressBars

PAIRS = pa.schema(
    [
        ("query_id", pa.string()),
        ("query", pa.string()),
        ("document_id", pa.string()),
        ("document", pa.string()),
        ("relevance", pa.float64()),
        ("task", pa.string()),
        ("grade", pa.float64()),
        ("grade_probs", pa.list_(pa.float64())),
        ("judge", pa.string()),
    ]
)
"""The columns of graded pairs."""
_FILES_SHOWN = 5
"""Files whose errors a message lists."""


@dataclass(frozen=True)
class Part:
    """What one file of a source became."""

    name: str
    """The file."""
    path: Path
    """Parquet with the graded rows."""
    rows: int
    """How many."""
    taken: int
    """Judgements read, those without a grade included."""
    statuses: Mapping[str, int] = field(default_factory=dict)
    """Judgements by status."""
    notes: Mapping[str, int] = field(default_factory=dict)
    """What else the source counted."""
    told: tuple[str, ...] = ()
    """Warnings about the file."""
    faults: int = 0
    """Errors of rows that could not be read."""

    @property
    def errors_file(self) -> Path:
        """The errors of the file, a JSON object per line."""
        return self.path.with_suffix(".faults.jsonl")


class FileProgress:
    """A bar over the bytes of several files, which appears with its first step.

    Args:
        progress: makes a progress callback from a title and a number of bytes; None shows nothing.
        title: what stands before the bar.
        files: what is read.
    """

    def __init__(self, progress: ProgressBars | None, title: str, files: Iterable[Path]) -> None:
        self._make, self._title = progress, title
        self._total = sum(file.stat().st_size for file in files if file.is_file())
        self._step: Callable[[int], None] | None = None
        self._reached: dict[Path, int] = {}

    def advance(self, count: int) -> None:
        """So many more bytes were read."""
        if self._make is not None and self._total and count > 0:
            self._step = self._step or self._make(self._title, self._total)
            self._step(count)

    def reached(self, file: Path, position: int) -> None:
        """So many bytes of a file were read."""
        self.advance(position - self._reached.get(file, 0))
        self._reached[file] = max(position, self._reached.get(file, 0))


class RecordedFileError(InvalidFileError):
    """Errors of one file that are all written down, a JSON object per line.

    Args:
        path: the file.
        name: it gets in the lines.
        out: takes the lines.
    """

    def __init__(self, path: Path, name: str, out: TextIO) -> None:
        super().__init__(path)
        self._name, self._out = name, out

    def add(self, row: int | None, column: str | None, got: str, expected: str, fix: str) -> None:
        """Note an error and write it down."""
        super().add(row, column, got, expected, fix)
        self._out.write(json.dumps({"file": self._name, **asdict(RowError(row, column, got, expected, fix))}) + "\n")


def read_parts(
    source: Source,
    settings: ConvertSettings,
    hashes: Mapping[str, str],
    state: Path,
    progress: ProgressBars | None = None,
) -> tuple[list[Part], Path]:
    """Read every file of a source; those that were read before, with the same content and settings, are not read again.

    Args:
        source: what is read; it is prepared, and its database stays open.
        settings: of the conversion; only what concerns reading counts.
        hashes: of the source's inputs.
        state: folder that keeps the parts.
        progress: makes a progress callback from a title and a number of bytes.

    Returns:
        The parts, and the file that holds the errors of the texts that rows name by id.

    Raises:
        InputError: a file cannot be read at all.
        StorageError: `state` cannot be written.
    """
    names = {path: name for name, path in source.inputs().items()}
    own = {names[file] for file in source.files}
    shared = {name: digest for name, digest in hashes.items() if name not in own}
    texts_errors = state / "texts.faults.jsonl"
    with storage_errors(state), texts_errors.open("w", encoding="utf-8") as out:
        bar = FileProgress(progress, "read texts", (*source.corpus, *source.queries))
        source.prepare(state, lambda path: RecordedFileError(path, names[path], out), settings.text_ids, bar.reached)
    bar = FileProgress(progress, f"read {source.name}", source.files)
    parts: list[Part] = []
    for file in source.files:
        left = None if settings.limit is None else settings.limit - sum(part.taken for part in parts)
        if left is not None and left <= 0:
            break
        name = names[file]
        identity = [dict(source.settings), settings.task, settings.text_ids, left, name, hashes.get(name), shared]
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]
        part = _known(state / digest, name)
        if part is None:
            part = _read(source, file, name, settings, left, state / digest, bar)
        else:
            bar.reached(file, file.stat().st_size)
        parts.append(part)
    source.statuses = sum((Counter(part.statuses) for part in parts), Counter())
    source.notes = sum((Counter(part.notes) for part in parts), Counter())
    source.told = list(dict.fromkeys([*source.told, *(told for part in parts for told in part.told)]))
    return parts, texts_errors


def _read(
    source: Source, file: Path, name: str, settings: ConvertSettings, left: int | None, target: Path, bar: FileProgress
) -> Part:
    """Read one file; its part and then its counts appear under their names when all is written."""
    source.statuses, source.notes, known = Counter(), Counter(), len(source.told)
    taken = rows = 0
    half, path = target.with_suffix(".half"), target.with_suffix(".parquet")
    with (
        storage_errors(target.parent),
        target.with_suffix(".faults.jsonl").open("w", encoding="utf-8") as out,
        table_writer(half, PAIRS) as writer,
    ):
        errors = RecordedFileError(file, name, out)
        for table in source.read(file, errors, left, bar.reached):
            taken += table.num_rows
            pairs = _pairs(table, settings.task, source.form.python == "graded_pair")
            rows += pairs.num_rows
            writer.write_table(pairs)
        bar.reached(file, file.stat().st_size)
    with storage_errors(target.parent):
        put_in_place(half, path)
    counts: dict[str, Any] = {"rows": rows, "taken": taken, "faults": errors.total, "told": source.told[known:]}
    counts |= {"statuses": dict(source.statuses), "notes": dict(source.notes)}
    write_atomically(target.with_suffix(".json"), json.dumps(counts))
    return Part(name, path, **counts)


def _pairs(judgements: pa.Table, task: str | None, own_grades: bool) -> pa.Table:
    """The graded ones as graded pairs."""
    table = judgements.filter(pc.equal(judgements["status"], "graded"))
    columns = {name: table[name] for name in table.column_names}
    columns["grade_probs"] = columns["probabilities"]
    columns["judge"] = pc.if_else(pc.equal(columns["judge"], ""), None, columns["judge"])
    if own_grades:
        columns["grade"] = columns["own_grade"]
    if task is not None:
        columns["task"] = pa.array([task] * table.num_rows, pa.string())
    return pa.table({name: columns[name] for name in PAIRS.names}).cast(PAIRS)


def _known(target: Path, name: str) -> Part | None:
    """A part that was read before, or None."""
    path, counts = target.with_suffix(".parquet"), target.with_suffix(".json")
    if not path.is_file() or not counts.is_file():
        return None
    try:
        return Part(name, path, **json.loads(counts.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        return None


def files_of_errors(parts: list[Part], texts_errors: Path) -> list[Path]:
    """Files of written errors that hold any, those of texts first."""
    files = [texts_errors, *(part.errors_file for part in parts)]
    return [file for file in files if file.is_file() and file.stat().st_size]


def refuse(source: Source, parts: list[Part], files: list[Path]) -> None:
    """Say what could not be read.

    Raises:
        InputError: always; the first errors of each file are shown and all are counted.
    """
    kept: dict[str, list[RowError]] = {}
    totals: Counter[str] = Counter()
    for file in files:
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                entry = json.loads(line)
                name = entry.pop("file")
                totals[name] += 1
                if totals[name] <= ERRORS_SHOWN:
                    kept.setdefault(name, []).append(RowError(**entry))
    inputs = source.inputs()
    told = [str(InvalidFileError(inputs.get(name, source.path), kept[name], total)) for name, total in totals.items()]
    if len(told) > _FILES_SHOWN:
        rest = sum(list(totals.values())[_FILES_SHOWN:])
        told = [*told[:_FILES_SHOWN], f"... and {rest} faults in {len(totals) - _FILES_SHOWN} more files"]
    other = []
    if not any(part.rows for part in parts):
        other = [name for name in looks_like(source.files[0]) if name != source.name]
    hint = f"; the first file looks like the source {' or '.join(other)}" if other else ""
    fix = f"fix: correct these rows, or leave them out and keep a list of them: --skip-faulty{hint}"
    raise InputError("\n".join([*told, fix]))
