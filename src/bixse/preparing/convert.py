"""Convert a source of judgements to graded pairs or a collection, in bounded memory."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
import yaml

from bixse.data.run import open_run
from bixse.errors import InputError, InvalidFileError, RowError
from bixse.files.files import alone_in, interruptible, put_in_place, storage_errors, write_atomically
from bixse.preparing.formats import looks_like
from bixse.preparing.pairs_table import WHOLE, PairsTable
from bixse.preparing.source import Source
from bixse.relevance import GradeScale

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from bixse.data.run import Run
    from bixse.preparing.convert_settings import ConvertSettings
    from bixse.preparing.mapping import RowMapping
    from bixse.progress import ProgressBars

STATE = ".part"
"""Folder of work files inside the output folder, until all output is written."""
ERRORS_FILE = "errors.jsonl"
"""Rows that could not be read and were left out."""
TRAIN_FILE = "train.yaml"
"""Settings for `bixse train` on the pairs."""
BINS = 10
_WHAT = {
    TRAIN_FILE: "settings for `bixse train`",
    ERRORS_FILE: "rows that could not be read",
    "corpus.jsonl": "documents",
    "queries.jsonl": "queries",
}
"""File name -> content."""
_FILES_SHOWN = 5
"""Maximum number of files whose errors a message lists."""


@dataclass(frozen=True)
class ConvertResult:
    """The outcome of a conversion."""

    source: Mapping[str, Any]
    """Name, citation and licence of the source, its settings and files."""
    judgements: int
    statuses: Mapping[str, int]
    """Number of judgements per status; only "graded" judgements are pairs."""
    errors: int
    parts: Mapping[str, Mapping[str, Any]]
    """Part -> rows, queries, rows per task, and a histogram of relevance in tenths."""
    transforms: list[Mapping[str, Any]]
    files: Mapping[str, str]
    """Output file -> content."""
    warnings: list[str] = field(default_factory=list)
    reused: bool = False
    """True if the same conversion was finished before; nothing was read."""
    errors_shown: str = ""
    """The first errors of a dry run."""


def convert(settings: ConvertSettings, out: str | Path | None, progress: ProgressBars | None = None) -> ConvertResult:
    """Convert a source to graded pairs or a collection.

    Memory holds a few numbers per row and never all texts. A stopped run leaves nothing and starts from the beginning.

    Args:
        settings: source, output form and transforms.
        out: output folder; None reads the source without writing.
        progress: makes a progress callback from a title and a number of bytes.

    Raises:
        InputError: a path or option that cannot be used, rows that cannot be read (unless they are skipped), ids or
            relevances that contradict each other, or no rows left.
        OutputExistsError: `out` holds another run.
        StorageError: `out` cannot be written.

    Example:
        >>> import json
        >>> from bixse import ConvertSettings
        >>> folder = Path(tempfile.mkdtemp())
        >>> row = {"query": "copy a folder", "positive": "shutil.copytree", "negative": "os.walk"}
        >>> _ = (folder / "nq.jsonl").write_text(json.dumps(row))
        >>> result = convert(ConvertSettings(source="e5", path=folder / "nq.jsonl"), folder / "out")
        >>> result.parts["pairs"]["rows"], sorted(result.files)
        (2, ['pairs.parquet', 'train.yaml'])
    """
    with interruptible():
        source = Source(settings.source, settings.path, settings.options(), settings.download)
        if out is None:
            with tempfile.TemporaryDirectory() as folder:
                return _convert(source, settings, Path(folder), progress, None)
        hashes = source.hashes(_Bar(progress, "hash", source.inputs().values()).advance)
        config = settings.model_dump(mode="json", exclude={"download"})
        record = open_run(Path(out), "convert", config, hashes, paths=settings.path_settings())
        if record.status == "finished":
            return record.result(ConvertResult, lambda found: found.files)
        with _work_folder(Path(out)) as folder:
            return _convert(source, settings, folder, progress, record)


def _convert(
    source: Source, settings: ConvertSettings, folder: Path, progress: ProgressBars | None, record: Run | None
) -> ConvertResult:
    lap = _laps({} if record is None else record.timings)
    with closing(ErrorsFile(folder / "all-errors", {file: name for name, file in source.inputs().items()})) as found:
        bar = _Bar(progress, "read texts", (*source.corpus, *source.queries))
        mapping = source.open(folder, found.of, settings.text_ids, bar.reached)
        try:
            pairs, files = _read(source, settings, mapping, found, folder, progress)
            lap("read")
            shown = _refuse(source, settings, found, pairs.count, look=record is None)
            parts, applied = pairs.select(settings)
            if settings.form == "collection" and not settings.split:
                parts = {source.split: parts[WHOLE]}
            tasks = {name: pairs.tasks(columns) for name, columns in parts.items()}
            lap("transform")
            written: dict[str, Path] = {}
            notes: list[str] = []
            if record is not None and settings.form == "collection":
                scale = GradeScale(*settings.scale) if settings.scale is not None else source.scale
                written, notes = pairs.write_collection(parts, folder, scale, bool(source.corpus))
            elif record is not None:
                rows = sum(map(len, parts.values()))
                written = pairs.write(parts, folder, progress("write", rows) if progress is not None else None)
                written[TRAIN_FILE] = _write_train_file(folder / "settings-of-training", source, tasks)
        finally:
            mapping.database.close()
    if record is not None and found.total:
        written[ERRORS_FILE] = found.path
    lap("write")
    result = ConvertResult(
        source={
            "name": source.name,
            "citation": source.form.citation,
            "licence": source.form.licence,
            "settings": dict(source.settings),
            "files": files,
        },
        judgements=sum(source.statuses.values()),
        statuses=dict(source.statuses),
        errors=found.total,
        parts={
            name: {
                "rows": len(rows),
                "queries": sum(queries for _, queries in tasks[name].values()),
                "tasks": {task: count for task, (count, _) in tasks[name].items()},
                "histogram": np.histogram(rows.relevance, bins=BINS, range=(0.0, 1.0))[0].tolist(),
            }
            for name, rows in parts.items()
        },
        transforms=[asdict(done) for done in applied],
        files={name: _WHAT.get(name, "judgements" if name.endswith(".tsv") else "graded pairs") for name in written},
        warnings=[*source.warnings(), *notes],
        errors_shown=shown,
    )
    if record is not None:
        record.save("running")
        with storage_errors(folder):
            for name, file in written.items():
                put_in_place(file, record.folder / name)
        record.results = asdict(result)
        record.save("finished")
    return result


def _read(
    source: Source,
    settings: ConvertSettings,
    mapping: RowMapping,
    found: ErrorsFile,
    folder: Path,
    progress: ProgressBars | None,
) -> tuple[PairsTable, dict[str, Any]]:
    """Read the files of a source in order; return the graded pairs and the counts per file."""
    bar = _Bar(progress, f"read {source.name}", source.files)
    files: dict[str, Any] = {}
    with PairsTable.filled(mapping.database, folder / "read.parquet") as pairs:
        for file in source.files:
            left = None if settings.limit is None else settings.limit - sum(source.statuses.values())
            if left is not None and left <= 0:
                break
            errors, taken, known = found.of(file), sum(source.statuses.values()), pairs.count
            for judgements in source.read(mapping, file, errors, left, bar.reached):
                pairs.add(judgements, settings.task, own_grades="grade" in source.form.own)
            bar.reached(file, file.stat().st_size)
            files[found.names[file]] = {
                "judgements": sum(source.statuses.values()) - taken,
                "graded": pairs.count - known,
                "errors": errors.total,
            }
    return pairs, files


def _refuse(source: Source, settings: ConvertSettings, found: ErrorsFile, rows: int, look: bool) -> str:
    shown = ""
    if found.total and (look or not settings.skip_invalid):
        invalid = [one for one in found.lists if one.total]
        told = [str(one) for one in invalid[:_FILES_SHOWN]]
        if rest := invalid[_FILES_SHOWN:]:
            told.append(f"... and {sum(one.total for one in rest)} errors in {len(rest)} more files")
        other = [] if rows else [name for name in looks_like(source.files[0]) if name != source.name]
        hint = f"; the first file looks like the source {' or '.join(other)}" if other else ""
        fix = f"fix: correct these rows, or leave them out and keep a list of them: --skip-invalid{hint}"
        shown = "\n".join([*told, fix])
        if not look or not rows:
            raise InputError(shown)
    if not rows:
        told = [f"{count} {status}" for status, count in source.statuses.most_common()]
        raise InputError(
            f"{source.path}: got {', '.join(told) or 'no rows'} and no pair with a grade; expected "
            f"{source.form.files}; fix: check the export, or the scale where the grades are off it"
        )
    return shown


def _write_train_file(target: Path, source: Source, tasks: Mapping[str, Mapping[str, object]]) -> Path:
    part = "train" if "train" in tasks else next(iter(tasks))
    content: dict[str, Any] = {"pairs": f"{part}.parquet"}
    shares = {task: share for task, share in source.form.task_shares.items() if task in tasks[part]}
    if shares:
        content["task_shares"] = shares
    if source.form.instructions is not None:
        content["instructions"] = source.form.instructions
    write_atomically(target, yaml.safe_dump(content, sort_keys=False))
    return target


@contextmanager
def _work_folder(out: Path) -> Iterator[Path]:
    """Yield a folder inside the output folder, locked against other processes; delete it at the end."""
    state = out / STATE
    with alone_in(out, f"{STATE}/lock"):
        try:
            shutil.rmtree(state / "work", ignore_errors=True)  # a killed run may have left it
            with storage_errors(out):
                (state / "work").mkdir()
            yield state / "work"
        finally:
            shutil.rmtree(state, ignore_errors=True)
            with suppress(OSError):
                out.rmdir()  # fails unless nothing was written


class _Bar:
    """A progress bar over the bytes of several files; it appears with its first step."""

    def __init__(self, progress: ProgressBars | None, title: str, files: Iterable[Path]) -> None:
        self._make, self._title = progress, title
        self._total = sum(file.stat().st_size for file in files if file.is_file())
        self._step: Callable[[int], None] | None = None
        self._reached: dict[Path, int] = {}

    def advance(self, count: int) -> None:
        if self._make is not None and self._total and count > 0:
            self._step = self._step or self._make(self._title, self._total)
            self._step(count)

    def reached(self, file: Path, position: int) -> None:
        self.advance(position - self._reached.get(file, 0))
        self._reached[file] = max(position, self._reached.get(file, 0))


def _laps(timings: dict[str, float]) -> Callable[[str], None]:
    """Return a function that adds the seconds since its last call to the time of a stage."""
    last = time.perf_counter()

    def lap(stage: str) -> None:
        nonlocal last
        now = time.perf_counter()
        timings[stage], last = timings.get(stage, 0.0) + now - last, now

    return lap


class ErrorsFile:
    """The errors of several files as one file of JSON lines, and the first errors of each file for messages."""

    def __init__(self, path: Path, names: Mapping[Path, str]) -> None:
        self.path, self.names = path, names
        self.lists: list[InvalidFileError] = []
        """Errors per file, in reading order."""
        with storage_errors(path):
            self._out = path.open("w", encoding="utf-8")

    def close(self) -> None:
        self._out.close()

    @property
    def total(self) -> int:
        return sum(errors.total for errors in self.lists)

    def of(self, path: Path) -> InvalidFileError:
        self.lists.append(_WrittenError(path, self.names[path], self._out))
        return self.lists[-1]


class _WrittenError(InvalidFileError):
    """The errors of one file; each is written to the file of all errors."""

    def __init__(self, path: Path, name: str, out: TextIO) -> None:
        super().__init__(path)
        self._name, self._out = name, out

    def add(self, row: int | None, column: str | None, got: str, expected: str, fix: str) -> None:
        super().add(row, column, got, expected, fix)
        self._out.write(json.dumps({"file": self._name, **asdict(RowError(row, column, got, expected, fix))}) + "\n")
