"""Which pairs people label, and in which order: drawn by what a label is worth, with known probabilities."""

from __future__ import annotations

import hashlib
import threading
import time
from typing import TYPE_CHECKING

import numpy as np

from bixse.data.trec import read_run
from bixse.judging.audit.agreement import nearest_level

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bixse.evaluation.statistics import Floats
    from bixse.judging.rubrics import Rubric
    from bixse.relevance import Ranking
    from bixse.ui.label_log import LabelEvent, LabelLog
    from bixse.ui.run_index import RunIndex
    from bixse.ui.ui_settings import UiSettings

GAIN = 2.0
"""How much sooner a pair comes for full uncertainty, or full disagreement of systems: three times."""
HELD = 900.0
"""Seconds for which a pair that one person was shown is shown to no other."""


def share_of(*content: object) -> float:
    """A number in [0, 1) that follows from what is given alone."""
    return int.from_bytes(hashlib.sha256(repr(content).encode()).digest()[:8], "big") / 2**64


def inclusion_probabilities(weights: Floats, size: int) -> Floats:
    """(N,) probabilities in proportion to positive weights that sum to `size`, none above 1.

    Example:
        >>> inclusion_probabilities(np.array([1.0, 1.0, 2.0, 16.0]), 2).tolist()
        [0.25, 0.25, 0.5, 1.0]
    """
    certain = np.zeros(len(weights), dtype=bool)
    if size >= len(weights):
        return np.ones(len(weights))
    while True:
        rest = np.where(certain, 0.0, weights)
        found: Floats = np.where(certain, 1.0, (size - certain.sum()) * rest / rest.sum())
        if (found <= 1).all():
            return found
        certain |= found >= 1


def label_values(index: RunIndex, rubric: Rubric, runs: Sequence[Ranking]) -> Floats:
    """(N,) how much sooner a pair should be labelled than others, above 0.

    Grades of the judge that are rare count more, by one over the root of how many pairs have them (power allocation,
    Bankier 1988, doi:10.2307/2684289); so do uncertain grades (entropy of the option probabilities, or the width of
    the bounds) and pairs that systems rank differently (the spread of 1 / log2(1 + rank)).
    """
    relevance, low, high = index.figures.values()
    levels = np.array([rubric.scale.to_relevance(value) for value in rubric.values])
    stratum = np.where(np.isnan(relevance), len(levels), nearest_level(np.nan_to_num(relevance), levels))
    uncertainty = np.maximum(index.entropies(), np.nan_to_num(high - low))
    spread = np.zeros(len(index))
    if len(runs) > 1:
        gains = np.array([_gains(index, run) for run in runs])
        spread = gains.max(axis=0) - gains.min(axis=0)
    found: Floats = (1 + GAIN * uncertainty) * (1 + GAIN * spread) / np.sqrt(np.bincount(stratum)[stratum])
    return found


def _gains(index: RunIndex, run: Ranking) -> Floats:
    found = np.zeros(len(index))
    for query_id, scores in run.items():
        for rank, document_id in enumerate(sorted(scores, key=lambda name: -scores[name]), start=1):
            row = index.row_of.get((query_id, document_id))
            if row is not None:
                found[row] = 1 / np.log2(1 + rank)
    return found


class LabelPlan:
    """The pairs that were drawn, by query; queries come in random order.

    A fixed number is drawn by Pareto sampling (Rosén 1997, doi:10.1016/S0378-3758(96)00186-3), from the ids and the
    seed alone: the same files give the same plan. Where people stop early they have labelled a random part of it, so
    that the ratios of the probabilities still hold.
    """

    def __init__(self, index: RunIndex, rubric: Rubric, settings: UiSettings) -> None:
        """Draw `settings.planned` pairs."""
        self._seed = settings.seed
        runs = [read_run(path) for path in settings.runs]
        self.probabilities = inclusion_probabilities(label_values(index, rubric, runs), settings.planned)
        """(N,) of being drawn."""
        pairs = list(zip(index.query_ids, index.document_ids, strict=True))
        drawn = np.array([share_of(settings.seed, "pair", *pair) for pair in pairs])
        odds = np.where(self.probabilities < 1, self.probabilities / np.maximum(1 - self.probabilities, 1e-300), np.inf)
        order = np.argsort(drawn / (1 - drawn) / odds, kind="stable")[: settings.planned].tolist()
        self.rows = sorted(order)
        self.for_all = {row for row in order if share_of(settings.seed, "all", *pairs[row]) < settings.overlap}
        """Rows that everybody labels."""
        self.rows_of_query: dict[str, list[int]] = {}
        for row in self.rows:
            self.rows_of_query.setdefault(pairs[row][0], []).append(row)
        self.queries = sorted(self.rows_of_query, key=lambda query_id: share_of(settings.seed, "query", query_id))

    def in_random_order(self, rows: Sequence[int], person: str) -> list[int]:
        """Another one for each person, so that the place on the page favours no document."""
        return sorted(rows, key=lambda row: share_of(self._seed, person, row))


class Desk:
    """Who labels what next: every pair of the plan by one person, those for all by each."""

    def __init__(self, plan: LabelPlan, index: RunIndex, labels: LabelLog) -> None:
        self.plan, self._index, self._labels = plan, index, labels
        self._held: dict[int, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def words(self, row: int) -> dict[str, LabelEvent]:
        """What people said of a pair."""
        return self._labels.words.get((self._index.query_ids[row], self._index.document_ids[row]), {})

    def rows_for(self, query_id: str, person: str) -> list[int]:
        """The planned pairs of a query that are this person's to label, in random order."""
        with self._lock:
            rows = [row for row in self.plan.rows_of_query.get(query_id, ()) if self._may(row, person)]
            for row in rows:
                self._held[row] = (person, time.monotonic())
        return self.plan.in_random_order(rows, person)

    def _may(self, row: int, person: str) -> bool:
        words = self.words(row)
        if row in self.plan.for_all or person in words:
            return True
        if any(word.status != "skipped" for word in words.values()):
            return False
        holder, since = self._held.get(row, (person, 0.0))
        return holder == person or time.monotonic() - since > HELD

    def is_open(self, row: int, person: str) -> bool:
        word = self.words(row).get(person)
        return word is None or word.status == "skipped"

    def unfinished(self, person: str) -> set[int]:
        """The rows that are this person's in queries with something left to label: the judge's grades stay hidden."""
        found: set[int] = set()
        for rows in self.plan.rows_of_query.values() if person else ():
            own = [row for row in rows if self._may(row, person)]
            if any(self.is_open(row, person) for row in own):
                found.update(own)
        return found

    def next_query(self, person: str) -> str | None:
        """The first query with something to label; what was skipped comes last."""
        with self._lock:
            skipped = None
            for query_id in self.plan.queries:
                for row in self.plan.rows_of_query[query_id]:
                    if self._may(row, person) and self.is_open(row, person):
                        if person not in self.words(row):
                            return query_id
                        skipped = skipped or query_id
            return skipped
