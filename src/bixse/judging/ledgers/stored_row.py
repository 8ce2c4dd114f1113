"""What a ledger stores of an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

FORMAT = 1
"""Of ledgers of both kinds."""
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


class AnswerStore(Protocol):
    """What a `bixse.judging.ledger.Ledger` keeps its answers in; its methods are those of the ledger."""

    def load(self, keys: Iterable[str]) -> None: ...
    def find(self, key: str) -> str | None: ...
    def claim(self, key: str) -> bool: ...
    def write(self, row: StoredRow) -> None: ...
    def give_back(self, key: str) -> None: ...
    def close(self) -> None: ...
    def __len__(self) -> int: ...
