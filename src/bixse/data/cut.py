"""The cut of a collection: some queries, their judged passages, and other passages up to a number."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from heapq import nsmallest
from typing import TYPE_CHECKING, NamedTuple

from bixse.errors import InputError

if TYPE_CHECKING:
    from bixse.relevance import Qrels

QUERIES = 256
PASSAGES = 131_072
"""Number of queries and maximum number of passages in a cut task."""
SEED = 0


class Cut(NamedTuple):
    """The selected queries (in qrels order) and documents (in corpus order) of a task."""

    queries: tuple[str, ...]
    documents: tuple[str, ...]


def cut_collection(
    task: str, qrels: Qrels, document_ids: Iterable[str], queries: int = QUERIES, passages: int = PASSAGES
) -> Cut:
    """Select queries with a grade above 0, all their judged passages, and other passages up to `passages`.

    The smallest hashes of task name and id are selected: the result is the same on every machine.
    """

    def rank(identifier: str) -> bytes:
        return hashlib.sha256(f"{SEED} {task} {identifier}".encode()).digest()

    answerable = [query_id for query_id, judged in qrels.items() if any(grade > 0 for grade in judged.values())]
    chosen = set(nsmallest(queries, answerable, key=rank))
    judged = {document_id for query_id in chosen for document_id in qrels[query_id]}
    if len(judged) > passages:
        raise InputError(
            f"{task}: got {len(judged)} judged passages of {len(chosen)} queries; expected at most {passages}; "
            "fix: keep fewer queries or more passages"
        )
    corpus = list(document_ids)
    others = nsmallest(passages - len(judged), (name for name in corpus if name not in judged), key=rank)
    selected = judged.union(others)
    return Cut(tuple(name for name in qrels if name in chosen), tuple(name for name in corpus if name in selected))
