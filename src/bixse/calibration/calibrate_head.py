"""Fit a relevance head on held-out pairs, say whether it helps, and choose its thresholds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from bixse.calibration.calibrate_settings import RELEVANT_FROM
from bixse.calibration.platt import fit_platt
from bixse.calibration.reliability import calibration_report, reweight_to_prevalence
from bixse.calibration.thresholds import OperatingPoint, operating_point, threshold_at_precision
from bixse.encoders.head import RelevanceHead, Threshold
from bixse.errors import InputError
from bixse.results import CalibrationReport  # noqa: TC001 pydantic reads it

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

PLAIN_SCALE = 20.0
"""Logit scale of a model that was trained without a head; the calibration slope corrects it."""
FEWEST_QUERIES = 20
"""Needed for a threshold, since half of them are held out."""


def fit_head(
    head: RelevanceHead | None, cosines: NDArray[np.float64], relevance: NDArray[np.float64], fitted_on: str
) -> RelevanceHead:
    """Calibrate a head on (M,) cosines and relevance by `fit_platt`, or make one for a model that has none.

    `fitted_on`, what the pairs are, in words, is kept in the head.
    """
    plain = head.as_trained() if head else RelevanceHead(PLAIN_SCALE, 0.0)
    slope, intercept = fit_platt(plain.logit(cosines), relevance)
    share = float(np.mean(relevance))
    return replace(
        plain, slope=slope, intercept=intercept, calibrated_on=fitted_on, prior=share if 0 < share < 1 else None
    )


@dataclass(frozen=True)
class HeldOutCheck:
    """How good probabilities are on queries that the calibration has not seen."""

    base_rate: float
    """Mean relevance of the held-out pairs, weighted to the prior: always answering it is the constant."""
    reports: dict[str, CalibrationReport]
    """The head as it was is "before" (where the model had one); then other ways to get probabilities; "calibrated" is
    last, fitted on the other half of the queries and moved to the prior asked for."""

    @property
    def calibrated(self) -> CalibrationReport:
        return self.reports["calibrated"]

    @property
    def helps(self) -> bool:
        """Whether the calibrated Brier score is lower than before, or lower than a constant's without a head."""
        before = self.reports.get("before")
        return self.calibrated.brier < (before.brier if before else self.calibrated.base_rate_brier)

    @property
    def beats_constant(self) -> bool:
        """Whether the calibrated Brier score is lower than that of always answering the base rate."""
        return self.calibrated.brier < self.calibrated.base_rate_brier

    @property
    def finding(self) -> str:
        """What the check comes to, in words."""
        own, constant = self.calibrated.brier, self.calibrated.base_rate_brier
        if not self.beats_constant:
            digits = 3 if constant >= 0.01 else 6
            return (
                f"no better than always answering {self.base_rate:.3g}: on held-out queries the Brier score is "
                f"{own:.{digits}f}, and that of the constant {constant:.{digits}f}"
            )
        than = "than before" if "before" in self.reports else "than that of a constant"
        return f"its Brier score on held-out queries is {'lower' if self.helps else 'not lower'} {than}"


def held_out_check(
    head: RelevanceHead | None,
    cosines: NDArray[np.float64],
    relevance: NDArray[np.float64],
    query_ids: Sequence[str],
    seed: int = 0,
    prior: float | None = None,
) -> HeldOutCheck:
    """Fit on one half of the queries, at least 4 in all, and measure on the other.

    `cosines`, `relevance` in [0, 1] and `query_ids` are (M,). `prior` is the mean relevance of what will be scored:
    everything is measured on pairs weighted to it; None: that of the pairs.
    """
    held, ids = _held_out(query_ids, seed)
    for name, half in (("fitted on", ~held), ("measured on", held)):
        if np.ptp(relevance[half]) == 0:
            raise InputError(
                f"calibration: got relevance {relevance[half][0]:g} for all {int(half.sum())} pairs of the half of the "
                f"queries that it is {name}; expected relevant and irrelevant pairs; fix: add pairs of the "
                "kind that is missing (all graded candidates of a query, not the relevant ones alone), or take another "
                "--seed"
            )
    weights, observed = (None, relevance[held]) if prior is None else reweight_to_prevalence(relevance[held], prior)

    def measured(candidate: RelevanceHead) -> CalibrationReport:
        return calibration_report(candidate.probability(cosines[held]), observed, ids, seed=seed, weights=weights)

    fitted = fit_head(head, cosines[~held], relevance[~held], "held-out check")
    found: dict[str, CalibrationReport] = {}
    if head is not None:
        found["before"] = measured(head)
        if head != head.as_trained():
            found["as trained"] = measured(head.as_trained())
    if prior is not None:
        if head is not None and head.trained_prior is not None:
            found[f"as trained, moved to prior {prior:g}"] = measured(head.as_trained().at_prior(prior))
        found["refitted"] = measured(fitted)
        fitted = fitted.at_prior(prior)
    return HeldOutCheck(float(np.average(observed, weights=weights)), {**found, "calibrated": measured(fitted)})


def choose_thresholds(
    head: RelevanceHead,
    cosines: NDArray[np.float64],
    relevance: NDArray[np.float64],
    query_ids: Sequence[str],
    precisions: Sequence[float],
    relevant_from: float = RELEVANT_FROM,
    prior: float | None = None,
    seed: int = 0,
) -> tuple[RelevanceHead, list[OperatingPoint]]:
    """Give a head thresholds for wanted precisions, chosen on the queries that `held_out_check` holds out.

    A threshold on a probability is one on the cosine, since the one rises with the other: what a threshold gives does
    not depend on how the probabilities were fitted. Gives the head with a threshold for each precision that is reached,
    and what was found for every one, the highest first. Arguments and errors as for `held_out_check`; 20 queries at
    least.
    """
    probabilities, relevant, ids, weights = _judged(head, cosines, relevance, query_ids, relevant_from, prior, seed)
    points = [
        threshold_at_precision(probabilities, relevant, ids, precision, weights)
        for precision in sorted(set(precisions), reverse=True)
    ]
    thresholds = tuple(
        Threshold(
            p.wanted, p.threshold, p.precision, *p.interval, p.recall, p.pairs, p.queries, relevant_from=relevant_from
        )
        for p in points
        if p.is_reached and p.interval is not None
    )
    return replace(head, thresholds=thresholds), points


def measure_threshold(
    head: RelevanceHead,
    cosines: NDArray[np.float64],
    relevance: NDArray[np.float64],
    query_ids: Sequence[str],
    probability: float,
    relevant_from: float = RELEVANT_FROM,
    prior: float | None = None,
    seed: int = 0,
) -> OperatingPoint:
    """What a probability gives as a threshold, on the queries and by the arguments of `choose_thresholds`."""
    probabilities, relevant, ids, weights = _judged(head, cosines, relevance, query_ids, relevant_from, prior, seed)
    return operating_point(probabilities, relevant, ids, probability, weights)


def _judged(
    head: RelevanceHead,
    cosines: NDArray[np.float64],
    relevance: NDArray[np.float64],
    query_ids: Sequence[str],
    relevant_from: float,
    prior: float | None,
    seed: int,
) -> tuple[NDArray[np.float64], NDArray[np.bool_], tuple[str, ...], NDArray[np.float64] | None]:
    """Of the pairs that are held out: probabilities, whether they are relevant, their queries and weights."""
    number, held, ids = _halves(tuple(query_ids), seed)
    if number < FEWEST_QUERIES:
        raise InputError(
            f"thresholds: got pairs of {number} queries; expected at least {FEWEST_QUERIES}, half of which are held "
            "out; fix: grade documents for more queries, or leave --at-precision out"
        )
    weights = reweight_to_prevalence(relevance[held], prior)[0] if prior is not None else None
    return head.probability(cosines[held]), relevance[held] >= relevant_from, ids, weights


def _held_out(query_ids: Sequence[str], seed: int) -> tuple[NDArray[np.bool_], tuple[str, ...]]:
    """Which of the (M,) pairs belong to the half of the queries that is held out, and the queries of these."""
    number, held, ids = _halves(tuple(query_ids), seed)
    if number < 4:
        raise InputError(
            f"calibration: got pairs of {number} queries; expected at least 4, so that half can be held out; "
            "fix: grade documents for more queries"
        )
    return held, ids


@lru_cache(maxsize=1)
def _halves(query_ids: tuple[str, ...], seed: int) -> tuple[int, NDArray[np.bool_], tuple[str, ...]]:
    """How many queries there are, and `_held_out`; kept, since a slider asks for the same pairs again and again."""
    queries = sorted(set(query_ids))
    fitting = set(np.random.default_rng(seed).permutation(queries)[: len(queries) // 2].tolist())
    held = np.array([query not in fitting for query in query_ids], dtype=bool)
    held.flags.writeable = False
    return len(queries), held, tuple(query for query in query_ids if query not in fitting)
