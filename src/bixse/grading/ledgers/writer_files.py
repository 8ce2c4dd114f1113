"""Which writers of a ledger live: each holds the lock of a hidden file, which the system releases when it dies."""

from __future__ import annotations

import errno
import os
import secrets
import sys
import threading
import time
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING
from weakref import WeakSet

from bixse.data.io.files import storage_errors

if sys.platform != "win32":  # where writers are known by their touches alone
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterator

LEASE = 300.0
"""Seconds without a touch after which a writer counts as gone, where its lock cannot say so."""
TOUCH = 30.0
"""Seconds between two touches."""
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}
"""Errors of a file system that has no locks."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_HELD: WeakSet[WriterFile] = WeakSet()


class WriterFile:
    """A hidden file that this process keeps locked, and touches at intervals, until `close` or the end of the process.

    Its lines name the writer, then the questions that it takes (`+KEY`) and gives back (`-KEY`). A lock on the segment
    itself would keep others from reading it on a Windows share.

    Raises:
        StorageError: the folder cannot be written.
    """

    def __init__(self, folder: Path, stem: str) -> None:
        with storage_errors(folder):
            while True:
                self.name = f"{stem}{secrets.token_hex(8)}"
                self.path = writer_path(folder, self.name)
                self._file = self.path.open("xb", buffering=0)
                _lock(self._file, wait=True)
                if self.path.exists():  # else another process looked before it was locked, and deleted it
                    break
        self.owner = f"{_machine()}/{os.getpid()}/{self.name}"  # the number is for people: no process is looked for
        self._closed = threading.Event()
        threading.Thread(target=_touch, args=(self.path, self._closed), name="bixse-ledger", daemon=True).start()
        _HELD.add(self)
        self.add(self.owner)

    @property
    def held(self) -> bool:
        """Whether this process holds the lock; a forked child of the one that made it does not."""
        return not self._file.closed

    def add(self, line: str) -> None:
        with storage_errors(self.path):
            self._file.write(f"{line}\n".encode("utf-8", "replace"))

    def close(self) -> None:
        self._closed.set()
        self._file.close()
        self.path.unlink(missing_ok=True)

    def drop(self) -> None:
        self._file.close()


def writer_path(folder: Path, name: str) -> Path:
    """The file of the writer of this name."""
    return folder / f".{name}.writer"


@contextmanager
def without_writer(path: Path) -> Iterator[bool]:
    """Whether the writer of a file is gone, as far as its lock says; nobody comes to hold the lock in the block."""
    file = None
    with suppress(OSError):  # there is none any more, or only its owner may read it
        file = path.open("rb")
    with file or nullcontext():
        free = _lock(file, wait=False) if file is not None else None
        yield is_quiet(path) if free is None else free


def is_quiet(*paths: Path) -> bool:
    """Whether none of the files that are there was touched or written within the lease."""
    last = 0.0
    for path in paths:
        with suppress(OSError):
            last = max(last, path.stat().st_mtime)
    return time.time() - last > LEASE


def is_of_this_machine(path: Path) -> bool:
    """Whether a writer's file is of the running kernel: locks of other machines may not show, as on some NFS mounts."""
    start = f"{_machine()}/".encode()
    with suppress(OSError), path.open("rb") as file:
        return len(start) > 1 and file.read(len(start)) == start
    return False


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Wait until no other process is in such a block of this file; without locks nobody waits."""
    with storage_errors(path):
        file = path.open("ab")
    with file:
        _lock(file, wait=True)
        yield


@cache
def _machine() -> str:
    """The running kernel, whatever containers call their host; "" where that is not known."""
    with suppress(OSError):
        return _BOOT.read_text().strip()
    return ""


def _lock(file: IO[bytes], wait: bool) -> bool | None:
    """Whether a file could be locked, for good with `wait`; None where the file system has no locks."""
    if sys.platform == "win32":
        return None
    try:
        # to look takes a shared lock, for which NFS needs no right to write
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


def _drop_all() -> None:
    for file in list(_HELD):
        file.drop()


if hasattr(os, "register_at_fork"):  # a child that outlives its parent, such as a data loader's, would keep the lock
    os.register_at_fork(after_in_child=_drop_all)
