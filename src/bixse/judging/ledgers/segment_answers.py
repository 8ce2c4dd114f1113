"""Answers in a folder that many machines share; each process adds to its own segment, and seals it at the end."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

from bixse.errors import InputError
from bixse.files.files import read_text, storage_errors
from bixse.judging.ledgers.segments import (
    FORMAT,
    OPEN,
    SEALED,
    OpenSegment,
    WantedKeys,
    new_lines,
    open_rows,
    seal,
    sealed_rows,
    writer_of,
)
from bixse.judging.ledgers.writer_files import claims_count, is_of_this_machine, is_quiet, without_writer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from bixse.judging.ledgers.segments import StoredRow

FOLDER_FILE = "ledger.json"
"""File that makes a folder a ledger, with the id of the ledger."""
SQLITE_SUFFIX = ".sqlite"
"""Suffix of a path that becomes one file if nothing is there yet."""
_TRIES = 50  # reads of `FOLDER_FILE`, 0.1 seconds apart, while another process writes it
LOOK_FREE = 2e-4
"""Seconds of a look at the other processes' files, up to which a look precedes every claim."""
LOOK_PAUSE = 20.0
"""Seconds of pause after a look, per second of the look beyond `LOOK_FREE`."""
LOOK_AFTER = 1.0
"""Longest pause between two looks, and between two listings of an unchanged folder, in seconds."""


class SegmentAnswers:
    """Answers by the hash of their question; memory has only requested answers and this process's own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = folder_id(path)
        self._known: dict[str, StoredRow] = {}
        self._looked_for: set[str] = set()
        self._read: dict[Path, int] = {}
        """Bytes read of each open segment and writer's file; 0 for a sealed segment that was read."""
        self._claimed: defaultdict[str, set[Path]] = defaultdict(set)
        """Key -> files of the writers that claim it."""
        self._others: list[Path] = []
        """Segments to read at each look."""
        self._listed, self._next_list = 0, 0.0
        self._next_look, self._look_takes = 0.0, 1e-4
        self._own: list[StoredRow] = []
        self._open: OpenSegment | None = None

    def load(self, keys: Iterable[str]) -> None:
        if wanted := set(keys) - self._looked_for:
            for row in rows_of(self.path, wanted, {} if self._looked_for else self._read):
                self._take(row)
            self._looked_for |= wanted
            # writers' files are read from the start again: their claims of the new keys were skipped before
            self._read = {path: end for path, end in self._read.items() if path.suffix in (OPEN, SEALED)}

    def find(self, key: str) -> str | None:
        if key not in self._looked_for:
            self.load([key])
        found = self._known.get(key)
        return None if found is None else found.answer

    def claim(self, key: str) -> bool:
        segment = self._segment()  # fails here if the folder cannot be written, before an answer is paid
        segment.writer.add(f"+{key}")  # before the look: of two simultaneous claims at least one sees the other
        self._look()
        if any(map(claims_count, self._claimed.get(key, ()))):
            segment.writer.add(f"-{key}")
            return False
        return True

    def write(self, row: StoredRow) -> None:
        self._segment().add(row)
        self._own.append(row)
        self._take(row)

    def give_back(self, key: str) -> None:
        self._segment().writer.add(f"-{key}")

    def close(self) -> None:
        if self._open is not None and self._open.writer.held:
            self._open.close(self._own)
        self._open, self._own = None, []

    def _segment(self) -> OpenSegment:
        if self._open is not None and not self._open.writer.held:  # in a forked child: the segment is its parent's
            self._open, self._own = None, []
        if self._open is None or not self._open.is_there:  # another process sealed it after a halt beyond the lease
            self._open = OpenSegment(self.path)
            for row in self._own:
                self._open.add(row)
        return self._open

    def _look(self) -> None:
        """Read the claims and answers that other processes have added since the last look."""
        if (began := time.monotonic()) < self._next_look:
            return
        changed = self.path.stat().st_mtime_ns
        if changed != self._listed or began >= self._next_list:  # one clock tick may hold two changes of a folder
            mine = self._open.path if self._open is not None else None
            self._others = [entry for entry in segments_of(self.path) if entry != mine and
                            (entry.suffix == OPEN or entry not in self._read)]  # fmt: skip
            self._listed, self._next_list = changed, began + LOOK_AFTER
        for entry in self._others:
            if entry.suffix == OPEN:
                self._take_claims(writer_of(entry))
        for entry, row in rows_in(self._others, self._looked_for, self._read):
            self._claimed[row.key].discard(writer_of(entry))
            self._take(row)
        now = time.monotonic()
        self._look_takes = min(now - began, 2 * self._look_takes)  # a look that waited for the CPU counts little
        self._next_look = now + min(LOOK_AFTER, LOOK_PAUSE * max(0.0, self._look_takes - LOOK_FREE))

    def _take_claims(self, writer: Path) -> None:
        with suppress(OSError):  # the writer has ended, or its user alone may read the file
            for line in new_lines(writer, self._read):
                if (key := line[1:-1].decode("utf-8", "replace")) in self._looked_for:
                    (self._claimed[key].add if line[:1] == b"+" else self._claimed[key].discard)(writer)

    def _take(self, row: StoredRow) -> None:
        known = self._known.get(row.key)
        if known is None or row.rank >= known.rank:
            self._known[row.key] = row


def is_one_file(path: Path) -> bool:
    """Return whether a ledger is an SQLite file, or becomes one by its name."""
    return path.is_file() or (path.suffix == SQLITE_SUFFIX and not path.is_dir())


def check_no_file(path: Path) -> None:
    """Raise an InputError for a ledger in one file."""
    if is_one_file(path):
        folder = path.with_suffix("")
        raise InputError(
            f"{path}: got a ledger in one SQLite file, which machines cannot share; expected a folder; fix: --ledger "
            f"{folder}, after `bixse grade ledger merge {path} --to {folder}` where it has answers"
        )


def make_folder(path: Path) -> str:
    """Make a ledger in a folder if there is none; return its id."""
    check_no_file(path)
    with storage_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    return folder_id(path)


def has_id(path: Path, identifier: str) -> bool:
    """Return whether the ledger in a folder has this id."""
    return (path / FOLDER_FILE).exists() and folder_id(path) == identifier


def folder_id(path: Path) -> str:
    """Return the id of the ledger in a folder; an empty folder becomes a ledger."""
    names = {entry.name for entry in path.iterdir() if not entry.name.startswith(".")}
    file = path / FOLDER_FILE
    if not names:
        content = json.dumps({"bixse_ledger": FORMAT, "id": secrets.token_hex(16)}) + "\n"
        with storage_errors(path):
            try:
                with file.open("x", encoding="utf-8") as new:
                    new.write(content)
            except FileExistsError:  # another process was faster
                pass
    elif FOLDER_FILE not in names:
        raise InputError(
            f"{path}: got a folder with {', '.join(sorted(names)[:3])}; expected a ledger, or an empty folder; "
            "fix: choose another --ledger"
        )
    for _ in range(_TRIES):
        if text := read_text(file):
            break
        time.sleep(0.1)
    try:
        found = json.loads(text)
        version, identifier = found["bixse_ledger"], str(found["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{file}: got a damaged file; expected the id of a ledger; fix: delete it and the empty folder, or write "
            f'{{"bixse_ledger": {FORMAT}, "id": "anything"}} into it'
        ) from error
    if version != FORMAT:
        raise InputError(
            f"{path}: got a ledger of format {version}; expected {FORMAT}; fix: another --ledger, or a newer bixse"
        )
    return identifier


def segments_of(path: Path) -> list[Path]:
    """Return the segments of a ledger by name; open segments first, since they may be sealed while they are read."""
    with os.scandir(path) as entries:  # many times as fast as `Path.iterdir`, and every look at a ledger takes it
        names = {entry.name for entry in entries if not entry.name.startswith(".")}
    # a process that was killed between sealing and deleting leaves both: only the sealed segment counts
    sealed = {name for name in names if name.endswith(SEALED)}
    left = {name for name in names if name.endswith(OPEN) and name.removesuffix(OPEN) + SEALED not in sealed}
    return [path / name for name in (*sorted(left), *sorted(sealed))]


def rows_of(path: Path, wanted: AbstractSet[str], read: dict[Path, int]) -> Iterator[StoredRow]:
    """Yield the rows of the `wanted` keys, some twice; `read` gets the bytes read of each segment."""
    # a segment that another process seals or merges now is read again under its new name
    while left := [entry for entry in segments_of(path) if entry not in read]:
        yield from (row for _, row in rows_in(left, wanted, read))


def rows_in(
    segments: Iterable[Path], wanted: AbstractSet[str], read: dict[Path, int]
) -> Iterator[tuple[Path, StoredRow]]:
    """Yield the rows after the bytes counted in `read`, with their segments; skip missing segments."""
    looked_for = None
    for entry in segments:
        try:
            rows: Iterable[StoredRow] = ()
            if entry.suffix == OPEN:
                rows = open_rows(entry, wanted, read)
            elif entry not in read:
                looked_for = looked_for or WantedKeys(sorted(wanted))
                rows = sealed_rows(entry, near) if (near := looked_for.near(entry)) else ()
            yield from ((entry, row) for row in rows)
            read.setdefault(entry, 0)
        except (FileNotFoundError, InputError):
            if entry.exists():  # else another process sealed or merged it
                raise


def seal_left(path: Path) -> list[Path]:
    """Seal the open segments of ended writers; return the segments of writers that may live."""
    living, files = [], path.glob(".segment-*.writer")
    for entry in sorted({*path.glob(f"*{OPEN}"), *(path / f"{file.stem[1:]}{OPEN}" for file in files)}):
        writer = writer_of(entry)
        with suppress(FileNotFoundError), without_writer(writer) as gone:  # another process sealed it
            if not gone or not (is_of_this_machine(writer) or is_quiet(writer, entry)):
                living.append(entry)
                continue
            if entry.exists() and (rows := list(open_rows(entry))) and not entry.with_suffix(SEALED).exists():
                seal(rows, entry.with_suffix(SEALED))
            with storage_errors(path):
                entry.unlink(missing_ok=True)
                writer.unlink(missing_ok=True)
    return living
