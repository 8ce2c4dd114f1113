"""What a ledger stores of an answer, and who wrote it."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable

FORMAT = 1
"""Of ledgers of both kinds."""
LEASE = 900.0
"""Seconds after which a process on another machine counts as gone, unless it says that it works."""
USABLE = ("graded", "written")
"""Statuses of answers that are not asked again."""


class StoredRow(NamedTuple):
    """One answer; SQLite's columns, and those of a segment, in this order."""

    key: str
    query_id: str
    document_id: str
    variant: str
    repeat: int
    status: str
    mode: str
    answer: str
    """As JSON."""
    written: float
    """Seconds since 1970."""

    @property
    def rank(self) -> tuple[bool, float]:
        """Of several answers to one question that with the highest stands: a usable one, then the latest."""
        return self.status in USABLE, self.written


def this_process() -> str:
    """Machine, number and start of this process."""
    return f"{socket.gethostname()}/{os.getpid()}/{started(os.getpid())}"


def is_living(owner: str, written: float) -> bool:
    """Whether a process, as `this_process` names it, lives on this machine, or its lease on another has not run out."""
    host, process, start = owner.rsplit("/", 2)
    if host != socket.gethostname():
        return time.time() - written < LEASE
    return started(int(process)) == start


def started(process: int) -> str:
    """When a process of this machine started; "" where there is none."""
    try:
        return f"{psutil.Process(process).create_time():.2f}"
    except psutil.Error:
        return ""


class AnswerStore(Protocol):
    """What a `bixse.grading.ledger.Ledger` keeps its answers in; its methods are those of the ledger."""

    def load(self, keys: Iterable[str]) -> None: ...
    def find(self, key: str) -> str | None: ...
    def claim(self, key: str) -> bool: ...
    def write(self, row: StoredRow) -> None: ...
    def give_back(self, key: str) -> None: ...
    def release(self) -> None: ...
    def renew(self) -> None: ...
    def close(self) -> None: ...
    def __len__(self) -> int: ...
