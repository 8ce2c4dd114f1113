"""Probability thresholds for a target precision, with intervals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from bixse.calibration.reliability import checked
from bixse.errors import InputError
from bixse.evaluation.statistics import numbered_queries, wilson_interval
from bixse.results import Interval  # noqa: TC001 pydantic reads it

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from bixse.evaluation.statistics import Floats

_ROUNDING = 1e-12
FEWEST_PAIRS = 10
"""Fewer that reach a threshold say nothing of its precision: they choose no threshold, and have no interval."""


@dataclass(frozen=True)
class OperatingPoint:
    """What a threshold gives on judged pairs."""

    wanted: float
    is_reached: bool
    """Some threshold has it; otherwise this is the threshold of the highest precision."""
    threshold: float
    """Pairs scored this high or higher are taken."""
    precision: float
    interval: Interval | None
    """95 % interval of the precision, over queries; None for fewer than 10 pairs."""
    recall: float
    pairs: int
    """Pairs taken, of so many queries."""
    queries: int
    recall_interval: Interval | None = None
    """95 % interval of the recall, over queries; None for fewer than 10 relevant pairs."""


def threshold_at_precision(
    scores: npt.ArrayLike,
    relevant: npt.ArrayLike,
    query_ids: Sequence[str],
    precision: float,
    weights: npt.ArrayLike | None = None,
    fewest: int = FEWEST_PAIRS,
) -> OperatingPoint:
    """The lowest threshold whose precision is at least the one wanted: of all such the one that finds most.

    The interval is Wilson's at this threshold, on the effective number of pairs, since those of one query are alike. It
    leaves out that the threshold was chosen on the same pairs: on new queries the precision lies below the wanted one
    more often than above it (`docs/evaluation.md` has figures), so read the lower end.

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
    point = operating_point(values, labels, query_ids, threshold, counted)
    return replace(point, wanted=precision, is_reached=bool(len(reaching)))


def operating_point(
    scores: npt.ArrayLike,
    relevant: npt.ArrayLike,
    query_ids: Sequence[str],
    threshold: float,
    weights: npt.ArrayLike | None = None,
) -> OperatingPoint:
    """What any threshold gives, by arguments and intervals of `threshold_at_precision`.

    Where no pair reaches it the precision is NaN.

    Raises:
        InputError: all pairs are of one kind, or labels are not 0 or 1.

    Example:
        >>> found = operating_point([0.9, 0.8, 0.7, 0.2], [1, 1, 0, 1], ["a", "b", "a", "b"], 0.75)
        >>> found.precision, round(found.recall, 3), found.pairs
        (1.0, 0.667, 2)
    """
    values, labels, counted = checked(scores, relevant, weights)
    _check(labels)
    query, _ = numbered_queries(query_ids, len(values))
    above = values >= threshold
    precision, interval = _share(labels[above], counted[above], query[above])
    recall, recall_interval = _share(above[labels > 0].astype(np.float64), counted[labels > 0], query[labels > 0])
    return OperatingPoint(
        wanted=precision,
        is_reached=True,
        threshold=threshold,
        precision=precision,
        interval=interval,
        recall=recall,
        pairs=int(above.sum()),
        queries=len(np.unique(query[above])),
        recall_interval=recall_interval,
    )


def _share(hits: Floats, weights: Floats, query: npt.NDArray[np.int64]) -> tuple[float, Interval | None]:
    """The weighted share of hits among pairs, with Wilson's interval on their effective number.

    That is share (1 - share) over the variance of the share by queries (Cochran 1977, "Sampling Techniques", section
    6.5; with Wilson's interval: Franco et al. 2019, doi:10.1093/jssam/smy019), at most that of the weights alone (Kish
    1965). Where all pairs are alike, variance tells nothing, and each query counts as one.
    """
    if not weights.any():
        return float("nan"), None
    total, number = weights.sum(), len(np.unique(query))
    share = min(1.0, float(weights @ hits / total))
    residuals = np.bincount(query, weights=weights * (hits - share))
    variance = float((residuals**2).sum() / total**2) * number / max(number - 1, 1)
    scatter, effective = share * (1 - share), float(total**2 / (weights**2).sum())
    if scatter < _ROUNDING or number < 2:
        effective = number
    elif variance > 0:
        effective = min(effective, scatter / variance)
    return share, wilson_interval(share * effective, effective) if len(hits) >= FEWEST_PAIRS else None


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
