"""Intervals by resampling of queries, p-values, and corrections for several comparisons.

The pairs of one query are alike, so every bootstrap here draws complete queries with replacement (cluster bootstrap).
A resample is a vector with the count of each query.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bixse.errors import InputError
from bixse.results import FEW_QUERIES, Difference, IntervalEstimate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bixse.results import Interval


Floats: TypeAlias = npt.NDArray[np.float64]
_BLOCK_SIZE = 1 << 22
"""Numbers (samples x queries) drawn at once: bounds memory to about 100 MB."""
SAMPLES = 10_000


def query_draws(queries: int, samples: int, seed: int) -> Iterator[Floats]:
    """Yield the counts of each query in bootstrap resamples: blocks of shape (S, queries), `samples` rows in all."""
    check_samples(samples)
    if queries * samples <= _BLOCK_SIZE:
        yield _remembered_draws(queries, samples, seed)
    else:
        yield from _draws(queries, samples, seed)


@lru_cache(maxsize=2)
def _remembered_draws(queries: int, samples: int, seed: int) -> Floats:
    """Return cached, read-only draws, since several figures of the same queries need the same resamples."""
    (draws,) = _draws(queries, samples, seed)
    draws.flags.writeable = False  # the cache hands out the same array again
    return draws


def _draws(queries: int, samples: int, seed: int) -> Iterator[Floats]:
    generator = np.random.default_rng(seed)
    for rows in block_sizes(queries, samples):
        drawn = generator.integers(0, queries, size=(rows, queries)) + np.arange(rows)[:, None] * queries
        yield np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(np.float64)


def block_sizes(queries: int, samples: int) -> Iterator[int]:
    """Yield the number of rows per block for `samples` resamples of `queries` queries."""
    rows = max(1, _BLOCK_SIZE // queries)
    for start in range(0, samples, rows):
        yield min(rows, samples - start)


def resampled_ratios(above: npt.NDArray[Any], below: npt.NDArray[Any], samples: int, seed: int) -> Floats:
    """Return sum of `above` over sum of `below`, both per query, per resample; NaN if the latter is 0."""
    return np.concatenate([quotient(times @ above, times @ below) for times in query_draws(len(above), samples, seed)])


def percentile_estimate(value: float, drawn: Floats) -> IntervalEstimate:
    """Return a value with the 95 % percentile interval of its resamples; undefined resamples are left out."""
    defined = drawn[np.isfinite(drawn)]
    if not np.isfinite(value) or not defined.size:
        return IntervalEstimate(None)
    low, high = np.quantile(defined, interval_bounds(0.95))
    return IntervalEstimate(value, float(low), float(high))


def mean_estimate(values: Floats, query_ids: Sequence[str], samples: int, seed: int) -> IntervalEstimate:
    """Return the mean over pairs with its interval over queries; raise InputError for fewer than 2 queries."""
    query, _ = numbered_queries(query_ids, len(values))
    sums, sizes = np.bincount(query, weights=values), np.bincount(query).astype(np.float64)
    return percentile_estimate(float(values.mean()), resampled_ratios(sums, sizes, samples, seed))


def wilson_interval(count: float, total: float) -> Interval:
    """Return the 95 % score interval of a share of independent pairs; `count` may be fractional."""
    # Wilson 1927, doi:10.1080/01621459.1927.10502953
    from statsmodels.stats.proportion import proportion_confint

    low, high = proportion_confint(count, total, method="wilson")
    return float(low), float(high)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979): each bounds the chance of one false finding among all."""
    from statsmodels.stats.multitest import multipletests

    corrected: list[float] = multipletests(p_values, method="holm")[1].tolist() if len(p_values) else []
    return corrected


def interval_bounds(confidence: float) -> Interval:
    """Return the two quantiles that enclose a share `confidence` of a distribution."""
    if not 0 < confidence < 1:
        raise InputError(f"confidence: got {confidence}; expected between 0 and 1; fix: use 0.95")
    return (1 - confidence) / 2, (1 + confidence) / 2


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


def check_samples(samples: int) -> None:
    """Raise InputError for a number of resamples below 1."""
    if samples < 1:
        raise InputError(f"samples: got {samples}; expected at least 1; fix: use 1000")


def quotient(above: Floats, below: Floats) -> Floats:
    """Return the quotient; NaN if the divisor is not above 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        values: Floats = np.where(below > 0, above / below, np.nan)
    return values


def paired_bootstrap(
    a: Mapping[str, float], b: Mapping[str, float], samples: int = SAMPLES, confidence: float = 0.95, seed: int = 0
) -> Difference:
    """Return interval and p-value of the mean difference a - b (query id -> value), by resampling queries.

    Below 30 queries both are Student's t instead, which covers better there (`docs/reference/evaluation.md`). From 30
    on the interval is the percentile interval (Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapter
    13; for retrieval: Sakai 2006, doi:10.1145/1148170.1148261). The p-value inverts it: twice the smaller share of
    resampled means on either side of 0; one is added to count and samples so that it is never 0.

    Example:
        >>> a, b = {"q1": 0.9, "q2": 0.8, "q3": 0.7}, {"q1": 0.5, "q2": 0.5, "q3": 0.5}
        >>> difference = paired_bootstrap(a, b)
        >>> round(difference.mean, 3), round(difference.low, 3), round(difference.high, 3), difference.verdict
        (0.3, 0.052, 0.548, 'better')
    """
    return bootstrap_mean([paired_differences(a, b)], [1.0], samples, confidence, seed)


def bootstrap_mean(
    strata: Sequence[Floats],
    weights: Sequence[float],
    samples: int = SAMPLES,
    confidence: float = 0.95,
    seed: int = 0,
) -> Difference:
    """Return `paired_bootstrap` of the weighted sum of means of several sets, each resampled within itself."""
    queries = sum(map(len, strata))
    mean = float(sum(values.mean() * weight for values, weight in zip(strata, weights, strict=True)))
    _check_number(queries)
    check_samples(samples)
    low, high = interval_bounds(confidence)
    if queries < FEW_QUERIES:
        from scipy.special import stdtr, stdtrit

        error, freedom = _standard_error(strata, weights)
        reach = error * float(stdtrit(freedom, high))
        p_value = 2 * float(stdtr(freedom, -abs(mean) / error)) if error else float(mean == 0)
        return Difference(mean, mean - reach, mean + reach, p_value, queries, confidence)
    means = np.zeros(samples)
    for number, (values, weight) in enumerate(zip(strata, weights, strict=True)):
        drawn = [times @ values for times in query_draws(len(values), samples, seed + number)]  # independent sets
        means += np.concatenate(drawn) * (weight / len(values))
    tail = min(int((means <= 0).sum()), int((means >= 0).sum()))
    ends = np.quantile(means, [low, high])
    p_value = min(1.0, 2 * (tail + 1) / (samples + 1))
    return Difference(mean, float(ends[0]), float(ends[1]), p_value, queries, confidence)


def _standard_error(strata: Sequence[Floats], weights: Sequence[float]) -> tuple[float, float]:
    """Return the standard error and Welch's degrees of freedom; a set of one query has no variance."""
    several = [(values, weight) for values, weight in zip(strata, weights, strict=True) if len(values) > 1]
    variances = [weight**2 * float(values.var(ddof=1)) / len(values) for values, weight in several]
    total = sum(variances)
    parts = sum(part**2 / (len(values) - 1) for part, (values, _) in zip(variances, several, strict=True))
    return math.sqrt(total), total**2 / parts if parts else 1.0


def randomisation_test(a: Mapping[str, float], b: Mapping[str, float], samples: int = SAMPLES, seed: int = 0) -> float:
    """Return the two-sided p-value of Fisher's randomisation test: random swaps of the two values within each query.

    Smucker, Allan and Carterette 2007, doi:10.1145/1321440.1321528. Exact over all 2^n swaps if these are at most
    `samples`; else swaps are drawn, and the observed assignment counts as one of them.
    """
    return sign_flip_test(paired_differences(a, b), samples, seed)


def sign_flip_test(differences: Floats, samples: int = SAMPLES, seed: int = 0) -> float:
    """Return the p-value of `randomisation_test` for given differences."""
    from scipy.stats import monte_carlo_test, permutation_test

    _check_number(len(differences))
    check_samples(samples)
    if len(differences) <= math.log2(samples):
        return float(permutation_test((differences,), np.sum, permutation_type="samples", n_resamples=np.inf).pvalue)
    generator = np.random.default_rng(seed)

    def flipped(size: tuple[int, ...]) -> Floats:
        return differences * (1.0 - 2.0 * generator.integers(0, 2, size, dtype=np.int8))

    batch = next(block_sizes(len(differences), samples))
    result = monte_carlo_test(differences, flipped, np.sum, n_resamples=samples, batch=batch, vectorized=True)
    return float(result.pvalue)


def paired_differences(a: Mapping[str, float], b: Mapping[str, float]) -> Floats:
    """Return the finite differences a - b in sorted order of the queries, so that a seed means the same."""
    if a.keys() != b.keys():
        only_a, only_b = sorted(a.keys() - b.keys()), sorted(b.keys() - a.keys())
        raise InputError(
            f"paired queries: got {len(only_a)} only in the first system and {len(only_b)} only in the second, such as "
            f"{(only_a or only_b)[0]!r}; expected the same queries; fix: evaluate both with the same judgements"
        )
    query_ids = sorted(a)
    differences = np.array([a[query_id] - b[query_id] for query_id in query_ids], dtype=np.float64)
    if not np.isfinite(differences).all():
        query_id = query_ids[int(np.argmin(np.isfinite(differences)))]
        raise InputError(
            f"query {query_id!r}: got values {a[query_id]} and {b[query_id]}; expected finite numbers; "
            "fix: check the evaluation"
        )
    return differences


def _check_number(queries: int) -> None:
    if queries < 2:
        raise InputError(
            f"paired queries: got {queries}; expected at least 2; fix: evaluate on more queries (some 50 or more)"
        )
