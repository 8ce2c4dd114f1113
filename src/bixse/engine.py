"""Engines, which run the shards of a job: in this process, in several of this machine, as a rank, or on Ray."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Any, Generic, Literal, Protocol, Self, TypeVar, cast

from pydantic import Field, model_validator

from bixse.errors import BixseError, InputError
from bixse.machine import cores, launched_number
from bixse.settings import Flag, Settings

Shard = TypeVar("Shard")
Result = TypeVar("Result")


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

    @abstractmethod
    def run(self, shard: Shard, state: Any) -> Result:
        """Do one shard, and write its output completely or not at all; `state` is the worker state from `setup`.

        A BixseError, for example of a full disk, ends all shards. Any other error fails this shard alone.
        """

    def output(self, shard: Shard) -> Path | None:
        """Return the output file of a shard; None for a shard without output, which is done on every request."""
        return None

    def is_complete(self, shard: Shard) -> bool:
        """Return True if the output exists. Its path must differ with all that it depends on, or override this."""
        output = self.output(shard)
        with suppress(OSError):  # a network disk may refuse it for a moment: then the shard is done again
            return output is not None and output.exists()
        return False


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
    """Try a shard in this process."""
    try:
        return Ended(shard, job.run(shard, state))
    except BixseError:  # a full disk or a wrong setting would fail every shard
        raise
    except Exception as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())
        return Ended(shard, error=message[:500])


THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
"""Environment variables from which numerical libraries read their number of threads."""
LAUNCHED = re.compile(r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)")
"""Environment variables by which a launcher tells processes that they belong to one job."""
PATIENCE = 120.0
"""Seconds for processes to write a checkpoint after they are told to stop."""
MOST_PROCESSES = 8
"""Default limit of concurrent processes: each loads the libraries and a model."""
_job: Job[Any, Any]
"""Job of this process of a pool."""
_state: list[Any] = []
"""Worker state of this process of a pool, once its first shard has come."""


class Engine:
    """An engine does shards in this process if one process is enough, else in several others of this machine.

    Each process has cores / processes threads and, in turn, one of the visible GPUs. `processes` None means one per
    GPU, or one per core up to `MOST_PROCESSES`. As `rank` of `ranks` it does shards rank, rank + ranks, ...; files on
    disk show the shards of other ranks. A process that dies (out of memory) loses its shard alone. At Ctrl-C processes
    are told to stop, and waited for. An InputError refuses more processes than there are cores or GPUs.
    """

    def __init__(self, processes: int | None = 1, rank: int = 0, ranks: int = 1) -> None:
        self._gpus = visible_gpus() if processes != 1 else []
        most = max(cores(), len(self._gpus))
        fitting = len(self._gpus) or min(cores(), MOST_PROCESSES)
        self.processes = fitting if processes is None else processes
        if not 1 <= self.processes <= most:
            raise InputError(
                f"processes: got {processes}; expected 1 to {most} (CPU cores or GPUs); fix: lower --processes, --jobs"
            )
        self.rank, self.ranks = rank, ranks
        self.here = self.processes == 1
        """True if every shard runs in this process."""
        self.shared = ranks > 1
        """True if other processes, which were started independently, do the rest."""

    def map(
        self,
        job: Job[Shard, Result],
        shards: Iterable[Shard],
        state: Any = None,
        wanted: Callable[[Shard], bool] = lambda shard: True,
    ) -> Iterator[Ended[Shard, Result]]:
        """Do the pending shards of this engine's share; yield each as it ends, in any order.

        A shard that fails, or whose process dies, is tried again alone after all others; if it fails again, it comes
        out with its error. `state` is the worker state if this process has it already; other processes make their own.
        `wanted` is asked, when there is room for a shard, whether it is still needed. An error of `job.run` for all
        shards is raised.
        """
        pending: list[Shard] = []
        for shard in self.share(shards):
            if job.is_complete(shard):
                yield Ended(shard, known=True)
            else:
                pending.append(shard)
        again: list[Shard] = []
        for ended in self._attempts(job, (shard for shard in pending if wanted(shard)), state, self.processes):
            if ended.error:
                again.append(ended.shard)
            else:
                yield ended
        yield from self._attempts(job, iter(again), state, 1)  # one at a time, each with all the memory

    def share(self, shards: Iterable[Shard]) -> Iterable[Shard]:
        """Return the shards that are this rank's to do."""
        return islice(shards, self.rank, None, self.ranks)

    def _attempts(
        self, job: Job[Shard, Result], shards: Iterator[Shard], state: Any, processes: int
    ) -> Iterator[Ended[Shard, Result]]:
        """Try each shard once."""
        if not self.here:
            threads = dict.fromkeys(THREAD_VARIABLES, str(max(1, cores() // processes)))
            gpus = [{"CUDA_VISIBLE_DEVICES": name} for name in self._gpus] or [{}]
            yield from spread(shards, lambda slot: _Worker(job, threads | gpus[slot % len(gpus)]), processes)
            return
        for shard in shards:
            state = job.setup() if state is None else state
            yield attempt(job, shard, state)


def visible_gpus() -> list[str]:
    """Return the GPUs as CUDA_VISIBLE_DEVICES names them; none without CUDA."""
    import torch

    if not torch.cuda.is_available():
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]


class ShardProcess(Protocol):
    """A process that does one shard at a time. Its death affects no other process."""

    died: tuple[type[BaseException], ...]
    """Errors of a shard whose process died."""
    begun: Future[Any]
    """It ends when the process is ready for shards."""

    def submit(self, shard: Any) -> Future[Ended[Any, Any]]: ...

    def send(self, number: int) -> None:
        """Send a signal to the process, which is at work."""

    def close(self) -> None: ...

    def refusal(self, error: BaseException) -> InputError | None:
        """Return the error to raise for a process that died at its start; None to start another."""


class _Worker:
    """A process of this machine, in a pool of its own."""

    died: tuple[type[BaseException], ...] = (BrokenProcessPool,)

    def __init__(self, job: Job[Any, Any], variables: Mapping[str, str]) -> None:
        context = multiprocessing.get_context("spawn")  # CUDA does not work in a forked process
        with environment(variables):
            self.pool = ProcessPoolExecutor(1, context, _begin, (os.getpid(), job))
            self.begun: Future[Any] = self.pool.submit(os.getpid)

    def submit(self, shard: Shard) -> Future[Ended[Shard, Any]]:
        return self.pool.submit(_work, shard)

    def send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.begun.result(), number)

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)

    def refusal(self, error: BaseException) -> InputError:
        return InputError(
            "processes: got one that died at its start; expected it to run; fix: in a script, call this below "
            "`if __name__ == '__main__':`, or use one process"
        )


def spread(
    shards: Iterator[Shard], start: Callable[[int], ShardProcess], processes: int
) -> Iterator[Ended[Shard, Any]]:
    """Yield shards as they end; after a process dies, a new process takes the next shard.

    `start` starts the worker of a slot, from 0 to `processes` - 1. The worker that is ready first takes the next shard.
    """
    free, idle, pending, slots = list(range(processes)), list[ShardProcess](), deque[Shard](), dict[ShardProcess, int]()
    busy: dict[Future[Any], tuple[ShardProcess, Any]] = {}
    lost, nothing = 0, cast("Any", object())  # `nothing` is in place of the shard of a worker that starts
    try:
        while True:
            while (idle or free) and (shard := next(shards, nothing)) is not nothing:
                if idle:
                    worker = idle.pop()
                    busy[worker.submit(shard)] = worker, shard
                else:
                    worker = start(free[0])
                    slots[worker] = free.pop(0)
                    busy[worker.begun] = worker, nothing
                    pending.append(shard)
            if not pending and all(shard is nothing for _, shard in busy.values()):
                return
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                worker, shard = busy.pop(future)
                if isinstance(error := future.exception(), worker.died):
                    free.append(slots.pop(worker))
                    worker.close()
                    if shard is not nothing:
                        yield Ended(shard, error="its process died, most likely for lack of memory")
                    elif (refusal := worker.refusal(error)) or (lost := lost + 1) > processes:
                        raise refusal or error
                    elif pending:
                        shards = chain([pending.popleft()], shards)
                    continue
                ended = future.result()
                if pending:
                    following = pending.popleft()
                    busy[worker.submit(following)] = worker, following
                else:
                    idle.append(worker)
                if shard is not nothing:
                    yield ended
    except BaseException:
        interrupt({future: worker for future, (worker, shard) in busy.items() if shard is not nothing})
        raise
    finally:
        for worker in slots:
            worker.close()


def interrupt(at_work: Mapping[Future[Any], ShardProcess]) -> None:
    """Interrupt workers, so that they write their checkpoints, and kill the workers that do not end."""
    for number in (signal.SIGINT, signal.SIGKILL):
        for future, worker in at_work.items():
            if not future.done():
                worker.send(number)
        wait(at_work, timeout=PATIENCE)


def _begin(parent: int, job: Job[Any, Any]) -> None:
    """Start a process in its own session (the parent passes Ctrl-C on), which ends with its parent."""
    global _job
    _job = job
    with suppress(OSError):
        os.setsid()

    def watch() -> None:
        while os.getppid() == parent:  # else it waits for ever on the queue of a killed parent
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _work(shard: Any) -> Ended[Any, Any]:
    if not _state:
        _state.append(_job.setup())
    return attempt(_job, shard, _state[0])


@contextmanager
def environment(variables: Mapping[str, str], without: Iterable[str] = ()) -> Iterator[None]:
    """Set environment variables inside the block, and hide others."""
    before = dict(os.environ)
    for name in without:
        del os.environ[name]
    os.environ |= variables
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ |= before


def without_launcher() -> AbstractContextManager[None]:
    """Hide the launcher from libraries inside the block: each rank does its shards independently."""
    return environment({}, [name for name in os.environ if LAUNCHED.fullmatch(name)])


def rank_of(variables: Mapping[str, str]) -> tuple[int, int]:
    """Return rank and number of ranks by RANK and WORLD_SIZE, or else by a Slurm array.

    Example:
        >>> rank_of({"RANK": "1", "WORLD_SIZE": "4"})
        (1, 4)
        >>> rank_of({"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_MIN": "5", "SLURM_ARRAY_TASK_COUNT": "3"})
        (2, 3)
    """
    array = [f"SLURM_ARRAY_TASK_{name}" for name in ("ID", "COUNT", "MIN")]
    try:
        if "RANK" in variables:
            rank, ranks = int(variables["RANK"]), int(variables.get("WORLD_SIZE", "1"))
        else:
            number, count, first = variables[array[0]], variables.get(array[1], "1"), variables.get(array[2], "0")
            rank, ranks = int(number) - int(first), int(count)
    except (KeyError, ValueError):
        rank, ranks = -1, 0
    if not 0 <= rank < ranks:
        named = [f"{name}={variables[name]}" for name in ("RANK", "WORLD_SIZE", *array) if name in variables]
        raise InputError(
            f"engine ranks: got {', '.join(named) or 'no rank in the environment'}; expected RANK from 0 to WORLD_SIZE "
            "- 1, or SLURM_ARRAY_TASK_ID of an array of consecutive tasks; fix: start it with torchrun or as a Slurm "
            "array such as --array=0-7, or set RANK and WORLD_SIZE yourself"
        )
    return rank, ranks


class PlaceSettings(Settings):
    """The machines that share the work."""

    engine: Literal["local", "ranks", "ray"] = "local"
    """Engine. local: all work runs on this machine; ranks: this process does its share, and other processes of a
    launcher (torchrun, a Slurm array) do theirs; ray: Ray runs the processes, on this machine or on a cluster."""
    address: Annotated[str | None, Flag(metavar="HOST:PORT")] = None
    """Address of the Ray cluster; auto finds the cluster of this machine. null: Ray starts on this machine alone."""

    @model_validator(mode="after")
    def _only_ray_has_an_address(self) -> Self:
        if self.address is not None and self.engine != "ray":
            raise ValueError(f"address: got it with engine {self.engine}; expected engine ray; fix: --engine ray")
        return self

    def engine_of(self, processes: int | None) -> Engine:
        """Return the engine for this number of concurrent processes; None means as many as fit."""
        if self.engine == "ranks":
            return Engine(processes, *rank_of(os.environ))
        if (size := launched_number("WORLD_SIZE", 1)) > 1:
            raise InputError(
                f"engine {self.engine}: got WORLD_SIZE={size}, processes of a launcher that would all do the same "
                "work; expected one; fix: --engine ranks, or start it without the launcher"
            )
        if self.engine == "ray":
            engine: Engine = resolve_name("bixse.ray_engine:RayEngine")(processes, self.address)
            return engine
        return Engine(processes)


class EngineSettings(PlaceSettings):
    """The number of shards and processes.

    Example:
        >>> EngineSettings(processes=1).chosen_engine().processes
        1
    """

    shards: int | None = Field(default=None, ge=1)
    """Approximate number of shards; null means as few as possible."""
    processes: int = Field(default=1, ge=1)
    """Number of processes on this machine, or on the Ray cluster. Each works on one shard at a time. The GPUs that
    CUDA_VISIBLE_DEVICES names are assigned to them in turn."""

    @property
    def in_shards(self) -> bool:
        """Return True if a setting asks for several processes or shards."""
        return self.engine != "local" or self.shards is not None or self.processes > 1

    def chosen_engine(self) -> Engine:
        return self.engine_of(self.processes)
