"""Calibrate scores or a model in memory: probabilities of relevance, checked on held-out queries, and thresholds."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bixse.calibration.calibrate_head import (
    HeldOutCheck,
    OperatingPoint,
    ScoredPairs,
    choose_thresholds,
    held_out_check,
)
from bixse.calibration.calibrate_settings import POSITIVE_FROM, SPLIT
from bixse.calibration.scored_pairs import checked_scores, score_judged
from bixse.data.corpus import JudgedCorpus
from bixse.data.pairs_files import as_pairs
from bixse.encoders.loading.kinds import is_encoder
from bixse.encoders.loading.load_scorer import load_scorer
from bixse.errors import BixseError, InputError
from bixse.evaluation.collection_task import collection_task
from bixse.progress import progress_bar
from bixse.rendering.table import Cell, Table
from bixse.rendering.wording import format_interval

if TYPE_CHECKING:
    from bixse.encoders.head import RelevanceHead
    from bixse.results import Interval

log = logging.getLogger(__name__)


class NotReachable(BixseError):  # noqa: N818 (the pairs are right, and so is the question)
    """No threshold has the precision; `best` is the threshold of the highest one.

    Example:
        ::

            try:
                cut = calibration.threshold(precision=0.99)
            except NotReachable as error:
                cut = error.best
    """

    def __init__(self, precision: float, best: ChosenThreshold) -> None:
        super().__init__(f"precision {precision:g}: not reachable on held-out pairs; the best is {best.precision:.3f}")
        self.best = best


class ChosenThreshold(float):
    """The probability from which documents count as relevant, with its precision and recall on held-out queries.

    After a calibration on a collection, precision and recall are those of search results.
    """

    def __new__(cls, point: OperatingPoint) -> ChosenThreshold:
        cut = super().__new__(cls, point.threshold)
        cut.precision, cut.recall, cut.interval = point.precision, point.recall, point.interval
        return cut

    precision: float
    recall: float
    interval: Interval | None
    """95 % interval of the precision, over queries."""

    def __repr__(self) -> str:
        ends = format_interval(*self.interval or (None, None))
        figures = f"precision {self.precision:.3f} {ends}".rstrip()
        return f"{float(self):.4g} ({figures}, recall {self.recall:.3f})"

    __str__ = float.__repr__


@dataclass(frozen=True)
class Calibration(Table):
    """Probabilities of relevance for scores, and how good they are on queries that the fit has not seen.

    `model.head = calibration.head` gives them to a `RelevanceModel`.

    Example:
        >>> calibration = calibrate([n / 100 for n in range(100)], [float(n % 10 < n / 10) for n in range(100)])
        >>> observed, predicted = calibration.curve()
        >>> calibration.helps, len(observed) == len(predicted)
        (True, True)
    """

    head: RelevanceHead | None
    """The fitted map; the earlier one of the model, or None, if the fit does not help."""
    check: HeldOutCheck
    pairs: ScoredPairs
    helps: bool
    """True if the fit is better than the earlier map and than a constant, or if it was wanted anyway."""
    warnings: tuple[str, ...] = ()

    def probability(self, score: Any) -> Any:
        """Return the probability of relevance in [0, 1] of a score or an array of scores."""
        scores: Any = float(score) if np.ndim(score) == 0 else np.asarray(score, np.float64)
        return self._usable().probability(scores)

    def threshold(self, precision: float) -> ChosenThreshold:
        """Return the probability with the highest recall among those with at least the precision.

        Raise NotReachable without one, and InputError below 20 queries with a relevant document.
        """
        (point,) = choose_thresholds(self._usable(), self.pairs, [precision])[1]
        if not point.is_reached:
            raise NotReachable(precision, ChosenThreshold(point))
        return ChosenThreshold(point)

    def curve(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return observed and predicted relevance per bin, as scikit-learn's `calibration_curve` does."""
        points = [(each.observed, each.predicted) for each in self.check.calibrated.curve]
        observed, predicted = np.array(points, dtype=np.float64).T
        return observed, predicted

    def cells(self) -> tuple[Sequence[str], Sequence[Sequence[Cell]]]:
        reports = self.check.reports.items()
        rows: list[list[Cell]] = [[name, each.brier, each.ece, each.base_rate_brier] for name, each in reports]
        few = "" if self.check.auc is None or self.check.auc.verdict != "cannot tell" else self.check.auc.few
        reason = f"cannot tell ({few})" if few else self.check.finding
        rows += [] if self.helps else [[f"not used: {reason}", None, None, None]]
        return ["held-out half", "Brier", "ECE", "constant's Brier"], rows

    def _usable(self) -> RelevanceHead:
        if self.head is None:
            raise InputError(
                f"calibration: got none that helps: {self.check.finding}; expected one; fix: {_in_python(self.check)}"
            )
        return self.head


def _in_python(check: HeldOutCheck) -> str:
    """Return the remedy of a check with the keyword in place of the option."""
    return check.fix.replace("save the calibration with --anyway", "pass anyway=True")


def calibrate(
    source: Any,
    judged: Any = None,
    verbose: bool = True,
    anyway: bool = False,
    prior: float | None = None,
    positive_from: float = POSITIVE_FROM,
    seed: int = 0,
    split: str | None = None,
    queries: Sequence[str] | None = None,
    scored_by: str | None = None,
) -> Calibration:
    """Fit probabilities of relevance, and check on held-out queries whether they help.

    A calibration that does not help is not used: its `warnings`, which are logged, have the reason.

    Args:
        source: a sequence of scores; or a model: name, folder, `SentenceTransformer` or `Scorer`.
        judged: the relevance in [0, 1] of each score; or a collection (folder, `Collection` or (queries, corpus,
            qrels)) or graded pairs of any form, which the model was not trained on.
        verbose: show progress while a model encodes.
        anyway: use a calibration that does not help.
        prior: mean relevance of the documents that will be scored; None does not weight the pairs.
        positive_from: lowest relevance that counts as relevant for thresholds, in (0, 1].
        seed: random seed that splits the queries into halves, and draws the documents of a collection.
        split: of a collection alone; None means "dev".
        queries: of scores alone, the query of each; None counts each score as a query.
        scored_by: of scores alone, the name of their model.

    Raises:
        InputError: scores, pairs or a collection that cannot be used, or fewer than 4 queries.

    Example:
        >>> scores = [n / 100 for n in range(100)]
        >>> calibration = calibrate(scores, [float(n % 10 < n / 10) for n in range(100)])
        >>> calibration.probability(0.9) > 0.7, calibration.threshold(precision=0.8).recall > 0.3
        (True, True)
    """
    is_folder = isinstance(judged, str | Path) and (Path(judged) / "corpus.jsonl").is_file()
    is_triple = isinstance(judged, tuple) and all(isinstance(part, Mapping) for part in judged)
    is_model = isinstance(source, str | Path) or is_encoder(source) or hasattr(source, "heads")  # a Scorer
    is_collection = is_model and (is_folder or is_triple or isinstance(judged, JudgedCorpus))
    of_scores, of_collection = {"queries": queries, "scored_by": scored_by}, {"split": split}
    others = {**(of_scores if is_model else {}), **({} if is_collection else of_collection)}
    if wrong := [name for name, value in others.items() if value is not None]:
        what = "a collection" if is_collection else "pairs" if is_model else "scores"
        home = "scores" if wrong[0] in of_scores else "a collection"
        raise InputError(
            f"calibrate: got {', '.join(wrong)} for {what}; expected it for {home} alone; fix: leave it out"
        )
    options: dict[str, Any] = {"prior": prior, "positive_from": positive_from, "seed": seed}
    if is_model:
        given = collection_task(judged, split or SPLIT) if is_collection else as_pairs(judged)
        scorer: Any = load_scorer(source) if isinstance(source, str | Path) else source
        cache = None if is_folder else "none"
        pairs = score_judged(scorer, given, progress_bar if verbose else None, cache, **options)
    else:
        pairs = checked_scores(source, judged, queries, scored_by, **options)
    calibration = fit_calibration(pairs, anyway)
    if not calibration.helps:
        reason = f"the calibration is not used: {calibration.check.finding}; fix: {_in_python(calibration.check)}"
        calibration = replace(calibration, warnings=(*calibration.warnings, reason))
    for line in calibration.warnings:
        log.warning("%s", line)
    return calibration


def fit_calibration(pairs: ScoredPairs, anyway: bool) -> Calibration:
    """Check on one half of the queries what is fitted on the other; then fit on all, if it helps."""
    check = held_out_check(pairs)
    helps = anyway or (check.helps and check.is_useful)
    head = pairs.head
    if helps:
        head = pairs.fit(slice(None), pairs.facts)
        head = head if pairs.prior is None else head.at_prior(pairs.prior)
    return Calibration(head, check, pairs, helps, pairs.warnings)
