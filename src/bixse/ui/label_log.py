"""The file of people's labels: read once, added to one fsynced line at a time, each event once."""

from __future__ import annotations

import json
import os
import threading
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from bixse.errors import InputError, InvalidFileError
from bixse.files.files import alone_in, append_line, storage_errors
from bixse.files.rows import read_rows
from bixse.files.values import FileColumn
from bixse.judging.audit.labels import LABELS, LabelStatus, Word, agreed_grade, standing_words

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from bixse.judging.audit.labels import PairIds

COLUMNS = (
    *(FileColumn(name, "id") for name in ("query_id", "document_id")),
    *(FileColumn(name) for name in ("event", "person", "time", "status")),
    *(FileColumn(name, needed=False) for name in ("explanation", "undoes", "seen", "shows")),
    *(FileColumn(name, "number", needed=False) for name in ("grade", "seconds", "probability")),
)


@dataclass(frozen=True)
class LabelEvent(Word):
    """One thing a person said, or took back."""

    event: str
    """Its name; the same one twice is the same event."""
    person: str
    query_id: str
    document_id: str
    status: LabelStatus
    grade: float | None = None
    """Grade on the rubric's scale."""
    explanation: str | None = None
    seconds: float | None = None
    """Seconds from the page's appearance, or the person's last event, to this one."""
    probability: float | None = None
    """Probability that the pair was drawn; where fewer were labelled only the ratios between pairs matter."""
    undoes: str | None = None
    """The event that no longer counts."""
    seen: str | None = None
    """"judge" where the person had seen the judge's grade of the pair before; see `LabelLog.shown_to`."""
    shows: str | None = None
    """"judge" where the page then showed the judge's grades: with this event the query was complete."""
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))


class LabelLog:
    """All events of a file, and the labels that are valid after them."""

    def __init__(self, path: Path) -> None:
        """Read a file, or begin one; see `open_labels`."""
        self.path = path
        self.events: list[LabelEvent] = []
        self._lock = threading.Lock()
        self._names: set[str] = set()
        if path.exists():
            _set_torn_line_apart(path)
        if path.exists() and path.stat().st_size:
            errors = InvalidFileError(path)
            for number, row in read_rows(path, COLUMNS, errors):
                self._take(LabelEvent(**row))
                if row["status"] in LABELS and row["grade"] is None:
                    errors.add(number, "grade", "nothing", f"a grade with the status {row['status']!r}", "correct it")
            errors.raise_any()
        self.words = standing_words(self.events)
        """Pair -> person -> the event that counts."""

    def _take(self, event: LabelEvent) -> None:
        if event.event not in self._names:
            self._names.add(event.event)
            self.events.append(event)

    def add(self, event: LabelEvent) -> bool:
        """Write an event to the disk; return False if the file had it already. On a StorageError it does not count."""
        line = json.dumps({name: value for name, value in asdict(event).items() if value is not None})
        with self._lock:
            if event.event in self._names:
                return False
            append_line(self.path, line)
            self._take(event)
            if event.undoes is not None:
                self.words = standing_words(self.events)
                return True
            words, person = dict(self.words.get(event.pair, {})), "" if event.status == "final" else event.person
            words.pop(person, None)
            self.words = {**self.words, event.pair: {**words, person: event}}
            return True

    @property
    def independent(self) -> Mapping[PairIds, Mapping[str, LabelEvent]]:
        """`words` as they were before people saw the judge's grades: for whatever measures agreement."""
        if not any(event.seen for event in self.events):
            return self.words
        return standing_words(event for event in self.events if not event.seen)

    def grades(self, independent: bool = False) -> dict[PairIds, float]:
        """Pair -> the one grade that counts, of all labels or of the `independent` ones."""
        words_of = self.independent if independent else self.words
        found = ((pair, agreed_grade(words)) for pair, words in words_of.items())
        return {pair: grade for pair, grade in found if grade is not None}

    def shown_to(self, person: str) -> set[PairIds]:
        """Pairs whose judge's grade a person has seen: those that were answered when their query was complete."""
        answered: dict[str, set[PairIds]] = {}
        shown: set[PairIds] = set()
        for event in self.events:
            if event.person == person and event.status in ("graded", "cannot-tell"):
                answered.setdefault(event.query_id, set()).add(event.pair)
                if event.shows:
                    shown |= answered[event.query_id]
        return shown

    def last_of(self, person: str) -> LabelEvent | None:
        """The newest event of a person that was neither undone nor undoes one."""
        undone = {event.undoes for event in self.events}
        own = (event for event in reversed(self.events) if event.person == person)
        return next((event for event in own if event.undoes is None and event.event not in undone), None)

    def people(self) -> Mapping[str, int]:
        """Person -> pairs with a grade of theirs."""
        counts: dict[str, int] = {}
        for words in self.words.values():
            for person, word in words.items():
                counts[person] = counts.get(person, 0) + (word.status == "graded")
        return {person: count for person, count in counts.items() if count and person}


@contextmanager
def open_labels(path: Path) -> Iterator[LabelLog]:
    """The labels of a file, which no other process writes meanwhile.

    Raises:
        InvalidFileError: a line is damaged; the last one, cut short by a power failure, is set apart in `FILE.torn`.
        OutputExistsError: another server has it.
    """
    if path.suffix != ".jsonl":
        raise InputError(f"--labels: got {path}; expected a name that ends in .jsonl; fix: rename it")
    lock = f".{path.name}.lock"
    with alone_in(path.parent, lock, fix="open the page of the `bixse ui` that has it, or end that one with Ctrl-C"):
        yield LabelLog(path)


def _set_torn_line_apart(path: Path) -> None:
    """Move a line that was cut short to FILE.torn: no page said that it was saved, so its browser sends it again."""
    content = path.read_bytes()
    kept = content.rfind(b"\n") + 1
    torn = content[kept:]
    if not torn:
        return
    try:
        whole = isinstance(json.loads(torn), dict)
    except ValueError:
        whole = False
    with storage_errors(path):
        if whole:  # edited by hand
            with path.open("ab") as file:
                file.write(b"\n")
            return
        with path.with_name(f"{path.name}.torn").open("ab") as file:
            file.write(torn + b"\n")
            os.fsync(file.fileno())
        os.truncate(path, kept)
