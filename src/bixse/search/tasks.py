"""The tasks of a search: a corpus, judged queries, and the rules of scoring."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress, islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from bixse.data.joined import Unjoined, check_joined
from bixse.relevance import MIN_RELEVANT_GRADE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bixse.relevance import Qrels, Ranking

RunBlocks: TypeAlias = "Iterator[tuple[str, Ranking]]"
"""The name of a query set and the run of a block of its queries, one block after the other."""
CountStep: TypeAlias = Callable[[int], None] | None
"""A function that gets the number of documents since its last call, or None."""
QUERIES_PER_BLOCK = 4096
"""Number of queries whose answers are dictionaries at once; an index is read once per block."""


@dataclass(frozen=True)
class QuerySet:
    """Judged queries over a corpus."""

    name: str
    queries: Mapping[str, str]
    qrels: Qrels
    left_out: frozenset[str] = frozenset()
    """Documents that are not searched."""
    candidates: Mapping[str, Sequence[str]] | None = None
    """Query id -> documents to rank; None: the complete corpus."""
    group: str | None = None
    """The query sets of a group count as one in the mean of a suite. None makes a separate group."""


@dataclass(frozen=True)
class Task:
    """A corpus, streamed and never held in memory, and its query sets."""

    name: str
    documents: Callable[[], Iterator[tuple[str, str]]]
    """A function that yields id and text of each document, in a fixed order."""
    count: int
    query_sets: tuple[QuerySet, ...]
    exclude_self: bool = False
    min_relevant_grade: float = MIN_RELEVANT_GRADE
    instructions: tuple[str, ...] = ()
    """Names of the task in a model's table of instructions; the first known name is used."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings for the record of a run; "collection" is a path that `inputs` stands for."""
    warnings: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    """Warnings of ids: judgements left out, and unjudged copies of relevant documents."""
    is_part: bool = False
    """True if the task has only a part of its corpus: a run of the complete corpus names other documents too."""

    @cached_property
    def id_hashes(self) -> NDArray[np.int64]:
        """Hashes of all document ids: 8 bytes per document, read once for all run files."""
        return np.fromiter((hash(name) for name, _ in self.documents()), np.int64)

    def known(self, names: AbstractSet[str]) -> set[str]:
        """Return the names that are documents of the corpus."""
        hashes = np.fromiter(map(hash, names), np.int64, len(names))
        return set(compress(names, np.isin(hashes, self.id_hashes)))

    def check_known(self, label: str, run: Ranking) -> None:
        """Raise InvalidFileError for documents of a run that the corpus lacks."""
        names = {name for hits in run.values() for name in hits}
        lost = Unjoined.of("documents that the corpus lacks", sorted(names), self.known(names))
        check_joined(label, [lost], "answer with ids of the corpus that is searched", every=True)


def query_blocks(queries: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield queries in blocks of `QUERIES_PER_BLOCK`, in their order."""
    rest = iter(queries.items())
    while block := dict(islice(rest, QUERIES_PER_BLOCK)):
        yield block


def best_of(run: Ranking, depth: int, left_out: AbstractSet[str], exclude_self: bool) -> dict[str, dict[str, float]]:
    """Return the first `depth` documents per query that are not left out; `exclude_self` leaves out the query's id."""
    best: dict[str, dict[str, float]] = {}
    for query, hits in run.items():
        skipped = {query} if exclude_self else frozenset[str]()
        names = (name for name in hits if name not in left_out and name not in skipped)
        best[query] = {name: hits[name] for name in islice(names, depth)}
    return best
