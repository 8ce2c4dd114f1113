"""A job does one shard at a time, an engine decides where; completion markers on disk say what is done."""

from __future__ import annotations

import hashlib
import traceback
from abc import ABC, abstractmethod
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bixse.errors import BixseError, InputError, shorten
from bixse.files.files import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

Shard = TypeVar("Shard")
Result = TypeVar("Result")
MARK = ".complete"
"""Suffix of the file name of a completion marker, after the name of its output."""


class Job(ABC, Generic[Shard, Result]):
    """A kind of work that is cut into shards; a subclass is a frozen dataclass of plain values, since jobs are pickled.

    A shard is small too, for example a number: `run` reads its data from a folder that all machines share.

    Example:
        >>> @dataclass(frozen=True)
        ... class Square(Job[int, int]):
        ...     def run(self, shard, kept):
        ...         return shard**2
        >>> attempt(Square(), 3, None)
        Ended(shard=3, result=9, error='', traceback='', known=False)
    """

    def setup(self) -> Any:
        """Return the worker state for all shards of a process, for example a loaded model; called once per process."""
        return None

    @abstractmethod
    def run(self, shard: Shard, kept: Any) -> Result:
        """Do one shard, and write its output completely or not at all; `kept` is the worker state from `setup`.

        A BixseError, for example of a full disk, ends all shards. Any other error fails this shard alone.
        """

    def output(self, shard: Shard) -> Path | None:
        """Return the output file of a shard; None for a shard without output, which is done on every request."""
        return None

    def fingerprint(self) -> str:
        """Return a hash of all that the outputs depend on; outputs with another hash are made again."""
        return hashlib.sha256(repr(self).encode("utf-8", "backslashreplace")).hexdigest()

    def is_complete(self, shard: Shard) -> bool:
        """Return True if the output exists and has the completion marker of this job."""
        output = self.output(shard)
        return output is not None and is_marked(output, self.fingerprint())

    def mark(self, shard: Shard) -> None:
        output = self.output(shard)
        if output is not None:
            mark(output, self.fingerprint())


def is_marked(output: Path, fingerprint: str) -> bool:
    """Return True if a file exists and has a completion marker with this fingerprint."""
    try:
        return output.exists() and _mark_of(output).read_bytes() == fingerprint.encode()
    except OSError:
        return False


def mark(output: Path, fingerprint: str) -> None:
    """Write the completion marker of a file, with the fingerprint of its job."""
    write_atomically(_mark_of(output), fingerprint)


@dataclass(frozen=True)
class Ended(Generic[Shard, Result]):
    """The outcome of a shard."""

    shard: Shard
    result: Result | None = None
    """Result of `Job.run`; None for a shard that failed or was complete before."""
    error: str = ""
    traceback: str = ""
    """Traceback of the error; empty if the process died."""
    known: bool = False


class Engine(ABC):
    """An engine decides where shards run."""

    here = False
    """True if every shard runs in this process."""
    shared = False
    """True if other processes, which were started independently, do the rest."""
    rank = 0

    def map(
        self,
        job: Job[Shard, Result],
        shards: Iterable[Shard],
        kept: Any = None,
        wanted: Callable[[Shard], bool] = lambda shard: True,
    ) -> Iterator[Ended[Shard, Result]]:
        """Do the pending shards of this engine's share; yield each as it ends, in any order.

        A shard that fails, or whose process dies, is tried again alone after all others; if it fails again, it comes
        out with its error. `kept` is the worker state if this process has it already; other processes make their own.
        `wanted` is asked, when there is room for a shard, whether it is still needed. An error of `job.run` for all
        shards is raised.
        """
        known: list[Shard] = []
        again: list[Shard] = []

        def missing() -> Iterator[Shard]:
            for shard in self.share(shards):
                if job.is_complete(shard):
                    known.append(shard)
                elif wanted(shard):
                    yield shard

        for ended in self.attempts(job, missing(), kept, alone=False):
            yield from _taken(known)
            if ended.error:
                again.append(ended.shard)
            else:
                yield ended
        yield from _taken(known)
        yield from self.attempts(job, iter(again), kept, alone=True)

    def share(self, shards: Iterable[Shard]) -> Iterable[Shard]:
        """Return the shards that are this engine's to do."""
        return shards

    @abstractmethod
    def attempts(
        self, job: Job[Shard, Result], shards: Iterator[Shard], kept: Any, alone: bool
    ) -> Iterator[Ended[Shard, Result]]:
        """Try each shard once; with `alone` one at a time per machine, with all its memory."""


def attempt(job: Job[Shard, Result], shard: Shard, kept: Any) -> Ended[Shard, Result]:
    """Try a shard in this process, and mark it complete if it succeeds."""
    try:
        result = job.run(shard, kept)
        job.mark(shard)
    except BixseError:  # a full disk or a wrong setting would fail every shard
        raise
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        return Ended(shard, error=said[:500], traceback=traceback.format_exc())
    return Ended(shard, result)


def check_pickles(job: Job[Any, Any]) -> None:
    """Raise InputError for a job that cannot be sent to another process."""
    try:
        ForkingPickler.dumps(job)
    except Exception as error:
        raise InputError(
            f"{type(job).__name__}: got a job that cannot be pickled ({shorten(str(error))}); expected a frozen "
            "dataclass of plain values, defined at the top of a module; fix: load what it needs in its setup()"
        ) from error


def _mark_of(output: Path) -> Path:
    return output.with_name(f"{output.name}{MARK}")


def _taken(known: list[Shard]) -> Iterator[Ended[Shard, Any]]:
    while known:
        yield Ended(known.pop(0), known=True)
