"""Transforms of graded pairs: cutoff, binary relevance, label noise, sampling, splits, removal of duplicates.

A transform works on `PairColumns`, a few numbers per row: tables may be larger than memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from inspect import signature
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bixse.data.columns import SCHEMA, with_columns_of
from bixse.data.draws import ROUNDING, draws, hashed, part_numbers, unit_numbers
from bixse.data.graded_pairs import Pairs
from bixse.errors import SEEDS, InputError, check_known
from bixse.relevance import normal_form

Key: TypeAlias = Literal["query_id", "document_id", "task", "query", "document"]
"""A column that rows are compared by: ids and task literally, texts in their `normal_form`."""
NO_LABEL = -1  # in `PairColumns.labels`: a relevance that is nobody's grade
RANGES = {
    "cutoff": (0.0, 1.0),
    "threshold": (0.0, 1.0),
    "probability": (0.0, 1.0),
    "size": (1, math.inf),
    "seed": (0, SEEDS - 1),
}
"""Value of a transform -> lowest and highest."""
ROWS_AT_ONCE = 4096  # taken from a table together
BINS = 10  # levels of relevance that a sample keeps in proportion, and a histogram shows


# The rows of a query often follow each other, so that its text is hashed once.
@lru_cache(maxsize=256)
def key_value(key: Key, value: str | None) -> int:
    """Return 64 bits for a value, the start of its BLAKE2b; 0 if there is no value."""
    if key in ("query", "document"):
        return hashed(normal_form(value or ""))
    return hashed(value) if value is not None else 0


@dataclass(frozen=True)
class PairColumns:
    """M graded pairs as numbers: row of the table, relevance, and keys for comparisons."""

    rows: NDArray[np.int64]
    """(M,) rows of the table that hold texts, ids and task."""
    labels: NDArray[np.int64]
    """(M,) rows that hold grade and probabilities; `NO_LABEL` if the relevance is nobody's grade."""
    relevance: NDArray[np.float64]
    keys: Mapping[Key, NDArray[np.uint64]]
    """Key -> (M,) numbers, for the requested keys."""

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def of(cls, pairs: Pairs, keys: Iterable[Key]) -> PairColumns:
        """Return the columns of a table in memory, with these keys."""
        columns: dict[Key, Any] = {
            "query_id": pairs.query_ids,
            "document_id": pairs.document_ids,
            "task": pairs.extra.get("task", [None] * len(pairs)),
            "query": pairs.queries,
            "document": pairs.documents,
        }
        hashes = {
            key: np.fromiter((key_value(key, value) for value in columns[key]), np.uint64, len(pairs)) for key in keys
        }
        rows = np.arange(len(pairs), dtype=np.int64)
        return cls(rows, rows, np.asarray(pairs.relevance, dtype=np.float64), hashes)

    def take(self, rows: NDArray[Any] | slice) -> PairColumns:
        keys = {key: values[rows] for key, values in self.keys.items()}
        return PairColumns(self.rows[rows], self.labels[rows], self.relevance[rows], keys)

    def groups(self, *keys: Key) -> NDArray[np.int64]:
        """Return (M,) numbers from 0 up, equal if all these keys are equal."""
        numbers = np.zeros(len(self), dtype=np.int64)
        for key in keys:
            _, codes = np.unique(self.keys[key], return_inverse=True)
            _, numbers = np.unique(numbers * (int(codes.max(initial=0)) + 1) + codes.reshape(-1), return_inverse=True)
            numbers = numbers.reshape(-1).astype(np.int64)
        return numbers

    def tables(self, pairs: Pairs) -> Iterator[pa.Table]:
        """Yield these rows of the source table in blocks, with all columns of `SCHEMA`."""
        names = [name for name in ("grade", "grade_probs") if name in pairs.table.column_names]
        moved = bool(names) and not np.array_equal(self.labels, self.rows)
        grades = pairs.table.select(names).combine_chunks() if moved else None
        for start in range(0, len(self), ROWS_AT_ONCE):
            block = self.take(slice(start, start + ROWS_AT_ONCE))
            windows = []
            # in windows of the table: `take` copies all chunks that it looks at, and mapped pages are given back
            for rows in np.split(block.rows, np.flatnonzero(np.diff(block.rows // ROWS_AT_ONCE)) + 1):
                window = pairs.table.slice(rows[0], rows[-1] - rows[0] + 1)
                windows.append(window.take(pa.array(rows - rows[0])))
                pairs.release()
            table = with_columns_of(pa.concat_tables(windows), SCHEMA.names)
            columns = {name: table[name] for name in SCHEMA.names}
            columns["relevance"] = pa.array(block.relevance)
            if grades is not None:
                labels = grades.take(pa.array(block.labels, mask=block.labels == NO_LABEL))
                columns |= {name: labels[name] for name in names}
            yield pa.table(columns, schema=SCHEMA)

    def selected(self, pairs: Pairs) -> Pairs:
        """Return these rows of the source table."""
        return Pairs.from_arrow(batch for table in self.tables(pairs) for batch in table.combine_chunks().to_batches())


@dataclass(frozen=True)
class TransformReport:
    """A report of the effect of one transform on a table."""

    name: str
    settings: Mapping[str, Any]
    rows_before: int
    rows_after: int
    notes: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        notes = ", ".join(f"{name} {count}" for name, count in self.notes.items())
        rows = f"{self.rows_before} rows" + (f" to {self.rows_after}" if self.rows_after != self.rows_before else "")
        return f"{self.name}{f' ({settings})' if settings else ''}: {rows}{f'; {notes}' if notes else ''}"


Changed: TypeAlias = tuple[PairColumns, dict[str, int]]
"""The columns after a transform, in the old order, and counts for its report."""
Apply: TypeAlias = Callable[..., Changed]
"""Function of columns with at least one row, the value of a setting and, if it draws, a seed."""


class Transform(NamedTuple):
    """A step from columns to columns."""

    name: str
    """Name in reports."""
    needs: tuple[Key, ...]
    apply: Apply

    def run(self, columns: PairColumns, values: Mapping[str, float]) -> tuple[PairColumns, TransformReport]:
        """Return the new columns and the report."""
        after, notes = self.apply(columns, **values)
        return after, TransformReport(self.name, values, len(columns), len(after), notes)


TRANSFORMS: dict[str, Transform] = {}
"""Setting of `bixse convert` -> its transform, in the order in which they apply."""


def register(setting: str, name: str, needs: tuple[Key, ...] = ()) -> Callable[[Apply], Apply]:
    """Register a function as the transform of a setting."""
    return lambda apply: TRANSFORMS.setdefault(setting, Transform(name, needs, apply)).apply


def steps_of(settings: Mapping[str, Any]) -> list[tuple[Transform, dict[str, float]]]:
    """Return the transforms that settings ask for, each with its values; refuse values out of range."""
    steps = []
    for setting, transform in TRANSFORMS.items():
        value, names = settings.get(setting), list(signature(transform.apply).parameters)[1:]
        if value is None or value is False:
            continue
        values = dict(zip(names, (value, settings.get("seed", 0)), strict=False))
        for name, number in values.items():
            low, high = RANGES[name]
            if not low <= number <= high:
                raise InputError(
                    f"{transform.name}: got {name} {number}; expected {low:g} to {high:g}; fix: correct it"
                )
        steps.append((transform, values))
    return steps


def transformed(pairs: Pairs, record: list[TransformReport] | None = None, **settings: Any) -> Pairs:
    """Return a table after transforms, in the order of `TRANSFORMS`; append their reports to `record` if given.

    `settings` are those of `bixse convert`: dedup, noise, cutoff, size, binarise and seed. Raise InputError for another
    name and for a value out of range.

    Example:
        >>> rows = [{"query": "copy", "document": name, "relevance": z} for name, z in (("cp", 1.0), ("rm", 0.2))]
        >>> transformed(Pairs.from_rows(rows), cutoff=0.5).documents
        ['cp']
    """
    for name in settings:
        check_known("transforms", name, (*TRANSFORMS, "seed"))
    for transform, values in steps_of(settings):
        if len(pairs):
            columns, report = transform.run(PairColumns.of(pairs, transform.needs), values)
            pairs = columns.selected(pairs)
            if record is not None:
                record.append(report)
    return pairs


@register("dedup", "dedup", needs=("query", "document", "task"))
def without_duplicates(columns: PairColumns) -> Changed:
    """Keep one row per pair of texts (see `normal_form`) and task, with the mean of the relevances.

    The first row stays. If relevances differ, it has no grade and no probabilities, since nobody gave the mean.
    """
    group = columns.groups("query", "document", "task")
    order = np.lexsort((columns.relevance, group))  # sums do not depend on the order of the rows
    starts = _starts(group[order])
    sizes = np.diff(np.r_[starts, len(order)])
    values = columns.relevance[order]
    low, high = values[starts], values[starts + sizes - 1]
    differ = low < high
    means = np.where(differ, np.clip(np.add.reduceat(values, starts) / sizes, low, high), low)
    _, first = np.unique(group, return_index=True)
    unique = columns.take(first)
    unique = replace(unique, relevance=means, labels=np.where(differ, NO_LABEL, unique.labels))
    notes = {"repeated": int((sizes > 1).sum()), "disagreeing": int(differ.sum())}
    return unique.take(np.argsort(unique.rows)), notes


@register("noise", "noise", needs=("query_id", "task", "document_id"))
def swap_labels(columns: PairColumns, probability: float, seed: int) -> Changed:
    """Swap the labels of a positive and a hard negative of a query, with a probability (paper, label noise).

    The best and the worst document per query and task exchange relevance, grade and probabilities once; the seed breaks
    ties. A hit depends on the seed and the query's id alone, so the queries hit at .1 are among those hit at .3. If all
    documents of a query have one relevance, there is nothing to swap ("equal").
    """
    queries, documents = columns.keys["query_id"], columns.keys["document_id"]
    group = columns.groups("query_id", "task")
    order = np.lexsort((draws(seed, "noise among equals", queries, documents), columns.relevance, group))
    starts = _starts(group[order])
    worst, best = order[starts], order[np.r_[starts[1:], len(order)] - 1]  # (groups,) each
    # The purpose is part of a draw, so ties and hits are independent under the same seed.
    hit = unit_numbers(draws(seed, "noise", queries[worst])) < probability
    swapped = hit & (columns.relevance[worst] < columns.relevance[best])
    here, there = np.r_[worst[swapped], best[swapped]], np.r_[best[swapped], worst[swapped]]
    relevance, labels = columns.relevance.copy(), columns.labels.copy()
    relevance[here], labels[here] = columns.relevance[there], columns.labels[there]
    counts = {"hit": hit, "swapped": swapped, "equal": hit & ~swapped}
    notes = {"queries": len(worst), **{name: int(count.sum()) for name, count in counts.items()}}
    return replace(columns, relevance=relevance, labels=labels), notes


@register("cutoff", "cutoff")
def keep_from(columns: PairColumns, cutoff: float) -> Changed:
    """Keep rows with relevance >= cutoff (BiXSE paper, study of the relevance cutoff), with tolerance `ROUNDING`."""
    # A grade at the cutoff may become a relevance that is smaller by a rounding error.
    return columns.take(columns.relevance >= cutoff - ROUNDING), {}


@register("size", "sample", needs=("query_id", "task", "document_id"))
def sample(columns: PairColumns, size: int, seed: int) -> Changed:
    """Return a sample of exactly `size` rows; every task and tenth of relevance keeps its proportion.

    Sainte-Lague's rule rounds shares to complete rows and never takes a row back: a smaller sample is part of a larger
    one. The chance of a row depends on its ids and the seed, not on its position. Raise InputError if there are fewer
    rows.
    """
    if size > len(columns):
        raise InputError(
            f"size of a sample: got {size}; expected at most the {len(columns)} rows there are; "
            "fix: ask for fewer, or for no sample"
        )
    keys = columns.keys
    chance = draws(seed, "sample", keys["query_id"], keys["task"], keys["document_id"])
    bins = np.minimum(np.floor(columns.relevance * BINS + ROUNDING), BINS - 1).astype(np.uint64)
    strata = columns.groups("task") * BINS + bins.astype(np.int64)
    order = np.lexsort((chance, strata))
    starts = _starts(strata[order])
    sizes = np.diff(np.r_[starts, len(order)])
    position = np.arange(len(order)) - np.repeat(starts, sizes)  # (M,) position of a row within its stratum
    # Sainte-Lague: the position at which a stratum earns its next row
    rule = (position + 0.5) / np.repeat(sizes, sizes)
    among_equals = draws(seed, "sample among equals", keys["task"][order], bins[order])
    sampled = order[np.lexsort((among_equals, rule))[:size]]
    return columns.take(np.sort(sampled)), {"strata": len(starts)}


@register("binarise", "binarise")
def binarise(columns: PairColumns, threshold: float) -> Changed:
    """Make relevance 1 from a threshold up (tolerance `ROUNDING`), 0 below; the grade stays."""
    relevance = (columns.relevance >= threshold - ROUNDING).astype(np.float64)
    return replace(columns, relevance=relevance), {"relevant": int(relevance.sum())}


def split_by_query(columns: PairColumns, shares: Mapping[str, float], seed: int) -> dict[str, PairColumns]:
    """Return part -> its rows, in the order of the shares; the parts share no query text.

    The part of a query follows from the seed and a hash of its text in normal form. It stays the same when rows are
    added; shares are met approximately. A part may be empty. `columns` need the key "query".
    """
    numbers = part_numbers(columns.keys["query"], shares, seed)
    return {name: columns.take(numbers == number) for number, name in enumerate(shares)}


def _starts(ordered: NDArray[np.int64]) -> NDArray[np.intp]:
    return np.flatnonzero(np.r_[True, np.diff(ordered) > 0])
