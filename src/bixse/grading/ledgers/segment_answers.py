"""Answers in a folder that many machines share: each process adds to a segment of its own, and seals it at its end."""

from __future__ import annotations

import json
import secrets
import time
from typing import TYPE_CHECKING

from bixse.data.io.files import read_text, storage_errors
from bixse.data.io.parquet import row_counts
from bixse.errors import InputError
from bixse.grading.ledgers.key_numbers import WantedKeys
from bixse.grading.ledgers.segments import OPEN, SEALED, OpenSegment, open_rows, owner_of, seal, sealed_rows
from bixse.grading.ledgers.stored_row import FORMAT, is_living

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from bixse.grading.ledgers.stored_row import StoredRow

FOLDER_FILE = "ledger.json"
"""Says that a folder is a ledger, and which."""
SQLITE_SUFFIX = ".sqlite"
"""A path that ends so is one file where there is nothing yet."""
_TRIES = 50
"""Looks at that file while another process writes it."""


class SegmentAnswers:
    """Answers by the hash of their question; in memory are those that were asked for, and this process's own.

    Raises the errors of `bixse.grading.ledger.Ledger`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = folder_id(path)
        """What tells this ledger from all others."""
        self._known: dict[str, StoredRow] = {}
        self._looked_for: set[str] = set()
        self._own: list[StoredRow] = []
        self._open: OpenSegment | None = None

    def load(self, keys: Iterable[str]) -> None:
        wanted = sorted(set(keys) - self._looked_for)
        for row in rows_of(self.path, wanted) if wanted else ():
            self._take(row)
        self._looked_for.update(wanted)

    def find(self, key: str) -> str | None:
        if key not in self._looked_for:
            self.load([key])
        found = self._known.get(key)
        return None if found is None else found.answer

    def claim(self, key: str) -> bool:
        self._segment()  # before anything is paid for that could not be kept
        return True

    def write(self, row: StoredRow) -> None:
        self._segment().add(row)
        self._own.append(row)
        self._take(row)

    def give_back(self, key: str) -> None:
        """Nothing was claimed."""

    def release(self) -> None:
        """Nothing was claimed."""

    def renew(self) -> None:
        """Nothing was claimed."""

    def __len__(self) -> int:
        sealed = sum(row_counts([path for path in segments_of(self.path) if path.suffix == SEALED]))
        return sealed + sum(1 for path in segments_of(self.path) if path.suffix == OPEN for _ in open_rows(path))

    def close(self) -> None:
        if self._open is None:
            return
        self._open.close()
        if self._own:
            seal(self._own, self._open.path.with_suffix(SEALED))
        self._open.path.unlink(missing_ok=True)
        self._open, self._own = None, []

    def _segment(self) -> OpenSegment:
        if self._open is None:
            self._open = OpenSegment(self.path / f"segment-{secrets.token_hex(8)}{OPEN}")
        return self._open

    def _take(self, row: StoredRow) -> None:
        known = self._known.get(row.key)
        if known is None or row.rank >= known.rank:
            self._known[row.key] = row


def is_one_file(path: Path) -> bool:
    """Whether a ledger is an SQLite file, or becomes one by its name."""
    return path.is_file() or (path.suffix == SQLITE_SUFFIX and not path.is_dir())


def check_no_file(path: Path) -> None:
    """Refuse, by an InputError, a ledger in one file."""
    if is_one_file(path):
        folder = path.with_suffix("")
        raise InputError(
            f"{path}: got a ledger in one SQLite file, which machines cannot share; expected a folder; fix: --ledger "
            f"{folder}, after `bixse grade ledger merge {path} --to {folder}` where it has answers"
        )


def make_folder(path: Path) -> str:
    """Make a ledger that is a folder where there is none; gives its id.

    Raises:
        InputError: the folder holds something else, or the path is that of a file.
        StorageError: it cannot be written.
    """
    check_no_file(path)
    with storage_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    return folder_id(path)


def has_id(path: Path, identifier: str) -> bool:
    """Whether this very ledger is in a folder."""
    return (path / FOLDER_FILE).exists() and folder_id(path) == identifier


def folder_id(path: Path) -> str:
    """The id of the ledger in a folder; an empty folder becomes one."""
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
    """The segments of a ledger, by name; open ones first, since they may be sealed while they are read.

    One that is there sealed too, since its process was killed before it could delete the other, is there once.
    """
    found = {entry for entry in path.iterdir() if not entry.name.startswith(".")}
    sealed = {entry for entry in found if entry.suffix == SEALED}
    left = {entry for entry in found if entry.suffix == OPEN and entry.with_suffix(SEALED) not in sealed}
    return [*sorted(left), *sorted(sealed)]


def rows_of(path: Path, wanted: list[str] | None = None) -> Iterator[StoredRow]:
    """All rows of a ledger, or those of the `wanted` keys (sorted).

    A segment that is sealed or merged meanwhile is read under its new name; its rows may come twice.
    """
    looked_for = None if wanted is None else WantedKeys(wanted)
    done: set[Path] = set()
    while left := [entry for entry in segments_of(path) if entry not in done]:
        for entry in left:
            try:
                if entry.suffix == OPEN:
                    yield from open_rows(entry, wanted)
                elif looked_for is None or (near := looked_for.near(entry)):
                    yield from sealed_rows(entry, near if looked_for is not None else None)
            except (FileNotFoundError, InputError):
                if entry.exists():
                    raise
            done.add(entry)


def seal_left(path: Path) -> list[Path]:
    """Seal the open segments of processes that are gone; gives those that are left, whose writers may live."""
    living = []
    for entry in sorted(path.glob(f"*{OPEN}")):
        try:
            owner = owner_of(entry)
            if owner and is_living(owner, entry.stat().st_mtime):
                living.append(entry)
                continue
            if (rows := list(open_rows(entry))) and not entry.with_suffix(SEALED).exists():
                seal(rows, entry.with_suffix(SEALED))
            with storage_errors(path):
                entry.unlink(missing_ok=True)
        except FileNotFoundError:  # sealed by another process
            continue
    return living
