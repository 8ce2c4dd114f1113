"""The files of a search index: one manifest names them all, so a reader sees the state before a change or after it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from bixse.data.io.files import file_hash, read_text, storage_errors, write_atomically
from bixse.errors import BixseError, InputError, StorageError
from bixse.retrieval.index_manifest import FORMAT, Manifest, Pending, StoredFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MANIFEST_FILE = "search_index.json"
"""Names every file of the index; written last."""
PENDING_FILE = "search_index.pending.json"
"""Names the shards of a change that is not finished."""
LOCK_FILE = ".lock"
_OWN_NAME = re.compile(
    r"(embeddings|documents|deleted|graph)-[0-9a-f]{16}\.[a-z]+(-journal)?|\.search_index\.(pending\.)?json\.[0-9a-f]{8}"
)
"""Files of a state, and those that `write_atomically` leaves when it is killed."""

Content = TypeVar("Content", Manifest, Pending)


def is_index(folder: Path) -> bool:
    """Whether a folder holds an index, finished or not."""
    return any((folder / name).is_file() for name in (MANIFEST_FILE, PENDING_FILE))


def read_manifest(folder: Path) -> Manifest:
    """The current state of an index.

    Raises:
        InputError: no index, an unfinished one, one of a later version, or a damaged manifest.
    """
    path = folder / MANIFEST_FILE
    if path.is_file():
        return _read(path, Manifest)
    if (folder / PENDING_FILE).is_file():
        raise InputError(
            f"{folder}: got an index that is not finished; expected a finished one; fix: run the same "
            "`bixse index` command again, it goes on with the documents that are encoded"
        )
    found = "a folder that is no index" if folder.is_dir() else ("a file" if folder.exists() else "no such folder")
    raise InputError(
        f"{folder}: got {found}; expected an index; fix: check the path, or make one with "
        "`bixse index MODEL --collection DIR --out INDEX`"
    )


def write_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """Make a state the current one, then remove the files that no state names any more.

    Returns:
        The manifest as it was written, with its time.

    Raises:
        StorageError: the folder cannot be written; the former state stays.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    written = manifest.model_copy(update={"written": now})
    _sync(folder)
    write_atomically(folder / MANIFEST_FILE, written.model_dump_json(indent=1) + "\n")
    _sync(folder)
    forget_pending(folder)
    remove_leftovers(folder)
    return written


def read_pending(folder: Path) -> Pending | None:
    """The unfinished change of a folder, or None.

    Raises:
        InputError: its file is damaged.
    """
    path = folder / PENDING_FILE
    return _read(path, Pending) if path.is_file() else None


def write_pending(folder: Path, pending: Pending) -> None:
    """Note how far a change has come; raises StorageError."""
    write_atomically(folder / PENDING_FILE, pending.model_dump_json() + "\n")


def forget_pending(folder: Path) -> None:
    """Say that no change is under way."""
    with contextlib.suppress(OSError):
        (folder / PENDING_FILE).unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed, failed or finished changes left: files that neither the state nor a pending change names.

    Only names that an index gives its files are removed. A file that another process holds open under Windows stays
    until the next change.
    """
    try:
        files = read_manifest(folder).files() if (folder / MANIFEST_FILE).is_file() else []
        pending = read_pending(folder)
    except BixseError:  # what the damaged file names is not known
        return
    shards = [shard for shard in pending.shards if shard is not None] if pending is not None else []
    kept = {file.name for file in files} | {file.name for shard in shards for file in shard.files()}
    for path in folder.iterdir():
        if path.name not in kept and _OWN_NAME.fullmatch(path.name):
            with contextlib.suppress(OSError):
                path.unlink()


def new_file(folder: Path, kind: str, suffix: str) -> Path:
    """A name that was never used in this folder."""
    return folder / f"{kind}-{secrets.token_hex(8)}.{suffix}"


def stored(path: Path) -> StoredFile:
    """Bring a file that was just written onto the disk and note what it holds; raises StorageError."""
    with storage_errors(path), path.open("rb+") as file:
        os.fsync(file.fileno())
        return StoredFile(name=path.name, size=path.stat().st_size, sha256=file_hash(path))


class OpenedFile:
    """A file of a state, held open: what it holds can be read even after a later state has removed its name.

    Raises:
        FileNotFoundError: it is not there.
        InputError: it has another size than was written.
    """

    def __init__(self, folder: Path, file: StoredFile) -> None:
        self.path, self.file = folder / file.name, file
        self.handle = self.path.open("rb")
        found = os.fstat(self.handle.fileno()).st_size
        if found != file.size:
            self.handle.close()
            raise damaged(self.path, f"{found} bytes", f"the {file.size} bytes that were written")
        self._checked = False

    def check(self) -> None:
        """Read it once and hold it against its checksum.

        Raises:
            InputError: a byte has changed, or it cannot be read.
        """
        if self._checked:
            return
        digest = hashlib.sha256()
        try:
            self.handle.seek(0)
            while block := self.handle.read(1 << 20):
                digest.update(block)
            self.handle.seek(0)
        except OSError as error:
            raise damaged(self.path, error.strerror or str(error), "a readable file") from error
        if digest.hexdigest() != self.file.sha256:
            found, expected = digest.hexdigest()[:12], self.file.sha256[:12]
            raise damaged(self.path, f"SHA-256 {found}...", f"{expected}...")
        self._checked = True

    def close(self) -> None:
        """Close it; once checked it stays so."""
        self.handle.close()


def damaged(path: Path, found: str, expected: str) -> InputError:
    """The error for a file that is not as it was written."""
    return InputError(
        f"{path}: got a damaged file of the index ({found}); expected {expected}; fix: copy the index from where "
        "it is whole, or make it again with `bixse index`"
    )


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Be the only writer of an index; its folder is made where it is not there.

    What a killed writer left is removed first, and what this one leaves when it fails: a full disk has room again.

    Raises:
        StorageError: another process writes it, or the folder cannot be written.
    """
    from filelock import FileLock, Timeout

    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK_FILE, timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            raise StorageError(
                f"{folder}: got an index that another process is writing; expected no other writer; fix: wait "
                "until it is done (searching is possible meanwhile)"
            ) from error
    try:
        remove_leftovers(folder)
        yield
    except Exception:
        remove_leftovers(folder)
        raise
    finally:
        lock.release()


def _read(path: Path, kind: type[Content]) -> Content:
    """A manifest or a pending change; raises InputError where it is damaged or of a later version."""
    text = read_text(path)
    try:
        loaded = json.loads(text)
        version = loaded.get("format", FORMAT) if isinstance(loaded, dict) else FORMAT
        if isinstance(version, int) and version > FORMAT:
            raise InputError(
                f"{path}: got an index of format {version}; expected format {FORMAT}; fix: use a newer bixse"
            )
        return kind.model_validate_json(text)
    except (ValidationError, ValueError, RecursionError) as error:
        raise damaged(path, " ".join(str(error).split())[:200], "the JSON that bixse wrote") from error


def _sync(folder: Path) -> None:
    """Bring the names in a folder onto the disk, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
