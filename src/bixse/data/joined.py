"""Count what a join of ids leaves without a partner: one sentence and one rule for every verb that joins."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Set
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bixse.errors import InvalidFileError, shorten

if TYPE_CHECKING:
    from bixse.relevance import Qrels, Ranking

MOST_UNJOINED = 0.5
"""Largest share of ids without a partner that is a warning; above it two files do not belong together."""
DROP_MISSING = '--missing-documents drop, in Python missing_documents="drop"'
JOIN_FIX = f"give parts of one collection, or drop the ids that are gone (documents: {DROP_MISSING})"
EXAMPLES = 3
"""Number of ids without a partner that are named."""


@dataclass(frozen=True)
class Unjoined:
    """The number of ids with one fault, of all ids of their side of a join.

    Example:
        >>> str(Unjoined("judged documents that the corpus lacks", 58, 63, "killall_1"))
        "58 of 63 judged documents that the corpus lacks, for example 'killall_1'"
    """

    what: str
    """The ids and their fault, as a noun in the plural."""
    count: int
    total: int
    example: object = ""
    """An id with the fault, or a tuple of several."""
    effect: str = ""
    """A sentence on what then happens to these ids, for the warning."""

    @classmethod
    def of(cls, what: str, ids: Collection[Any], known: Container[Any], effect: str = "") -> Unjoined:
        """Count the `ids` that are not `known`."""
        lost = [name for name in ids if name not in known]
        return cls(what, len(lost), len(ids), tuple(lost[:EXAMPLES]), effect)

    def __str__(self) -> str:
        examples = self.example if isinstance(self.example, tuple) else (self.example,)
        return f"{self.count:,} of {self.total:,} {self.what}, for example {', '.join(map(shorten, examples))}"

    @property
    def warning(self) -> str:
        return f"{self}{'; ' * bool(self.effect)}{self.effect}"

    @property
    def is_most(self) -> bool:
        """Return True if the fault is that of more than half of the ids."""
        return self.count > MOST_UNJOINED * self.total


def check_joined(
    where: str | Path, parts: Iterable[Unjoined], fix: str, allowed: bool = False, every: bool = False
) -> list[str]:
    """Return a warning per part with a fault; raise InvalidFileError for faults of most ids, unless `allowed`.

    With `every`, a fault of a single id is refused.
    """
    errors, parts = InvalidFileError(Path(where)), tuple(parts)
    for part in parts:
        if part.count and not allowed and (every or part.is_most):
            errors.add(None, None, str(part), "ids of the same collection and split", fix)
    errors.raise_any()
    return warn_of(where, *parts)


def warn_of(where: str | Path, *parts: Unjoined) -> list[str]:
    """Return a warning per part with a fault."""
    return [f"{Path(where).name}: {part.warning}" for part in parts if part.count]


def unjoined_judgements(qrels: Qrels, queries: Container[str], missing: Set[str]) -> tuple[Unjoined, Unjoined]:
    """Return the judged queries that are not in `queries`, and the judged documents that are `missing`."""
    documents = dict.fromkeys(name for judged in qrels.values() for name in judged)
    return (
        Unjoined.of("judged queries that the queries lack", qrels, queries),
        Unjoined.of("judged documents that the corpus lacks", documents, documents.keys() - missing),
    )


def without_relevant(qrels: Qrels) -> Unjoined:
    """Return the judged queries that no mean can count, since they have no relevant document."""
    relevant = {query for query, judged in qrels.items() if any(grade > 0 for grade in judged.values())}
    return Unjoined.of("judged queries without a relevant document", qrels, relevant, "the means leave them out")


def unanswered(queries: Collection[str], run: Ranking) -> Unjoined:
    """Return the queries of a mean for which a run has no document."""
    answered = {query for query in queries if run.get(query)}
    return Unjoined.of("queries without an answer", queries, answered, "they count as 0")


def doubt_ranks(where: str | Path, contradicted: Collection[str], run: Ranking) -> list[str]:
    """Return a warning of the queries that `read_run` found to have ranks of another order than their scores."""
    what, effect = "queries with ranks that contradict their scores", "the scores count, as in trec_eval"
    return warn_of(where, Unjoined.of(what, run, run.keys() - set(contradicted), effect))


class QueryCounts(NamedTuple):
    """The number of queries of a mean, and what it leaves out; as text for a heading.

    Example:
        >>> str(QueryCounts(4, 1, 2)), str(QueryCounts(1))
        ('4 queries; 1 without a relevant document left out; 2 unanswered count as 0', '1 query')
    """

    counted: int = 0
    left_out: int = 0
    unanswered: int = 0

    def __str__(self) -> str:
        parts = [f"{self.counted:,} {'query' if self.counted == 1 else 'queries'}"]
        parts += [f"{self.left_out:,} without a relevant document left out"] * bool(self.left_out)
        parts += [f"{self.unanswered:,} unanswered count{'s' * (self.unanswered == 1)} as 0"] * bool(self.unanswered)
        return "; ".join(parts)


class Twins:
    """The search for documents with the text of a relevant one that nobody judged: they count as irrelevant.

    Texts are equal if they differ in white space alone. Memory holds 8 bytes per document.
    """

    def __init__(self, *splits: Qrels) -> None:
        judged = (row for qrels in splits for row in qrels.values())
        self._relevant = {name for row in judged for name, grade in row.items() if grade > 0}
        self._keys = array("q")
        self._key_of: dict[str, int] = {}

    def see(self, name: str, text: str) -> None:
        """Take the next document of the corpus."""
        words = text.split()
        self._keys.append(hash(" ".join(words)))
        if words and name in self._relevant:
            self._key_of[name] = self._keys[-1]

    def count(self, qrels: Qrels, names: Callable[[], Iterator[str]]) -> Unjoined:
        """Count the twins of a split; `names` yields the ids of all documents again, which only twins need."""
        keys = set(self._key_of.values())
        alike = [row for row, key in enumerate(self._keys) if key in keys]
        twins: dict[str, None] = {}
        if len(alike) > len(keys):
            by_key: dict[int, list[str]] = {}
            wanted = set(alike)
            for row, name in enumerate(islice(names(), alike[-1] + 1)):
                if row in wanted:
                    by_key.setdefault(self._keys[row], []).append(name)
            for query, judged in qrels.items():
                for name in (name for name, grade in judged.items() if grade > 0 and name in self._key_of):
                    same = by_key[self._key_of[name]]
                    twins.update(dict.fromkeys(twin for twin in same if twin not in judged and twin != query))
        what = "documents with the text of a relevant one but without a judgement"
        return Unjoined(what, len(twins), len(self._keys), next(iter(twins), ""), "they count as irrelevant")
