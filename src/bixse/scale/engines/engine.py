"""An engine does the shards of a job: in this process or in others of this machine, alone or as one rank of several."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from bixse.errors import InputError
from bixse.machine import cores
from bixse.scale.engines.job import Ended, Job, attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from bixse.scale.engines.job import Result, Shard


THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
"""Environment variables from which numerical libraries read their number of threads."""
LAUNCHED = re.compile(r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)")
"""Environment variables by which a launcher tells processes that they belong to one job."""
PATIENCE = 120.0
"""Seconds for processes to write a checkpoint after they are told to stop."""
MOST_PROCESSES = 8
"""Default limit of concurrent processes: each loads the libraries and a model."""
DIED = "its process died, most likely for want of memory"
"""Error of a shard whose process ended without a message."""
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
                f"processes: got {processes}; expected 1 to {most} (CPU cores or GPUs); fix: lower --processes"
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
        yield from self._attempts(job, iter(again), state, 1)  # one at a time has all of the memory

    def share(self, shards: Iterable[Shard]) -> Iterable[Shard]:
        """Return the shards that are this rank's to do."""
        return islice(shards, self.rank, None, self.ranks)

    def _attempts(
        self, job: Job[Shard, Result], shards: Iterator[Shard], state: Any, processes: int
    ) -> Iterator[Ended[Shard, Result]]:
        """Try each shard once."""
        if not self.here:
            yield from _spread(job, shards, processes, self._gpus)
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


class _Worker:
    """A process that does one shard at a time, in a pool of its own, so that its death affects no other process."""

    def __init__(self, job: Job[Any, Any], variables: Mapping[str, str]) -> None:
        self.variables = variables
        context = multiprocessing.get_context("spawn")  # CUDA does not work in a forked process
        with environment(variables):
            self.pool = ProcessPoolExecutor(1, context, _begin, (os.getpid(), job))
            try:
                self.process = self.pool.submit(os.getpid).result()
            except BrokenProcessPool as error:
                raise InputError(
                    "processes: got one that died at its start; expected it to work; fix: a script calls this below "
                    "`if __name__ == '__main__':`, or with one process"
                ) from error

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process, number)


def _spread(
    job: Job[Shard, Result], shards: Iterator[Shard], processes: int, gpus: Sequence[str]
) -> Iterator[Ended[Shard, Result]]:
    """Yield shards as they end; after a process dies, a new process takes the next shard."""
    threads = dict.fromkeys(THREAD_VARIABLES, str(max(1, cores() // processes)))
    free: list[Mapping[str, str]] = [
        threads | ({"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {}) for number in range(processes)
    ]
    idle: list[_Worker] = []
    busy: dict[Future[Ended[Shard, Result]], tuple[_Worker, Shard]] = {}
    nothing = object()
    try:
        while True:
            while (idle or free) and (shard := next(shards, nothing)) is not nothing:
                worker = idle.pop() if idle else _Worker(job, free.pop(0))
                busy[worker.pool.submit(_work, shard)] = worker, shard  # type: ignore[assignment]
            if not busy:
                return
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                worker, shard = busy.pop(future)
                if isinstance(future.exception(), BrokenProcessPool):
                    free.append(worker.variables)
                    worker.pool.shutdown()
                    yield Ended(shard, error=DIED)
                    continue
                idle.append(worker)
                yield future.result()
    except BaseException:
        for worker, _ in busy.values():
            worker.send(signal.SIGINT)  # lets a shard write its checkpoint
        wait(busy, timeout=PATIENCE)
        for future, (worker, _) in busy.items():
            if not future.done():
                worker.send(signal.SIGKILL)
        raise
    finally:
        for worker in (*idle, *(worker for worker, _ in busy.values())):
            worker.pool.shutdown(cancel_futures=True)


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
            number, ranks, first = (int(variables.get(name, "0")) for name in array)
            rank = number - first
    except ValueError:
        rank, ranks = -1, 0
    if not 0 <= rank < ranks:
        given = [f"{name}={variables[name]}" for name in ("RANK", "WORLD_SIZE", *array) if name in variables]
        raise InputError(
            f"engine ranks: got {', '.join(given) or 'no rank in the environment'}; expected RANK from 0 on below "
            "WORLD_SIZE, or SLURM_ARRAY_TASK_ID of an array of consecutive tasks; fix: start it with torchrun or as a "
            "Slurm array such as --array=0-7, or set RANK and WORLD_SIZE yourself"
        )
    return rank, ranks
