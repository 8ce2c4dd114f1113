"""Are scores probabilities of relevance? Brier score, calibration error and reliability curve, with intervals.

Predictions p and relevance z lie in [0, 1]; z may be graded: 0.7 is right when such documents average 0.7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from bixse.errors import InputError, shorten
from bixse.evaluation.significance import interval_bounds, resamples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Floats: TypeAlias = npt.NDArray[np.float64]
Interval: TypeAlias = tuple[float, float]
"""Lower and upper end."""
_WILSON_Z = 1.959963984540054
"""Standard normal quantile of a 95 % interval."""


@dataclass(frozen=True)
class ReliabilityBin:
    """One point of a reliability curve."""

    predicted: float
    """Mean prediction of the bin's pairs."""
    observed: float
    """Mean observed relevance."""
    count: int
    """Pairs in the bin, at least 1."""
    low: float
    """Lower end of the 95 % interval of `observed`."""
    high: float
    """Upper end."""


class CalibrationIntervals(NamedTuple):
    """Intervals of the Brier score and the calibration error."""

    brier: Interval
    ece: Interval


@dataclass(frozen=True)
class CalibrationReport:
    """How far predictions are probabilities; read `brier` against `base_rate_brier` before `ece`.

    A constant prediction at the base rate has a small calibration error and knows nothing; only a Brier score below
    that of the constant shows that predictions carry information.
    """

    pairs: int
    """Judged query-document pairs."""
    queries: int
    """Distinct queries, the units that intervals resample."""
    brier: float
    """Mean of (p - z)^2."""
    brier_interval: Interval
    """Its interval."""
    ece: float
    """Expected calibration error."""
    ece_interval: Interval
    """Its interval, corrected for the upward bias of the estimate."""
    base_rate_brier: float
    """Brier score of always predicting mean(z)."""
    curve: list[ReliabilityBin]
    """Bins that hold pairs, from low to high predictions."""


def brier(p: npt.ArrayLike, z: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> float:
    """Mean squared difference of prediction and relevance (Brier 1950); 0 is perfect.

    With graded z it does not reach 0 for honest predictions, since z scatters around its mean.

    Args:
        p: predictions in [0, 1], shape (N,).
        z: observed relevance in [0, 1], shape (N,).
        weights: how much each pair counts, shape (N,), 0 and up; None: all alike.

    Raises:
        InputError: no pairs, different lengths, or a value outside its range.

    Example:
        >>> brier([0.5, 1.0], [0.0, 1.0])
        0.125
    """
    predicted, observed, counted = checked(p, z, weights)
    return float(counted @ (predicted - observed) ** 2 / counted.sum())


def expected_calibration_error(
    p: npt.ArrayLike, z: npt.ArrayLike, bins: int = 10, weights: npt.ArrayLike | None = None
) -> float:
    """Mean over pairs of |mean prediction - mean relevance| in the pair's bin; 0 is perfect.

    Bins of equal width over [0, 1], as in Guo et al. 2017 (arXiv:1706.04599); a prediction on an inner edge falls
    into the upper bin. The estimate is biased upwards when bins hold few pairs.

    Raises:
        InputError: no pairs, different lengths, a value outside its range, or `bins` below 1.

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
    """Mean prediction against mean relevance by bins of equal width; empty bins are left out.

    The interval is Wilson's (1927, doi:10.1080/01621459.1927.10502953) at 95 %. It is wide for graded z,
    whose variance is below that of binary z with the same mean. It takes pairs as independent: where a query
    has many pairs it is too narrow, and the intervals of `intervals_by_query` are the ones to quote. Weighted pairs
    count as (sum of weights)^2 / (sum of squared weights) of them (Kish 1965, "Survey Sampling", section 11.7).

    Raises:
        InputError: no pairs, different lengths, a value outside its range, or `bins` below 1.

    Example:
        >>> [(point.predicted, point.observed, point.count) for point in reliability_curve([0.25, 0.75], [0, 1], 2)]
        [(0.25, 0.0, 1), (0.75, 1.0, 1)]
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
        ReliabilityBin(mean_p, mean_z, count, *wilson_interval(mean_z, number))
        for mean_p, mean_z, count, number in zip(*means.tolist(), counts.tolist(), effective.tolist(), strict=True)
        if number
    ]


def intervals_by_query(
    p: npt.ArrayLike,
    z: npt.ArrayLike,
    query_ids: Sequence[str],
    bins: int = 10,
    samples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    weights: npt.ArrayLike | None = None,
) -> CalibrationIntervals:
    """Intervals of the Brier score and the calibration error, by resampling whole queries.

    Pairs of one query are alike, so queries are drawn with replacement and bring all their pairs (cluster
    bootstrap). The interval is the basic one, [2t - upper quantile, 2t - lower quantile] around the estimate t and
    cut to [0, 1] (Davison and Hinkley 1997, "Bootstrap Methods and their Application", section 5.2), because the
    calibration error is biased upwards, more so when resampled; the percentile interval then misses the truth (in a
    simulation with a true error of 0 it never covered it, the basic one in about 60 % of trials). Near-perfect
    calibration may therefore show an estimate above its own interval.

    Args:
        p: predictions in [0, 1], shape (N,).
        z: observed relevance in [0, 1], shape (N,).
        query_ids: N ids, the query of each pair; at least 2 distinct.
        bins: bins of equal width for the calibration error.
        samples: resamples, at least 1.
        confidence: between 0 and 1.
        seed: of the resampling.
        weights: how much each pair counts, shape (N,), above 0; None: all alike.

    Raises:
        InputError: arguments that do not match or lie outside their range, or fewer than 2 queries.

    Example:
        >>> intervals = intervals_by_query([0.2, 0.3, 0.9], [0, 0, 1], ["q1", "q1", "q2"], samples=100)
        >>> [round(end, 4) for end in intervals.brier]
        [0.0283, 0.0833]
    """
    predicted, observed, counted = checked(p, z, weights)
    if samples < 1:
        raise InputError(f"samples: got {samples}; expected at least 1; fix: use 1000")
    quantiles = interval_bounds(confidence)
    query, number = numbered_queries(query_ids, len(predicted))
    cells = query * bins + _bin_of(predicted, bins)
    gaps = np.bincount(cells, weights=counted * (predicted - observed), minlength=number * bins).reshape(-1, bins)
    squares = np.bincount(query, weights=counted * (predicted - observed) ** 2)
    sizes = np.bincount(query, weights=counted)
    drawn_brier, drawn_ece = [], []
    for times in times_drawn(number, samples, seed):
        pairs = times @ sizes
        drawn_brier.append(times @ squares / pairs)
        drawn_ece.append(np.abs(times @ gaps).sum(axis=1) / pairs)
    return CalibrationIntervals(
        brier=_basic_interval(brier(p, z, weights), np.concatenate(drawn_brier), quantiles),
        ece=_basic_interval(expected_calibration_error(p, z, bins, weights), np.concatenate(drawn_ece), quantiles),
    )


def calibration_report(
    p: npt.ArrayLike,
    z: npt.ArrayLike,
    query_ids: Sequence[str],
    bins: int = 10,
    samples: int = 1000,
    seed: int = 0,
    weights: npt.ArrayLike | None = None,
) -> CalibrationReport:
    """Everything a report shows about calibration, with 95 % intervals over queries.

    Raises:
        InputError: arguments that do not match or lie outside their range, or fewer than 2 queries.

    Example:
        >>> report = calibration_report([0.1, 0.8, 0.3], [0.0, 1.0, 0.0], ["q1", "q1", "q2"])
        >>> report.brier < report.base_rate_brier
        True
    """
    predicted, observed, counted = checked(p, z, weights)
    intervals = intervals_by_query(
        predicted, observed, query_ids, bins=bins, samples=samples, seed=seed, weights=counted
    )
    base_rate = float(np.average(observed, weights=counted))
    return CalibrationReport(
        pairs=len(predicted),
        queries=len(set(query_ids)),
        brier=brier(predicted, observed, counted),
        brier_interval=intervals.brier,
        ece=expected_calibration_error(predicted, observed, bins, counted),
        ece_interval=intervals.ece,
        base_rate_brier=float(np.average((observed - base_rate) ** 2, weights=counted)),
        curve=reliability_curve(predicted, observed, bins, counted),
    )


def wilson_interval(mean: float, count: float) -> Interval:
    """Wilson's 95 % interval of the mean of `count` values in [0, 1].

    Example:
        >>> low, high = wilson_interval(1.0, 10)
        >>> round(low, 2), round(high, 2)
        (0.72, 1.0)
    """
    squared = _WILSON_Z**2
    middle = (mean + squared / (2 * count)) / (1 + squared / count)
    half = _WILSON_Z / (1 + squared / count) * np.sqrt(mean * (1 - mean) / count + squared / (4 * count**2))
    return max(0.0, float(middle - half)), min(1.0, float(middle + half))


def numbered_queries(query_ids: Sequence[str], pairs: int) -> tuple[npt.NDArray[np.int64], int]:
    """The query of each pair as a number from 0 on, and how many queries there are.

    Raises:
        InputError: another number of ids than pairs, or fewer than 2 queries.
    """
    if len(query_ids) != pairs:
        raise InputError(
            f"calibration: got {len(query_ids)} query ids for {pairs} pairs; expected one a pair; "
            "fix: pass the query id of each pair"
        )
    names, query = np.unique(np.asarray(query_ids, dtype=str), return_inverse=True)
    if len(names) < 2:
        raise InputError(
            f"calibration: got pairs of {len(names)} query; expected at least 2 queries; fix: judge more queries"
        )
    return query, len(names)


def times_drawn(number: int, samples: int, seed: int) -> Iterator[Floats]:
    """How often each of `number` queries is drawn, in blocks of bootstrap resamples: shape (rows, number).

    Example:
        >>> sum(block.sum() for block in times_drawn(3, samples=100, seed=0)).item()
        300.0
    """
    for drawn in resamples(number, samples, seed):
        rows = np.arange(len(drawn))[:, None] * number
        yield np.bincount((drawn + rows).ravel(), minlength=drawn.size).reshape(drawn.shape).astype(np.float64)


def checked(p: npt.ArrayLike, z: npt.ArrayLike, weights: npt.ArrayLike | None = None) -> tuple[Floats, Floats, Floats]:
    """Predictions, relevance and weights as float64 vectors of one length, in their ranges.

    Raises:
        InputError: no pairs, different lengths, or a value outside its range.
    """
    arrays: list[Any] = [np.asarray(p, dtype=np.float64), np.asarray(z, dtype=np.float64)]
    if arrays[0].ndim != 1 or arrays[0].shape != arrays[1].shape or not arrays[0].size:
        raise InputError(
            f"calibration: got predictions {arrays[0].shape} and relevance {arrays[1].shape}; expected two vectors of "
            "one length, at least 1; fix: pass one prediction and one relevance per pair"
        )
    for name, values, fix in (
        ("predictions", arrays[0], "apply the sigmoid to logits first"),
        ("relevance", arrays[1], "map grades to [0, 1] with GradeScale.to_relevance"),
    ):
        wrong = ~((values >= 0) & (values <= 1))
        if wrong.any():
            raise InputError(f"{name}: got {values[wrong][0]}; expected 0 to 1; fix: {fix}")
    counted = np.ones(arrays[0].shape) if weights is None else np.asarray(weights, dtype=np.float64)
    if counted.shape != arrays[0].shape or not (np.isfinite(counted) & (counted >= 0)).all() or not counted.any():
        raise InputError(
            f"weights: got {shorten(counted.tolist())}; expected one a pair, finite, 0 and up, not all 0; fix: "
            "leave them out to count all pairs alike"
        )
    return arrays[0], arrays[1], counted


def _basic_interval(estimate: float, drawn: Floats, quantiles: tuple[float, float]) -> Interval:
    """The drawn values' quantiles mirrored at the estimate, cut to [0, 1]."""
    lower, upper = np.quantile(drawn, quantiles)
    low, high = np.clip([2 * estimate - upper, 2 * estimate - lower], 0.0, 1.0)
    return float(low), float(high)


def _bin_of(predicted: Floats, bins: int) -> npt.NDArray[np.int64]:
    """The bin of each prediction; 1.0 falls into the last."""
    if bins < 1:
        raise InputError(f"bins: got {bins}; expected at least 1; fix: use 10")
    return np.minimum((predicted * bins).astype(np.int64), bins - 1)
