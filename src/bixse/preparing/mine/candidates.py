"""Candidates of a query: the rankings of several retrievers fused into one, each text once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from bixse.data.trec import ranked

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

RRF_CONSTANT = 60
"""k of reciprocal rank fusion, the value of Cormack, Clarke and Büttcher 2009 (doi:10.1145/1571941.1572114)."""


@dataclass(frozen=True)
class Candidate:
    """A document that retrievers found for a query."""

    document_id: str
    rank: int
    """Place in the fused ranking, from 1; what is left out later leaves a gap."""
    found_by: Mapping[str, int]
    """Retriever -> place in its own ranking, from 1, of those that found it."""

    @property
    def source(self) -> str:
        """Which retrievers found it and where, as the column `source` holds it."""
        return ",".join(f"{label}:{rank}" for label, rank in self.found_by.items())


@dataclass(frozen=True)
class NewCandidates:
    """The candidates of a query that may be chosen, best first, and how many were left out and why."""

    candidates: Sequence[Candidate]
    known: int
    """Left out: known pairs, and copies of a known document's text."""
    copies: int
    """Left out: the same text as a better candidate, or as the query itself."""


def fuse(answers: Mapping[str, Mapping[str, float]], depth: int) -> list[Candidate]:
    """Fuse the answers of several retrievers to one query by reciprocal rank, best first, to `depth` places.

    A document scores the sum of 1 / (60 + rank) over the retrievers that found it (Cormack et al. 2009). Equal sums
    are ordered by document id descending, as trec_eval orders ties. `answers`: retriever -> document id -> score.

    Example:
        >>> found = fuse({"bm25": {"a": 9.0, "b": 8.0}, "demo": {"b": 0.7, "c": 0.6}}, depth=2)
        >>> [(candidate.document_id, candidate.source) for candidate in found]
        [('b', 'bm25:2,demo:1'), ('a', 'bm25:1')]
    """
    ranks: dict[str, dict[str, int]] = {}
    for label, scores in answers.items():
        for rank, document_id in enumerate(ranked(scores)[:depth], start=1):
            ranks.setdefault(document_id, {})[label] = rank
    sums = {
        document_id: math.fsum(1 / (RRF_CONSTANT + rank) for rank in found.values())
        for document_id, found in ranks.items()
    }
    best = sorted(ranks, key=lambda document_id: (sums[document_id], document_id), reverse=True)[:depth]
    return [Candidate(document_id, rank, ranks[document_id]) for rank, document_id in enumerate(best, start=1)]


def keep_new(
    candidates: Sequence[Candidate], query: str, corpus: Mapping[str, bytes], known: Collection[str] = ()
) -> NewCandidates:
    """Leave out known documents, the query's own text, and texts that a better candidate has, white space aside.

    `corpus`: document id -> `text_key` of its text, of the candidates and the known documents.
    """
    known_texts = {corpus[document_id] for document_id in known if document_id in corpus}
    seen = {text_key(query)}
    kept = []
    count_known = 0
    for candidate in candidates:
        text = corpus[candidate.document_id]
        if candidate.document_id in known or text in known_texts:
            count_known += 1
        elif text not in seen:
            kept.append(candidate)
            seen.add(text)
    return NewCandidates(kept, count_known, len(candidates) - len(kept) - count_known)


def text_key(text: str) -> bytes:
    """The same for texts that differ in white space alone, and for no others."""
    return blake2b(" ".join(text.split()).encode("utf-8"), digest_size=16).digest()
