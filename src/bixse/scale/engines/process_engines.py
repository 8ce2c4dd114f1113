"""Engines of processes: `local` starts them on this machine; `ranks` is one of n that a launcher started.

Each process of `local` has its share of the cores and GPUs. Each rank does every n-th shard.
"""

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
from bixse.scale.engines.job import Ended, Engine, Job, attempt, check_pickles

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from bixse.scale.engines.job import Result, Shard


THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
"""Environment variables from which numerical libraries read their number of threads."""
PATIENCE = 120.0
"""Seconds for processes to write a checkpoint after they are told to stop."""
MOST_PROCESSES = 8
"""Default limit of concurrent processes: each loads the libraries and a model."""
DIED = "its process died, most likely for want of memory"
"""Error of a shard whose process ended without a message."""
_job: Job[Any, Any]
"""Job of this process of a pool."""
_kept: list[Any] = []
"""Worker state of this process of a pool, once its first shard has come."""


class LocalEngine(Engine):
    """An engine that does shards in this process if one process is enough, else in several others of this machine.

    Each process has cores / processes threads and `num_gpus` GPUs (0: one if there are any). `processes` None means
    one per GPU, or one per core up to `MOST_PROCESSES`. A process that dies (out of memory) loses its shard alone. At
    Ctrl-C processes are told to stop, and waited for. An InputError refuses more processes or GPUs than exist.
    """

    def __init__(self, processes: int | None = None, num_gpus: int = 0) -> None:
        self._devices = visible_devices() if processes != 1 or num_gpus else []
        if num_gpus > len(self._devices):
            raise InputError(
                f"num_gpus: got {num_gpus}; expected at most {len(self._devices)}, the graphics cards there are; "
                "fix: leave it out to compute on the processor"
            )
        most = max(cores(), len(self._devices))
        fitting = len(self._devices) // max(1, num_gpus) or min(cores(), MOST_PROCESSES)
        self.processes = processes if processes is not None else fitting
        if not 1 <= self.processes <= most:
            raise InputError(
                f"processes: got {processes}; expected 1 to {most}, the cores or graphics cards there are; "
                "fix: more processes only get in each other's way"
            )
        self._each = max(1, num_gpus)
        self.here = self.processes == 1

    def attempts(
        self, job: Job[Shard, Result], shards: Iterator[Shard], kept: Any, alone: bool
    ) -> Iterator[Ended[Shard, Result]]:
        if self.processes > 1:
            yield from _spread(job, shards, 1 if alone else self.processes, self._devices, self._each)
            return
        for shard in shards:
            kept = job.setup() if kept is None else kept
            yield attempt(job, shard, kept)


def visible_devices() -> list[str]:
    """Return the GPUs as CUDA_VISIBLE_DEVICES names them; none without CUDA."""
    import torch

    if not torch.cuda.is_available():
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]


class _Worker:
    """A process that does one shard at a time, in a pool of its own, so that its death affects no other process."""

    def __init__(self, job: Job[Any, Any], environment: Mapping[str, str]) -> None:
        self.environment = environment
        context = multiprocessing.get_context("spawn")  # CUDA does not work in a forked process
        with _environment(environment):
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
    job: Job[Shard, Result], shards: Iterator[Shard], processes: int, devices: Sequence[str], each: int
) -> Iterator[Ended[Shard, Result]]:
    """Yield shards as they end; after a process dies, a new process takes the next shard."""
    check_pickles(job)
    threads = dict.fromkeys(THREAD_VARIABLES, str(max(1, cores() // processes)))
    cards = [",".join(devices[start : start + each]) for start in range(0, len(devices) - each + 1, each)]
    free: list[Mapping[str, str]] = [
        threads | ({"CUDA_VISIBLE_DEVICES": cards[n % len(cards)]} if cards else {}) for n in range(processes)
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
                    free.append(worker.environment)
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
    if not _kept:
        _kept.append(_job.setup())
    return attempt(_job, shard, _kept[0])


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for processes that start inside the block."""
    before = dict(os.environ)
    os.environ |= values
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]
        os.environ |= before


LAUNCHED = re.compile(r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)")
"""Environment variables by which a launcher tells processes that they belong to one job."""


class RanksEngine(LocalEngine):
    """An engine that does shards i, i + n, i + 2 n, ... as rank i of n; completion markers show other ranks' shards."""

    def __init__(self, processes: int | None = 1, num_gpus: int = 0) -> None:
        super().__init__(processes, num_gpus)
        self.rank, self.number = rank_of(os.environ)
        self.shared = self.number > 1

    def share(self, shards: Iterable[Shard]) -> Iterable[Shard]:
        return islice(shards, self.rank, None, self.number)


@contextmanager
def without_launcher() -> Iterator[None]:
    """Hide the launcher from libraries inside the block: each rank does its shards independently."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if LAUNCHED.fullmatch(name)}
    try:
        yield
    finally:
        os.environ |= hidden


def rank_of(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return rank and number of ranks by RANK and WORLD_SIZE, or a Slurm array; with both, ranks count within tasks.

    Example:
        >>> rank_of({"RANK": "1", "WORLD_SIZE": "4"})
        (1, 4)
        >>> rank_of({"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_MIN": "5", "SLURM_ARRAY_TASK_COUNT": "3"})
        (2, 3)
    """
    array = {name: environment.get(f"SLURM_ARRAY_TASK_{name}") for name in ("ID", "COUNT", "MIN", "STEP")}
    launched = {name: environment.get(name) for name in ("RANK", "WORLD_SIZE")}
    if array["ID"] is None and launched["RANK"] is None:
        raise InputError(
            "engine ranks: got no rank in the environment; expected RANK and WORLD_SIZE, or SLURM_ARRAY_TASK_ID and "
            "SLURM_ARRAY_TASK_COUNT; fix: start it with torchrun or as a Slurm array, or set RANK (0, 1, ...) and "
            "WORLD_SIZE yourself"
        )
    try:
        within, size = int(launched["RANK"] or 0), int(launched["WORLD_SIZE"] or 1)
        step = int(array["STEP"] or 1)
        task, tasks = (int(array["ID"] or 0) - int(array["MIN"] or 0)) // step, int(array["COUNT"] or 1)
    except (ValueError, ZeroDivisionError):
        within, size, task, tasks = -1, 0, -1, 0
    if not (0 <= within < size and 0 <= task < tasks):
        found = {**launched, **{f"SLURM_ARRAY_TASK_{name}": value for name, value in array.items()}}
        said = ", ".join(f"{name}={value}" for name, value in found.items() if value is not None)
        raise InputError(
            f"engine ranks: got {said}; expected ranks from 0 on below WORLD_SIZE, or an array of evenly spaced tasks; "
            "fix: give each process its own RANK, or the array a range such as --array=0-7"
        )
    return task * size + within, tasks * size
