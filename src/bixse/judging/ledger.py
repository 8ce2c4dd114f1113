"""The ledger: every answer of a judge, kept for good, so that no question is paid for twice."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Generic

from typing_extensions import TypeVar

from bixse.judging.judge import Answer, Completion
from bixse.judging.ledgers.segment_answers import SegmentAnswers
from bixse.judging.ledgers.sqlite_answers import SqliteAnswers, StoredRow

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType


Kept = TypeVar("Kept", bound=Answer | Completion, default=Answer)
"""What a ledger keeps."""


class Ledger(Generic[Kept]):
    """Answers of judges, or texts of a model, under the hash of their question (`Question.key`).

    An answer is written the moment it arrives, so a process that is killed loses only the requests in flight. An answer
    without a grade can be replaced by a later one; the first is kept too. A ledger is one of two things:

    - One SQLite file, on a disk of this machine.
    - A folder, where `path` is one: for machines that share it, also over a network. Each process writes a file of its
      own, and reads those of the others before it claims a question.

    Processes that share a ledger claim each question before they ask it; the claims of a process that is gone count no
    longer. In a folder a claim may be seen up to a second later, on a network file system up to a minute; two
    processes that claim the same question within that time both get it. An InputError tells what is no ledger, damaged
    or of a later version.

    Example:
        >>> import tempfile
        >>> with Ledger(Path(tempfile.mkdtemp()) / "ledger.sqlite") as ledger:
        ...     asked = ledger.claim("key of a question")
        ...     ledger.write("key of a question", Answer("graded", "verbal", grade=2.0))
        ...     asked, ledger.find("key of a question").grade
        (True, 2.0)
    """

    def __init__(self, path: str | Path, kind: type[Kept] = Answer) -> None:  # type: ignore[assignment]
        self.path, self._kind = Path(path), kind
        self.store = SegmentAnswers(self.path) if self.path.is_dir() else SqliteAnswers(self.path)

    def load(self, keys: Iterable[str]) -> None:
        """Tell which keys will be looked for: in a folder they are found together, one by one takes long."""
        self.store.load(keys)

    def find(self, key: str) -> Kept | None:
        text = self.store.find(key)
        kept: Kept | None = None if text is None else self._kind.from_json(text)  # type: ignore[assignment]
        return kept

    def claim(self, key: str) -> bool:
        """Take a question for this process; False where another living process is asking it."""
        return self.store.claim(key)

    def write(
        self, key: str, answer: Kept, query_id: str = "", document_id: str = "", variant: str = "", repeat: int = 0
    ) -> None:
        """Keep an answer and give its claim back."""
        row = (key, query_id, document_id, variant, repeat, answer.status, answer.mode, answer.to_json(), time.time())
        self.store.write(StoredRow(*row))

    def give_back(self, key: str) -> None:
        self.store.give_back(key)

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Ledger[Kept]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
