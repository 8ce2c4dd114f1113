"""Brier score, calibration error and reliability curve of probabilities of relevance, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bixse.encoders.head import log_odds
from bixse.encoders.platt import checked
from bixse.errors import InputError
from bixse.evaluation.intervals import jackknife_estimate, numbered_queries, query_draws, quotient, wilson_interval
from bixse.evaluation.statistics import ROUNDING, Floats
from bixse.results import UNITS_FROM, Bounds, CalibrationReport, IntervalEstimate, ReliabilityBin, Verdict, too_few

_LIKELY = (0.01, 0.975)
"""Quantiles of sums between which the interval of the calibration error covers 92 to 98 % of the true ones. Near a true
error of 0, only the upper one can miss."""


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
    """Return all calibration values of a report, with 95 % intervals over queries from 20 queries on.

    The calibration error is biased upwards, more so when resampled: its interval holds the errors under which the
    estimate is likely (`docs/reference/calibration.md`).
    `p`, `z` and `weights` have shape (N,); `p` and `z` lie in [0, 1]. A graded z of 0.7 is right if documents of this
    kind average 0.7.

    Example:
        >>> report = calibration_report([0.2, 0.3, 0.9], [0, 0, 1], ["q1", "q1", "q2"], samples=100)
        >>> report.brier < report.base_rate_brier, report.brier_interval
        (True, (None, None))
    """
    predicted, observed, counted = checked(p, z, weights)
    query, queries = numbered_queries(query_ids, len(predicted))
    entries = query * bins + _bin_of(predicted, bins)
    gaps = np.bincount(entries, weights=counted * (predicted - observed), minlength=queries * bins).reshape(-1, bins)
    sizes = np.bincount(query, weights=counted)
    base_rate = float(np.average(observed, weights=counted))
    brier_score, error = brier(p, z, weights), expected_calibration_error(p, z, bins, weights)
    interval = _over_queries((predicted - observed) ** 2, query_ids, counted)
    drawn = np.concatenate([times @ gaps / (times @ sizes)[:, None] for times in query_draws(queries, samples, seed)])
    few = too_few(queries, least=UNITS_FROM)
    ece_interval = (None, None) if few else _gaps_interval(gaps.sum(axis=0) / sizes.sum(), drawn)
    few = few if few or ece_interval[0] is not None else "no noise of queries, or smaller than it"
    return CalibrationReport(
        pairs=len(predicted),
        queries=queries,
        brier=brier_score,
        brier_interval=_shares(interval.low, interval.high),
        ece=error,
        ece_interval=ece_interval,
        base_rate_brier=float(np.average((observed - base_rate) ** 2, weights=counted)),
        curve=reliability_curve(predicted, observed, bins, counted),
        units=min(queries, round(float(observed.sum())), round(float((1 - observed).sum()))),
        brier_few=interval.few,
        ece_few=few,
    )


def brier_change(
    p: npt.ArrayLike,
    other: npt.ArrayLike,
    z: npt.ArrayLike,
    query_ids: Sequence[str],
    weights: npt.ArrayLike | None = None,
) -> IntervalEstimate:
    """Return the Brier score of `p` minus that of `other`, paired by query; arguments as for `calibration_report`."""
    predicted, observed, counted = checked(p, z, weights)
    return _over_queries((predicted - observed) ** 2 - (np.asarray(other) - observed) ** 2, query_ids, counted)


def _over_queries(values: Floats, query_ids: Sequence[str], weights: Floats) -> IntervalEstimate:
    """Return the weighted mean over pairs, with an interval from 20 queries on."""
    query, queries = numbered_queries(query_ids, len(values))
    sums, sizes = (np.bincount(query, weights=each) for each in (weights * values, weights))
    left_out = quotient(sums.sum() - sums, sizes.sum() - sizes)
    return jackknife_estimate(float(sums.sum() / sizes.sum()), left_out, too_few(queries, least=UNITS_FROM))


def _shares(low: float | None, high: float | None) -> Bounds:
    """Return the ends of an interval, cut to [0, 1], where the figure lies."""
    return None if low is None else max(low, 0.0), None if high is None else min(high, 1.0)


class Auc(NamedTuple):
    """The share of (relevant, irrelevant) documents in which the relevant one scores higher, with a 95 % interval."""

    value: float
    low: float | None
    """Ends of the interval; None if fewer than 20 queries have a relevant, or an irrelevant, document."""
    high: float | None
    few: str = ""
    """Why there is no interval, for example "7 queries with a relevant document; at least 20"."""

    @property
    def verdict(self) -> Verdict:
        """Return "better" if the interval is above 0.5, the AUC of scores that say nothing, "worse" if below."""
        low, high = (None if end is None else end - 0.5 for end in (self.low, self.high))
        return IntervalEstimate(self.value - 0.5, low, high).verdict()

    def __str__(self) -> str:
        interval = "" if self.low is None or self.high is None else f" [{self.low:.3f}, {self.high:.3f}]"
        return f"AUC {self.value:.3f}{interval}"


def auc(
    scores: npt.ArrayLike, relevant: npt.ArrayLike, query_ids: Sequence[str], weights: npt.ArrayLike | None = None
) -> Auc | None:
    """Return the area under the ROC curve over the pairs of all queries, as one threshold for all sees them.

    Equal scores count half. The interval is the jackknife's over queries, of the logit (simulated in
    `docs/reference/calibration.md`); for an area of 0 or 1 it is Wilson's. None for pairs of one kind only. `weights`
    (N,) are the numbers of pairs that pairs stand for.

    Example:
        >>> auc([0.9, 0.4, 0.3, 0.8], [1, 0, 0, 1], ["a", "a", "b", "b"])
        Auc(value=1.0, low=None, high=None, few='2 queries with a relevant document; at least 20')
    """
    from scipy.special import expit, logit

    values, labels = np.asarray(scores, dtype=np.float64), np.asarray(relevant, dtype=np.float64)
    query, _ = numbered_queries(query_ids, len(values))
    level = np.unique(values, return_inverse=True)[1]
    counted = np.ones(len(labels)) if weights is None else np.asarray(weights, dtype=np.float64)
    relevant, irrelevant = counted * labels, counted * (1 - labels)
    hits, misses = (np.bincount(query, weights=part) for part in (relevant, irrelevant))
    below = _weight_below(level, irrelevant)
    wins, number = float(relevant @ below), float(hits.sum() * misses.sum())
    if not number:
        return None
    units, kind = min((int((of > 0).sum()), kind) for of, kind in ((hits, "a relevant"), (misses, "an irrelevant")))
    value, few = wins / number, too_few(units, f"queries with {kind} document", UNITS_FROM)
    if few:
        return Auc(value, None, None, few)
    if not 0 < wins < number:  # no variance: a query counts as one pair
        return Auc(value, *_shares(*wilson_interval(value * units, units)))
    # the area without each query: without the wins of its documents, of which those within it were taken twice
    within = _weight_below(np.unique(query * len(level) + level, return_inverse=True)[1], irrelevant)
    within -= (np.cumsum(misses) - misses)[query]
    above = hits.sum() - _weight_below(level, relevant)
    less = np.bincount(query, weights=relevant * (below - within) + irrelevant * above)
    rest = (wins - less) / ((hits.sum() - hits) * (misses.sum() - misses))
    margin = 0.5 / number  # one query may hold every error
    logits = logit(np.clip(np.append(rest, value), margin, 1 - margin))
    estimate = jackknife_estimate(float(logits[-1]), logits[:-1])
    low, high = (None if end is None else float(expit(end)) for end in (estimate.low, estimate.high))
    return Auc(value, low, high, estimate.few)


def _weight_below(level: npt.NDArray[np.int64], weights: Floats) -> Floats:
    """Return per pair the weight of the pairs of a lower level, and half of that of its own."""
    totals = np.bincount(level, weights=weights)
    below: Floats = (np.cumsum(totals) - totals / 2)[level]
    return below


def reweight_to_prevalence(
    z: npt.ArrayLike, prior: float, weights: npt.ArrayLike | None = None
) -> tuple[Floats, Floats]:
    """Return weights (N,) of mean 1 that move judged pairs to another mean relevance, and the new relevance (N,).

    `weights` (N,), the numbers of pairs that pairs stand for, are multiplied by them.
    Importance weights under a shift of the prior alone (Saerens, Latinne and Decaestecker 2002,
    doi:10.1162/089976602753284446): a pair of relevance z stands for a share z of relevant and 1 - z of irrelevant
    pairs. Raises InputError for a prior not between 0 and 1, and for pairs of one kind only.
    """
    log_odds(prior, "prior")
    observed = np.asarray(z, dtype=np.float64)
    counted = np.ones(observed.shape) if weights is None else np.asarray(weights, dtype=np.float64)
    share = float(np.average(observed, weights=counted)) if observed.size else 0.0
    if not 0 < share < 1:
        raise InputError(
            f"prior: got pairs whose mean relevance is {share:g}; expected relevant and irrelevant ones; fix: add the "
            "kind that is missing"
        )
    relevant, irrelevant = observed * (prior / share), (1 - observed) * ((1 - prior) / (1 - share))
    factors = relevant + irrelevant
    return counted * factors, relevant / factors


def _gaps_interval(gaps: Floats, drawn: Floats) -> Bounds:
    """Return an interval of the sum of |true gaps| from gaps (bins,) and resampled ones (S, bins).

    The true gaps are taken as a multiple of the observed ones. The interval holds the multiples under which the
    observed sum lies in the middle of the sums with the noise of the resamples.
    """
    total, multiples = np.abs(gaps).sum(), np.linspace(0, 2, 201)
    sums = [np.abs(multiple * gaps + (drawn - gaps)).sum(axis=1) for multiple in multiples]
    low, high = np.quantile(sums, _LIKELY, axis=1)
    likely = multiples[(low <= total) & (total <= high)]
    if total <= ROUNDING or not likely.size or np.ptp(drawn, axis=0).max() <= ROUNDING:
        return None, None
    half = multiples[1] / 2  # each end lies between two multiples
    return _shares(float((likely.min() - half) * total), float((likely.max() + half) * total))


def _bin_of(predicted: Floats, bins: int) -> npt.NDArray[np.int64]:
    if bins < 1:
        raise InputError(f"bins: got {bins}; expected at least 1; fix: use 10")
    return np.minimum((predicted * bins).astype(np.int64), bins - 1)  # a prediction of 1 is in the last bin
