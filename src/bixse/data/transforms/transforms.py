"""Graded pairs made of graded pairs: cutoff, binary relevance, label noise, samples of a size, parts, no duplicates.

Each function takes a table in memory and gives a new one; what was done goes to `record`, where a list is given. The
work is done on `PairColumns` by the classes of `column_transforms.py`, which `bixse convert` uses on files that
are larger than memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bixse.data.transforms.column_transforms import Applied as Applied
from bixse.data.transforms.column_transforms import (
    Binarise,
    KeepFrom,
    LabelNoise,
    Sample,
    SplitByQuery,
    Transform,
    WithoutDuplicates,
)
from bixse.data.transforms.pair_columns import PairColumns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bixse.data.graded_pairs import GradedPairs


def keep_from(pairs: GradedPairs, cutoff: float, record: list[Applied] | None = None) -> GradedPairs:
    """The pairs with relevance >= cutoff (BiXSE paper, study of the relevance cutoff).

    Args:
        pairs: M rows.
        cutoff: in [0, 1]; 1e-9 below it still counts, as grades are rounded on their way to [0, 1].
        record: receives what was done.

    Raises:
        InputError: a cutoff outside [0, 1].

    Example:
        >>> from bixse.data.graded_pairs import GradedPairs
        >>> pairs = GradedPairs.from_rows(
        ...     {"query": "copy a folder", "document": text, "relevance": z}
        ...     for text, z in [("shutil.copytree", 1.0), ("shutil.copy", 0.7), ("os.walk", 0.2)]
        ... )
        >>> keep_from(pairs, 0.7).documents
        ['shutil.copytree', 'shutil.copy']
    """
    return _applied(KeepFrom(cutoff), pairs, record)


def binarised(pairs: GradedPairs, threshold: float, record: list[Applied] | None = None) -> GradedPairs:
    """The same pairs with relevance 1 where it was >= threshold and 0 elsewhere; `grade` stays what the judge said.

    Args:
        pairs: M rows.
        threshold: in [0, 1]; 1e-9 below it still counts.
        record: receives what was done.

    Raises:
        InputError: a threshold outside [0, 1].

    Example:
        >>> from bixse.data.graded_pairs import GradedPairs
        >>> row = {"query": "copy a folder", "document": "shutil.copytree", "relevance": 0.8}
        >>> binarised(GradedPairs.from_rows([row]), 0.5).relevance.tolist()
        [1.0]
    """
    return _applied(Binarise(threshold), pairs, record)


def with_label_noise(
    pairs: GradedPairs, probability: float, seed: int = 0, record: list[Applied] | None = None
) -> GradedPairs:
    """Swap the labels of a positive and a hard negative of each query with a probability, once (paper, label noise).

    The query's best document and its worst exchange relevance, grade and probabilities; among equals the seed draws.
    Whether a query is hit depends on the seed and the query's id alone, so that the queries hit at a probability of .1
    are among those hit at .3. A query whose documents all have one relevance has nothing to swap: the record counts
    them.

    Args:
        pairs: M rows; the rows of a query and task are one group.
        probability: in [0, 1].
        seed: from 0 to 2**32 - 1.
        record: receives what was done: queries, queries hit, queries swapped, and those hit with nothing to swap.

    Raises:
        InputError: a probability outside [0, 1], or a seed out of its range.

    Example:
        >>> from bixse.data.graded_pairs import GradedPairs
        >>> pairs = GradedPairs.from_rows(
        ...     {"query": "copy a folder", "document": text, "relevance": z}
        ...     for text, z in [("shutil.copytree", 1.0), ("shutil.copy", 0.7), ("os.walk", 0.2)]
        ... )
        >>> with_label_noise(pairs, 1.0).relevance.tolist()
        [0.2, 0.7, 1.0]
    """
    return _applied(LabelNoise(probability, seed), pairs, record)


def sampled(pairs: GradedPairs, size: int, seed: int = 0, record: list[Applied] | None = None) -> GradedPairs:
    """Exactly `size` of the pairs, every task and level of relevance in its proportion, in the order of the table.

    Strata are a task's rows within a tenth of relevance. Their shares follow Sainte-Lague's rule, which rounds to
    whole rows and never takes a row back: the sample of a smaller size is part of that of a larger one.

    Args:
        pairs: M rows.
        size: from 1 to M.
        seed: from 0 to 2**32 - 1; with it a row's chance depends on its ids, not on its place.
        record: receives what was done.

    Raises:
        InputError: a size outside 1 to M, or a seed out of its range.

    Example:
        >>> from bixse.data.graded_pairs import GradedPairs
        >>> pairs = GradedPairs.from_rows(
        ...     {"query": f"q{i}", "document": "d", "relevance": 0.05 if i < 30 else 0.95} for i in range(40)
        ... )
        >>> sorted(sampled(pairs, 8).relevance.tolist())
        [0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.95, 0.95]
    """
    return _applied(Sample(size, seed), pairs, record)


def without_duplicates(pairs: GradedPairs, record: list[Applied] | None = None) -> GradedPairs:
    """One row for pairs of one query text, document text and task, with the mean of their relevances.

    Texts are compared in NFKC, case folded, white space as one space. The first row stays; where relevances differ it
    has no grade and no probabilities, as nobody gave the mean.

    Args:
        pairs: M rows.
        record: receives what was done, with the number of pairs whose relevances differ.

    Example:
        >>> from bixse.data.graded_pairs import GradedPairs
        >>> pairs = GradedPairs.from_rows(
        ...     {"query": query, "document": "shutil.copytree", "relevance": z}
        ...     for query, z in [("copy a folder", 1.0), ("Copy a  folder", 0.5)]
        ... )
        >>> without_duplicates(pairs).relevance.tolist()
        [0.75]
    """
    return _applied(WithoutDuplicates(), pairs, record)


def split_by_query(
    pairs: GradedPairs, shares: Mapping[str, float], seed: int = 0, record: list[Applied] | None = None
) -> dict[str, GradedPairs]:
    """Parts of a table such that no query text stands in two of them.

    The part of a query follows from the seed and a hash of its text (NFKC, case folded, white space as one space): it
    stays the same when rows are added, and shares are met about, not exactly. A part may come out empty.

    Args:
        pairs: M rows.
        shares: part -> its share, above 0, together 1.
        seed: from 0 to 2**32 - 1.
        record: receives what was done.

    Raises:
        InputError: no part, a share outside (0, 1], shares that do not add up to 1, or a seed out of its range.

    Example:
        >>> from bixse.data.graded_pairs import GradedPairs
        >>> pairs = GradedPairs.from_rows(
        ...     {"query": f"q{i // 2}", "document": f"d{i}", "relevance": 1.0} for i in range(200)
        ... )
        >>> parts = split_by_query(pairs, {"train": 0.8, "test": 0.2})
        >>> sum(map(len, parts.values())), set(parts["train"].queries) & set(parts["test"].queries)
        (200, set())
    """
    split = SplitByQuery(dict(shares), seed)
    parts, applied = split.apply(PairColumns.of(pairs, split.needs))
    if record is not None:
        record.append(applied)
    return {name: part.selected(pairs) for name, part in parts.items()}


def _applied(transform: Transform, pairs: GradedPairs, record: list[Applied] | None) -> GradedPairs:
    columns, applied = transform.apply(PairColumns.of(pairs, transform.needs))
    if record is not None:
        record.append(applied)
    return columns.selected(pairs)
