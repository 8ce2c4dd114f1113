"""People's labels as `bixse ui` keeps them: a file of events that is only ever added to, and what of it stands.

One line of JSON per event: `event` (its name), `person`, `time`, `seconds`, `query_id`, `document_id`, `status`,
`grade`, `explanation`, `probability`, `undoes`, `shows` and `seen`. Of each person the last event about a pair that was
not undone counts. An event with `seen` "judge" was written after its person saw the judge's grade of the pair: it is no
independent opinion, and whatever measures agreement reads the events without it.
"""

from __future__ import annotations

from statistics import median_low
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LabelStatus: TypeAlias = Literal["graded", "final", "cannot-tell", "skipped", "undone"]
"""graded: a person's grade; final: the grade that was settled where people differ; the others are no labels."""
LABELS: tuple[LabelStatus, ...] = ("graded", "final")


class Word(Protocol):
    """What an event says, apart from its words."""

    @property
    def event(self) -> str | None: ...
    @property
    def person(self) -> str | None: ...
    @property
    def pair(self) -> tuple[str, str]: ...
    @property
    def status(self) -> str | None: ...
    @property
    def grade(self) -> float | None: ...
    @property
    def undoes(self) -> str | None: ...
    @property
    def seen(self) -> str | None: ...


WordType = TypeVar("WordType", bound=Word)


def standing_words(events: Iterable[WordType]) -> dict[tuple[str, str], dict[str, WordType]]:
    """Pair -> person -> the last event of that person that was not undone, in the order of the pairs' first events.

    A settled grade is that of the person "" (whoever settled it), so that it replaces nobody's own.
    """
    events = list(events)
    undone = {event.undoes for event in events if event.undoes}
    found: dict[tuple[str, str], dict[str, WordType]] = {}
    for event in events:
        if event.status != "undone" and (event.event is None or event.event not in undone):
            words = found.setdefault(event.pair, {})
            person = "" if event.status == "final" else event.person or ""
            words.pop(person, None)
            words[person] = event
    return found


def agreed_grade(words: Mapping[str, Word]) -> float | None:
    """One grade for a pair: the settled one, else the median of people's, of the middle two the lower; None without.

    The lower one, since "relevant" is the stronger claim, and a mean is no grade of an ordinal scale.
    """
    final = words.get("")
    if final is not None and final.status == "final":
        return final.grade
    grades = [word.grade for word in words.values() if word.status == "graded" and word.grade is not None]
    return median_low(grades) if grades else None
