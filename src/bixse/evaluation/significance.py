"""Is one system better than another? Paired bootstrap and randomisation test over queries."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import stdtr, stdtrit
from scipy.stats import monte_carlo_test, permutation_test

from bixse.errors import InputError
from bixse.evaluation.statistics import block_sizes, check_samples, interval_bounds, query_draws
from bixse.results import FEW_QUERIES, Difference

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bixse.evaluation.statistics import Floats

SAMPLES = 10_000


def paired_bootstrap(
    a: Mapping[str, float], b: Mapping[str, float], samples: int = SAMPLES, confidence: float = 0.95, seed: int = 0
) -> Difference:
    """Interval and p-value of the mean difference a - b, by resampling queries with replacement.

    Below 30 queries both are Student's t instead, which covers better there (`docs/evaluation.md` has figures). From 30
    on the interval is the percentile interval (Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapter
    13; for retrieval: Sakai 2006, doi:10.1145/1148170.1148261). The p-value inverts that same interval: twice the
    smaller share of resampled means on either side of 0, with one added to count and samples so that it is never 0.

    `a` and `b` are query id -> value for the same queries; `confidence` lies between 0 and 1.

    Raises:
        InputError: different queries, fewer than 2, a value that is not finite, or arguments out of range.

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
    """`paired_bootstrap` of the weighted sum of means of several sets of differences, resampled within each set."""
    queries = sum(map(len, strata))
    mean = float(sum(values.mean() * weight for values, weight in zip(strata, weights, strict=True)))
    _check_number(queries)
    check_samples(samples)
    low, high = interval_bounds(confidence)
    if queries < FEW_QUERIES:
        error, freedom = _standard_error(strata, weights)
        reach = error * float(stdtrit(freedom, high))
        p_value = 2 * float(stdtr(freedom, -abs(mean) / error)) if error else float(mean == 0)
        return Difference(mean, mean - reach, mean + reach, p_value, queries, confidence)
    means = np.zeros(samples)
    for number, (values, weight) in enumerate(zip(strata, weights, strict=True)):
        drawn = [times @ values for times in query_draws(len(values), samples, seed + number)]
        means += np.concatenate(drawn) * (weight / len(values))
    tail = min(int((means <= 0).sum()), int((means >= 0).sum()))
    ends = np.quantile(means, [low, high])
    p_value = min(1.0, 2 * (tail + 1) / (samples + 1))
    return Difference(mean, float(ends[0]), float(ends[1]), p_value, queries, confidence)


def _standard_error(strata: Sequence[Floats], weights: Sequence[float]) -> tuple[float, float]:
    """Of the weighted sum of means, with Welch's degrees of freedom; a single query tells nothing of its scatter."""
    several = [(values, weight) for values, weight in zip(strata, weights, strict=True) if len(values) > 1]
    variances = [weight**2 * float(values.var(ddof=1)) / len(values) for values, weight in several]
    total = sum(variances)
    parts = sum(part**2 / (len(values) - 1) for part, (values, _) in zip(variances, several, strict=True))
    return math.sqrt(total), total**2 / parts if parts else 1.0


def randomisation_test(a: Mapping[str, float], b: Mapping[str, float], samples: int = SAMPLES, seed: int = 0) -> float:
    """Two-sided p-value of the mean difference under random swaps of the two systems' values within each query.

    Fisher's randomisation test, recommended for retrieval by Smucker, Allan and Carterette 2007
    (doi:10.1145/1321440.1321528). Exact over all 2^n swaps when these are no more than `samples`; else drawn at
    random, the observed assignment counted as one of them. Errors as for `paired_bootstrap`.

    Example:
        >>> randomisation_test({"q1": 0.9, "q2": 0.8, "q3": 0.7}, {"q1": 0.5, "q2": 0.5, "q3": 0.5})
        0.25
    """
    return sign_flip_test(paired_differences(a, b), samples, seed)


def sign_flip_test(differences: Floats, samples: int = SAMPLES, seed: int = 0) -> float:
    """`randomisation_test` of differences."""
    _check_number(len(differences))
    check_samples(samples)
    if len(differences) <= math.log2(samples):
        return float(permutation_test((differences,), np.sum, permutation_type="samples", n_resamples=np.inf).pvalue)
    generator = np.random.default_rng(seed)

    def flipped(size: tuple[int, ...]) -> Floats:
        return differences * (1.0 - 2.0 * generator.integers(0, 2, size, dtype=np.int8))

    batch = next(block_sizes(len(differences), samples))
    found = monte_carlo_test(differences, flipped, np.sum, n_resamples=samples, batch=batch, vectorized=True)
    return float(found.pvalue)


def paired_differences(a: Mapping[str, float], b: Mapping[str, float]) -> Floats:
    """The differences a - b, finite, of the same queries in sorted order, so that a seed means the same."""
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
