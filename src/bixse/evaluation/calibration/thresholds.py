"""Probability thresholds for a target precision, with intervals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from bixse.errors import InputError
from bixse.evaluation.calibration.reliability import checked
from bixse.evaluation.statistics import interval_bounds, numbered_queries, resampled_ratios, wilson_interval
from bixse.results import Interval  # noqa: TC001 pydantic reads it

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from bixse.evaluation.statistics import Floats

FEWEST_PAIRS = 10
"""Fewer that reach a threshold say nothing of its precision."""


@dataclass(frozen=True)
class OperatingPoint:
    """What a threshold gives on judged pairs."""

    wanted: float
    is_reached: bool
    """Some threshold has it; otherwise this is the threshold of the highest precision."""
    threshold: float
    """Pairs scored this high or higher are taken."""
    precision: float
    interval: Interval
    """95 % interval of the precision, over queries."""
    recall: float
    pairs: int
    """Pairs taken, of so many queries."""
    queries: int
    recall_interval: Interval | None = None
    """95 % interval of the recall, over queries; None in records of earlier versions."""


def threshold_at_precision(
    scores: npt.ArrayLike,
    relevant: npt.ArrayLike,
    query_ids: Sequence[str],
    precision: float,
    weights: npt.ArrayLike | None = None,
    fewest: int = FEWEST_PAIRS,
    samples: int = 1000,
    seed: int = 0,
) -> OperatingPoint:
    """The lowest threshold whose precision is at least the one wanted: of all such the one that finds most.

    The interval resamples whole queries (percentile bootstrap) at this threshold. It leaves out that the threshold was
    chosen on the same pairs: on new queries the precision lies below the wanted one more often than above it
    (`docs/evaluation.md` has figures), so read the lower end. Where every pair taken is relevant, resampling shows no
    doubt; the interval is then Wilson's, with one trial per query.

    `scores` in [0, 1], `relevant`, 0 or 1, and `weights` (see `reweight_to_prevalence`) have shape (N,), and there are
    N `query_ids` of at least 2 queries. At least `fewest` pairs must reach a threshold. Raises InputError where they do
    not, or where all pairs are of one kind.

    Example:
        >>> found = threshold_at_precision([0.9, 0.8, 0.7, 0.2], [1, 1, 0, 0], ["a", "b", "a", "b"], 0.9, fewest=1)
        >>> found.threshold, found.precision, found.recall
        (0.8, 1.0, 1.0)
    """
    values, labels, counted = checked(scores, relevant, weights)
    _check(labels, precision, fewest)
    numbered_queries(query_ids, len(values))
    order = np.argsort(-values, kind="stable")
    taken, found = np.cumsum(counted[order]), np.cumsum((counted * labels)[order])
    ends = np.flatnonzero(np.append(np.diff(values[order]) < 0, True))  # the last pair of each score
    ends = ends[(ends + 1 >= fewest) & (taken[ends] > 0)]
    shares = found[ends] / taken[ends]
    reaching = np.flatnonzero(shares >= precision - 1e-12)
    place = int(reaching[-1]) if len(reaching) else int(np.flatnonzero(shares == shares.max())[-1])
    threshold = float(values[order][ends[place]])
    point = operating_point(values, labels, query_ids, threshold, counted, samples, seed)
    return replace(point, wanted=precision, is_reached=bool(len(reaching)))


def operating_point(
    scores: npt.ArrayLike,
    relevant: npt.ArrayLike,
    query_ids: Sequence[str],
    threshold: float,
    weights: npt.ArrayLike | None = None,
    samples: int = 1000,
    seed: int = 0,
) -> OperatingPoint:
    """What any threshold gives, by arguments and intervals of `threshold_at_precision`.

    Where no pair reaches it the precision is NaN, and its interval [0, 1].

    Raises:
        InputError: all pairs are of one kind, or labels are not 0 or 1.

    Example:
        >>> found = operating_point([0.9, 0.8, 0.7, 0.2], [1, 1, 0, 1], ["a", "b", "a", "b"], 0.75)
        >>> found.precision, round(found.recall, 3), found.pairs
        (1.0, 0.667, 2)
    """
    values, labels, counted = checked(scores, relevant, weights)
    _check(labels)
    query, number = numbered_queries(query_ids, len(values))
    above = values >= threshold
    among = len(np.unique(query[above]))
    sizes, sums, relevant_sums = (
        np.bincount(query, weights=part, minlength=number)
        for part in (counted * above, counted * labels * above, counted * labels)
    )
    share = float(sums.sum() / sizes.sum()) if sizes.any() else float("nan")
    if not above.any():
        interval: Interval = (0.0, 1.0)
    elif labels[above].all():
        interval = wilson_interval(among, among)
    else:
        interval = _percentiles(resampled_ratios(sums, sizes, samples, seed))
    return OperatingPoint(
        wanted=share,
        is_reached=True,
        threshold=threshold,
        precision=min(1.0, share),
        interval=interval,
        recall=min(1.0, float(sums.sum() / relevant_sums.sum())),
        pairs=int(above.sum()),
        queries=among,
        recall_interval=_percentiles(resampled_ratios(sums, relevant_sums, samples, seed)),
    )


def _percentiles(drawn: Floats) -> Interval:
    low, high = np.nanquantile(drawn, interval_bounds(0.95))
    return max(0.0, float(low)), min(1.0, float(high))


def _check(labels: Floats, precision: float = 1.0, fewest: int = 1) -> None:
    if not 0 < precision <= 1:
        raise InputError(f"precision: got {precision}; expected above 0 and up to 1; fix: 0.9 is a start")
    if not np.isin(labels, (0.0, 1.0)).all():
        raise InputError("relevant: got values between 0 and 1; expected 0 or 1; fix: cut relevance at a level")
    if labels.all() or not labels.any():
        kind = "relevant" if labels.all() else "irrelevant"
        raise InputError(
            f"thresholds: got {len(labels)} pairs, all {kind}; expected both kinds; fix: add the kind that is "
            "missing, or count as relevant from another relevance"
        )
    if len(labels) < fewest:
        raise InputError(f"thresholds: got {len(labels)} pairs; expected at least {fewest}; fix: judge more pairs")
