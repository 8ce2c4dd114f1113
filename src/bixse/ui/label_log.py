"""The file of people's labels, read once. Each event is then added once, as one fsynced line."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from bixse.audit.labels import LABELS, LabelStatus, PairIds, Word, agreed_grade, last_events
from bixse.errors import InputError, InvalidFileError
from bixse.files.files import alone_in, append_line, storage_errors
from bixse.files.rows import read_rows
from bixse.files.values import FileColumn

COLUMNS = (
    *(FileColumn(name, "id") for name in ("query_id", "document_id")),
    *(FileColumn(name) for name in ("event", "person", "time", "status")),
    *(FileColumn(name, needed=False) for name in ("explanation", "plan", "undoes", "seen", "shows")),
    *(FileColumn(name, "number", needed=False) for name in ("grade", "seconds", "probability")),
)


@dataclass(frozen=True)
class LabelEvent(Word):
    """A label of a person, or the undoing of a label."""

    event: str
    """Name of the event; two lines with the same name are one event."""
    person: str
    query_id: str
    document_id: str
    status: LabelStatus
    grade: float | None = None
    """Grade on the rubric's scale."""
    explanation: str | None = None
    seconds: float | None = None
    """Seconds since the page appeared or since the person's last event, whichever came later."""
    probability: float | None = None
    """Probability that the pair was drawn; if people stop early, only the ratios between pairs are valid."""
    plan: str | None = None
    """Plan by which the pair was drawn; probabilities of two plans do not compare."""
    undoes: str | None = None
    """Name of the event that no longer counts."""
    seen: str | None = None
    """The word "judge" if the person saw the judge's grade of the pair before; see `LabelLog.shown_to`."""
    shows: str | None = None
    """The word "judge" if this event completed the query: the page then showed the judge's grades."""
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))


class LabelLog:
    """All events of a file, and the labels that are valid after them."""

    def __init__(self, path: Path) -> None:
        """Read a file, or begin a new one; see `open_labels`."""
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
                try:
                    datetime.fromisoformat(row["time"])
                except ValueError:
                    errors.add(number, "time", row["time"], "a date and time in ISO 8601", "correct it")
            errors.raise_any()
        self.words = last_events(self.events)
        """Pair -> person -> the event that counts."""

    def _take(self, event: LabelEvent) -> None:
        if event.event not in self._names:
            self._names.add(event.event)
            self.events.append(event)

    def add(self, event: LabelEvent) -> bool:
        """Write an event to the disk; return False if the file has it. After a StorageError it does not count."""
        line = json.dumps({name: value for name, value in asdict(event).items() if value is not None})
        with self._lock:
            if event.event in self._names:
                return False
            append_line(self.path, line)
            self._take(event)
            # a new dictionary: other threads iterate over the old one, and `Workspace.agreement` compares identities
            self.words = last_events(self.events)
            return True

    @property
    def independent(self) -> Mapping[PairIds, Mapping[str, LabelEvent]]:
        """`words` from labels before people saw the judge's grade; every measure of agreement uses these."""
        return last_events(event for event in self.events if not event.seen)

    def grades(self, independent: bool = False) -> dict[PairIds, float]:
        """Pair -> the grade that counts, from all labels or from the `independent` labels."""
        words_of = self.independent if independent else self.words
        graded = ((pair, agreed_grade(words)) for pair, words in words_of.items())
        return {pair: grade for pair, grade in graded if grade is not None}

    def grade_of(self, pair: PairIds, person: str) -> float | None:
        word = self.words.get(pair, {}).get(person)
        return None if word is None else word.grade

    def shown_to(self, person: str) -> set[PairIds]:
        """Pairs whose judge's grade a person saw: the pairs answered when their query became complete."""
        answered: dict[str, set[PairIds]] = {}
        shown: set[PairIds] = set()
        for event in self.events:
            if event.person == person and event.status in ("graded", "cannot-tell"):
                answered.setdefault(event.query_id, set()).add(event.pair)
                if event.shows:
                    shown |= answered[event.query_id]
        return shown

    def last_of(self, person: str) -> LabelEvent | None:
        """The newest event of a person, without undone events and events that undo."""
        undone = {event.undoes for event in self.events}
        events = (event for event in reversed(self.events) if event.person == person)
        return next((event for event in events if event.undoes is None and event.event not in undone), None)

    def people(self) -> Mapping[str, int]:
        """Person -> number of pairs that the person graded."""
        words = (item for words in self.words.values() for item in words.items())
        return Counter(person for person, word in words if person and word.status == "graded")


@contextmanager
def open_labels(path: Path) -> Iterator[LabelLog]:
    """Lock and read labels; raise InvalidFileError for a damaged line, OutputExistsError if a server has the lock."""
    if path.suffix != ".jsonl":
        raise InputError(f"--labels: got {path}; expected a file name that ends in .jsonl; fix: rename the file")
    lock = f".{path.name}.lock"
    with alone_in(path.parent, lock, fix="use the page of the running `bixse ui`, or end that server with Ctrl-C"):
        yield LabelLog(path)


def _set_torn_line_apart(path: Path) -> None:
    """Move a line that a power failure cut short to FILE.torn: no page reported it as saved, so it is sent again."""
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    torn = content[end:]
    if not torn:
        return
    with suppress(ValueError):
        if isinstance(json.loads(torn), dict):
            append_line(path, "")  # a file edited by hand, without a final newline
            return
    append_line(path.with_name(f"{path.name}.torn"), torn.decode(errors="replace"))
    with storage_errors(path):
        os.truncate(path, end)
