"""The difference of two systems over queries: its interval, its p-values, and corrections for several comparisons."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bixse.errors import InputError
from bixse.results import QUERIES_FROM, Difference, Interval, too_few

Floats: TypeAlias = npt.NDArray[np.float64]
_BLOCK_SIZE = 1 << 22
"""Numbers (samples x queries) drawn at once: bounds memory to about 100 MB."""
SAMPLES = 10_000
ROUNDING = 1e-9
"""Differences up to this share of the largest figure are 0: sums in another order differ by some units of the last
place, and their scatter would be an interval."""
SKEWED_SHARE = 0.4
"""Weight of Hall's interval in `difference_of`: of 0 to 1 it is the one that covers 92 to 98 % from 40 queries on."""


def block_sizes(queries: int, samples: int) -> Iterator[int]:
    """Yield the number of rows per block for `samples` resamples of `queries` queries."""
    rows = max(1, _BLOCK_SIZE // queries)
    for start in range(0, samples, rows):
        yield min(rows, samples - start)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979): each bounds the chance of one false finding among all."""
    order = np.argsort(p_values)
    corrected = np.empty(len(order))
    corrected[order] = np.maximum.accumulate(np.asarray(p_values)[order] * np.arange(len(order), 0, -1))
    return [min(value, 1.0) for value in corrected.tolist()]


def interval_bounds(confidence: float) -> Interval:
    """Return the two quantiles that enclose a share `confidence` of a distribution."""
    if not 0 < confidence < 1:
        raise InputError(f"confidence: got {confidence}; expected between 0 and 1; fix: use 0.95")
    return (1 - confidence) / 2, (1 + confidence) / 2


def check_samples(samples: int) -> None:
    """Raise InputError for a number of resamples below 1."""
    if samples < 1:
        raise InputError(f"samples: got {samples}; expected at least 1; fix: use 1000")


def paired_difference(a: Mapping[str, float], b: Mapping[str, float], confidence: float = 0.95) -> Difference:
    """Return the mean difference a - b over queries (query id -> value) with `difference_of`'s interval and p-value.

    Raise InputError for other queries in `a` than in `b`, for no query, and for figures that are not finite.

    Example:
        >>> a = {f"q{i}": 0.5 + 0.01 * (i % 7) for i in range(50)}
        >>> difference = paired_difference(a, dict.fromkeys(a, 0.5))
        >>> round(difference.mean, 3), round(difference.low, 3), round(difference.high, 3), difference.verdict
        (0.029, 0.024, 0.035, 'better')
    """
    return mean_difference([paired_differences(a, b)], [1.0], confidence)


def mean_difference(strata: Sequence[Floats], weights: Sequence[float], confidence: float = 0.95) -> Difference:
    """Return `paired_difference` of the weighted sum of means of several sets of differences."""
    queries = sum(map(len, strata))
    _check_number(queries)
    mean = float(sum(values.mean() * weight for values, weight in zip(strata, weights, strict=True)))
    return difference_of(mean, *scatter(strata, weights), queries, confidence, worth_of(map(len, strata), weights))


def worth_of(sizes: Iterable[int], weights: Sequence[float]) -> int | None:
    """Return the number of equally weighted queries whose mean varies as a weighted sum of means; None for one mean.

    A collection of one query carries half of a mean over two, whatever the size of the other (Kish 1965).
    """
    parts = sum(weight**2 / size for size, weight in zip(sizes, weights, strict=True))
    return int(sum(map(abs, weights)) ** 2 / parts + 1e-9) if len(weights) > 1 else None


def difference_of(
    mean: float,
    error: float,
    freedom: float,
    skewness: float,
    queries: int,
    confidence: float = 0.95,
    worth: int | None = None,
) -> Difference:
    """Return a mean with interval and p-value, from its standard error, degrees of freedom and skewness.

    Each end is Student's t, or further out if the mean is skewed: 0.6 of t plus 0.4 of Hall's transformation (1992,
    doi:10.1111/j.2517-6161.1992.tb01872.x) with quantiles of t. The p-value inverts the interval. For fewer than
    40 queries, and without scatter, there is no interval (`docs/reference/evaluation.md` has the simulation).
    """
    from scipy.optimize import brentq
    from scipy.special import stdtr, stdtrit

    _, bound = interval_bounds(confidence)
    if error <= ROUNDING * abs(mean) or too_few(queries) or (worth is not None and too_few(worth)):
        return Difference(mean, None, None, None if mean or error else 1.0, queries, confidence, worth)

    def skewed(quantile: float, skew: float) -> float:
        skew = math.copysign(max(abs(skew), 1e-6), skew)  # the formula divides by it
        hall = 3 / skew * (float(np.cbrt(1 + skew * quantile - skew**2 / 6)) - 1)
        return (1 - SKEWED_SHARE) * quantile + SKEWED_SHARE * hall

    quantile = float(stdtrit(freedom, bound))
    below, above = (error * max(quantile, skewed(quantile, skew)) for skew in (skewness, -skewness))
    touching, skew = abs(mean) / error, skewness if mean > 0 else -skewness
    if skewed(touching, skew) > touching:  # the further end reaches 0 at a smaller quantile than t's
        reached = skewed(0.0, skew) >= abs(mean) / error
        touching = 0.0 if reached else float(brentq(lambda q: skewed(q, skew) - abs(mean) / error, 0.0, touching))
    p_value = 2 * float(stdtr(freedom, -touching))
    return Difference(mean, mean - below, mean + above, p_value, queries, confidence, worth)


def scatter(strata: Sequence[Floats], weights: Sequence[float]) -> tuple[float, float, float]:
    """Return the standard error of a weighted sum of means, Welch's degrees of freedom, and its skewness."""
    varies = [np.ptp(values) > ROUNDING * np.abs(values).max() for values in strata]
    spread = [float(values.var(ddof=1)) for values, each in zip(strata, varies, strict=True) if each]
    if not spread:
        return 0.0, 1.0, 0.0
    # a small set without scatter has that of the others: a single query would count as certain
    scatter = [values.var(ddof=1) if each else np.mean(spread) * (len(values) < QUERIES_FROM)
           for values, each in zip(strata, varies, strict=True)]  # fmt: skip
    sizes = [len(values) for values in strata]
    variances = [float(w**2 * v / n) for v, w, n in zip(scatter, weights, sizes, strict=True)]
    total = sum(variances)
    parts = sum(part**2 / max(size - 1, 1) for part, size in zip(variances, sizes, strict=True))
    third = sum(weight**3 * third_moment(values) for values, weight in zip(strata, weights, strict=True))
    return math.sqrt(total), total**2 / parts, third / total**1.5


def third_moment(values: Floats) -> float:
    """Return the third central moment of the mean of (Q,) values; over the cubed standard error it is its skewness."""
    return float(((values - values.mean()) ** 3).mean()) / len(values) ** 2


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
    if len(differences) == 1:  # both assignments are as far from 0; scipy refuses it
        return 1.0
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
    first, second = (np.array([side[query_id] for query_id in query_ids], dtype=np.float64) for side in (a, b))
    differences = first - second
    if not np.isfinite(differences).all():
        query_id = query_ids[int(np.argmin(np.isfinite(differences)))]
        raise InputError(
            f"query {query_id!r}: got values {a[query_id]} and {b[query_id]}; expected finite numbers; "
            "fix: check the evaluation"
        )
    largest = max(np.abs(first).max(initial=0.0), np.abs(second).max(initial=0.0))
    return np.where(np.abs(differences) <= ROUNDING * largest, 0.0, differences)


def _check_number(queries: int) -> None:
    if not queries:
        raise InputError("paired queries: got none; expected some; fix: evaluate on queries (50 or more for a verdict)")
