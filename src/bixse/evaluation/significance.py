"""Is one system better than another? Paired bootstrap and randomisation test over queries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from bixse.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

Verdict: TypeAlias = Literal["better", "no difference", "worse"]
"""What an interval says of the first system against the second; "no difference" means none shown."""
_BLOCK_CELLS = 1 << 22
"""Cells (samples x queries) drawn at once: bounds memory to some 100 MB."""


@dataclass(frozen=True)
class Difference:
    """The mean of a - b over queries, with its interval.

    Example:
        >>> difference = Difference(mean=0.02, low=0.005, high=0.035, p_value=0.01, queries=300, confidence=0.95)
        >>> verdict(difference)
        'better'
    """

    mean: float
    """Mean of a - b; above 0 means a is better."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""
    p_value: float
    """Two-sided: 1 - confidence of the widest interval that still excludes 0."""
    queries: int
    """Number of paired queries."""
    confidence: float
    """Share of such intervals that cover the true mean, such as 0.95."""


def paired_bootstrap(
    a: Mapping[str, float],
    b: Mapping[str, float],
    samples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Difference:
    """Interval and p-value of the mean difference a - b, by resampling queries with replacement.

    The interval is the percentile interval (Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapter
    13; for retrieval: Sakai 2006, doi:10.1145/1148170.1148261). The p-value inverts that same interval: twice the
    smaller share of resampled means on either side of 0, with one added to count and samples so that it is never 0.
    Below about 30 queries the interval is somewhat too narrow.

    Args:
        a: query id -> value of the first system.
        b: query id -> value of the second, for the same queries.
        samples: resamples, at least 1.
        confidence: coverage of the interval, between 0 and 1.
        seed: of the resampling; the same seed gives the same numbers.

    Raises:
        InputError: different queries, fewer than 2, a value that is not finite, or arguments out of range.

    Example:
        >>> a, b = {"q1": 0.9, "q2": 0.8, "q3": 0.7}, {"q1": 0.5, "q2": 0.5, "q3": 0.5}
        >>> difference = paired_bootstrap(a, b)
        >>> round(difference.mean, 3), round(difference.low, 3), round(difference.high, 3), verdict(difference)
        (0.3, 0.2, 0.4, 'better')
    """
    differences = _paired(a, b, samples)
    low, high = interval_bounds(confidence)
    means = np.concatenate([differences[drawn].mean(axis=1) for drawn in resamples(len(differences), samples, seed)])
    tail = min(int((means <= 0).sum()), int((means >= 0).sum()))
    ends = np.quantile(means, [low, high])
    return Difference(
        mean=float(differences.mean()),
        low=float(ends[0]),
        high=float(ends[1]),
        p_value=min(1.0, 2 * (tail + 1) / (samples + 1)),
        queries=len(differences),
        confidence=confidence,
    )


def randomisation_test(a: Mapping[str, float], b: Mapping[str, float], samples: int = 10_000, seed: int = 0) -> float:
    """Two-sided p-value of the mean difference under random swaps of the two systems' values within each query.

    Fisher's randomisation test, recommended for retrieval by Smucker, Allan and Carterette 2007
    (doi:10.1145/1321440.1321528). Exact over all 2^n swaps when these are no more than `samples`; else drawn at
    random, the observed assignment counted as one of them.

    Raises:
        InputError: different queries, fewer than 2, a value that is not finite, or `samples` below 1.

    Example:
        >>> randomisation_test({"q1": 0.9, "q2": 0.8, "q3": 0.7}, {"q1": 0.5, "q2": 0.5, "q3": 0.5})
        0.25
    """
    differences = _paired(a, b, samples)
    count = len(differences)
    threshold = abs(differences.sum()) * (1 - 1e-12)  # sums of the same terms may differ in rounding
    if count < 63 and 2**count <= samples:
        flips = (np.arange(2**count)[:, None] >> np.arange(count)) & 1
        return float((np.abs((1 - 2 * flips) @ differences) >= threshold).mean())
    generator = np.random.default_rng(seed)
    extreme = 0
    for rows in _block_rows(count, samples):
        signs = 1 - 2 * generator.integers(0, 2, size=(rows, count), dtype=np.int8)
        extreme += int((np.abs(signs @ differences) >= threshold).sum())
    return (extreme + 1) / (samples + 1)


def verdict(difference: Difference) -> Verdict:
    """Say "better" or "worse" when the interval excludes 0, else "no difference" (none shown; not: they are equal)."""
    if difference.low > 0:
        return "better"
    return "worse" if difference.high < 0 else "no difference"


def resamples(count: int, samples: int, seed: int) -> Iterator[npt.NDArray[np.int64]]:
    """Blocks of bootstrap resamples: positions drawn with replacement, shape (rows, count), `samples` rows in all.

    Example:
        >>> sum(len(block) for block in resamples(3, samples=100, seed=0))
        100
    """
    generator = np.random.default_rng(seed)
    for rows in _block_rows(count, samples):
        yield generator.integers(0, count, size=(rows, count))


def interval_bounds(confidence: float) -> tuple[float, float]:
    """The two quantiles that enclose a share `confidence` of a distribution.

    Raises:
        InputError: `confidence` is not between 0 and 1.

    Example:
        >>> interval_bounds(0.5)
        (0.25, 0.75)
    """
    if not 0 < confidence < 1:
        raise InputError(f"confidence: got {confidence}; expected between 0 and 1; fix: use 0.95")
    return (1 - confidence) / 2, (1 + confidence) / 2


def _block_rows(count: int, samples: int) -> Iterator[int]:
    """Sizes of the blocks that `samples` rows of `count` cells are drawn in."""
    rows = max(1, _BLOCK_CELLS // count)
    for start in range(0, samples, rows):
        yield min(rows, samples - start)


def _paired(a: Mapping[str, float], b: Mapping[str, float], samples: int) -> npt.NDArray[Any]:
    """The differences a - b in sorted order of the query ids, so that a seed means the same whatever the order."""
    if a.keys() != b.keys():
        only_a, only_b = sorted(a.keys() - b.keys()), sorted(b.keys() - a.keys())
        example = (only_a or only_b)[0]
        raise InputError(
            f"paired queries: got {len(only_a)} only in the first system and {len(only_b)} only in the second, such as "
            f"{example!r}; expected the same queries; fix: evaluate both with the same judgements"
        )
    if len(a) < 2:
        raise InputError(
            f"paired queries: got {len(a)}; expected at least 2; fix: evaluate on more queries (some 50 or more)"
        )
    if samples < 1:
        raise InputError(f"samples: got {samples}; expected at least 1; fix: use 10000")
    query_ids = sorted(a)
    differences = np.array([a[query_id] - b[query_id] for query_id in query_ids], dtype=np.float64)
    if not np.isfinite(differences).all():
        query_id = next(q for q, value in zip(query_ids, differences, strict=True) if not math.isfinite(value))
        raise InputError(
            f"query {query_id!r}: got values {a[query_id]} and {b[query_id]}; expected finite numbers; "
            "fix: check the evaluation"
        )
    return differences
