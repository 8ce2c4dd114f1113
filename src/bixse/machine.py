"""The CPU cores of this process, work done ahead by a thread, and the rank and number of processes of a launcher."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from bixse.errors import InputError

T = TypeVar("T")
R = TypeVar("R")


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    # cpu_count() ignores taskset and the limits of batch schedulers; macOS and Windows have no affinity
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def launched_number(name: str, least: int) -> int:
    """Return a whole number that a launcher (torchrun, accelerate launch) sets in the environment, or `least`."""
    text = os.environ.get(name, str(least))
    if not text.isdecimal() or int(text) < least:
        raise InputError(
            f"{name}: got {text!r} in the environment; expected a whole number of at least {least}; "
            f"fix: unset {name}, or let a launcher set it"
        )
    return int(text)


def ahead(work: Callable[[T], R], items: Iterable[T], number: int = 2) -> Generator[R]:
    """Yield `work(item)` in order, while a thread works on the next `number` items; 0 means no thread.

    Errors of the thread are raised here. Close the generator (`contextlib.closing`) to end the thread at another error.
    """
    if number == 0:
        yield from map(work, items)
        return
    pool, pending = ThreadPoolExecutor(1, thread_name_prefix="bixse-ahead"), deque[Future[R]]()
    try:
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) > number:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
