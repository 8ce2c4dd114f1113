"""The ledger: every answer of a judge, kept so that no question is paid for twice."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Generic

from typing_extensions import TypeVar

from bixse.errors import InputError
from bixse.judging.judge import Answer, Completion
from bixse.judging.ledgers.segments import OPEN, Claim, StoredRow, make_folder, new_lines, sealed_rows, segments_of
from bixse.judging.ledgers.writers import OwnSegment, claims_count, seal_left

LOOK_FREE = 2e-3  # a request takes 50 ms and more; a slow CPU takes 0.3 ms for a look at a few files
"""Seconds of a look at the other processes' files, up to which a look precedes every claim."""
LOOK_PAUSE = 20.0
"""Seconds of pause after a look, per second of the look beyond `LOOK_FREE`."""
LOOK_AFTER = 1.0
"""Longest pause between two looks, and between two listings of an unchanged folder, in seconds."""

Record = TypeVar("Record", bound=Answer | Completion, default=Answer)


class Ledger(Generic[Record]):
    """Answers of judges, or texts of a model, under the hash of their question (`Question.key`).

    A ledger is a folder, which processes may share, also over a network. Each process adds to its own segment, and
    seals it as Parquet at the end. An answer is written the moment it arrives, so a killed process loses only the
    requests in flight. A later answer can replace an answer without a grade; the first is kept too.

    A process claims each question before it asks it, and reads what the others have added before that. The claims of
    an ended process do not count. A claim may be seen up to a second later, on a network file system up to a minute;
    two processes that claim the same question within that time both get it.

    A path that is no ledger, or a damaged segment, is an InputError. Memory holds only requested and own answers.

    Example:
        >>> import tempfile
        >>> with Ledger(Path(tempfile.mkdtemp()) / "ledger") as ledger:
        ...     asked = ledger.claim("key of a question")
        ...     ledger.write("key of a question", Answer("graded", "verbal", grade=2.0))
        ...     asked, ledger.find("key of a question").grade
        (True, 2.0)
    """

    def __init__(self, path: str | Path, kind: type[Record] = Answer) -> None:  # type: ignore[assignment]
        self.path, self._kind = Path(path), kind
        make_folder(self.path)
        self._known: dict[str, StoredRow] = {}
        self._looked_for: set[str] = set()
        self._read: dict[Path, int] = {}
        """Bytes read of each open segment; 0 for a sealed segment that was read."""
        self._claimed: defaultdict[str, set[Path]] = defaultdict(set)
        """Key -> segments of the writers that claim it."""
        self._others: list[Path] = []
        """Segments to read at each look."""
        self._listed, self._next_list, self._next_look, self._look_takes = 0, 0.0, 0.0, 1e-4
        self._segment_rows: list[StoredRow] = []
        self._open_segment: OwnSegment | None = None

    def load(self, keys: Iterable[str]) -> None:
        """Prepare to find these keys: one search for all is far faster than one per key."""
        if wanted := set(keys) - self._looked_for:
            # all files are read from the start again: lines of these keys were skipped before
            read = {} if self._looked_for else self._read
            # a segment that another process seals now is read again under its new name
            while left := [path for path in self._segments() if path not in read]:
                self._read_lines(left, wanted, read)
            self._looked_for |= wanted

    def find(self, key: str) -> Record | None:
        if key not in self._looked_for:
            self.load([key])
        row = self._known.get(key)
        answer: Record | None = None if row is None else self._kind.from_json(row.answer)  # type: ignore[assignment]
        return answer

    def claim(self, key: str) -> bool:
        """Claim a question for this process; return False if another living process is asking it."""
        segment = self._segment()  # fails here if the folder cannot be written, before an answer is paid
        segment.add(Claim(key, True))  # before the look: of two claims at once, one sees the other, if looks are fast
        self._look()
        if any(map(claims_count, self._claimed.get(key, ()))):
            segment.add(Claim(key, False))
            return False
        return True

    def write(
        self, key: str, answer: Record, query_id: str = "", document_id: str = "", variant: str = "", repeat: int = 0
    ) -> None:
        """Write an answer and release its claim."""
        names = (query_id, document_id, variant)  # half a surrogate pair, which JSON may bring, is no UTF-8
        query_id, document_id, variant = (text.encode("utf-8", "replace").decode() for text in names)
        status, mode, text = answer.status, answer.mode, answer.to_json()
        row = StoredRow(key, query_id, document_id, variant, repeat, status, mode, text, time.time())
        self._segment().add(row)
        self._segment_rows.append(row)
        self._take(row)

    def give_back(self, key: str) -> None:
        self._segment().add(Claim(key, False))

    def close(self) -> None:
        """Seal the own segment, and the segments of killed processes."""
        if self._open_segment is not None and self._open_segment.is_mine:
            self._open_segment.close(self._segment_rows)
            seal_left(self.path)
        self._open_segment, self._segment_rows = None, []

    def __enter__(self) -> Ledger[Record]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _segment(self) -> OwnSegment:
        # in a forked child the segment is its parent's
        if self._open_segment is not None and not self._open_segment.is_mine:
            self._open_segment, self._segment_rows = None, []
        # another process seals it if this one halts longer than the lease
        if self._open_segment is None or not self._open_segment.is_there:
            self._open_segment = OwnSegment(self.path)
            for row in self._segment_rows:
                self._open_segment.add(row)
        return self._open_segment

    def _segments(self) -> list[Path]:
        mine = None if self._open_segment is None else self._open_segment.path
        return [path for path in segments_of(self.path) if path != mine]

    def _look(self) -> None:
        """Read the claims and answers that other processes have added since the last look."""
        if (began := time.monotonic()) < self._next_look:
            return
        changed = self.path.stat().st_mtime_ns
        if changed != self._listed or began >= self._next_list:  # one clock tick may hold two changes of a folder
            self._others = [path for path in self._segments() if path.suffix == OPEN or path not in self._read]
            self._listed, self._next_list = changed, began + LOOK_AFTER
        self._read_lines(self._others, self._looked_for, self._read)
        now = time.monotonic()
        self._look_takes = min(now - began, 2 * self._look_takes)  # a look that had to wait for the CPU counts little
        self._next_look = now + min(LOOK_AFTER, LOOK_PAUSE * max(0.0, self._look_takes - LOOK_FREE))

    def _read_lines(self, segments: Iterable[Path], wanted: AbstractSet[str], read: dict[Path, int]) -> None:
        """Take the lines after the bytes counted in `read` from open segments, and the rows of new sealed ones."""
        sealed = []
        for path in segments:
            if path.suffix != OPEN:
                sealed += [path] if path not in read else []
                continue
            try:
                for line in new_lines(path, wanted, read):
                    if isinstance(line, Claim):
                        (self._claimed[line.key].add if line.holds else self._claimed[line.key].discard)(path)
                    else:
                        self._claimed[line.key].discard(path)
                        self._take(line)
            except (FileNotFoundError, InputError):
                if path.exists():  # else another process sealed it
                    raise
        if sealed:
            for row in sealed_rows(sealed, wanted):
                self._take(row)
            read |= dict.fromkeys(sealed, 0)

    def _take(self, row: StoredRow) -> None:
        known = self._known.get(row.key)
        if known is None or row.rank >= known.rank:
            self._known[row.key] = row
