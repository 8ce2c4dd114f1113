"""Which places of a ranking are taken: pure choice, decided by the seed, the query and its documents alone."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

Strategy = Literal["spread", "top", "hard-negatives", "one"]
"""How the documents of a query are chosen.

spread: a quarter from the top, the rest drawn one from each of log-spaced bands of ranks, so that all grades occur;
top: the best; hard-negatives: the best that are not known; one: a single document from a band drawn at random.
"""
SINGLE_BANDS = 7
"""Bands that the strategy "one" draws from: 1, 2-3, 4-6, 7-13, 14-26, 27-51, 52-100 for 100 candidates."""


def choose(strategy: Strategy, document_ids: Sequence[str], count: int, seed: int, query_id: str) -> list[int]:
    """Positions of the documents to take, from 0, rising; all where there are no more than `count`. "one" takes one.

    Draws compare SHA-256 hashes of seed, query id and document id, the smallest is taken. So the choice depends on
    nothing else: no other query, no order of queries, no version of a random generator.

    Example:
        >>> ids = [f"d{rank}" for rank in range(1, 101)]
        >>> [position + 1 for position in choose("spread", ids, 8, seed=0, query_id="q1")]
        [1, 2, 3, 9, 15, 25, 43, 97]
    """
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
    """Cut the positions `first` to `end` - 1, from 0, into bands whose lengths grow by a constant factor in rank.

    Each holds one position at least: `count` is 1 to `end - first`.

    Example:
        >>> [(band[0] + 1, band[-1] + 1) for band in log_bands(2, 100, 6)]
        [(3, 4), (5, 9), (10, 16), (17, 30), (31, 55), (56, 100)]
    """
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
    """The band that a rank is counted in for a table: 1, 2-3, 4-10, 11-30, 31-100, 101-300, ..."""
    low, high = 1, 1
    while rank > high:
        low, high = high + 1, high * 3 if str(high)[0] == "1" else high // 3 * 10
    return str(low) if low == high else f"{low}-{high}"


def _drawn(band: range, document_ids: Sequence[str], seed: int, query_id: str) -> int:
    return min(band, key=lambda position: _hash(seed, query_id, document_ids[position]))


def _hash(*parts: int | str) -> str:
    return hashlib.sha256(json.dumps(parts).encode("utf-8")).hexdigest()
