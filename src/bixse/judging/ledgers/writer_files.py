"""The living writers of a ledger. Each holds the lock of a hidden file, which the system releases at its end."""

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

from bixse.files.files import storage_errors

if sys.platform != "win32":  # Windows has no flock: writers are known by their touches
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterator

LEASE = 300.0
"""Seconds without a touch after which a writer counts as ended if its lock cannot be tested."""
TOUCH = 30.0
"""Seconds between two touches."""
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}  # errors of file systems without locks
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_HELD: WeakSet[WriterFile] = WeakSet()


class WriterFile:
    """A hidden file that this process keeps locked, and touches at intervals, until `close` or the end of the process.

    Its first line names the writer; later lines claim (`+KEY`) and release (`-KEY`) questions. The segment itself has
    no lock, since on a Windows share a lock would keep others from reading it.
    """

    def __init__(self, folder: Path, stem: str) -> None:
        with storage_errors(folder):
            while True:
                self.name = f"{stem}{secrets.token_hex(8)}"
                self.path = writer_path(folder, self.name)
                self._file = self.path.open("xb", buffering=0)
                _lock(self._file, wait=True)
                if self.path.exists():  # else another process found it before it was locked, and deleted it
                    break
        self.owner = f"{_machine()}/{os.getpid()}/{self.name}"  # the process id is for people alone
        self._closed = threading.Event()
        threading.Thread(target=_touch, args=(self.path, self._closed), name="bixse-ledger", daemon=True).start()
        _HELD.add(self)
        self.add(self.owner)

    @property
    def held(self) -> bool:
        """Return True if this process holds the lock; a forked child of the process that made it does not."""
        return not self._file.closed

    def add(self, line: str) -> None:
        with storage_errors(self.path):
            self._file.write(f"{line}\n".encode("utf-8", "replace"))

    def close(self) -> None:
        self._closed.set()
        self._file.close()
        self.path.unlink(missing_ok=True)

    def drop(self) -> None:
        """Close the file in a forked child; the lock of the parent stays."""
        self._file.close()


def writer_path(folder: Path, name: str) -> Path:
    """Return the file of the writer with this name."""
    return folder / f".{name}.writer"


@contextmanager
def without_writer(path: Path) -> Iterator[bool]:
    """Yield whether a writer has ended, by its lock; no process can take the lock within the block."""
    file = None
    with suppress(OSError):  # the file was deleted, or its user alone may read it
        file = path.open("rb") if sys.platform != "win32" else None
    with file or nullcontext():
        free = _lock(file, wait=False) if file is not None else None
        yield is_quiet(path) if free is None else free


def claims_count(path: Path) -> bool:
    """Return whether the claims of a writer's file count: the writer lives, and touched it within the lease."""
    with without_writer(path) as gone:
        return not gone and not is_quiet(path)  # an NFS server may go on holding the lock of a machine that crashed


def is_quiet(*paths: Path) -> bool:
    """Return whether none of the files was touched or written within the lease; a missing file was not."""
    last = 0.0
    for path in paths:
        with suppress(OSError):
            last = max(last, path.stat().st_mtime)
    return time.time() - last > LEASE


def is_of_this_machine(path: Path) -> bool:
    """Return whether a writer runs on this kernel; some NFS mounts hide the locks of other machines."""
    start = f"{_machine()}/".encode()
    with suppress(OSError), path.open("rb") as file:
        return len(start) > 1 and file.read(len(start)) == start
    return False


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Wait until no other process is in a block with this file; on a file system without locks, do not wait."""
    with storage_errors(path):
        file = path.open("ab")
    with file:
        _lock(file, wait=True)
        yield


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


def _drop_all() -> None:
    for file in list(_HELD):
        file.drop()


if hasattr(os, "register_at_fork"):  # a child that outlives its parent would keep the lock
    os.register_at_fork(after_in_child=_drop_all)
