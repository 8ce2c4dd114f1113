"""Draws that depend on a seed and on content alone: the parts of a split, and the cut of a large collection."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from heapq import nsmallest
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bixse.errors import SEEDS, InputError
from bixse.relevance import normal_form

if TYPE_CHECKING:
    from bixse.relevance import Qrels

ROUNDING = 1e-9  # tolerance of sums and cutoffs: grade 4.6 on 1 to 5 is 0.8999999999999999


def check_shares(shares: Mapping[str, float], seed: int) -> None:
    """Refuse shares of a split that are no shares, and a seed out of range."""
    total = math.fsum(shares.values())
    if not shares or not all(0 < share <= 1 for share in shares.values()) or abs(total - 1) > ROUNDING:
        got = ", ".join(f"{name}={share:g}" for name, share in shares.items()) or "no part"
        raise InputError(
            f"shares of a split: got {got}; expected shares above 0 that add up to 1; "
            "fix: for example train=0.8 dev=0.1 test=0.1"
        )
    if not 0 <= seed < SEEDS:
        raise InputError(f"split: got seed {seed}; expected 0 to {SEEDS - 1}; fix: leave it out for 0")


def part_numbers(keys: NDArray[np.uint64], shares: Mapping[str, float], seed: int) -> NDArray[np.intp]:
    """Return (M,) positions among the shares; rows of one key are in one part, whatever the order of the shares."""
    names = sorted(shares)
    ends = np.cumsum([shares[name] for name in names])[:-1]
    part = np.searchsorted(ends, unit_numbers(draws(seed, "split", keys)), side="right")
    return np.array([list(shares).index(name) for name in names])[part]


def split_queries(
    judged: Qrels, queries: Mapping[str, str], shares: Mapping[str, float], seed: int
) -> dict[str, Qrels]:
    """Divide judged queries by their normalised texts; refuse a part without a query that has a relevant document."""
    check_shares(shares, seed)
    keys = np.fromiter((hashed(normal_form(queries[name])) for name in judged), np.uint64, len(judged))
    numbers, names = part_numbers(keys, shares, seed).tolist(), list(shares)
    parts: dict[str, dict[str, Mapping[str, float]]] = {name: {} for name in names}
    for (query, grades), number in zip(judged.items(), numbers, strict=True):
        parts[names[number]][query] = grades
    counts = {name: sum(max(row.values(), default=0) > 0 for row in part.values()) for name, part in parts.items()}
    if not all(counts.values()):
        raise InputError(
            f"split: got {', '.join(f'{name} {count}' for name, count in counts.items())} of {sum(counts.values())} "
            "queries with a relevant document; expected at least one per part; fix: label more queries, make the share "
            "larger, or choose another seed"
        )
    return dict(parts)


def hashed(text: str) -> int:
    """Return 64 bits for a text, the start of its BLAKE2b."""
    # Lone surrogates, which a table in memory may hold, cannot be encoded otherwise.
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def draws(seed: int, purpose: str, *keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return (M,) uniform 64-bit numbers that depend on seed, purpose and (M,) keys, not on the other rows."""
    drawn = np.full(len(keys[0]), hashed(f"{purpose}/{seed}"), dtype=np.uint64)
    for key in keys:
        drawn = _mixed(drawn ^ key)
    return drawn


def unit_numbers(numbers: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return 64-bit numbers as numbers in [0, 1), by their upper 53 bits."""
    return (numbers >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finaliser of SplitMix64 (Steele, Lea and Flood 2014): each input bit affects each output bit."""
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


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
