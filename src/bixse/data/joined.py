"""Count what a join of ids leaves without a partner: one sentence and one rule for every verb that joins."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bixse.errors import InvalidFileError, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Set

    from bixse.relevance import Qrels, Ranking

MOST_UNJOINED = 0.5
"""Largest share of ids without a partner that is a warning; above it two files do not belong together."""


@dataclass(frozen=True)
class Unjoined:
    """The number of ids with one fault, of all ids of their side of a join.

    Example:
        >>> str(Unjoined("judged documents are not in the corpus", 58, 63, "killall_1"))
        '58 of 63 judged documents are not in the corpus, for example killall_1'
    """

    what: str
    """The ids and their fault, in words."""
    count: int
    total: int
    example: object = ""

    @classmethod
    def of(cls, what: str, ids: Collection[Any], known: Container[Any]) -> Unjoined:
        """Count the `ids` that are not `known`."""
        lost = [name for name in ids if name not in known]
        return cls(what, len(lost), len(ids), next(iter(lost), ""))

    def __str__(self) -> str:
        shown = shorten(self.example)
        shown = shown[1:-1] if isinstance(self.example, str) else shown
        return f"{self.count:,} of {self.total:,} {self.what}, for example {shown}"

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
    errors, warnings = InvalidFileError(Path(where)), []
    for part in parts:
        if part.count and not allowed and (every or part.is_most):
            errors.add(None, None, str(part), "ids of the same collection and split", fix)
        elif part.count:
            warnings.append(f"{Path(where).name}: {part}")
    errors.raise_any()
    return warnings


def unjoined_judgements(qrels: Qrels, queries: Container[str], missing: Set[str]) -> tuple[Unjoined, Unjoined]:
    """Return the judged queries that are not in `queries`, and the judged documents that are `missing`."""
    documents = dict.fromkeys(name for judged in qrels.values() for name in judged)
    return (
        Unjoined.of("judged queries are not among the queries", qrels, queries),
        Unjoined.of("judged documents are not in the corpus", documents, documents.keys() - missing),
    )


def unjoined_labels(judge: str, judged: Collection[Any], labelled: Collection[Any]) -> Unjoined:
    """Return the pairs of the smaller side, a judge's or people's, that the other side lacks."""
    if len(judged) < len(labelled):
        return Unjoined.of(f"pairs of {judge} have no human label", judged, labelled)
    return Unjoined.of(f"human labels are of pairs that {judge} lacks", labelled, judged)


def without_relevant(qrels: Qrels) -> Unjoined:
    """Return the judged queries that no mean can count, since they have no relevant document."""
    relevant = {query for query, judged in qrels.items() if any(grade > 0 for grade in judged.values())}
    return Unjoined.of("judged queries have no relevant document and are left out of the means", qrels, relevant)


def unanswered(queries: Collection[str], run: Ranking) -> Unjoined:
    """Return the queries of a mean for which a run has no document."""
    answered = {query for query in queries if run.get(query)}
    return Unjoined.of("queries have no answer and count as 0", queries, answered)


def doubt_ranks(where: str | Path, contradicted: Collection[str], run: Ranking) -> list[str]:
    """Return a warning of the queries that `read_run` found to have ranks of another order than their scores."""
    what = "queries have ranks that contradict their scores, which count, as in trec_eval"
    return check_joined(where, [Unjoined.of(what, run, run.keys() - set(contradicted))], "", allowed=True)


def query_counts(counted: int, left_out: int, without_answer: int = 0) -> str:
    """Return the number of queries of a mean for a heading, and what it leaves out.

    Example:
        >>> query_counts(4, 1, 2)
        '4 queries; 1 without a relevant document left out; 2 unanswered count as 0'
    """
    parts = [f"{counted:,} queries", f"{left_out:,} without a relevant document left out" * bool(left_out)]
    return "; ".join(filter(None, [*parts, f"{without_answer:,} unanswered count as 0" * bool(without_answer)]))


class Twins:
    """The search for documents with the text of a relevant one that nobody judged: they count as irrelevant.

    Texts are equal if they differ in white space alone. Memory holds 8 bytes per document.
    """

    def __init__(self, qrels: Qrels) -> None:
        self._qrels = qrels
        self._relevant = {name for judged in qrels.values() for name, grade in judged.items() if grade > 0}
        self._keys = array("q")
        self._key_of: dict[str, int] = {}

    def see(self, name: str, text: str) -> None:
        """Take the next document of the corpus."""
        words = text.split()
        self._keys.append(hash(" ".join(words)))
        if words and name in self._relevant:
            self._key_of[name] = self._keys[-1]

    def count(self, names: Callable[[], Iterator[str]]) -> Unjoined:
        """Count the twins; `names` yields the ids of all documents again, which only twins need."""
        what = "documents have the text of a relevant one but no judgement, and count as irrelevant"
        alike = np.flatnonzero(np.isin(np.array(self._keys), np.array(list(self._key_of.values()), dtype=np.int64)))
        twins: dict[str, None] = {}
        if len(alike) > len(set(self._key_of.values())):
            by_key: dict[int, list[str]] = {}
            wanted = set(alike.tolist())
            for row, name in enumerate(islice(names(), int(alike[-1]) + 1)):
                if row in wanted:
                    by_key.setdefault(self._keys[row], []).append(name)
            for query, judged in self._qrels.items():
                for name in (name for name, grade in judged.items() if grade > 0 and name in self._key_of):
                    same = by_key[self._key_of[name]]
                    twins.update(dict.fromkeys(twin for twin in same if twin not in judged and twin != query))
        return Unjoined(what, len(twins), len(self._keys), next(iter(twins), ""))
