"""A job does one shard at a time, an engine decides where; files on disk say which shards are complete."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bixse.errors import BixseError
from bixse.files.files import write_atomically

if TYPE_CHECKING:
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
        ...     def run(self, shard, state):
        ...         return shard**2
        >>> attempt(Square(), 3, None)
        Ended(shard=3, result=9, error='', known=False)
    """

    def setup(self) -> Any:
        """Return the worker state for all shards of a process, for example a loaded model; called once per process."""
        return None

    @abstractmethod
    def run(self, shard: Shard, state: Any) -> Result:
        """Do one shard, and write its output completely or not at all; `state` is the worker state from `setup`.

        A BixseError, for example of a full disk, ends all shards. Any other error fails this shard alone.
        """

    def output(self, shard: Shard) -> Path | None:
        """Return the output file of a shard; None for a shard without output, which is done on every request."""
        return None

    def fingerprint(self) -> str:
        """Return a hash of all that the outputs depend on; outputs with another hash are made again.

        "" is for outputs whose path differs with all that: if they exist they are complete.
        """
        return ""

    def is_complete(self, shard: Shard) -> bool:
        """Return True if the output exists, and has the completion marker of this job."""
        output, fingerprint = self.output(shard), self.fingerprint()
        return output is not None and (is_marked(output, fingerprint) if fingerprint else output.exists())

    def mark(self, shard: Shard) -> None:
        output, fingerprint = self.output(shard), self.fingerprint()
        if output is not None and fingerprint:
            mark(output, fingerprint)


def is_marked(output: Path, fingerprint: str) -> bool:
    """Return True if a file exists and has a completion marker with this fingerprint."""
    try:
        return output.exists() and _mark_of(output).read_bytes() == fingerprint.encode()
    except OSError:
        return False


def mark(output: Path, fingerprint: str) -> None:
    """Write the completion marker of a file, with the fingerprint of its job."""
    write_atomically(_mark_of(output), fingerprint)


def _mark_of(output: Path) -> Path:
    return output.with_name(f"{output.name}{MARK}")


@dataclass(frozen=True)
class Ended(Generic[Shard, Result]):
    """The outcome of a shard."""

    shard: Shard
    result: Result | None = None
    """Result of `Job.run`; None for a shard that failed or was complete before."""
    error: str = ""
    known: bool = False
    """True for a shard that was complete before."""


def attempt(job: Job[Shard, Result], shard: Shard, state: Any) -> Ended[Shard, Result]:
    """Try a shard in this process, and mark it complete if it succeeds."""
    try:
        result = job.run(shard, state)
        job.mark(shard)
    except BixseError:  # a full disk or a wrong setting would fail every shard
        raise
    except Exception as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())
        return Ended(shard, error=message[:500])
    return Ended(shard, result)
