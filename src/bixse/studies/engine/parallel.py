"""Cells over several processes or devices, each with its share of the processor's cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from bixse.errors import InputError
from bixse.studies.engine.cells import Cell, CellResult, run_cell

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from bixse.studies.engine.inputs import StudyInputs

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
"""Environment variables that numerical libraries read their number of threads from."""
DIED = (
    "the process died: most likely for want of memory, or because a script that calls run_study has no "
    "`if __name__ == '__main__':`"
)
"""Why a cell failed whose process ended without a word."""
PATIENCE = 120.0
"""Seconds that processes have to write a checkpoint when they are told to stop."""
MOST_JOBS = 8
"""Processes at once where nobody says how many: each loads the libraries and a model."""


def cores() -> int:
    """Processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_jobs(devices: Sequence[str]) -> int:
    """A process a device, or a process a core up to `MOST_JOBS`."""
    return len(devices) or min(cores(), MOST_JOBS)


def visible_devices() -> list[str]:
    """Graphics cards as CUDA_VISIBLE_DEVICES names them; none without CUDA."""
    import torch

    if not torch.cuda.is_available():
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]


def run_cells(
    cells: Sequence[Cell],
    settings: Mapping[str, Any],
    inputs: StudyInputs | None,
    folder: Path,
    jobs: int | None = None,
    devices: Sequence[str] = (),
    keep_models: bool = False,
) -> Iterator[CellResult]:
    """The results of cells as they come.

    One process works through all cells where `jobs` is 1; else each process is a new one with cores / jobs threads and,
    where there are devices, one of them. A process that dies (out of memory) takes its cell with it: the cell is tried
    once more alone, then it has failed.

    Args:
        cells: what to do.
        settings: settings of training that all cells share.
        inputs: where pairs, collections and model are.
        folder: the folder of all cells.
        jobs: processes; None: one a device, or one a core.
        devices: graphics cards by CUDA's names.
        keep_models: leave trained models in their cells' folders.

    Raises:
        InputError: `jobs` below 1, or more than the cores.
        KeyboardInterrupt: Ctrl-C; the processes were told to stop, and have.
        InterruptedRunError: Ctrl-C with one job.
        StorageError: the disk is full.
    """
    wanted = default_jobs(devices) if jobs is None else jobs
    if not 1 <= wanted <= max(cores(), len(devices)):
        raise InputError(
            f"--jobs: got {wanted}; expected 1 to {max(cores(), len(devices))}, the cores there are; "
            "fix: more processes than cores only get in each other's way"
        )
    if wanted == 1:
        for cell in cells:
            yield run_cell(cell, settings, inputs, folder, keep_models)
        return
    rest = {"settings": settings, "inputs": inputs, "folder": folder, "keep_model": keep_models}
    waiting, again = deque(cells), deque[Cell]()
    with _few_threads(max(1, cores() // wanted)):
        while waiting:
            yield from _pooled(waiting, rest, wanted, devices, again)
        while again:
            cell = again[0]
            lost = deque[Cell]()
            yield from _pooled(deque([again.popleft()]), rest, 1, devices, lost)
            if lost:
                yield CellResult(cell.labels, cell.seed, "failed", DIED, fingerprint=cell.fingerprint)


def _pooled(
    waiting: deque[Cell], rest: Mapping[str, Any], jobs: int, devices: Sequence[str], lost: deque[Cell]
) -> Iterator[CellResult]:
    """Results of a pool of processes, until nothing waits or one of them dies; cells under way then go to `lost`."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    jobs = min(jobs, len(waiting))
    for number in range(jobs):
        queue.put(devices[number % len(devices)] if devices else None)
    pool = ProcessPoolExecutor(jobs, context, _begin, (queue, os.getpid()))
    running = dict[Future[CellResult], Cell]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running[pool.submit(run_cell, waiting[0], **rest)] = waiting[0]
                waiting.popleft()
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                found = future.result()
                del running[future]
                yield found
    except BrokenProcessPool:
        lost += running.values()
        _kill(pool)
    except BaseException:
        _stop(pool, running)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        queue.close()


def _kill(pool: ProcessPoolExecutor) -> None:
    """End the processes of a broken pool at once: one that trains takes SIGTERM for a wish to write a checkpoint."""
    for process in list((pool._processes or {}).values()):
        process.kill()


def _stop(pool: ProcessPoolExecutor, running: Mapping[Future[CellResult], Cell]) -> None:
    """Tell every process to stop after its checkpoint, as Ctrl-C does; end those that have not after a while."""
    for process in list((pool._processes or {}).values()):
        if process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGINT)
    wait(running, timeout=PATIENCE)
    _kill(pool)


def _begin(queue: Any, parent: int) -> None:
    """The start of a process: a session of its own (the parent passes Ctrl-C on), its device, and an end with it."""
    with suppress(OSError):
        os.setsid()
    if (device := queue.get()) is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _few_threads(count: int) -> Iterator[None]:
    """Processes started inside use this many threads."""
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ |= dict.fromkeys(THREAD_VARIABLES, str(count))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
