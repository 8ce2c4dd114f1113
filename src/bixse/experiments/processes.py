"""Work over several processes or devices, each process with its share of the processor's cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from bixse.encoders.encode import cores
from bixse.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

Task = TypeVar("Task")
Result = TypeVar("Result")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
"""Environment variables that numerical libraries read their number of threads from."""
PATIENCE = 120.0
"""Seconds that processes have to write a checkpoint when they are told to stop."""
MOST_JOBS = 8
"""Processes at once where nobody says how many: each loads the libraries and a model."""


def done_by_processes(
    tasks: Iterable[Task], do: Callable[[Task], Result], jobs: int | None
) -> Iterator[tuple[Task, Result | None]]:
    """Each task with its result, as they come; what `do` raises ends all.

    With one job this process works through them. Else (None: one per GPU, or one per core up to `MOST_JOBS`)
    each process has cores / jobs threads and, where there are graphics cards, one of them. A process that dies (out of
    memory) takes its task alone with it: the task is tried once more when all others are done, by itself, and if it
    dies again its result is None. At Ctrl-C the processes are told to stop, and waited for.
    """
    devices = visible_devices() if jobs != 1 else []
    most = max(cores(), len(devices))
    wanted = jobs if jobs is not None else len(devices) or min(cores(), MOST_JOBS)
    if not 1 <= wanted <= most:
        raise InputError(
            f"jobs: got {wanted}; expected 1 to {most}, the cores or graphics cards there are; "
            "fix: more processes only get in each other's way"
        )
    if wanted == 1:
        for task in tasks:
            yield task, do(task)
        return
    died: list[Task] = []
    yield from _spread(iter(tasks), do, wanted, devices, died.append)
    lost: list[Task] = []
    yield from _spread(iter(died), do, 1, devices, lost.append)
    yield from ((task, None) for task in lost)


def visible_devices() -> list[str]:
    """Graphics cards as CUDA_VISIBLE_DEVICES names them; none without CUDA."""
    import torch

    if not torch.cuda.is_available():
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]


class _Worker:
    """One process that does one task at a time: a pool of its own, so that its death concerns no other."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment
        context = multiprocessing.get_context("spawn")
        with _environment(environment):
            self.pool = ProcessPoolExecutor(1, context, _begin, (os.getpid(),))
            try:
                self.process = self.pool.submit(os.getpid).result()
            except BrokenProcessPool as error:
                raise InputError(
                    "processes: got one that died at its start; expected it to work; fix: a script calls this below "
                    "`if __name__ == '__main__':`, or jobs=1"
                ) from error

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.process, number)


def _spread(
    tasks: Iterator[Task],
    do: Callable[[Task], Result],
    jobs: int,
    devices: Sequence[str],
    lose: Callable[[Task], object],
) -> Iterator[tuple[Task, Result]]:
    """Tasks with their results; a task whose process died goes to `lose`, and a new process takes the next one."""
    threads = dict.fromkeys(THREAD_VARIABLES, str(max(1, cores() // jobs)))
    free: list[Mapping[str, str]] = [
        threads | ({"CUDA_VISIBLE_DEVICES": devices[n % len(devices)]} if devices else {}) for n in range(jobs)
    ]
    idle: list[_Worker] = []
    busy: dict[Future[Result], tuple[_Worker, Task]] = {}
    try:
        while True:
            while (idle or free) and (task := next(tasks, None)) is not None:
                worker = idle.pop() if idle else _Worker(free.pop(0))
                busy[worker.pool.submit(do, task)] = worker, task
            if not busy:
                return
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                worker, task = busy.pop(future)
                if isinstance(future.exception(), BrokenProcessPool):
                    free.append(worker.environment)
                    worker.pool.shutdown()
                    lose(task)
                    continue
                idle.append(worker)
                yield task, future.result()
    except BaseException:
        for worker, _ in busy.values():
            worker.send(signal.SIGINT)
        wait(busy, timeout=PATIENCE)
        for future, (worker, _) in busy.items():
            if not future.done():
                worker.send(signal.SIGKILL)
        raise
    finally:
        for worker in (*idle, *(worker for worker, _ in busy.values())):
            worker.pool.shutdown(cancel_futures=True)


def _begin(parent: int) -> None:
    """The start of a process: a session of its own (the parent passes Ctrl-C on), and an end with its parent."""
    with suppress(OSError):
        os.setsid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Processes started inside see these environment variables."""
    before = dict(os.environ)
    os.environ |= values
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]
        os.environ |= before
