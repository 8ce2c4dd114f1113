"""The candidates of a query: the rankings of several retrievers fused into one, and the documents selected from it.

Seed, query and documents alone decide the selection.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bixse.relevance import ranked

RRF_CONSTANT = 60
"""k of reciprocal rank fusion, the value of Cormack, Clarke and Büttcher 2009 (doi:10.1145/1571941.1572114)."""
Strategy = Literal["spread", "top", "one"]
"""The way to select the documents of a query.

spread takes a quarter from the top, and one document from each of log-spaced bands of ranks, so that all grades
occur. top takes the best, one a single document from a random band.
"""
SINGLE_BANDS = 7
"""The number of bands for the strategy "one": 1, 2-3, 4-6, 7-13, 14-26, 27-51, 52-100 for 100 candidates."""


@dataclass(frozen=True)
class Candidate:
    """A document that retrievers found for a query."""

    document_id: str
    rank: int
    """Rank in the fused ranking, from 1. Documents left out later leave a gap."""
    ranks: Mapping[str, int]
    """Retriever -> rank in its own ranking, from 1."""

    @property
    def source(self) -> str:
        """Return the retrievers and their ranks in the form of the column `source`."""
        return ",".join(f"{label}:{rank}" for label, rank in self.ranks.items())


def fuse(answers: Mapping[str, Mapping[str, float]], depth: int) -> list[Candidate]:
    """Fuse `answers` (retriever -> document id -> score) to one query by reciprocal rank; return the best `depth`."""
    ranks: dict[str, dict[str, int]] = {}
    for label, scores in answers.items():
        for rank, document_id in enumerate(ranked(scores)[:depth], start=1):
            ranks.setdefault(document_id, {})[label] = rank
    # Cormack et al. 2009: the sum of 1 / (60 + rank) over the retrievers that found the document.
    sums = {
        document_id: math.fsum(1 / (RRF_CONSTANT + rank) for rank in labels.values())
        for document_id, labels in ranks.items()
    }
    # Equal sums are ordered by document id descending, as trec_eval orders ties.
    best = sorted(ranks, key=lambda document_id: (sums[document_id], document_id), reverse=True)[:depth]
    return [Candidate(document_id, rank, ranks[document_id]) for rank, document_id in enumerate(best, start=1)]


def keep_new(
    candidates: Sequence[Candidate], query: str, corpus: Mapping[str, bytes], known: Collection[str] = ()
) -> tuple[list[Candidate], dict[str, int]]:
    """Return the candidates that may be selected, best first, and the numbers of the others.

    `known` counts known documents and copies of their texts, `copies` the texts (`corpus`: id -> `text_key`) that equal
    the query or a better candidate.
    """
    known_texts = {corpus[document_id] for document_id in known if document_id in corpus}
    seen = {text_key(query)}
    new = []
    count_known = 0
    for candidate in candidates:
        text = corpus[candidate.document_id]
        if candidate.document_id in known or text in known_texts:
            count_known += 1
        elif text not in seen:
            new.append(candidate)
            seen.add(text)
    return new, {"known": count_known, "copies": len(candidates) - len(new) - count_known}


def text_key(text: str) -> bytes:
    """Return a key that texts share if and only if they differ in white space alone."""
    # 128 bits: among 10^9 texts, two share a key with a probability of about 10^-21.
    return hashlib.blake2b(" ".join(text.split()).encode("utf-8"), digest_size=16).digest()


def choose(strategy: Strategy, document_ids: Sequence[str], count: int, seed: int, query_id: str) -> list[int]:
    """Return ascending positions, from 0, of the selected documents: at most `count`, one for the strategy "one"."""
    available = len(document_ids)
    if not available:
        return []
    if strategy == "one":
        bands = log_bands(0, available, min(SINGLE_BANDS, available))
        band = bands[int(_hash(seed, query_id), 16) % len(bands)]
        return [_drawn(band, document_ids, seed, query_id)]
    if strategy != "spread" or available <= count:
        return list(range(min(count, available)))
    top = max(1, count // 4)
    bands = log_bands(top, available, count - top) if count > top else []
    return [*range(top), *(_drawn(band, document_ids, seed, query_id) for band in bands)]


def log_bands(first: int, end: int, count: int) -> list[range]:
    """Cut positions `first` to `end` - 1, from 0, into `count` bands, not empty, that grow by a constant factor."""
    factor = ((end + 1) / (first + 1)) ** (1 / count)
    bands = []
    start = first
    for number in range(1, count + 1):
        ideal = round((first + 1) * factor**number) - 1
        stop = end if number == count else min(max(ideal, start + 1), end - (count - number))
        bands.append(range(start, stop))
        start = stop
    return bands


def rank_band(rank: int) -> str:
    """Return the band in which a table counts a rank: 1, 2-3, 4-10, 11-30, 31-100, 101-300, ..."""
    low, high = 1, 1
    while rank > high:
        low, high = high + 1, high * 3 if str(high)[0] == "1" else high // 3 * 10
    return str(low) if low == high else f"{low}-{high}"


def _drawn(band: range, document_ids: Sequence[str], seed: int, query_id: str) -> int:
    # Only hashes of seed, query and document decide: no other query, no order, no version of a random generator.
    return min(band, key=lambda position: _hash(seed, query_id, document_ids[position]))


def _hash(*parts: int | str) -> str:
    return hashlib.sha256(json.dumps(parts).encode("utf-8")).hexdigest()
