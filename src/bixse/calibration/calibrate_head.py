"""Fit a relevance head on held-out pairs, check whether it helps, and choose its thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from bixse.calibration.calibrate_settings import POSITIVE_FROM
from bixse.calibration.reliability import Auc, auc, brier_change, calibration_report, reweight_to_prevalence
from bixse.encoders.head import RelevanceHead, Threshold
from bixse.encoders.platt import checked, fit_platt
from bixse.errors import InputError
from bixse.evaluation.intervals import Floats, numbered_queries, wilson_interval
from bixse.results import UNITS_FROM, CalibrationReport, Interval, IntervalEstimate, too_few

_ROUNDING = 1e-12
FEWEST_PAIRS = 10
"""Minimum number of pairs above a threshold; fewer give neither a threshold nor an interval of the precision."""
LOWEST_RELEVANT = 0.1
"""Relevance from which no pair counts as irrelevant: the lowest grade above 0 of a scale of up to ten steps."""
SAMPLING = "`bixse calibrate MODEL --collection DIR --split dev`, which samples irrelevant documents"
"""The way from judgements of relevant documents alone to probabilities."""
PLAIN_SCALE = 20.0
"""Logit scale for a model trained without a head; the calibration slope corrects it."""


@dataclass(frozen=True)
class OperatingPoint:
    """The precision and recall of a threshold on judged pairs."""

    wanted: float
    is_reached: bool
    """False if no threshold has the precision; this is the threshold of the highest precision then."""
    threshold: float
    precision: float
    interval: Interval | None
    """95 % interval of the precision, over queries; None for fewer than 10 pairs."""
    recall: float
    pairs: int
    """Number of pairs at or above the threshold."""
    queries: int
    recall_interval: Interval | None = None
    """95 % interval of the recall, over queries; None for fewer than 10 relevant pairs."""
    claimed: float | None = None
    """Precision on the queries that the threshold was chosen on, estimated for the complete corpus; None for graded
    pairs. The other figures are then those of search results: documents above the threshold in the rankings of
    held-out queries."""
    claimed_interval: Interval | None = None


def threshold_at_precision(
    scores: npt.ArrayLike,
    relevant: npt.ArrayLike,
    query_ids: Sequence[str],
    precision: float,
    weights: npt.ArrayLike | None = None,
    fewest: int = FEWEST_PAIRS,
) -> OperatingPoint:
    """Return the threshold with the highest recall among those with at least the precision.

    Of thresholds with this recall it has the highest precision. It lies in the middle between the lowest score that it
    keeps and the next one, in log-odds, and so between their cosines. The interval ignores that the threshold was
    chosen on the same pairs. On new queries the precision is below the wanted one more often than above it
    (`docs/reference/calibration.md`), so read the lower end. `scores` in [0, 1], `relevant`, 0 or 1, and `weights` (see
    `reweight_to_prevalence`) have shape (N,). At least `fewest` pairs must reach a threshold. Raises InputError for
    fewer pairs, for fewer than 2 queries, and for pairs of one kind.

    Example:
        >>> point = threshold_at_precision([0.9, 0.8, 0.2, 0.1], [1, 1, 0, 0], ["a", "b", "a", "b"], 0.6, fewest=1)
        >>> round(point.threshold, 6), point.precision, point.recall
        (0.5, 1.0, 1.0)
    """
    values, labels, counted = checked(scores, relevant, weights)
    _check(labels, precision, fewest)
    numbered_queries(query_ids, len(values))
    order = np.argsort(-values, kind="stable")
    mass, hits = np.cumsum(counted[order]), np.cumsum((counted * labels)[order])
    ends = np.flatnonzero(np.append(np.diff(values[order]) < 0, True))  # the last pair of each score
    ends = ends[(ends + 1 >= fewest) & (mass[ends] > 0)]
    shares = hits[ends] / mass[ends]
    reaching = np.flatnonzero(shares >= precision - 1e-12)  # the quotient may round below the precision
    lowest = int(reaching[-1]) if len(reaching) else int(np.flatnonzero(shares == shares.max())[-1])
    # further down come irrelevant pairs alone: the first threshold with as many relevant ones is the most precise
    last = int(ends[np.searchsorted(hits[ends], hits[ends[lowest]])])
    # the higher score itself if no number lies between the two
    higher, lower = values[order][last], values[order][min(last + 1, len(values) - 1)]
    with np.errstate(divide="ignore", invalid="ignore"):
        logit = np.mean([np.log(score) - np.log1p(-score) for score in (higher, lower)])
        middle = float(1 / (1 + np.exp(-logit))) if np.isfinite(logit) else (higher + lower) / 2
    threshold = middle if lower < middle <= higher else float(higher)
    point = operating_point(values, labels, query_ids, threshold, counted)
    return replace(point, wanted=precision, is_reached=bool(len(reaching)))


def operating_point(
    scores: npt.ArrayLike,
    relevant: npt.ArrayLike,
    query_ids: Sequence[str],
    threshold: float,
    weights: npt.ArrayLike | None = None,
) -> OperatingPoint:
    """Measure any threshold, with the arguments and intervals of `threshold_at_precision`; NaN without pairs."""
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
    """Return the weighted share of hits among pairs, with Wilson's interval on their effective number."""
    # share (1 - share) over the variance of the share by queries (Cochran 1977, "Sampling Techniques", section 6.5;
    # with Wilson's interval: Franco et al. 2019, doi:10.1093/jssam/smy019), at most that of the weights (Kish 1965)
    if not weights.any():
        return float("nan"), None
    total, number = weights.sum(), len(np.unique(query))
    share = min(1.0, float(weights @ hits / total))
    residuals = np.bincount(query, weights=weights * (hits - share))
    variance = float((residuals**2).sum() / total**2) * number / max(number - 1, 1)
    scatter, effective = share * (1 - share), float(total**2 / (weights**2).sum())
    if scatter < _ROUNDING or number < 2:  # all pairs are alike and have no variance: a query counts as one pair
        effective = number
    elif variance > 0:
        effective = min(effective, scatter / variance)
    return share, wilson_interval(share * effective, effective) if len(hits) >= FEWEST_PAIRS else None


def _check(labels: Floats, precision: float = 1.0, fewest: int = 1) -> None:
    if not 0 < precision <= 1:
        raise InputError(f"precision: got {precision}; expected above 0 and up to 1; fix: 0.9 is a start")
    if not np.isin(labels, (0.0, 1.0)).all():
        raise InputError("relevant: got values between 0 and 1; expected 0 or 1; fix: pass relevance >= 0.5")
    if labels.all() or not labels.any():
        kind = "relevant" if labels.all() else "irrelevant"
        raise InputError(
            f"thresholds: got {len(labels)} pairs, all {kind}; expected both kinds; fix: change the relevance from "
            f"which a pair counts as relevant, or {SAMPLING if labels.all() else 'add relevant pairs'}"
        )
    if len(labels) < fewest:
        raise InputError(f"thresholds: got {len(labels)} pairs; expected at least {fewest}; fix: judge more pairs")


def fit_head(
    head: RelevanceHead | None,
    cosines: NDArray[np.float64],
    relevance: NDArray[np.float64],
    fitted_on: str,
    new: RelevanceHead | None = None,
    weights: NDArray[np.float64] | None = None,
) -> RelevanceHead:
    """Calibrate a head, or a new one, on (M,) cosines and relevance by `fit_platt`; `fitted_on` describes the pairs."""
    plain = head.as_trained() if head else new or RelevanceHead(PLAIN_SCALE, 0.0)
    slope, intercept = fit_platt(plain.logit(cosines), relevance, weights)
    share = float(np.average(relevance, weights=weights))
    return replace(
        plain, slope=slope, intercept=intercept, calibrated_on=fitted_on, prior=share if 0 < share < 1 else None
    )


@dataclass(frozen=True)
class HeldOutCheck:
    """The quality of probabilities on queries that the calibration has not seen."""

    base_rate: float
    """Mean relevance of the held-out pairs, weighted to the prior; the constant always answers it."""
    reports: dict[str, CalibrationReport]
    """Name -> report: first "before", the earlier head if there is one; last "calibrated", moved to the prior."""

    auc: Auc | None = None
    """AUC of one threshold for all queries; None for pairs of one kind."""
    change: IntervalEstimate | None = None
    """Brier score minus that before (without a head: that of the constant), paired by query; not in older files."""
    is_relevant_alone: bool = False
    """True if no pair is irrelevant: the probabilities then say nothing about search results."""

    @property
    def calibrated(self) -> CalibrationReport:
        return self.reports["calibrated"]

    @property
    def helps(self) -> bool:
        """Return True if the calibrated Brier score is lower than before; without a head, than that of a constant."""
        before = self.reports.get("before")
        return self.calibrated.brier < (before.brier if before else self.calibrated.base_rate_brier)

    @property
    def beats_constant(self) -> bool:
        """Return True if the calibrated Brier score is lower than that of always answering the base rate."""
        return self.calibrated.brier < self.calibrated.base_rate_brier

    @property
    def is_useful(self) -> bool:
        """Return True if the scores tell relevant from irrelevant pairs, and the probabilities beat a constant."""
        separates = self.auc is None or self.auc.verdict == "better"
        return self.beats_constant and separates and not self.is_relevant_alone

    @property
    def fix(self) -> str:
        """The remedy for probabilities that are not useful."""
        verdict = "better" if self.auc is None else self.auc.verdict
        if self.is_relevant_alone or (verdict == "cannot tell" and self.auc is not None and "irrel" in self.auc.few):
            return f"judge irrelevant documents too, use {SAMPLING}, or save the calibration with --anyway"
        return {
            "worse": "turn the sign (use 1 - score or -score), or check that a high grade means relevant",
            "no difference": "a threshold will not help for such pairs; train or change the model",
            "cannot tell": "grade documents for more queries, or save the calibration with --anyway",
            "better": "grade more pairs, or save the calibration with --anyway",
        }[verdict]

    @property
    def doubt(self) -> str:
        """The reason why a lower Brier score is no verdict, or ""."""
        if self.change is None or self.change.verdict(lower_is_better=True) in ("better", "worse"):
            return ""
        return f"cannot tell: {self.change.few}" if self.change.few else "no difference is shown"

    @property
    def finding(self) -> str:
        """The result of the check, in words."""
        if self.is_relevant_alone:
            return "no pair is irrelevant, so that the probabilities say nothing about search results"
        if self.auc is not None and self.auc.verdict != "better":
            separates = "separate relevant from irrelevant documents"
            return {
                "worse": f"the scores fall where relevance rises and look like distances: {self.auc}",
                "no difference": f"the scores do not {separates}: {self.auc}",
                "cannot tell": f"cannot tell whether the scores {separates}: {self.auc.few}",
            }[self.auc.verdict]
        score, constant = self.calibrated.brier, self.calibrated.base_rate_brier
        if not self.beats_constant:
            digits = 3 if constant >= 0.01 else 6
            return (
                f"no better than always answering {self.base_rate:.3g}: on held-out queries the Brier score is "
                f"{score:.{digits}f}, and that of the constant {constant:.{digits}f}"
            )
        than = "than before" if "before" in self.reports else "than that of a constant"
        doubt = self.doubt and f"; {self.doubt}"
        return f"its Brier score on held-out queries is {'lower' if self.helps else 'not lower'} {than}{doubt}"


@dataclass(frozen=True)
class ScoredPairs:
    """M judged pairs, or pairs of a pool, with their cosines, measured on the held-out half of the queries."""

    cosines: NDArray[np.float64]
    relevance: NDArray[np.float64]
    """Relevance in [0, 1]."""
    query_ids: Sequence[str]
    prior: float | None = None
    """Mean relevance of the documents that will be scored: pairs are weighted to it; None: no weights."""
    positive_from: float = POSITIVE_FROM
    seed: int = 0
    new: RelevanceHead | None = None
    """The map to calibrate if the model has none; None: that of a model trained without a head."""
    weights: NDArray[np.float64] | None = None
    """Number of documents of the corpus that each pair of a pool stands for; None for graded pairs."""
    is_result: NDArray[np.bool_] | None = None
    """True for the pairs of a pool that are search results of their query; None for graded pairs."""
    head: RelevanceHead | None = None
    """The earlier map of the model, if it has one."""
    facts: str = ""
    """A description of the pairs, in words."""
    warnings: tuple[str, ...] = ()
    """Doubts about the pairs."""

    def auc(self) -> Auc | None:
        """Return the AUC over all pairs, since nothing is fitted; None for pairs of one kind."""
        return auc(self.cosines, self.relevance >= self.positive_from, self.query_ids, self.weights)

    def fit(self, rows: NDArray[np.bool_] | slice, fitted_on: str) -> RelevanceHead:
        """Return the map calibrated on some of the pairs; see `fit_head`."""
        weights = None if self.weights is None else self.weights[rows]
        return fit_head(self.head, self.cosines[rows], self.relevance[rows], fitted_on, self.new, weights)

    def at_prior(self, rows: NDArray[np.bool_]) -> tuple[NDArray[np.float64] | None, NDArray[np.float64]]:
        """Return the weights of some of the pairs, None for equal ones, and their relevance, both at the prior."""
        weights, relevance = None if self.weights is None else self.weights[rows], self.relevance[rows]
        return (weights, relevance) if self.prior is None else reweight_to_prevalence(relevance, self.prior, weights)

    @cached_property
    def held_out(self) -> tuple[NDArray[np.bool_], tuple[str, ...]]:
        """The mask and the queries of the held-out pairs; refuses fewer than 4 queries in all."""
        queries = sorted(set(self.query_ids))
        if len(queries) < 4:
            raise InputError(
                f"calibration: got pairs of {len(queries)} queries; expected at least 4, half of which are held out; "
                "fix: grade documents for more queries"
            )
        fitting = set(np.random.default_rng(self.seed).permutation(queries)[: len(queries) // 2].tolist())
        held = np.array([query not in fitting for query in self.query_ids], dtype=bool)
        return held, tuple(compress(self.query_ids, held))

    def point_at(self, head: RelevanceHead, probability: float) -> OperatingPoint:
        """Measure a probability of a head as a threshold on the held-out queries."""
        probabilities, relevant, ids, weights = _judged(head, self)
        return operating_point(probabilities, relevant, ids, probability, weights)


def held_out_check(pairs: ScoredPairs) -> HeldOutCheck:
    """Fit on one half of the queries, and measure on the other."""
    held, ids = pairs.held_out
    head = pairs.head
    cosines, relevance, prior = pairs.cosines[held], pairs.relevance, pairs.prior
    for name, half in (("fitted on", ~held), ("measured on", held)):
        if np.ptp(relevance[half]) == 0:
            raise InputError(
                f"calibration: got relevance {relevance[half][0]:g} for all {int(half.sum())} pairs of the half of the "
                f"queries it is {name}; expected relevant and irrelevant pairs; fix: grade all candidates of a query, "
                f"not the relevant ones alone, or {SAMPLING}"
            )
    weights, observed = pairs.at_prior(held)

    def measured(candidate: RelevanceHead) -> CalibrationReport:
        return calibration_report(candidate.probability(cosines), observed, ids, seed=pairs.seed, weights=weights)

    fitted = pairs.fit(~held, "held-out check")
    reports: dict[str, CalibrationReport] = {}
    if head is not None:
        reports["before"] = measured(head)
        if head != head.as_trained():
            reports["as trained"] = measured(head.as_trained())
    if prior is not None:
        if head is not None and head.trained_prior is not None:
            reports[f"as trained, moved to prior {prior:g}"] = measured(head.as_trained().at_prior(prior))
        reports["refitted"] = measured(fitted)
        fitted = fitted.at_prior(prior)
    reports["calibrated"] = measured(fitted)
    base_rate = float(np.average(observed, weights=weights))
    earlier = np.full(len(observed), base_rate) if head is None else head.probability(cosines)
    change = brier_change(fitted.probability(cosines), earlier, observed, ids, weights)
    return HeldOutCheck(base_rate, reports, pairs.auc(), change, bool(relevance.min() >= LOWEST_RELEVANT))


def choose_thresholds(
    head: RelevanceHead, pairs: ScoredPairs, precisions: Sequence[float]
) -> tuple[RelevanceHead, list[OperatingPoint]]:
    """Return a head with a threshold for each precision that can be reached, and all results, highest first.

    Thresholds for graded pairs are chosen and measured on the held-out queries. For a pool, they are chosen on the
    other queries, by the precision over the corpus, and measured in the rankings of the held-out queries.
    """
    probabilities, relevant, ids, weights = _judged(head, pairs, of_held_out=pairs.is_result is None)
    points = [
        threshold_at_precision(probabilities, relevant, ids, precision, weights)
        for precision in sorted(set(precisions), reverse=True)
    ]
    if pairs.is_result is not None:
        points = [_in_rankings(head, pairs, point) for point in points]
    thresholds = tuple(
        Threshold(
            p.wanted, p.threshold, p.precision, *p.interval, p.recall, p.pairs, p.queries,
            positive_from=pairs.positive_from,
        )
        for p in points
        if p.is_reached and p.interval is not None
    )  # fmt: skip
    return replace(head, thresholds=thresholds), points


def _in_rankings(head: RelevanceHead, pairs: ScoredPairs, chosen: OperatingPoint) -> OperatingPoint:
    """Measure a threshold on the search results of held-out queries, next to its precision where it was chosen."""
    assert pairs.is_result is not None
    probabilities, relevant, ids, _ = _judged(head, pairs)
    # documents that no ranking shows are never above a threshold, and count for the recall
    shown = np.where(pairs.is_result[pairs.held_out[0]], probabilities, 0.0)
    return replace(
        operating_point(shown, relevant, ids, chosen.threshold),
        wanted=chosen.wanted, is_reached=chosen.is_reached, claimed=chosen.precision, claimed_interval=chosen.interval,
    )  # fmt: skip


def _judged(
    head: RelevanceHead, pairs: ScoredPairs, of_held_out: bool = True
) -> tuple[NDArray[np.float64], NDArray[np.bool_], tuple[str, ...], NDArray[np.float64] | None]:
    """Return probabilities, relevance (True or False), queries and weights of the held-out pairs, or of the others."""
    relevant = compress(pairs.query_ids, pairs.relevance >= pairs.positive_from)
    if few := too_few(len(set(relevant)), "queries with a relevant document", UNITS_FROM):
        number, expected = few.split("; ")
        raise InputError(
            f"thresholds: got {number}, which cannot tell; expected {expected}, half of which are held out; "
            "fix: grade documents for more queries, or choose no threshold"
        )
    rows = pairs.held_out[0] == of_held_out
    probabilities, labels = head.probability(pairs.cosines[rows]), pairs.relevance[rows] >= pairs.positive_from
    return probabilities, labels, tuple(compress(pairs.query_ids, rows)), pairs.at_prior(rows)[0]
