"""Resampling of queries, intervals and corrections.

The pairs of one query are alike, so every bootstrap here draws whole queries with replacement (cluster bootstrap). A
resample is a vector that says how often each query was drawn; sums over its pairs are then products with totals that
were computed once per query.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bixse.errors import InputError
from bixse.results import IntervalEstimate

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bixse.results import Interval

Floats: TypeAlias = npt.NDArray[np.float64]
_BLOCK_SIZE = 1 << 22
"""Numbers (samples x queries) drawn at once: bounds memory to some 100 MB."""


def query_draws(queries: int, samples: int, seed: int) -> Iterator[Floats]:
    """How often each query occurs in bootstrap resamples: blocks of shape (S, queries), `samples` rows in all."""
    check_samples(samples)
    if queries * samples <= _BLOCK_SIZE:
        yield _kept_draws(queries, samples, seed)
    else:
        yield from _draws(queries, samples, seed)


@lru_cache(maxsize=2)
def _kept_draws(queries: int, samples: int, seed: int) -> Floats:
    """Several figures of the same queries need the same resamples; whoever gets them may not change them."""
    (found,) = _draws(queries, samples, seed)
    found.flags.writeable = False
    return found


def _draws(queries: int, samples: int, seed: int) -> Iterator[Floats]:
    generator = np.random.default_rng(seed)
    for rows in block_sizes(queries, samples):
        drawn = generator.integers(0, queries, size=(rows, queries)) + np.arange(rows)[:, None] * queries
        yield np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(np.float64)


def block_sizes(queries: int, samples: int) -> Iterator[int]:
    """Rows of the blocks in which `samples` resamples of so many queries are drawn."""
    rows = max(1, _BLOCK_SIZE // queries)
    for start in range(0, samples, rows):
        yield min(rows, samples - start)


def resampled_ratios(above: npt.NDArray[Any], below: npt.NDArray[Any], samples: int, seed: int) -> Floats:
    """Sum of `above` over sum of `below`, both per query, on each resample; NaN where the latter is 0."""
    return np.concatenate([quotient(times @ above, times @ below) for times in query_draws(len(above), samples, seed)])


def percentile_estimate(value: float, drawn: Floats) -> IntervalEstimate:
    """A value with the 95 % percentile interval of its resamples; resamples where it is not defined are left out."""
    defined = drawn[np.isfinite(drawn)]
    if not np.isfinite(value) or not defined.size:
        return IntervalEstimate(None)
    low, high = np.quantile(defined, interval_bounds(0.95))
    return IntervalEstimate(value, float(low), float(high))


def mean_estimate(values: Floats, query_ids: Sequence[str], samples: int, seed: int) -> IntervalEstimate:
    """The mean over pairs with its interval over queries; raises InputError for fewer than 2 queries."""
    query, _ = numbered_queries(query_ids, len(values))
    sums, sizes = np.bincount(query, weights=values), np.bincount(query).astype(np.float64)
    return percentile_estimate(float(values.mean()), resampled_ratios(sums, sizes, samples, seed))


def wilson_interval(count: float, total: float) -> Interval:
    """The 95 % score interval of a share (Wilson 1927, doi:10.1080/01621459.1927.10502953), of use for small counts.

    It takes pairs as independent; those of one query are not quite. `count` need not be whole.
    """
    from statsmodels.stats.proportion import proportion_confint

    low, high = proportion_confint(count, total, method="wilson")
    return float(low), float(high)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number (Holm 1979): the chance of one false finding among all stays below each."""
    from statsmodels.stats.multitest import multipletests

    corrected: list[float] = multipletests(p_values, method="holm")[1].tolist() if len(p_values) else []
    return corrected


def interval_bounds(confidence: float) -> Interval:
    """The two quantiles that enclose a share `confidence` of a distribution."""
    if not 0 < confidence < 1:
        raise InputError(f"confidence: got {confidence}; expected between 0 and 1; fix: use 0.95")
    return (1 - confidence) / 2, (1 + confidence) / 2


def numbered_queries(query_ids: Sequence[str], pairs: int) -> tuple[npt.NDArray[np.int64], int]:
    """The query of each pair as a number from 0 on, and how many there are; raises InputError for fewer than 2."""
    if len(query_ids) != pairs:
        raise InputError(
            f"query ids: got {len(query_ids)} for {pairs} pairs; expected one per pair; fix: pass the query id of each"
        )
    names, query = np.unique(np.asarray(query_ids, dtype=str), return_inverse=True)
    if len(names) < 2:
        raise InputError(
            f"query ids: got pairs of {len(names)} query; expected at least 2 queries for an interval; "
            "fix: judge documents of more queries (some 50 or more)"
        )
    return query, len(names)


def check_samples(samples: int) -> None:
    """Raise InputError for a number of resamples below 1."""
    if samples < 1:
        raise InputError(f"samples: got {samples}; expected at least 1; fix: use 1000")


def quotient(above: Floats, below: Floats) -> Floats:
    """NaN where the divisor is not above 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Floats = np.where(below > 0, above / below, np.nan)
    return found
