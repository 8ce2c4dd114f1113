"""Contrasts of a study's cells: weighted differences with intervals over training seeds and queries together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from bixse.errors import InputError
from bixse.evaluation.significance import Difference, interval_bounds, resamples

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

Labels: TypeAlias = "Mapping[str, str | float]"
"""What distinguishes the cells of a study: label -> value."""
PerSeed: TypeAlias = "Mapping[int, Mapping[str, float]]"
"""Seed -> `collection/query` -> value of the metric."""
LEVEL = 0.05
"""Chance of a false finding among all claims of a study."""
Finding: TypeAlias = Literal["reproduced", "not shown", "contradicted"]
"""What a contrast says of a claim that it is above 0."""


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of cells that a claim says is above 0.

    Example:
        >>> contrast = Contrast("BiXSE above InfoNCE", (({"loss": "bixse"}, 1.0), ({"loss": "infonce"}, -1.0)))
        >>> [weight for _, weight in contrast.terms]
        [1.0, -1.0]
    """

    claim: str
    """What is claimed, in words; true when the sum is above 0."""
    terms: tuple[tuple[Labels, float], ...]
    """Cells by their labels, each with its weight."""


@dataclass(frozen=True)
class Found:
    """A contrast with its figures."""

    claim: str
    """As in `Contrast`."""
    difference: Difference | None
    """The weighted sum with its interval; None where a cell has no figures."""
    seeds: int
    """Training seeds that all its cells share."""

    adjusted: float | None = None
    """Holm's p-value among all claims of a study; None: the difference's own."""

    @property
    def finding(self) -> Finding | Literal["no figures"]:
        """What the figures say of the claim, at 5 % over all claims of the study together."""
        if self.difference is None:
            return "no figures"
        if (self.difference.p_value if self.adjusted is None else self.adjusted) >= LEVEL:
            return "not shown"
        return "reproduced" if self.difference.mean > 0 else "contradicted"


def key_of(labels: Labels) -> tuple[tuple[str, str | float], ...]:
    """Labels as something that can be a key; their order does not count.

    Example:
        >>> key_of({"b": 1, "a": 2}) == key_of({"a": 2, "b": 1})
        True
    """
    return tuple(sorted(labels.items()))


def measure(contrast: Contrast, cells: Mapping[Any, PerSeed], samples: int = 10_000) -> Found:
    """A contrast's mean and interval over seeds and queries.

    A system without a training seed (an untrained encoder, BM25) has one row of figures, which stands for all seeds.

    Args:
        contrast: the cells and weights.
        cells: `key_of` labels -> the figures of its seeds.
        samples: resamples.

    Raises:
        InputError: two cells were measured on different queries.
    """
    found = [(cells.get(key_of(labels), {}), weight) for labels, weight in contrast.terms]
    if not all(figures for figures, _ in found):
        return Found(contrast.claim, None, 0)
    several = [set(figures) for figures, _ in found if len(figures) > 1]
    seeds = sorted(set.intersection(*several)) if several else [0]
    if not seeds:
        return Found(contrast.claim, None, 0)
    queries = sorted(next(iter(found[0][0].values())))
    total = np.zeros((len(seeds), len(queries)))
    for figures, weight in found:
        rows = [figures[seed] if len(figures) > 1 else next(iter(figures.values())) for seed in seeds]
        for row in rows:
            if row.keys() != set(queries):
                raise InputError(
                    f"contrast {contrast.claim!r}: got cells measured on {len(queries)} and {len(row)} queries; "
                    "expected the same queries; to mend: delete the study's folder and run it again"
                )
        total += weight * np.array([[row[query] for query in queries] for row in rows])
    return Found(contrast.claim, crossed_bootstrap(total, _strata(queries), samples), len(seeds))


def interval_of(figures: PerSeed, samples: int = 2_000) -> Difference:
    """A cell's own mean with its interval over seeds and queries."""
    queries = sorted(next(iter(figures.values())))
    values = np.array([[row[query] for query in queries] for row in figures.values()])
    return crossed_bootstrap(values, _strata(queries), samples)


def crossed_bootstrap(
    values: NDArray[np.float64],
    strata: Sequence[int],
    samples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Difference:
    """Mean of a seeds x queries table with an interval that covers the chance in both.

    Rows and columns are resampled independently of each other, each with replacement (the pigeonhole bootstrap: Owen
    2007, doi:10.1214/07-AOAS122); it is somewhat too wide rather than too narrow. Of several collections each counts
    as much as the others, and its queries are resampled among themselves.

    Args:
        values: (S, Q) figures: S training seeds, Q queries; at least 2 queries.
        strata: Q numbers, the collection of each query.
        samples: resamples, at least 1.
        confidence: coverage of the interval, between 0 and 1.
        seed: of the resampling.

    Raises:
        InputError: fewer than 2 queries, a value that is not finite, or arguments out of range.

    Example:
        >>> found = crossed_bootstrap(np.array([[0.5, 0.6, 0.7], [0.4, 0.6, 0.8]]), [0, 0, 0])
        >>> round(found.mean, 3), found.low < 0.6 < found.high, found.queries
        (0.6, True, 3)
    """
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or not table.shape[0] or table.shape[1] < 2 or not np.isfinite(table).all():
        raise InputError(
            f"crossed bootstrap: got a table of shape {table.shape}; expected finite figures of at least 1 seed and 2 "
            "queries; to mend: evaluate on more queries"
        )
    bounds = interval_bounds(confidence)
    numbers, member = np.unique(np.asarray(strata), return_inverse=True)
    weight = (1 / len(numbers) / np.bincount(member))[member]  # (Q,)
    by_seed = _counts(table.shape[0], samples, seed) / table.shape[0]  # (samples, S)
    by_query = np.empty((samples, table.shape[1]))
    for number in range(len(numbers)):
        columns = np.flatnonzero(member == number)
        by_query[:, columns] = _counts(len(columns), samples, seed + 1 + number)
    means = ((by_seed @ table) * by_query * weight).sum(axis=1)
    tail = min(int((means <= 0).sum()), int((means >= 0).sum()))
    low, high = np.quantile(means, bounds)
    return Difference(
        mean=float((table.mean(axis=0) * weight).sum()),
        low=float(low),
        high=float(high),
        p_value=min(1.0, 2 * (tail + 1) / (samples + 1)),
        queries=table.shape[1],
        confidence=confidence,
    )


def _counts(size: int, samples: int, seed: int) -> NDArray[np.float64]:
    """How often each of `size` things is drawn in each resample, (samples, size)."""
    blocks = []
    for drawn in resamples(size, samples, seed):
        cells = drawn + np.arange(len(drawn))[:, None] * size
        blocks.append(np.bincount(cells.ravel(), minlength=drawn.size).reshape(drawn.shape))
    return np.concatenate(blocks).astype(np.float64)


def _strata(queries: Sequence[str]) -> list[int]:
    """The collection of each `collection/query`, as a number."""
    names = [query.partition("/")[0] for query in queries]
    number = {name: index for index, name in enumerate(dict.fromkeys(names))}
    return [number[name] for name in names]
