"""Brier score, calibration error and reliability curve of probabilities of relevance, with intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bixse.encoders.head import log_odds
from bixse.encoders.platt import checked
from bixse.errors import InputError
from bixse.evaluation.statistics import (
    interval_bounds,
    numbered_queries,
    query_draws,
    resampled_ratios,
    wilson_interval,
)
from bixse.results import CalibrationReport, ReliabilityBin

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from bixse.evaluation.statistics import Floats
    from bixse.results import Interval


def brier(p: npt.ArrayLike, z: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> float:
    """Return the mean squared difference of prediction and relevance (Brier 1950); 0 is perfect.

    With graded z, honest predictions do not reach 0. Arguments and errors as for `calibration_report`.
    """
    predicted, observed, counted = checked(p, z, weights)
    return float(counted @ (predicted - observed) ** 2 / counted.sum())


def expected_calibration_error(
    p: npt.ArrayLike, z: npt.ArrayLike, bins: int = 10, weights: npt.ArrayLike | None = None
) -> float:
    """Return the mean over pairs of |mean prediction - mean relevance| in the pair's bin; 0 is perfect.

    Bins have equal width over [0, 1], as in Guo et al. 2017 (arXiv:1706.04599); a prediction on an inner edge is in the
    upper bin. The estimate is biased upwards if bins hold few pairs. Arguments and errors as for `calibration_report`.

    Example:
        >>> expected_calibration_error([0.2, 0.2, 0.9], [0.0, 0.0, 0.6], bins=10)
        0.23...
    """
    predicted, observed, counted = checked(p, z, weights)
    gaps = np.bincount(_bin_of(predicted, bins), weights=counted * (predicted - observed), minlength=bins)
    return float(np.abs(gaps).sum() / counted.sum())


def reliability_curve(
    p: npt.ArrayLike, z: npt.ArrayLike, bins: int = 10, weights: npt.ArrayLike | None = None
) -> list[ReliabilityBin]:
    """Return mean prediction and mean relevance per bin of equal width, without empty bins, as `calibration_report`.

    The interval is Wilson's at 95 %. It is too wide for graded z, whose variance is below that of binary z, and too
    narrow for many pairs per query. Weighted pairs count as (sum of weights)^2 / (sum of squared weights) pairs (Kish
    1965, "Survey Sampling", section 11.7).
    """
    predicted, observed, counted = checked(p, z, weights)
    members = _bin_of(predicted, bins)
    counts = np.bincount(members, minlength=bins)
    mass, squares, sums_p, sums_z = (
        np.bincount(members, weights=values, minlength=bins)
        for values in (counted, counted**2, counted * predicted, counted * observed)
    )
    means = np.minimum(np.stack([sums_p, sums_z]) / np.where(mass > 0, mass, 1.0), 1.0)  # a quotient may round above 1
    effective = mass**2 / np.where(squares > 0, squares, 1.0)
    return [
        ReliabilityBin(mean_p, mean_z, count, *wilson_interval(mean_z * number, number))
        for mean_p, mean_z, count, number in zip(*means.tolist(), counts.tolist(), effective.tolist(), strict=True)
        if number
    ]


def calibration_report(
    p: npt.ArrayLike,
    z: npt.ArrayLike,
    query_ids: Sequence[str],
    bins: int = 10,
    samples: int = 1000,
    seed: int = 0,
    weights: npt.ArrayLike | None = None,
) -> CalibrationReport:
    """Return all calibration values of a report, with 95 % basic bootstrap intervals over queries, cut to [0, 1].

    Source: Davison and Hinkley 1997, "Bootstrap Methods and their Application", section 5.2. The calibration error is
    biased upwards, more so when resampled: a percentile interval misses the truth (`docs/reference/calibration.md`).
    `p`, `z` and `weights` have shape (N,); `p` and `z` lie in [0, 1]. A graded z of 0.7 is right if documents of this
    kind average 0.7.

    Example:
        >>> report = calibration_report([0.2, 0.3, 0.9], [0, 0, 1], ["q1", "q1", "q2"], samples=100)
        >>> report.brier < report.base_rate_brier, [round(end, 4) for end in report.brier_interval]
        (True, [0.0283, 0.0833])
    """
    predicted, observed, counted = checked(p, z, weights)
    query, queries = numbered_queries(query_ids, len(predicted))
    entries = query * bins + _bin_of(predicted, bins)
    gaps = np.bincount(entries, weights=counted * (predicted - observed), minlength=queries * bins).reshape(-1, bins)
    errors = np.bincount(query, weights=counted * (predicted - observed) ** 2)
    sizes = np.bincount(query, weights=counted)
    drawn_ece = [np.abs(times @ gaps).sum(axis=1) / (times @ sizes) for times in query_draws(queries, samples, seed)]
    base_rate = float(np.average(observed, weights=counted))
    brier_score, error = brier(p, z, weights), expected_calibration_error(p, z, bins, weights)
    return CalibrationReport(
        pairs=len(predicted),
        queries=queries,
        brier=brier_score,
        brier_interval=_basic_interval(brier_score, resampled_ratios(errors, sizes, samples, seed)),
        ece=error,
        ece_interval=_basic_interval(error, np.concatenate(drawn_ece)),
        base_rate_brier=float(np.average((observed - base_rate) ** 2, weights=counted)),
        curve=reliability_curve(predicted, observed, bins, counted),
    )


class Auc(NamedTuple):
    """The share of (relevant, irrelevant) documents in which the relevant one scores higher, with a 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def separates(self) -> bool:
        """Return True if the interval is above 0.5, the AUC of scores that say nothing."""
        return self.low > 0.5

    def __str__(self) -> str:
        return f"AUC {self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def auc(
    scores: npt.ArrayLike, relevant: npt.ArrayLike, query_ids: Sequence[str], samples: int = 1000, seed: int = 0
) -> Auc | None:
    """Return the area under the ROC curve over the pairs of all queries, as one threshold for all sees them.

    Equal scores count half. The interval resamples whole queries. None for pairs of one kind only.

    Example:
        >>> auc([0.9, 0.4, 0.3, 0.8], [1, 0, 0, 1], ["a", "a", "b", "b"], samples=10)
        Auc(value=1.0, low=1.0, high=1.0)
    """
    values, labels = np.asarray(scores, dtype=np.float64), np.asarray(relevant, dtype=np.float64)
    query, queries = numbered_queries(query_ids, len(values))
    level = np.unique(values, return_inverse=True)[1]

    def area(times: Floats) -> float:
        weights = times[query]
        hits, misses = (np.bincount(level, weights=weights * part) for part in (labels, 1 - labels))
        number = hits.sum() * misses.sum()
        return float(hits @ (np.cumsum(misses) - misses / 2) / number) if number else np.nan

    value = area(np.ones(queries))
    if np.isnan(value):
        return None
    drawn = [area(times) for block in query_draws(queries, samples, seed) for times in block]
    low, high = np.nanquantile(drawn, interval_bounds(0.95))  # a draw may have only one kind of pairs
    return Auc(value, float(low), float(high))


def reweight_to_prevalence(z: npt.ArrayLike, prior: float) -> tuple[Floats, Floats]:
    """Return weights (N,) of mean 1 that move judged pairs to another mean relevance, and the new relevance (N,).

    Importance weights under a shift of the prior alone (Saerens, Latinne and Decaestecker 2002,
    doi:10.1162/089976602753284446): a pair of relevance z stands for a share z of relevant and 1 - z of irrelevant
    pairs. Raises InputError for a prior not between 0 and 1, and for pairs of one kind only.
    """
    log_odds(prior, "prior")
    observed = np.asarray(z, dtype=np.float64)
    share = float(observed.mean()) if observed.size else 0.0
    if not 0 < share < 1:
        raise InputError(
            f"prior: got pairs whose mean relevance is {share:g}; expected relevant and irrelevant ones; fix: add the "
            "kind that is missing"
        )
    relevant, irrelevant = observed * (prior / share), (1 - observed) * ((1 - prior) / (1 - share))
    weights = relevant + irrelevant
    return weights, relevant / weights


def _basic_interval(estimate: float, drawn: Floats) -> Interval:
    lower, upper = np.quantile(drawn, interval_bounds(0.95))
    low, high = np.clip([2 * estimate - upper, 2 * estimate - lower], 0.0, 1.0)
    return float(low), float(high)


def _bin_of(predicted: Floats, bins: int) -> npt.NDArray[np.int64]:
    if bins < 1:
        raise InputError(f"bins: got {bins}; expected at least 1; fix: use 10")
    return np.minimum((predicted * bins).astype(np.int64), bins - 1)  # a prediction of 1 is in the last bin
