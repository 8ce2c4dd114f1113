"""Transforms of graded pairs as settings with one method each, on numbers alone: see `transforms.py`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from bixse.data.transforms.pair_columns import NO_LABEL, draws, shares_of
from bixse.errors import SEEDS, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from bixse.data.transforms.pair_columns import Key, PairColumns

ROUNDING = 1e-9
"""How far below a cutoff a relevance may lie by rounding: grade 4.6 on 1 to 5 is 0.8999999999999999."""
BINS = 10
"""Levels of relevance that a sample keeps in proportion."""


@dataclass(frozen=True)
class Applied:
    """What one transform did to a table."""

    name: str
    """The transform."""
    settings: Mapping[str, Any]
    """Its settings."""
    rows_before: int
    """Rows it was given."""
    rows_after: int
    """Rows it left."""
    notes: Mapping[str, int] = field(default_factory=dict)
    """What it counted, by name."""

    def __str__(self) -> str:
        """One line for people."""
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        notes = ", ".join(f"{name} {count}" for name, count in self.notes.items())
        rows = f"{self.rows_before} rows" + (f" to {self.rows_after}" if self.rows_after != self.rows_before else "")
        return f"{self.name}{f' ({settings})' if settings else ''}: {rows}{f'; {notes}' if notes else ''}"


class Transform(Protocol):
    """From a table to a table."""

    name: ClassVar[str]
    """What it is called in records."""
    needs: ClassVar[tuple[Key, ...]]
    """Keys it compares rows by."""

    def apply(self, columns: PairColumns) -> tuple[PairColumns, Applied]:
        """The new table, rows in the order of the old one, and what was done."""


@dataclass(frozen=True)
class KeepFrom:
    """Rows with relevance >= cutoff."""

    cutoff: float
    """In [0, 1]."""
    name: ClassVar[str] = "cutoff"
    needs: ClassVar[tuple[Key, ...]] = ()

    def __post_init__(self) -> None:
        """Refuse a cutoff outside [0, 1]."""
        _check_share("cutoff", self.cutoff)

    def apply(self, columns: PairColumns) -> tuple[PairColumns, Applied]:
        """The rows that stay."""
        found = columns.take(columns.relevance >= self.cutoff - ROUNDING)
        return found, _record(self, columns, found)


@dataclass(frozen=True)
class Binarise:
    """Relevance 1 from a threshold up, 0 below it."""

    threshold: float
    """In [0, 1]."""
    name: ClassVar[str] = "binarise"
    needs: ClassVar[tuple[Key, ...]] = ()

    def __post_init__(self) -> None:
        """Refuse a threshold outside [0, 1]."""
        _check_share("threshold", self.threshold)

    def apply(self, columns: PairColumns) -> tuple[PairColumns, Applied]:
        """The same rows."""
        relevance = (columns.relevance >= self.threshold - ROUNDING).astype(np.float64)
        found = columns.labelled(relevance)
        return found, _record(self, columns, found, {"relevant": int(relevance.sum())})


@dataclass(frozen=True)
class LabelNoise:
    """The labels of a query's best and worst document swapped, with a probability."""

    probability: float
    """In [0, 1]."""
    seed: int = 0
    """Of the draws."""
    name: ClassVar[str] = "noise"
    needs: ClassVar[tuple[Key, ...]] = ("query_id", "task", "document_id")

    def __post_init__(self) -> None:
        """Refuse a probability outside [0, 1] and a seed out of range."""
        _check_share("probability of label noise", self.probability)
        _check_seed(self.seed)

    def apply(self, columns: PairColumns) -> tuple[PairColumns, Applied]:
        """The same rows, some with each other's labels."""
        if not len(columns):
            return columns, _record(self, columns, columns, dict.fromkeys(("queries", "hit", "swapped", "equal"), 0))
        queries, documents = columns.keys["query_id"], columns.keys["document_id"]
        group = columns.groups("query_id", "task")
        order = np.lexsort((draws(self.seed, "noise among equals", queries, documents), columns.relevance, group))
        starts = np.flatnonzero(np.r_[True, np.diff(group[order]) > 0])
        worst, best = order[starts], order[np.r_[starts[1:], len(order)] - 1]  # (groups,) each
        hit = shares_of(draws(self.seed, "noise", queries[worst])) < self.probability
        swapped = hit & (columns.relevance[worst] < columns.relevance[best])
        here, there = np.r_[worst[swapped], best[swapped]], np.r_[best[swapped], worst[swapped]]
        relevance, labels = columns.relevance.copy(), columns.labels.copy()
        relevance[here], labels[here] = columns.relevance[there], columns.labels[there]
        found = columns.labelled(relevance, labels)
        notes = {"queries": len(worst), "hit": hit.sum(), "swapped": swapped.sum(), "equal": (hit & ~swapped).sum()}
        return found, _record(self, columns, found, notes)


@dataclass(frozen=True)
class Sample:
    """Exactly so many rows, tasks and levels of relevance in proportion."""

    size: int
    """Rows to keep."""
    seed: int = 0
    """Of the draws."""
    name: ClassVar[str] = "sample"
    needs: ClassVar[tuple[Key, ...]] = ("query_id", "task", "document_id")

    def __post_init__(self) -> None:
        """Refuse an empty sample and a seed out of range."""
        if self.size < 1:
            raise InputError(f"size of a sample: got {self.size}; expected at least 1; fix: ask for a row or more")
        _check_seed(self.seed)

    def apply(self, columns: PairColumns) -> tuple[PairColumns, Applied]:
        """The sample; raises InputError where there are fewer rows."""
        if self.size > len(columns):
            raise InputError(
                f"size of a sample: got {self.size}; expected at most the {len(columns)} rows there are; "
                "fix: ask for fewer, or for no sample"
            )
        chance = draws(self.seed, "sample", columns.keys["query_id"], columns.keys["task"], columns.keys["document_id"])
        bins = np.minimum(np.floor(columns.relevance * BINS + ROUNDING), BINS - 1).astype(np.uint64)
        strata = columns.groups("task") * BINS + bins.astype(np.int64)
        order = np.lexsort((chance, strata))
        starts = np.flatnonzero(np.r_[True, np.diff(strata[order]) > 0])
        sizes = np.diff(np.r_[starts, len(order)])
        place = np.arange(len(order)) - np.repeat(starts, sizes)  # (M,) place of a row within its stratum
        rule = (place + 0.5) / np.repeat(sizes, sizes)  # Sainte-Lague: the place at which a stratum earns its next row
        task, level = columns.keys["task"][order], bins[order]
        taken = order[np.lexsort((draws(self.seed, "sample among equals", task, level), rule))[: self.size]]
        found = columns.take(np.sort(taken))
        return found, _record(self, columns, found, {"strata": len(starts)})


@dataclass(frozen=True)
class WithoutDuplicates:
    """One row for rows of the same texts and task, with their mean relevance."""

    name: ClassVar[str] = "dedup"
    needs: ClassVar[tuple[Key, ...]] = ("query", "document", "task")

    def apply(self, columns: PairColumns) -> tuple[PairColumns, Applied]:
        """The first row of each pair."""
        if not len(columns):
            return columns, _record(self, columns, columns, {"repeated": 0, "disagreeing": 0})
        group = columns.groups("query", "document", "task")
        order = np.lexsort((columns.relevance, group))  # sums do not depend on the order of the rows
        starts = np.flatnonzero(np.r_[True, np.diff(group[order]) > 0])
        sizes = np.diff(np.r_[starts, len(order)])
        values = columns.relevance[order]
        low, high = values[starts], values[starts + sizes - 1]
        differ = low < high
        means = np.where(differ, np.clip(np.add.reduceat(values, starts) / sizes, low, high), low)
        first = np.full(len(starts), len(columns), dtype=np.int64)
        np.minimum.at(first, group, np.arange(len(columns)))
        kept = columns.take(first)
        found = kept.labelled(means, np.where(differ, NO_LABEL, kept.labels)).take(np.argsort(kept.rows))
        notes = {"repeated": (sizes > 1).sum(), "disagreeing": differ.sum()}
        return found, _record(self, columns, found, notes)


@dataclass(frozen=True)
class SplitByQuery:
    """Parts that share no query text."""

    shares: Mapping[str, float]
    """Part -> its share, together 1."""
    seed: int = 0
    """Of the draws."""
    name: ClassVar[str] = "split"
    needs: ClassVar[tuple[Key, ...]] = ("query",)

    def __post_init__(self) -> None:
        """Refuse shares that leave rows over."""
        total = math.fsum(self.shares.values())
        if not self.shares or not all(0 < share <= 1 for share in self.shares.values()) or abs(total - 1) > ROUNDING:
            found = ", ".join(f"{name}={share:g}" for name, share in self.shares.items()) or "no part"
            raise InputError(
                f"shares of a split: got {found}; expected shares above 0 that add up to 1; "
                "fix: for example train=0.8 dev=0.1 test=0.1"
            )
        _check_seed(self.seed)

    def apply(self, columns: PairColumns) -> tuple[dict[str, PairColumns], Applied]:
        """The parts, in the order of the shares; the order has no part in who goes where."""
        names = sorted(self.shares)
        ends = np.cumsum([self.shares[name] for name in names])[:-1]
        part = np.searchsorted(ends, shares_of(draws(self.seed, "split", columns.keys["query"])), side="right")
        found = {name: columns.take(part == names.index(name)) for name in self.shares}
        return found, _record(self, columns, columns, {name: len(rows) for name, rows in found.items()})


def _record(
    transform: Any, before: PairColumns, after: PairColumns, notes: Mapping[str, int | NDArray[Any]] | None = None
) -> Applied:
    counted = {name: int(count) for name, count in (notes or {}).items()}
    return Applied(transform.name, asdict(transform), len(before), len(after), counted)


def _check_share(what: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise InputError(f"{what}: got {value}; expected a number from 0 to 1; fix: relevance is on that scale")


def _check_seed(seed: int) -> None:
    if not 0 <= seed < SEEDS:
        raise InputError(f"seed: got {seed}; expected 0 to {SEEDS - 1}; fix: leave it out for 0")
