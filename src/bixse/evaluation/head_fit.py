"""Fit a relevance head on held-out pairs and say whether it helps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from bixse.encoders.head import RelevanceHead
from bixse.errors import InputError
from bixse.evaluation.calibration import CalibrationReport, calibration_report, fit_platt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

PLAIN_SCALE = 20.0
"""Scale of a model that was trained without a head; the calibration slope corrects it."""


def fit_head(
    head: RelevanceHead | None, cosines: NDArray[np.float64], relevance: NDArray[np.float64], fitted_on: str
) -> RelevanceHead:
    """Calibrate a head on judged pairs (Platt 1999, soft targets), or make one for a model that has none.

    Args:
        head: the trained head; None for a model trained without one.
        cosines: (M,) cosines of the pairs.
        relevance: (M,) relevance in [0, 1].
        fitted_on: what the pairs are, in words; kept in the head.

    Raises:
        InputError: no pairs, or relevance outside [0, 1].

    Example:
        >>> head = fit_head(None, np.array([0.9, 0.7, 0.2, 0.1]), np.array([1.0, 0.7, 0.1, 0.0]), "four pairs")
        >>> bool(head.probability(0.9) > 0.7 > 0.3 > head.probability(0.1))
        True
    """
    plain = replace(head, slope=1.0, intercept=0.0) if head else RelevanceHead(PLAIN_SCALE, 0.0)
    slope, intercept = fit_platt(plain.logit(cosines), relevance)
    return replace(plain, slope=slope, intercept=intercept, calibrated_on=fitted_on)


@dataclass(frozen=True)
class HeldOutCheck:
    """How good probabilities are on queries the calibration has not seen."""

    before: CalibrationReport | None
    """With the head as it was; None for a model without one."""
    after: CalibrationReport
    """With the calibration fitted on the other half of the queries."""

    @property
    def helps(self) -> bool:
        """Whether the calibrated Brier score is lower than before, or lower than a constant's without a head."""
        return self.after.brier < (self.before.brier if self.before else self.after.base_rate_brier)


def held_out_check(
    head: RelevanceHead | None,
    cosines: NDArray[np.float64],
    relevance: NDArray[np.float64],
    query_ids: Sequence[str],
    seed: int = 0,
) -> HeldOutCheck:
    """Fit on one half of the queries, measure on the other.

    Args:
        head: the head as it is.
        cosines: (M,) cosines.
        relevance: (M,) relevance in [0, 1].
        query_ids: (M,) query of each pair; both halves hold whole queries.
        seed: of the split.

    Raises:
        InputError: fewer than 4 queries.
    """
    queries = sorted(set(query_ids))
    if len(queries) < 4:
        raise InputError(
            f"calibration: got pairs of {len(queries)} queries; expected at least 4, so that half can be held out; "
            "to mend: grade documents for more queries"
        )
    fitting = set(np.random.default_rng(seed).permutation(queries)[: len(queries) // 2].tolist())
    fit = np.array([query in fitting for query in query_ids])
    held = [query for query in query_ids if query not in fitting]
    calibrated = fit_head(head, cosines[fit], relevance[fit], "held-out check")
    before = calibration_report(head.probability(cosines[~fit]), relevance[~fit], held) if head else None
    return HeldOutCheck(before, calibration_report(calibrated.probability(cosines[~fit]), relevance[~fit], held))
