"""An event loop in a thread of its own, so that requests go on while the caller works; usable from any caller."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
    from typing import Any

Item = TypeVar("Item")
Result = TypeVar("Result")
Entry = TypeVar("Entry")
_Done = tuple[Item, Result | None, Exception | None]
"""An item with its result, or with the error that came instead."""
LOOK_SECONDS = 1.0
"""How often a caller who waits for results looks whether there is still somebody to give them."""
CLOSING_SECONDS = 10.0
"""How long closing waits for what is being cancelled."""


class LoopThread:
    """Runs coroutines for callers that know nothing of them; works inside notebooks, which have a loop of their own.

    Example:
        >>> async def double(number):
        ...     return 2 * number
        >>> with LoopThread() as loop:
        ...     sorted(loop.stream([1, 2, 3], double, room=lambda: 2))
        [(1, 2), (2, 4), (3, 6)]
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="bixse-server-client", daemon=True)
        self._thread.start()
        self._stop = weakref.finalize(self, _stop, self._loop, self._thread)

    def __enter__(self) -> LoopThread:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._thread.is_alive()

    def run(self, coroutine: Coroutine[Any, Any, Result], seconds: float | None = None) -> Result:
        """Run one coroutine and wait for it; Ctrl-C cancels it.

        Raises:
            concurrent.futures.TimeoutError: it took longer than `seconds`.
        """
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(seconds)
        except BaseException:
            future.cancel()
            raise

    def stream(
        self, items: Iterable[Item], handle: Callable[[Item], Awaitable[Result]], room: Callable[[], int]
    ) -> Iterator[tuple[Item, Result]]:
        """Handle items at the same time and yield each with its result as it comes.

        The next item is taken, in the caller's thread, only while fewer than `room()` are being handled. An error of
        one item is raised after the results that are there already. Closing the generator, an error, or Ctrl-C cancels
        what is under way and waits until it is gone.
        """
        work: _Work[Item, Result] = _Work(self._loop, handle)
        source, more, under_way = iter(items), True, 0
        try:
            while True:
                if more and under_way < room():
                    try:
                        work.submit(next(source))
                    except StopIteration:
                        more = False
                        continue
                    under_way += 1
                    if work.done.empty():
                        continue
                elif not under_way:
                    return
                item, result, error = self._wait(work.done)
                under_way -= 1
                if error is not None:
                    rest = [work.done.get() for _ in range(work.done.qsize())]
                    yield from ((item, result) for item, result, failed in rest if failed is None)  # type: ignore[misc]
                    raise error
                yield item, result  # type: ignore[misc]
        finally:
            if under_way and self.alive:
                with contextlib.suppress(concurrent.futures.TimeoutError):
                    self.run(work.cancel(), CLOSING_SECONDS)

    def _wait(self, done: queue.SimpleQueue[Entry]) -> Entry:
        while True:
            try:
                return done.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                if not self.alive:
                    raise RuntimeError("the client was closed while it was in use") from None

    def close(self) -> None:
        """Stop the loop and wait for its thread."""
        self._stop()


class _Work(Generic[Item, Result]):
    """Items on their way into the loop and results on their way out."""

    def __init__(self, loop: asyncio.AbstractEventLoop, handle: Callable[[Item], Awaitable[Result]]) -> None:
        self._loop, self._handle = loop, handle
        self._entering: deque[Item] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self.done: queue.SimpleQueue[_Done[Item, Result]] = queue.SimpleQueue()

    def submit(self, item: Item) -> None:
        """Hand an item to the loop; called in the caller's thread."""
        self._entering.append(item)
        if len(self._entering) == 1:  # otherwise the loop has been told and has not come round yet
            self._loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        while self._entering:
            task = self._loop.create_task(self._one(self._entering.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _one(self, item: Item) -> None:
        try:
            self.done.put((item, await self._handle(item), None))
        except Exception as error:
            self.done.put((item, None, error))

    async def cancel(self) -> None:
        """Cancel what is under way and wait until it is gone."""
        pending = list(self._tasks)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    loop.close()


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    if thread.is_alive():
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSING_SECONDS)
