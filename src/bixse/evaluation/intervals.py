"""Intervals over queries of means, shares and other figures.

The pairs of one query are alike, so every interval counts queries. Intervals of means are computed from the scatter of
the queries, and those of other figures, such as kappa, from the figure with one query left out each (jackknife). Where
these do not serve, complete queries are drawn with replacement (cluster bootstrap): a resample is a vector with the
count of each query.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bixse.errors import InputError
from bixse.evaluation.statistics import ROUNDING, block_sizes, check_samples, difference_of, scatter
from bixse.evaluation.statistics import Floats as Floats
from bixse.results import QUERIES_FROM, UNITS_FROM, Interval, IntervalEstimate, too_few

NORMAL = 1.9599639845400545
"""The 97.5 % quantile of the normal distribution."""


def query_draws(queries: int, samples: int, seed: int) -> Iterator[Floats]:
    """Yield the counts of each query in bootstrap resamples: blocks of shape (S, queries), `samples` rows in all."""
    check_samples(samples)
    generator = np.random.default_rng(seed)
    for rows in block_sizes(queries, samples):
        drawn = generator.integers(0, queries, size=(rows, queries)) + np.arange(rows)[:, None] * queries
        yield np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(np.float64)


def jackknife_estimate(value: float, left_out: Floats, few: str = "", highest: float = math.inf) -> IntervalEstimate:
    """Return a figure with its 95 % interval, from its (Q,) values with one query left out each.

    The scatter of the pseudo-values Q * value - (Q - 1) * left_out is that of a mean (Tukey 1958; Efron and Tibshirani
    1993, "An Introduction to the Bootstrap", chapter 11). No interval for a sample that is too small (`few` says why),
    without scatter, and if the figure is undefined without one of the queries.
    """
    if not np.isfinite(value):
        return IntervalEstimate(None, few=few)
    if not few and not np.isfinite(left_out).all():
        few = "one query decides it"
    if few:
        return IntervalEstimate(value, few=few)
    queries = len(left_out)
    pseudo_values = queries * value - (queries - 1) * left_out
    of_queries = difference_of(value, *scatter([pseudo_values], [1.0]), QUERIES_FROM)  # `few` has counted them
    few = "" if of_queries.low is not None else "all queries are alike"
    high = None if of_queries.high is None else min(of_queries.high, highest)
    return IntervalEstimate(value, of_queries.low, high, few)


def mean_estimate(values: Floats, query_ids: Sequence[str]) -> IntervalEstimate:
    """Return the mean over pairs with its interval over queries; raise InputError for fewer than 2 queries."""
    query, queries = numbered_queries(query_ids, len(values))
    sums, sizes = np.bincount(query, weights=values), np.bincount(query)
    mean = float(values.mean())
    # the mean is a ratio of two sums over queries: its scatter is that of the queries' residuals (Cochran 1977, 2.11)
    residuals = (sums - mean * sizes) / sizes.mean()
    residuals[np.abs(residuals) <= ROUNDING * np.abs(sums).max()] = 0.0
    of_queries = difference_of(mean, *scatter([residuals], [1.0]), queries)
    return IntervalEstimate(mean, of_queries.low, of_queries.high, of_queries.few)


def few_of_classes(relevant: npt.NDArray[Any], query_ids: Collection[str]) -> str:
    """Return why (N,) labels, 1 or 0, carry no kappa, rate or AUC; "" if they do: 20 of each class and 20 queries."""
    counts = {"queries": len(set(query_ids)), "relevant pairs": int(np.sum(relevant))}
    counts["irrelevant pairs"] = len(relevant) - counts["relevant pairs"]
    return next((few for name, count in counts.items() if (few := too_few(count, name, UNITS_FROM))), "")


def wilson_interval(count: float, total: float) -> Interval:
    """Return the 95 % score interval of a share of independent pairs; `count` may be fractional."""
    # Wilson 1927, doi:10.1080/01621459.1927.10502953
    share, denominator = count / total, 1 + NORMAL**2 / total
    center = (share + NORMAL**2 / (2 * total)) / denominator
    half = NORMAL * math.sqrt(share * (1 - share) / total + NORMAL**2 / (4 * total**2)) / denominator
    return max(center - half, 0.0), min(center + half, 1.0)


def numbered_queries(query_ids: Sequence[str], pairs: int) -> tuple[npt.NDArray[np.int64], int]:
    """Return the query number of each pair from 0 on, and the number of queries; raise InputError below 2."""
    if len(query_ids) != pairs:
        raise InputError(
            f"query ids: got {len(query_ids)} for {pairs} pairs; expected one per pair; fix: pass the query id of each"
        )
    # no array of text: it would give every row the width of the longest id, which may be a query
    names = {name: number for number, name in enumerate(sorted(set(query_ids)))}
    query = np.fromiter(map(names.__getitem__, query_ids), np.int64, pairs)
    if len(names) < 2:
        raise InputError(
            f"query ids: got pairs of {len(names)} query; expected at least 2 queries for an interval; "
            "fix: judge documents of more queries (some 50 or more)"
        )
    return query, len(names)


def quotient(above: Floats, below: Floats) -> Floats:
    """Return the quotient; NaN if the divisor is not above 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        values: Floats = np.where(below > 0, above / below, np.nan)
    return values
