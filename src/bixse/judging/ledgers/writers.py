"""The writers of a ledger. Each holds the lock of a hidden file, which the system releases at its end."""

from __future__ import annotations

import errno
import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any
from weakref import WeakSet

from bixse.errors import InputError, StorageError
from bixse.files.files import storage_errors
from bixse.judging.ledgers.segments import FORMAT, OPEN, StoredRow, open_rows, seal

if sys.platform != "win32":  # Windows has no flock: writers are known by their touches
    import fcntl


LEASE = 300.0
"""Seconds without a touch after which a writer counts as ended if its lock cannot be tested."""
TOUCH = 30.0
"""Seconds between two touches."""
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}  # errors of file systems without locks
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_OPEN_SEGMENTS: WeakSet[OwnSegment] = WeakSet()


class OwnSegment:
    """A new open segment of this process alone; a line survives the process once `add` returns.

    A hidden file next to it is locked, and touched at intervals, until `close` or the end of the process. The segment
    itself has no lock, since on a Windows share a lock would keep others from reading it.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"segment-{secrets.token_hex(8)}{OPEN}"
        self._writer = writer_of(self.path)
        with storage_errors(self.path):
            self.held = self._writer.open("xb", buffering=0)
            _lock(self.held, wait=True)  # before the segment exists: other processes seal a segment without a writer
            self.held.write(f"{_machine()}/{os.getpid()}\n".encode())  # the process id is for people alone
            self._file = self.path.open("ab", buffering=0)
        self._closed = threading.Event()
        threading.Thread(target=_touch, args=(self._writer, self._closed), name="bixse-ledger", daemon=True).start()
        _OPEN_SEGMENTS.add(self)
        self.add({"bixse_ledger": FORMAT})

    @property
    def is_mine(self) -> bool:
        """Return True unless a parent of this process made the segment."""
        return not self.held.closed

    @property
    def is_there(self) -> bool:
        """Return True if no process has deleted the file."""
        with suppress(OSError):  # NFS, after another machine deleted the file
            return os.fstat(self._file.fileno()).st_nlink > 0
        return False

    def add(self, line: Any) -> None:
        """Write an answer, a claim or the header."""
        with storage_errors(self.path):
            end = os.fstat(self._file.fileno()).st_size
            rest = memoryview(json.dumps(line, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
            try:
                while rest:
                    rest = rest[self._file.write(rest) :]
            except OSError:  # a full disk: the next line must not begin behind half a line
                self._file.truncate(end)
                raise

    def close(self, rows: Sequence[StoredRow]) -> None:
        """Seal the segment with the rows that were added, or delete it if there are none."""
        self._file.close()
        self._closed.set()
        with suppress(StorageError):  # a full disk: the open segment stays, and is read as it is
            _replace(self.path, rows)
        self.held.close()
        self._writer.unlink(missing_ok=True)


def writer_of(segment: Path) -> Path:
    """Return the hidden file of the writer of a segment."""
    return segment.with_name(f".{segment.stem}.writer")


def claims_count(segment: Path) -> bool:
    """Return whether the claims in a segment count: its writer lives, and touched its file within the lease."""
    writer = writer_of(segment)
    with _without_writer(writer) as gone:
        return not gone and not _is_quiet(writer)  # an NFS server may still hold the lock of a machine that crashed


def seal_left(folder: Path) -> list[Path]:
    """Seal the open segments of ended writers; return the segments of writers that may live."""
    living, writers = [], folder.glob(".segment-*.writer")
    for segment in sorted({*folder.glob(f"*{OPEN}"), *(folder / f"{file.stem[1:]}{OPEN}" for file in writers)}):
        writer = writer_of(segment)
        with _without_writer(writer) as gone:
            if not gone or not (_is_of_this_machine(writer) or _is_quiet(writer, segment)):
                living.append(segment)
                continue
            # another process has sealed it; or it is damaged or read-only, which its next reader or writer reports
            with suppress(FileNotFoundError, InputError, StorageError):
                _replace(segment, open_rows(segment) if segment.exists() else ())
                writer.unlink(missing_ok=True)
    return living


def _replace(segment: Path, rows: Sequence[StoredRow]) -> None:
    """Replace an open segment by a sealed one, or by nothing if it has no rows."""
    if rows:
        seal(rows, segment)
    with storage_errors(segment):
        segment.unlink(missing_ok=True)


@contextmanager
def _without_writer(path: Path) -> Iterator[bool]:
    """Yield whether a writer has ended, by its lock; no process can take the lock within the block."""
    file = None
    with suppress(OSError):  # the file was deleted, or its user alone may read it
        file = path.open("rb") if sys.platform != "win32" else None
    with file or nullcontext():
        free = _lock(file, wait=False) if file is not None else None
        yield _is_quiet(path) if free is None else free


def _is_quiet(*paths: Path) -> bool:
    """Return whether none of the files was touched or written within the lease; a missing file was not."""
    last = 0.0
    for path in paths:
        with suppress(OSError):
            last = max(last, path.stat().st_mtime)
    return time.time() - last > LEASE


def _is_of_this_machine(path: Path) -> bool:
    """Return whether a writer runs on this kernel; some NFS mounts hide the locks of other machines."""
    with suppress(OSError):
        return _machine() != "" and path.read_bytes().startswith(f"{_machine()}/".encode())
    return False


@cache
def _machine() -> str:
    """Return the id of the running kernel, the same in all its containers, or "" if there is none."""
    with suppress(OSError):
        return _BOOT.read_text().strip()
    return ""


def _lock(file: IO[bytes], wait: bool) -> bool | None:
    """Lock a file, exclusively with `wait`; return whether that worked, or None on a file system without locks."""
    if sys.platform == "win32":
        return None
    try:
        # a shared lock is enough to see whether there is a writer; on NFS an exclusive one needs the right to write
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise
    return True


def _touch(path: Path, closed: threading.Event) -> None:
    while not closed.wait(TOUCH) and path.exists():
        with suppress(OSError):
            os.utime(path)


def _close_all() -> None:
    for segment in list(_OPEN_SEGMENTS):
        segment.held.close()


if hasattr(os, "register_at_fork"):  # a forked child that outlives its parent would keep the lock
    os.register_at_fork(after_in_child=_close_all)
