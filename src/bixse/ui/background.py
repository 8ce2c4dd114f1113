"""`BackgroundJob`: work in a thread, with its progress and its error."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from bixse.errors import BixseError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from bixse.progress import Step

log = logging.getLogger(__name__)


class NotReadyError(Exception):
    """A page needs a result of a job that is running; the server shows its progress, and loads the page again."""

    def __init__(self, job: BackgroundJob) -> None:
        super().__init__(job.status)


class BackgroundJob:
    """Work that starts with the constructor; pages read its progress, and after its end `result` or `error`."""

    def __init__(self, name: str, work: Callable[[BackgroundJob], Any]) -> None:
        self.name, self.doing, self.note, self.error = name, "waiting", "", ""
        self.done = self.total = 0
        self.result: Any = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)  # Ctrl-C does not wait for it
        self._thread.start()

    def _run(self, work: Callable[[BackgroundJob], Any]) -> None:
        try:
            self.result = work(self)
        except BixseError as error:
            self.error = str(error)
        except Exception as error:  # a thread has no caller that could report it
            log.exception("%s", self.name)
            self.error = f"{type(error).__name__}: {error}; the terminal shows more"

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def status(self) -> str:
        return f"{self.doing}: {self.done:,} of {self.total:,}" if self.total else self.doing

    def check(self) -> None:
        """Raise NotReadyError while the job is running, and InputError if it failed."""
        if self.is_running:
            raise NotReadyError(self)
        if self.error:
            raise InputError(self.error)

    def wait(self) -> BackgroundJob:
        self._thread.join()
        return self

    def begin(self, doing: str, total: int = 0) -> Step:
        """Begin a part of the work, and return the function that counts its steps."""
        self.doing, self.note, self.done, self.total = doing, "", 0, total

        def step(done: int, note: str = "", known: int = 0) -> None:
            self.done, self.note = self.done + done + known, note or self.note

        return step
