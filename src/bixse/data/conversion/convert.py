"""`convert`: from a source of judgements to graded pairs or a collection, in bounded memory."""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from filelock import FileLock, Timeout

from bixse.data.conversion.outputs import WrittenFiles, use_selection, write_collection, write_pairs
from bixse.data.conversion.reading import FileProgress, Part, files_of_errors, read_parts, refuse
from bixse.data.conversion.row_selection import WHOLE, Selection, open_pairs, select_rows
from bixse.data.io.files import put_in_place, storage_errors, write_atomically
from bixse.data.run_record import open_run
from bixse.data.sources.source import Source
from bixse.errors import InputError, OutputExistsError
from bixse.relevance import GradeScale

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bixse.data.conversion.convert_settings import ConvertSettings
    from bixse.data.run_record import RunRecord
    from bixse.progress import ProgressBars

STATE = ".part"
"""Folder inside the output folder that holds what was read, until all is written."""
FAULTS_FILE = "faults.jsonl"
"""Rows that could not be read, where they were left out."""
TRAIN_FILE = "train.yaml"
"""Settings with which `bixse train` takes the pairs."""
BINS = 10
"""Bins of the histogram of relevance."""


@dataclass(frozen=True)
class ConvertResult:
    """What a conversion read and wrote."""

    source: Mapping[str, Any]
    """Name, citation and licence of the source, its settings and files."""
    judgements: int
    """Judgements read."""
    statuses: Mapping[str, int]
    """Judgements by status; only "graded" ones are pairs."""
    faults: int
    """Rows that could not be read."""
    parts: Mapping[str, Mapping[str, Any]]
    """Part -> rows, queries, rows by task, and a histogram of relevance in tenths."""
    transforms: list[Mapping[str, Any]]
    """What was done to the rows, in order."""
    files: Mapping[str, str]
    """What each output file holds, by its name."""
    warnings: list[str] = field(default_factory=list)
    """What people should know."""
    reused: bool = False
    """The same conversion was finished before; nothing was read."""
    faults_shown: str = ""
    """In a dry run: the first faults."""


def convert(
    settings: ConvertSettings,
    out: str | Path | None,
    progress: ProgressBars | None = None,
) -> ConvertResult:
    """Convert a source to graded pairs or a collection.

    Files of the source are read one after the other into Parquet parts below `out`, so that a run that was killed goes
    on at the file it was reading, with the same result to the byte. Transforms look at a few numbers per row; texts are
    never in memory together.

    Args:
        settings: what to convert, and how.
        out: output folder; None looks at the source without writing (texts of rows are not kept at all).
        progress: makes a progress callback from a title and a number of bytes.

    Raises:
        InputError: a path or option that cannot be used, rows that cannot be read (unless they are to be skipped), ids
            or relevances that contradict each other, or nothing that is left.
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
    with _interruptible():
        source = Source(settings.source, settings.path, settings.options(), settings.download)
        if out is not None:
            return _into(source, settings, Path(out), progress)
        with tempfile.TemporaryDirectory() as folder:
            return _convert(source, settings, Path(folder), {}, progress, None)


def _into(source: Source, settings: ConvertSettings, out: Path, progress: ProgressBars | None) -> ConvertResult:
    """Convert into a folder, or show what was converted there before."""
    hashes = source.hashes(FileProgress(progress, "hash", source.inputs().values()).advance)
    record = open_run(
        out, "convert", settings.model_dump(mode="json", exclude={"download"}), hashes, paths=settings.path_settings()
    )
    if record.status == "finished":
        shutil.rmtree(out / STATE, ignore_errors=True)
        return _finished(record)
    with _alone_in(out) as state:
        result = _convert(source, settings, state, hashes, progress, record)
    shutil.rmtree(out / STATE, ignore_errors=True)
    return result


def _convert(
    source: Source,
    settings: ConvertSettings,
    state: Path,
    hashes: Mapping[str, str],
    progress: ProgressBars | None,
    record: RunRecord | None,
) -> ConvertResult:
    """Convert, or only look where there is no record of a run: counts, histograms and errors."""
    clock = _Clock({} if record is None else record.timings)
    parts, texts_errors = read_parts(source, settings, hashes, state, progress)
    clock.stage("read")
    try:
        shown = _check_errors(source, settings, parts, files_of_errors(parts, texts_errors), record is None)
        database = source.database
        open_pairs(database, parts)
        selection = select_rows(database, settings)
        clock.stage("transform")
        tasks = {name: use_selection(database, columns) for name, columns in selection.parts.items()}
        written = WrittenFiles()
        if record is not None and settings.form == "collection":
            scale = GradeScale(*settings.scale) if settings.scale is not None else source.scale
            named = selection.parts if settings.split else {source.split: selection.parts[WHOLE]}
            written = write_collection(database, named, state, scale, bool(source.corpus))
            selection = Selection(named, selection.applied)
            tasks = tasks if settings.split else {source.split: tasks[WHOLE]}
        elif record is not None:
            rows = sum(map(len, selection.parts.values()))
            step = progress("write", rows) if progress is not None else lambda _: None
            written = write_pairs(database, selection.parts, state, step)
            _write_train_file(written, state, source, tasks)
    finally:
        source.close()
    if record is not None and (errors := files_of_errors(parts, texts_errors)):
        written.files[FAULTS_FILE] = _joined(errors, state / "all-faults")
    clock.stage("write")
    result = _result(source, parts, texts_errors, selection, written, tasks, shown)
    if record is None:
        return result
    record.save("running")
    with storage_errors(state):
        for name, file in written.files.items():
            put_in_place(file, record.folder / name)
    record.results = asdict(result)
    record.save("finished")
    return result


def _check_errors(source: Source, settings: ConvertSettings, parts: list[Part], errors: list[Path], look: bool) -> str:
    """Refuse errors that are not to be skipped, and sources without a grade; a look is told of the errors."""
    shown = ""
    if errors and (look or not settings.skip_faulty):
        try:
            refuse(source, parts, errors)
        except InputError as error:
            if not look or not any(part.rows for part in parts):
                raise
            shown = str(error)
    _check_any(source, parts)
    return shown


def _check_any(source: Source, parts: list[Part]) -> None:
    if any(part.rows for part in parts):
        return
    told = ", ".join(f"{count} {status}" for status, count in source.statuses.most_common()) or "no rows"
    raise InputError(
        f"{source.path}: got {told} and no pair with a grade; expected {source.form.files}; fix: check the "
        "export, or the scale where the grades are off it"
    )


def _result(
    source: Source,
    parts: list[Part],
    texts_errors: Path,
    selection: Selection,
    written: WrittenFiles,
    tasks: Mapping[str, dict[str, int]],
    shown: str,
) -> ConvertResult:
    with texts_errors.open(encoding="utf-8") as lines:
        faults = sum(part.faults for part in parts) + sum(1 for _ in lines)
    return ConvertResult(
        source={
            "name": source.name,
            "citation": source.form.citation,
            "licence": source.form.licence,
            "settings": dict(source.settings),
            "files": {
                part.name: {"judgements": part.taken, "graded": part.rows, "faults": part.faults} for part in parts
            },
        },
        judgements=sum(part.taken for part in parts),
        statuses=dict(source.statuses),
        faults=faults,
        parts={
            name: {
                "rows": len(rows),
                "queries": len(np.unique(rows.groups("query_id", "task"))),
                "tasks": tasks[name],
                "histogram": np.histogram(rows.relevance, bins=BINS, range=(0.0, 1.0))[0].tolist(),
            }
            for name, rows in selection.parts.items()
        },
        transforms=[asdict(done) for done in selection.applied],
        files={
            name: _WHAT.get(name, "judgements" if name.endswith(".tsv") else "graded pairs") for name in written.files
        },
        warnings=[*source.warnings(), *written.notes],
        faults_shown=shown,
    )


_WHAT = {
    TRAIN_FILE: "settings for `bixse train`",
    FAULTS_FILE: "rows that could not be read",
    "corpus.jsonl": "documents",
    "queries.jsonl": "queries",
}
"""What a file holds, by its name."""


def _write_train_file(written: WrittenFiles, state: Path, source: Source, tasks: Mapping[str, dict[str, int]]) -> None:
    """The settings that the source's people state: shares of tasks, and instructions."""
    part = "train" if "train" in tasks else next(iter(tasks))
    content: dict[str, Any] = {"pairs": f"{part}.parquet"}
    shares = {task: share for task, share in source.form.task_shares.items() if task in tasks[part]}
    if shares:
        content["task_shares"] = shares
    if source.form.instructions is not None:
        content["instructions"] = source.form.instructions
    written.files[TRAIN_FILE] = target = state / "settings-of-training"
    write_atomically(target, yaml.safe_dump(content, sort_keys=False))


def _joined(files: list[Path], target: Path) -> Path:
    with storage_errors(target), target.open("wb") as out:
        for file in files:
            with file.open("rb") as lines:
                shutil.copyfileobj(lines, out)
    return target


def _finished(record: RunRecord) -> ConvertResult:
    """The result of a finished run, from its record."""
    try:
        result = ConvertResult(**{**record.results, "reused": True})
        missing = [name for name in result.files if not (record.folder / name).is_file()]
    except TypeError:
        missing = ["its results in run.json"]
    if missing:
        raise InputError(
            f"{record.folder}: got a finished run without {', '.join(missing)}; expected what it wrote; fix: "
            "delete the folder and convert again"
        )
    return result


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C: duckdb makes a plain RuntimeError of a KeyboardInterrupt that comes while it works."""
    try:
        yield
    except RuntimeError as error:
        if type(error) is RuntimeError and str(error) == "Query interrupted":
            raise KeyboardInterrupt from error
        raise


@contextmanager
def _alone_in(out: Path) -> Iterator[Path]:
    """The folder for parts, held against other processes."""
    state = out / STATE
    with storage_errors(out):
        state.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(state / "lock", timeout=0):
            yield state
    except Timeout as error:
        raise OutputExistsError(
            f"{out}: got a folder in which another process is converting; expected one that is free; fix: wait "
            "until it has ended, or choose another --out"
        ) from error


class _Clock:
    """Seconds of each stage."""

    def __init__(self, timings: dict[str, float]) -> None:
        self._timings, self._start = timings, time.perf_counter()

    def stage(self, name: str) -> None:
        """The end of a stage."""
        now = time.perf_counter()
        self._timings[name] = self._timings.get(name, 0.0) + now - self._start
        self._start = now
