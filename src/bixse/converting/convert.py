"""Convert a source of judgements to graded pairs, in bounded memory."""

from __future__ import annotations

import gc
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import yaml

from bixse.converting.formats import looks_like
from bixse.converting.source import ERRORS, Bar, Source
from bixse.converting.transforms import BINS, Key, PairColumns, TransformReport, split_by_query, steps_of
from bixse.data.columns import SCHEMA
from bixse.data.graded_pairs import Pairs
from bixse.data.pairs_files import first_of_repeats
from bixse.data.run import Run, open_run
from bixse.errors import InputError, InvalidFileError
from bixse.files.files import alone_in, hash_files, interruptible, move_into, storage_errors, write_atomically
from bixse.files.parquet import table_writer

if TYPE_CHECKING:
    from bixse.converting.convert_settings import ConvertSettings
    from bixse.progress import ProgressBars

STATE = ".part"
"""Folder of work files inside the output folder, until all output is written."""
ERRORS_FILE, TRAIN_FILE = "errors.jsonl", "train.yaml"
WHOLE = "pairs"  # name of the only part if nothing is split
_WHAT = {TRAIN_FILE: "settings for `bixse train`", ERRORS_FILE: "rows that could not be read"}
"""File name -> content."""
_FILES_SHOWN = 5  # at most, of those with errors


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
    transforms: list[TransformReport]
    files: Mapping[str, str]
    """Output file -> content."""
    warnings: list[str] = field(default_factory=list)
    reused: bool = False
    """True if the same conversion was finished before; nothing was read."""
    errors_shown: str = ""
    """The first errors of a dry run."""


def convert(settings: ConvertSettings, out: str | Path | None, progress: ProgressBars | None = None) -> ConvertResult:
    """Convert a source to graded pairs.

    Memory holds a few numbers per row and never all texts. A stopped run leaves nothing and starts from the beginning.

    Args:
        settings: source and transforms.
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
    with interruptible(), _seldom_collected():
        source = Source(settings, progress)
        if out is None:
            with tempfile.TemporaryDirectory() as folder:
                return _converted(source, Path(folder), None, progress)
        inputs = source.inputs()
        hashes = hash_files(inputs, Bar(progress, "hash", inputs.values()).advance)
        config = settings.model_dump(mode="json")
        record = open_run(Path(out), "convert", config, hashes, paths=settings.path_settings())
        if record.status == "finished":
            return record.result(ConvertResult, lambda result: result.files)
        with _work_folder(Path(out)) as folder:
            return _converted(source, folder, record, progress)


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Look for cycles of objects less often: rows have none, and the search takes a third of the time of a block."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _converted(source: Source, folder: Path, record: Run | None, progress: ProgressBars | None) -> ConvertResult:
    """Convert in a work folder; without a record, write nothing."""
    look, times = record is None, [time.perf_counter()]
    with storage_errors(folder), source.texts(folder):
        if source.total and not look and not source.chosen.skip_invalid:
            _refuse(source, 0, look)  # rows that name these texts would fail too
        pairs = Pairs.from_arrow(_batches(source))
    times.append(time.perf_counter())
    shown = _refuse(source, len(pairs), look)
    parts, applied = select(pairs, source.chosen)
    counts = {name: _counts(pairs, columns) for name, columns in parts.items()}
    times.append(time.perf_counter())
    written: dict[str, Path] = {}
    if record is not None:
        step = progress("write", sum(map(len, parts.values()))) if progress is not None else None
        written = {f"{name}.parquet": _write_pairs(pairs, columns, folder / f"{name}.new", step)
                   for name, columns in parts.items()}  # fmt: skip
        written[TRAIN_FILE] = _write_train_file(folder / "settings-of-training", source, counts)
        written |= {ERRORS_FILE: folder / ERRORS} if source.total else {}
    times.append(time.perf_counter())
    about = {"name": source.name, "citation": source.form.citation, "licence": source.form.licence}
    result = ConvertResult(
        source={**about, "settings": dict(source.settings), "files": source.counts},
        judgements=sum(source.statuses.values()),
        statuses=dict(source.statuses),
        errors=source.total,
        parts=counts,
        transforms=applied,
        files={name: _WHAT.get(name, "graded pairs") for name in written},
        warnings=source.warnings(),
        errors_shown=shown,
    )
    if record is not None:
        for name, seconds in zip(("read", "transform", "write"), np.diff(times).tolist(), strict=True):
            record.timings[name] += seconds
        _publish(record, result, written)
    return result


def _publish(record: Run, result: ConvertResult, written: Mapping[str, Path]) -> None:
    """Move the written files into the output folder, which the record must claim before the first of them."""
    record.save("running")
    with storage_errors(record.folder):
        for name, file in written.items():
            move_into(file, record.folder / name)
    record.results = asdict(result)
    record.save("finished")


def _batches(source: Source) -> Iterator[pa.RecordBatch]:
    """Yield the graded pairs of all files in order."""
    for judgements in source.judgements():
        graded = [item for item in judgements if item.status == "graded"]
        yield pa.RecordBatch.from_pydict({n: [getattr(item, n) for item in graded] for n in SCHEMA.names}, SCHEMA)


def _refuse(source: Source, rows: int, look: bool) -> str:
    """Refuse errors, and no rows; return the errors of a dry run, which only looks."""
    shown = ""
    if source.total and (look or not source.chosen.skip_invalid):
        invalid = [errors for errors in source.errors if errors.total]
        messages = [*source.unjoined(), *(str(errors) for errors in invalid[:_FILES_SHOWN])]
        if rest := invalid[_FILES_SHOWN:]:
            messages.append(f"... and {sum(errors.total for errors in rest)} errors in {len(rest)} more files")
        other = [] if rows else [name for name in looks_like(source.files[0]) if name != source.name]
        fixes = [f"the first file looks like the source {' or '.join(other)}: name it"] if other else []
        fixes += ["correct these rows, or leave them out and keep a list of them: --skip-invalid"] if rows else []
        shown = "\n".join([*messages, *(f"fix: {fix}" for fix in fixes)])
        if not look or not rows:
            raise InputError(shown)
    if not rows:
        messages = [f"{count} {status}" for status, count in source.statuses.most_common()]
        raise InputError(
            f"{source.path}: got {', '.join(messages) or 'no rows'} and no pair with a grade; expected "
            f"{source.form.files}; fix: check the export, or the scale if the grades lie outside it"
        )
    return shown


def select(pairs: Pairs, settings: ConvertSettings) -> tuple[dict[str, PairColumns], list[TransformReport]]:
    """Check ids, transform and split; return part -> its rows in source order, and the reports of the steps."""
    fix_id = "--text-ids makes ids from the texts, or give each text its own id"
    fix = None if settings.dedup else "--dedup takes their mean, or correct the file"
    first = first_of_repeats(pairs, InvalidFileError(settings.path), fix_id=fix_id, fix_relevance=fix)
    steps = steps_of(vars(settings))
    keys: list[Key] = [key for transform, _ in steps for key in transform.needs]
    columns = PairColumns.of(pairs, dict.fromkeys([*keys, "query"] if settings.split else keys))
    applied: list[TransformReport] = []
    if not first.all():
        columns = columns.take(first)
        applied.append(TransformReport("repeats written once", {}, len(pairs), len(columns)))
    for transform, values in steps:
        after, report = transform.run(columns, values)
        applied.append(report)
        if not len(after):
            raise InputError(
                f"{transform.name}: got no pair left of {len(columns)}; expected at least one; fix: loosen it "
                "(--dry-run shows the relevances)"
            )
        columns = after
    if not settings.split:
        return {WHOLE: columns}, applied
    parts = split_by_query(columns, settings.split, settings.seed)
    if empty := [name for name, part in parts.items() if not len(part)]:
        raise InputError(
            f"--split: got no query for {', '.join(empty)} among {len(columns)} pairs; expected some in every "
            "part; fix: give other shares, or another --seed"
        )
    chosen, sizes = {"shares": settings.split, "seed": settings.seed}, {name: len(part) for name, part in parts.items()}
    return parts, [*applied, TransformReport("split", chosen, len(columns), len(columns), sizes)]


def _counts(pairs: Pairs, columns: PairColumns) -> dict[str, Any]:
    """Count rows, queries (once per task), rows per task ("-" for none), and rows per tenth of relevance."""
    names, tasks = pairs.tasks
    tasks, queries = tasks[columns.rows], pairs.numbers("query", of_ids=True)[columns.rows]
    by_task = {name or "-": int((tasks == number).sum()) for number, name in enumerate(names)}
    return {
        "rows": len(columns),
        "queries": len(np.unique(queries.astype(np.int64) * len(names) + tasks)),
        "tasks": {task: count for task, count in sorted(by_task.items()) if count},
        "histogram": np.histogram(columns.relevance, bins=BINS, range=(0.0, 1.0))[0].tolist(),
    }


def _write_pairs(pairs: Pairs, columns: PairColumns, target: Path, step: Callable[[int], None] | None) -> Path:
    with storage_errors(target), table_writer(target, SCHEMA) as writer:
        for table in columns.tables(pairs):
            writer.write_table(table)
            if step is not None:
                step(len(table))
    return target


def _write_train_file(target: Path, source: Source, parts: Mapping[str, Mapping[str, Any]]) -> Path:
    part = "train" if "train" in parts else next(iter(parts))
    content: dict[str, Any] = {"pairs": f"{part}.parquet"}
    shares = {task: share for task, share in source.form.task_shares.items() if task in parts[part]["tasks"]}
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
