"""First stage of a conversion: every file of a source becomes a Parquet part, and a part that is whole is kept."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from bixse.data.conversion.rows import PartWriter
from bixse.data.io.files import put_in_place, storage_errors, write_atomically
from bixse.data.sources.formats import looks_like
from bixse.data.sources.reading import RowErrors
from bixse.errors import ERRORS_SHOWN, InputError, InvalidFileError, RowError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path
    from typing import TextIO

    from bixse.data.conversion.convert_settings import ConvertSettings
    from bixse.data.sources.judgement_files import JudgementSource

Progress: TypeAlias = Callable[[str, int], Callable[[int], None]]
"""Makes a progress callback from a title and a number of bytes."""
_STEP = 1 << 20
"""Bytes between two steps of a progress bar."""
_FILES_SHOWN = 5
"""Files whose faults a message lists."""


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
    faults: int = 0
    """Rows that could not be read."""


class ProgressBar:
    """A bar over the bytes of several files, which appears with its first step.

    Args:
        progress: makes a progress callback from a title and a number of bytes; None shows nothing.
        title: what stands before the bar.
        files: what is read.
    """

    def __init__(self, progress: Progress | None, title: str, files: Iterable[Path]) -> None:
        self._make, self._title = progress, title
        self._total = sum(file.stat().st_size for file in files if file.is_file())
        self._step: Callable[[int], None] | None = None

    def advance(self, count: int) -> None:
        """So many more bytes were read."""
        if self._make is not None and self._total and count > 0:
            self._step = self._step or self._make(self._title, self._total)
            self._step(count)


class WatchedFaults(RowErrors):
    """Faults of one file, whose reading moves a bar."""

    def __init__(self, path: Path, bar: ProgressBar) -> None:
        self._bar, self._told, self._read = bar, 0, 0.0
        super().__init__(path)

    @property
    def bytes_read(self) -> float:
        """How far the reading has come in the file."""
        return self._read

    @bytes_read.setter
    def bytes_read(self, value: float) -> None:
        self._read = value
        if value - self._told >= _STEP:
            self._tell(int(value))

    def end(self) -> None:
        """The file was read, or is not read on."""
        self._tell(self.path.stat().st_size if self.path.is_file() else 0)

    def _tell(self, value: int) -> None:
        self._bar.advance(value - self._told)
        self._told = max(self._told, value)


class RecordedFaults(WatchedFaults):
    """Faults of one file that are all written down, a JSON object per line, beside those kept for the message."""

    def __init__(self, path: Path, bar: ProgressBar, name: str, out: TextIO) -> None:
        super().__init__(path, bar)
        self._name, self._out = name, out

    def note(self, fault: RowError) -> None:
        """Note a fault and write it down."""
        super().note(fault)
        self._out.write(json.dumps({"file": self._name, **asdict(fault)}) + "\n")


def read_parts(
    source: JudgementSource,
    settings: ConvertSettings,
    hashes: Mapping[str, str],
    state: Path,
    with_texts: bool = True,
    progress: Progress | None = None,
) -> tuple[list[Part], Path]:
    """Read every file of a source; those that were read before, with the same content and settings, are not read again.

    Args:
        source: what is read.
        settings: of the conversion; only what concerns reading counts.
        hashes: of the source's inputs.
        state: folder that keeps the parts.
        with_texts: False keeps relevance and keys alone, for a look.
        progress: makes a progress callback from a title and a number of bytes.

    Returns:
        The parts, and the file that holds the faults of the texts that rows name by id.

    Raises:
        InputError: a file cannot be read at all.
        StorageError: `state` cannot be written.
    """
    names = {path: name for name, path in source.inputs().items()}
    shared = {name: digest for name, digest in hashes.items() if name not in {names.get(file) for file in source.files}}
    texts_faults = state / "texts.faults.jsonl"
    with storage_errors(state), texts_faults.open("w", encoding="utf-8") as out:
        bar = ProgressBar(progress, "look at texts and scores", source.inputs().values())

        def faults_of(path: Path) -> RowErrors:
            if path in source.files:
                return WatchedFaults(path, bar)  # its rows are read again, and its faults then count
            return RecordedFaults(path, bar, names.get(path, path.name), out)

        source.prepare(faults_of)
    bar = ProgressBar(progress, f"read {source.name}", source.files)
    parts: list[Part] = []
    for file in source.files:
        left = None if settings.limit is None else settings.limit - sum(part.taken for part in parts)
        if left is not None and left <= 0:
            break
        name = names.get(file, str(file))
        identity = [dict(source.settings), settings.task, settings.text_ids, left, with_texts, name, hashes.get(name)]
        digest = hashlib.sha256(json.dumps([identity, shared], sort_keys=True).encode()).hexdigest()[:24]
        part = _known(state, digest, name)
        if part is None:
            part = _read(source, file, name, settings, left, state / digest, with_texts, bar)
        elif file.is_file():
            bar.advance(file.stat().st_size)
        parts.append(part)
    source.statuses = sum((Counter(part.statuses) for part in parts), Counter())
    source.notes = sum((Counter(part.notes) for part in parts), Counter())
    return parts, texts_faults


def _read(
    source: JudgementSource,
    file: Path,
    name: str,
    settings: ConvertSettings,
    left: int | None,
    target: Path,
    with_texts: bool,
    bar: ProgressBar,
) -> Part:
    """Read one file; its part and then its counts appear under their names when all is written."""
    source.statuses, source.notes = Counter(), Counter()
    taken = 0
    half, path = target.with_suffix(".half"), target.with_suffix(".parquet")
    with (
        storage_errors(target.parent),
        target.with_suffix(".faults.jsonl").open("w", encoding="utf-8") as out,
        PartWriter(half, with_texts) as writer,
    ):
        faults = RecordedFaults(file, bar, name, out)
        for judgement in _limited(source.read(file, faults), left):
            taken += 1
            if judgement.status == "graded":
                writer.add(judgement, settings.task, settings.text_ids)
        faults.end()
    with storage_errors(target.parent):
        put_in_place(half, path)
    counts: dict[str, Any] = {"rows": writer.rows, "taken": taken, "faults": faults.total}
    counts |= {"statuses": dict(source.statuses), "notes": dict(source.notes)}
    write_atomically(target.with_suffix(".json"), json.dumps(counts))
    return Part(name, path, **counts)


def _limited(judgements: Iterator[Any], left: int | None) -> Iterator[Any]:
    """The first judgements; the faults behind the last of them are not looked for."""
    if left is None:
        yield from judgements
        return
    for number, judgement in enumerate(judgements, start=1):
        yield judgement
        if number >= left:
            return


def _known(state: Path, digest: str, name: str) -> Part | None:
    """A part that was read before, or None."""
    path, counts = state / f"{digest}.parquet", state / f"{digest}.json"
    if not path.is_file() or not counts.is_file():
        return None
    try:
        return Part(name, path, **json.loads(counts.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        return None


def fault_files(parts: list[Part], texts_faults: Path) -> list[Path]:
    """Files of written faults that hold any, those of texts first."""
    files = [texts_faults, *(part.path.with_suffix(".faults.jsonl") for part in parts)]
    return [file for file in files if file.is_file() and file.stat().st_size]


def refuse(source: JudgementSource, parts: list[Part], files: list[Path]) -> None:
    """Say what could not be read.

    Raises:
        InputError: always; the first faults of each file are shown and all are counted.
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
        other = [name for file in source.files[:1] for name in looks_like(file) if name != source.name]
    hint = f"; the first file looks like the source {' or '.join(other)}" if other else ""
    raise InputError(
        "\n".join(
            [
                *told,
                f"fix: correct these rows, or leave them out and keep a list of them: --skip-faulty{hint}",
            ]
        )
    )
