"""A job, which is told one shard at a time, and an engine, which decides where; what is complete is marked on disk."""

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
"""What follows the name of an output in the name of its mark."""


class Job(ABC, Generic[Shard, Result]):
    """A kind of work that is cut into shards; a subclass is a frozen dataclass of plain values, since it is pickled.

    A shard is small too, such as a number: `run` reads what it stands for from a folder that all machines share.

    Example:
        >>> @dataclass(frozen=True)
        ... class Square(Job[int, int]):
        ...     def run(self, shard, kept):
        ...         return shard**2
        >>> attempt(Square(), 3, None)
        Ended(shard=3, result=9, error='', traceback='', known=False)
    """

    def setup(self) -> Any:
        """Make what all shards of one process need, such as a loaded model; called once in each process."""
        return None

    @abstractmethod
    def run(self, shard: Shard, kept: Any) -> Result:
        """Do one shard, and write its output whole or not at all; `kept` is what `setup` gave.

        A BixseError, such as that of a full disk, ends all shards. Any other error fails this shard alone.
        """

    def output(self, shard: Shard) -> Path | None:
        """Return the file that a shard leaves; None: it leaves none, and is done whenever it is asked for."""
        return None

    def fingerprint(self) -> str:
        """Return a hash of all that the outputs depend on; outputs of a job with another one are made anew."""
        return hashlib.sha256(repr(self).encode("utf-8", "backslashreplace")).hexdigest()

    def is_complete(self, shard: Shard) -> bool:
        """Return True if the output is there and marked as whole by this job."""
        output = self.output(shard)
        return output is not None and is_marked(output, self.fingerprint())

    def mark(self, shard: Shard) -> None:
        """Write down that the output of a shard is whole."""
        output = self.output(shard)
        if output is not None:
            mark(output, self.fingerprint())


def is_marked(output: Path, fingerprint: str) -> bool:
    """Return True if a file is there and marked with this fingerprint."""
    try:
        return output.exists() and _mark_of(output).read_bytes() == fingerprint.encode()
    except OSError:
        return False


def mark(output: Path, fingerprint: str) -> None:
    """Write the completion marker of a file, with the fingerprint of what made it."""
    write_atomically(_mark_of(output), fingerprint)


@dataclass(frozen=True)
class Ended(Generic[Shard, Result]):
    """The end of a shard."""

    shard: Shard
    result: Result | None = None
    """What `Job.run` gave; None of a shard that failed or was complete before."""
    error: str = ""
    traceback: str = ""
    """Where, unless the process died."""
    known: bool = False


class Engine(ABC):
    """The place where shards are done."""

    here = False
    """Every shard is done in this process."""
    shared = False
    """Other processes, which were started by themselves, do the rest."""
    rank = 0

    def map(
        self,
        job: Job[Shard, Result],
        shards: Iterable[Shard],
        kept: Any = None,
        wanted: Callable[[Shard], bool] = lambda shard: True,
    ) -> Iterator[Ended[Shard, Result]]:
        """Do the shards of this engine's share that are not complete; each comes out as it ends, in any order.

        A shard that fails, or whose process dies, is tried once more when the others are done, by itself. One that
        fails again comes out with its error. `kept` is what `job.setup` would give, where this process has it already;
        other processes make their own. `wanted` is asked, when there is room for a shard, whether it is still to be
        done. An error that `job.run` raised for all shards is raised here.
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
        """The shards that are this engine's to do."""
        return shards

    @abstractmethod
    def attempts(
        self, job: Job[Shard, Result], shards: Iterator[Shard], kept: Any, alone: bool
    ) -> Iterator[Ended[Shard, Result]]:
        """Try each shard once; `alone`: one at a time on a machine, with all its memory."""


def attempt(job: Job[Shard, Result], shard: Shard, kept: Any) -> Ended[Shard, Result]:
    """Try a shard in this process, and mark it where it succeeds."""
    try:
        result = job.run(shard, kept)
        job.mark(shard)
    except BixseError:
        raise
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        return Ended(shard, error=said[:500], traceback=traceback.format_exc())
    return Ended(shard, result)


def check_pickles(job: Job[Any, Any]) -> None:
    """Refuse, by an InputError, a job that cannot be sent to another process."""
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
