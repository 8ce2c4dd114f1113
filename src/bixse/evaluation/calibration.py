"""Are scores probabilities of relevance? Brier score, calibration error, reliability curve and Platt scaling.

Predictions p and relevance z lie in [0, 1]; z may be graded: 0.7 is right when such documents average 0.7.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from bixse.errors import InputError
from bixse.evaluation.significance import interval_bounds, resamples

if TYPE_CHECKING:
    from collections.abc import Sequence

Floats: TypeAlias = npt.NDArray[np.float64]
Interval: TypeAlias = tuple[float, float]
"""Lower and upper end."""
_WILSON_Z = 1.959963984540054
"""Standard normal quantile of a 95 % interval."""
_NEWTON_STEPS = 100
"""Platt scaling takes about ten."""


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


def brier(p: npt.ArrayLike, z: npt.ArrayLike) -> float:
    """Mean squared difference of prediction and relevance (Brier 1950); 0 is perfect.

    With graded z it does not reach 0 for honest predictions, since z scatters around its mean.

    Args:
        p: predictions in [0, 1], shape (N,).
        z: observed relevance in [0, 1], shape (N,).

    Raises:
        InputError: no pairs, different lengths, or a value outside [0, 1].

    Example:
        >>> brier([0.5, 1.0], [0.0, 1.0])
        0.125
    """
    predicted, observed = _checked(p, z)
    return float(np.mean((predicted - observed) ** 2))


def expected_calibration_error(p: npt.ArrayLike, z: npt.ArrayLike, bins: int = 10) -> float:
    """Mean over pairs of |mean prediction - mean relevance| in the pair's bin; 0 is perfect.

    Bins of equal width over [0, 1], as in Guo et al. 2017 (arXiv:1706.04599); a prediction on an inner edge falls
    into the upper bin. The estimate is biased upwards when bins hold few pairs.

    Raises:
        InputError: no pairs, different lengths, a value outside [0, 1], or `bins` below 1.

    Example:
        >>> expected_calibration_error([0.2, 0.2, 0.9], [0.0, 0.0, 0.6], bins=10)
        0.23...
    """
    predicted, observed = _checked(p, z)
    gaps = np.bincount(_bin_of(predicted, bins), weights=predicted - observed, minlength=bins)
    return float(np.abs(gaps).sum() / len(predicted))


def reliability_curve(p: npt.ArrayLike, z: npt.ArrayLike, bins: int = 10) -> list[ReliabilityBin]:
    """Mean prediction against mean relevance by bins of equal width; empty bins are left out.

    The interval is Wilson's (1927, doi:10.1080/01621459.1927.10502953) at 95 %. It is wide for graded z,
    whose variance is below that of binary z with the same mean. It takes pairs as independent: where a query
    has many pairs it is too narrow, and the intervals of `intervals_by_query` are the ones to quote.

    Raises:
        InputError: no pairs, different lengths, a value outside [0, 1], or `bins` below 1.

    Example:
        >>> [(point.predicted, point.observed, point.count) for point in reliability_curve([0.25, 0.75], [0, 1], 2)]
        [(0.25, 0.0, 1), (0.75, 1.0, 1)]
    """
    predicted, observed = _checked(p, z)
    members = _bin_of(predicted, bins)
    counts = np.bincount(members, minlength=bins)
    sums_p = np.bincount(members, weights=predicted, minlength=bins)
    sums_z = np.bincount(members, weights=observed, minlength=bins)
    means = np.minimum(np.stack([sums_p, sums_z]) / np.maximum(counts, 1), 1.0)  # the quotient may round above 1
    return [
        ReliabilityBin(mean_p, mean_z, count, *_wilson(mean_z, count))
        for mean_p, mean_z, count in zip(*means.tolist(), counts.tolist(), strict=True)
        if count
    ]


def intervals_by_query(
    p: npt.ArrayLike,
    z: npt.ArrayLike,
    query_ids: Sequence[str],
    bins: int = 10,
    samples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
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

    Raises:
        InputError: arguments that do not match or lie outside their range, or fewer than 2 queries.

    Example:
        >>> intervals = intervals_by_query([0.2, 0.3, 0.9], [0, 0, 1], ["q1", "q1", "q2"], samples=100)
        >>> [round(end, 4) for end in intervals.brier]
        [0.0283, 0.0833]
    """
    predicted, observed = _checked(p, z)
    if len(query_ids) != len(predicted):
        raise InputError(
            f"calibration: got {len(query_ids)} query ids for {len(predicted)} pairs; expected one a pair; "
            "to mend: pass the query id of each pair"
        )
    if samples < 1:
        raise InputError(f"samples: got {samples}; expected at least 1; to mend: use 1000")
    quantiles = interval_bounds(confidence)
    names, query = np.unique(np.asarray(query_ids, dtype=str), return_inverse=True)
    if len(names) < 2:
        raise InputError(
            f"calibration: got pairs of {len(names)} query; expected at least 2 queries; to mend: judge more queries"
        )
    cells = query * bins + _bin_of(predicted, bins)
    gaps = np.bincount(cells, weights=predicted - observed, minlength=len(names) * bins).reshape(-1, bins)
    squares = np.bincount(query, weights=(predicted - observed) ** 2)
    sizes = np.bincount(query)
    drawn_brier, drawn_ece = [], []
    for drawn in resamples(len(names), samples, seed):
        rows = np.arange(len(drawn))[:, None] * len(names)
        times = np.bincount((drawn + rows).ravel(), minlength=drawn.size).reshape(drawn.shape).astype(np.float64)
        pairs = times @ sizes
        drawn_brier.append(times @ squares / pairs)
        drawn_ece.append(np.abs(times @ gaps).sum(axis=1) / pairs)
    return CalibrationIntervals(
        brier=_basic_interval(brier(p, z), np.concatenate(drawn_brier), quantiles),
        ece=_basic_interval(expected_calibration_error(p, z, bins), np.concatenate(drawn_ece), quantiles),
    )


def calibration_report(
    p: npt.ArrayLike,
    z: npt.ArrayLike,
    query_ids: Sequence[str],
    bins: int = 10,
    samples: int = 1000,
    seed: int = 0,
) -> CalibrationReport:
    """Everything a report shows about calibration, with 95 % intervals over queries.

    Raises:
        InputError: arguments that do not match or lie outside their range, or fewer than 2 queries.

    Example:
        >>> report = calibration_report([0.1, 0.8, 0.3], [0.0, 1.0, 0.0], ["q1", "q1", "q2"])
        >>> report.brier < report.base_rate_brier
        True
    """
    predicted, observed = _checked(p, z)
    intervals = intervals_by_query(predicted, observed, query_ids, bins=bins, samples=samples, seed=seed)
    return CalibrationReport(
        pairs=len(predicted),
        queries=len(set(query_ids)),
        brier=brier(predicted, observed),
        brier_interval=intervals.brier,
        ece=expected_calibration_error(predicted, observed, bins),
        ece_interval=intervals.ece,
        base_rate_brier=float(np.var(observed)),
        curve=reliability_curve(predicted, observed, bins),
    )


def fit_platt(logits: npt.ArrayLike, z: npt.ArrayLike, prior: bool = True) -> tuple[float, float]:
    """Slope a >= 0 and intercept c of sigma(a * logit + c), fitted to relevance by binary cross-entropy.

    Platt scaling (Platt 1999, "Probabilistic outputs for support vector machines") with soft targets, by Newton's
    method with step halving in float64. A slope of 0 means that the logits do not rise with relevance.

    Args:
        logits: scores before the sigmoid, shape (N,), finite.
        z: relevance in [0, 1], shape (N,).
        prior: pull the targets in as Platt does: relevance 1 becomes (n1 + 1) / (n1 + 2) and relevance 0 becomes
            1 / (n0 + 2), where n1 = sum z and n0 = sum (1 - z), and graded targets lie between. It keeps the answer
            finite when the logits separate the relevances or these are all 0 or 1, and hardly matters with many
            pairs. Without it a separable fit stops at a large, arbitrary slope.

    Raises:
        InputError: no pairs, different lengths, a logit that is not finite, or z outside [0, 1].

    Example:
        >>> slope, intercept = fit_platt([-2.0, -1.0, 1.0, 2.0], [0.0, 0.4, 0.6, 1.0])
        >>> slope > 0, abs(intercept) < 1e-9
        (True, True)
    """
    scores = np.asarray(logits, dtype=np.float64)
    _, targets = _checked(np.zeros(scores.shape), z)
    if not np.isfinite(scores).all():
        raise InputError("logits: got NaN or infinity; expected finite numbers; to mend: check the model")
    if prior:
        top = (targets.sum() + 1) / (targets.sum() + 2)
        bottom = 1 / ((1 - targets).sum() + 2)
        targets = bottom + (top - bottom) * targets
    constant = (0.0, _log_odds(float(targets.mean())))
    spread = float(scores.std())
    if spread <= 1e-12 * max(1.0, float(np.abs(scores).max())):
        return constant
    center = float(scores.mean())
    slope, intercept = _newton((scores - center) / spread, targets, constant[1])
    if slope <= 0:
        return constant
    return slope / spread, intercept - slope * center / spread


def _newton(x: Floats, targets: Floats, intercept: float) -> tuple[float, float]:
    """Minimise mean softplus(a x + c) - targets (a x + c), which is convex in (a, c), from a = 0."""
    design = np.stack([x, np.ones_like(x)], axis=1)
    weights = np.array([0.0, intercept])

    def loss(candidate: Floats) -> float:
        logits = design @ candidate
        return float(np.mean(np.logaddexp(0.0, logits) - targets * logits))

    for _ in range(_NEWTON_STEPS):
        probabilities = 0.5 * (1 + np.tanh(0.5 * (design @ weights)))
        gradient = design.T @ (probabilities - targets) / len(x)
        if np.abs(gradient).max() < 1e-12:
            break
        curvature = (design * (probabilities * (1 - probabilities))[:, None]).T @ design / len(x)
        step = np.linalg.solve(curvature + 1e-12 * np.eye(2), gradient)
        scale = 1.0
        while scale > 1e-9 and loss(weights - scale * step) > loss(weights):
            scale /= 2
        if scale <= 1e-9:
            break
        weights = weights - scale * step
    return float(weights[0]), float(weights[1])


def _log_odds(mean: float) -> float:
    """Log-odds of a mean, kept finite at 0 and 1."""
    bounded = min(max(mean, 1e-12), 1 - 1e-12)
    return float(np.log(bounded / (1 - bounded)))


def _basic_interval(estimate: float, drawn: Floats, quantiles: tuple[float, float]) -> Interval:
    """The drawn values' quantiles mirrored at the estimate, cut to [0, 1]."""
    lower, upper = np.quantile(drawn, quantiles)
    low, high = np.clip([2 * estimate - upper, 2 * estimate - lower], 0.0, 1.0)
    return float(low), float(high)


def _wilson(mean: float, count: int) -> Interval:
    """Wilson's score interval of a mean of `count` values in [0, 1]."""
    squared = _WILSON_Z**2
    middle = (mean + squared / (2 * count)) / (1 + squared / count)
    half = _WILSON_Z / (1 + squared / count) * np.sqrt(mean * (1 - mean) / count + squared / (4 * count**2))
    return max(0.0, float(middle - half)), min(1.0, float(middle + half))


def _bin_of(predicted: Floats, bins: int) -> npt.NDArray[np.int64]:
    """The bin of each prediction; 1.0 falls into the last."""
    if bins < 1:
        raise InputError(f"bins: got {bins}; expected at least 1; to mend: use 10")
    return np.minimum((predicted * bins).astype(np.int64), bins - 1)


def _checked(p: npt.ArrayLike, z: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Both as float64 vectors in [0, 1] of one length."""
    arrays: list[Any] = [np.asarray(p, dtype=np.float64), np.asarray(z, dtype=np.float64)]
    if arrays[0].ndim != 1 or arrays[0].shape != arrays[1].shape or not arrays[0].size:
        raise InputError(
            f"calibration: got predictions {arrays[0].shape} and relevance {arrays[1].shape}; expected two vectors of "
            "one length, at least 1; to mend: pass one prediction and one relevance a pair"
        )
    for name, values, fix in (
        ("predictions", arrays[0], "apply the sigmoid to logits first"),
        ("relevance", arrays[1], "map grades to [0, 1] with GradeScale.to_relevance"),
    ):
        wrong = ~((values >= 0) & (values <= 1))
        if wrong.any():
            raise InputError(f"{name}: got {values[wrong][0]}; expected 0 to 1; to mend: {fix}")
    return arrays[0], arrays[1]
