"""`PairColumns`: graded pairs without their texts, a few numbers per row, which is all that transforms look at."""

from __future__ import annotations

import hashlib
import unicodedata
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from bixse.data.graded_pairs import GradedPairs

Key: TypeAlias = Literal["query_id", "document_id", "task", "query", "document"]
"""What a row is compared by: ids and task as they are written, texts in their normal form (`normal_form`)."""
KEYS: tuple[Key, ...] = ("query_id", "document_id", "task", "query", "document")
"""All of them."""
NO_LABEL = -1
"""In `PairColumns.labels`: the relevance is nobody's grade."""


def normal_form(text: str) -> str:
    r"""A text as it is compared: NFKC, case folded, white space as one space.

    Example:
        >>> normal_form("  Copy\n a FOLDER "), normal_form(chr(0xFB01) + "le")
        ('copy a folder', 'file')
    """
    folded = text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
    return " ".join(folded.split())


def key_of(text: str) -> int:
    """64 bits that stand for a text: the start of its BLAKE2b; of ten million texts hardly ever two are equal.

    Example:
        >>> key_of("copy a folder") == key_of("copy a folder"), key_of("a") == key_of("b")
        (True, False)
    """
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


@lru_cache(maxsize=256)
def key_value(key: Key, value: str | None) -> int:
    """The number that stands for one cell; rows without a task share one that no name has."""
    if key in ("query", "document"):
        return key_of(normal_form(value or ""))
    return key_of(f"{value}") if value is not None else 0


def draws(seed: int, purpose: str, *keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Seeded random numbers that depend on seed, purpose and keys alone: the same whatever the other rows are.

    Args:
        seed: a whole number from 0.
        purpose: draws for different purposes are independent.
        keys: (M,) each; what is drawn for.

    Returns:
        (M,) numbers uniform over 64 bits.

    Example:
        >>> keys = np.array([1, 2, 3], dtype=np.uint64)
        >>> bool((draws(0, "noise", keys)[1:] == draws(0, "noise", keys[1:])).all())
        True
    """
    found = np.full(len(keys[0]), key_of(f"{purpose}/{seed}"), dtype=np.uint64)
    for key in keys:
        found = _mixed(found ^ key)
    return found


def shares_of(numbers: NDArray[np.uint64]) -> NDArray[np.float64]:
    """64-bit numbers as numbers in [0, 1), by their upper 53 bits."""
    return (numbers >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True)
class PairColumns:
    """M graded pairs as numbers: which row of a table, what relevance, and keys to compare by.

    Example:
        >>> from bixse.data.graded_pairs import GradedPairs
        >>> pairs = GradedPairs.from_rows([{"query": "copy", "document": "shutil", "relevance": 0.5}])
        >>> columns = PairColumns.of(pairs, ("query_id",))
        >>> len(columns), columns.relevance.tolist(), list(columns.keys)
        (1, [0.5], ['query_id'])
    """

    rows: NDArray[np.int64]
    """(M,) rows of the table that texts, ids and task are taken from."""
    labels: NDArray[np.int64]
    """(M,) rows that grade and probabilities are taken from; `NO_LABEL` where the relevance is nobody's grade."""
    relevance: NDArray[np.float64]
    """(M,) values in [0, 1]."""
    keys: Mapping[Key, NDArray[np.uint64]]
    """Key -> (M,) numbers; those that were asked for."""

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def of(cls, pairs: GradedPairs, keys: Iterable[Key] = KEYS) -> PairColumns:
        """The columns of a table in memory, with these keys."""
        size = len(pairs)
        columns: dict[Key, Any] = {
            "query_id": pairs.query_ids,
            "document_id": pairs.document_ids,
            "task": pairs.extra.get("task", [None] * size),
            "query": pairs.queries,
            "document": pairs.documents,
        }
        found = {
            key: np.fromiter((key_value(key, value) for value in columns[key]), dtype=np.uint64, count=size)
            for key in keys
        }
        return cls.numbered(np.asarray(pairs.relevance, dtype=np.float64), found)

    @classmethod
    def numbered(cls, relevance: NDArray[np.float64], keys: Mapping[Key, NDArray[np.uint64]]) -> PairColumns:
        """The columns of all rows of a table, from the first to the last."""
        rows = np.arange(len(relevance), dtype=np.int64)
        return cls(rows, rows.copy(), relevance, keys)

    def take(self, places: NDArray[Any]) -> PairColumns:
        """Some of the rows: places as numbers, or a truth value a row."""
        return PairColumns(
            self.rows[places],
            self.labels[places],
            self.relevance[places],
            {key: values[places] for key, values in self.keys.items()},
        )

    def labelled(self, relevance: NDArray[np.float64], labels: NDArray[np.int64] | None = None) -> PairColumns:
        """The same rows with other relevance, and with other rows' grades where `labels` says so."""
        return replace(self, relevance=relevance, labels=self.labels if labels is None else labels)

    def groups(self, *keys: Key) -> NDArray[np.int64]:
        """(M,) numbers from 0 up, equal where all these keys are."""
        found = np.zeros(len(self), dtype=np.int64)
        for key in keys:
            _, codes = np.unique(self.keys[key], return_inverse=True)
            pairs = found * (int(codes.max(initial=0)) + 1) + codes.reshape(-1)
            _, found = np.unique(pairs, return_inverse=True)
            found = found.reshape(-1).astype(np.int64)
        return found

    def selected(self, pairs: GradedPairs) -> GradedPairs:
        """These rows of the table they were made of."""
        chosen = pairs.select(self.rows).with_columns(relevance=self.relevance)
        grades = {
            name: [pairs.extra[name][row] if row != NO_LABEL else None for row in self.labels.tolist()]
            for name in ("grade", "grade_probs")
            if name in pairs.extra and not np.array_equal(self.labels, self.rows)
        }
        return chosen.with_columns(**grades) if grades else chosen


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every bit of the input reaches every bit."""
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
