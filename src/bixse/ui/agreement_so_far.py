"""How far judge and people agree by the labels so far, how sure that is, and how far people agree."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import krippendorff
import numpy as np

from bixse.judging.audit.agreement import agreement_within, cohen_kappa, counts_by_query

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bixse.evaluation.statistics import Floats
    from bixse.judging.audit.labels import PairIds
    from bixse.judging.rubrics import Rubric
    from bixse.results import IntervalEstimate
    from bixse.ui.label_log import LabelEvent, LabelLog
    from bixse.ui.run_index import RunIndex

SAMPLES = 500
"""Resamples of the queries, few enough for a page."""


def within_one(tables: Floats) -> Floats:
    """The share of pairs whose grades lie at most one level apart."""
    return agreement_within(0)(tables) + agreement_within(1)(tables)


@dataclass(frozen=True)
class AgreementSoFar:
    """Judge and people on all pairs of the folder, as far as the labels tell."""

    labels: int
    """Pairs with a label and a grade of the judge."""
    kappa: IntervalEstimate
    """Quadratic."""
    within_one: IntervalEstimate

    def left(self, width: float) -> int | None:
        """About how many labels are missing until the interval of kappa is as narrow; None where it is not known.

        Its width falls with the root of the number of labels. It has none where the judge gives all pairs one grade.
        """
        if (
            self.kappa.low is None
            or self.kappa.high is None
            or math.isclose(self.kappa.low, self.kappa.high, abs_tol=1e-9)
        ):
            return None
        return max(0, math.ceil(self.labels * (((self.kappa.high - self.kappa.low) / width) ** 2 - 1)))


def agreement_so_far(
    labels: Mapping[PairIds, float], index: RunIndex, probabilities: Floats, rubric: Rubric, seed: int
) -> AgreementSoFar | None:
    """Every label counts by one over its pair's probability of being drawn; None for fewer than two queries."""
    found = [
        (index.query_ids[row], grade, judged, 1 / probabilities[row])
        for pair, grade in labels.items()
        if (row := index.row_of.get(pair)) is not None and (judged := index.grade(row, rubric.scale)) is not None
    ]
    if len({query_id for query_id, *_ in found}) < 2:
        return None
    query_ids, *columns = zip(*found, strict=True)
    human, judge, weights = (np.array(column, dtype=np.float64) for column in columns)
    counts = counts_by_query(human, judge, query_ids, np.array(rubric.values), weights)
    estimates = counts.estimates({"kappa": cohen_kappa(2), "within_one": within_one}, SAMPLES, seed)
    return AgreementSoFar(len(found), **estimates)


@dataclass(frozen=True)
class PeopleAgreement:
    """How far people agree on the pairs that several labelled."""

    pairs: int
    alpha: float | None
    """Krippendorff's alpha for ordinal grades; None where all grades are the same."""
    differing: list[PairIds]
    """Pairs whose grades differ and were not settled."""
    settled: int


def people_agreement(labels: LabelLog, rubric: Rubric) -> PeopleAgreement:
    """Over all pairs with grades of two people or more; a settled grade is nobody's own.

    Alpha is of independent labels: with the judge's grade people also saw each other's.
    """
    several = _of_several(labels.independent)
    differing = [
        pair
        for pair, grades in _of_several(labels.words).items()
        if len(set(grades.values())) > 1 and "" not in labels.words[pair]
    ]
    settled = sum("" in words for words in labels.words.values())
    people = sorted({person for grades in several.values() for person in grades})
    table = np.array([[grades.get(person, np.nan) for grades in several.values()] for person in people])
    alpha = None
    if several and len(set(table[~np.isnan(table)])) > 1:
        domain = list(rubric.values)
        alpha = float(krippendorff.alpha(table, level_of_measurement="ordinal", value_domain=domain))
    return PeopleAgreement(len(several), alpha, differing, settled)


def _of_several(words_of: Mapping[PairIds, Mapping[str, LabelEvent]]) -> dict[PairIds, dict[str, float]]:
    """Pair -> person -> grade, of pairs that two people or more graded."""
    found = {
        pair: {p: word.grade for p, word in words.items() if word.status == "graded" and word.grade is not None}
        for pair, words in words_of.items()
    }
    return {pair: grades for pair, grades in found.items() if len(grades) > 1}
