"""The pairs of a run folder, indexed once, and the plan: the pairs to label, their order and probabilities."""

from __future__ import annotations

import hashlib
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from bixse.data.graded_pairs import GradedPairs, Pair
from bixse.data.pairs_files import open_pairs
from bixse.data.trec import read_run
from bixse.errors import InputError
from bixse.files.parquet import read_table
from bixse.judging.audit.agreement import nearest_level
from bixse.judging.grade import JUDGEMENTS_NAME, PAIRS_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bixse.evaluation.statistics import Floats
    from bixse.judging.audit.labels import PairIds
    from bixse.judging.rubrics import Rubric
    from bixse.relevance import GradeScale, Ranking
    from bixse.ui.label_log import LabelEvent, LabelLog
    from bixse.ui.ui_settings import UiSettings

FIGURES = ("relevance", "relevance_low", "relevance_high")
COLUMNS = ["query_id", "document_id", "repeat", "status", "judge", "grade_probs", *FIGURES]
GAIN = 2.0
"""Weight of full uncertainty and of full disagreement of systems: each makes a pair count 1 + GAIN = 3 times."""
HELD = 900.0
"""Seconds for which a pair is reserved for the person that it was shown to."""


class RunIndex:
    """The N pairs that have texts, and the judge's answer for each."""

    def __init__(self, pairs: GradedPairs, judgements: Any = None) -> None:
        """Join pairs with the table of `judgements.parquet`, if there is one."""
        self.pairs = pairs
        self.query_ids, self.document_ids = list(pairs.query_ids), list(pairs.document_ids)
        self.row_of: dict[PairIds, int] = {
            pair: row for row, pair in enumerate(zip(self.query_ids, self.document_ids, strict=True))
        }
        self.figures: dict[str, Floats] = {name: np.full(len(pairs), np.nan) for name in FIGURES}
        """Relevance by the judge and its bounds in [0, 1]; (N,), NaN if unknown."""
        self.status: list[str | None] = [None] * len(pairs)
        self.without_text = 0
        """Number of judged pairs without texts, which no page shows."""
        self.judge = ""
        self._probabilities: Any = None
        self._row_of_judgement = np.full(len(pairs), -1)
        if judgements is None:
            return
        if "repeat" in judgements.column_names:
            judgements = judgements.filter(pc.equal(pc.fill_null(judgements["repeat"], 0), 0))
        ids = zip(judgements["query_id"].to_pylist(), judgements["document_id"].to_pylist(), strict=True)
        rows = np.fromiter((self.row_of.get(pair, -1) for pair in ids), dtype=np.int64, count=len(judgements))
        known = rows >= 0
        self.without_text = int((~known).sum())
        self._row_of_judgement[rows[known]] = np.flatnonzero(known)
        for name in FIGURES:
            if name in judgements.column_names:
                values = judgements[name].to_numpy().astype(np.float64)
                self.figures[name][rows[known]] = values[known]
        for row, status in zip(rows.tolist(), judgements["status"].to_pylist(), strict=True):
            if row >= 0:
                self.status[row] = status
        judges = set(judgements["judge"].unique().to_pylist()) - {None} if "judge" in judgements.column_names else set()
        self.judge = ", ".join(sorted(judges))
        if "grade_probs" in judgements.column_names:
            self._probabilities = judgements["grade_probs"].combine_chunks()

    def __len__(self) -> int:
        return len(self.pairs)

    def probabilities(self, row: int) -> list[float] | None:
        """Return the probabilities of the options, if the judge gave them."""
        position = int(self._row_of_judgement[row])
        return None if position < 0 or self._probabilities is None else self._probabilities[position].as_py()

    def entropies(self) -> Floats:
        """The (N,) entropies of the option probabilities as shares of the maximum; 0 if unknown."""
        if self._probabilities is None:
            return np.zeros(len(self))
        p = self._probabilities.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
        terms = -p * np.log(np.where(p > 0, p, 1.0))
        parents = pc.list_parent_indices(self._probabilities).to_numpy()
        sums = np.bincount(parents, weights=terms, minlength=len(self._probabilities))
        options = pc.fill_null(pc.list_value_length(self._probabilities), 0).to_numpy()
        shares = np.append(sums / np.log(np.maximum(options, 2)), 0.0)  # index -1: pairs without a judgement
        found: Floats = shares[self._row_of_judgement]
        return found

    def grade(self, row: int, scale: GradeScale) -> float | None:
        """The judge's grade on a scale."""
        value = float(self.figures["relevance"][row])
        return None if np.isnan(value) else scale.to_grade(value)

    def bounds(self, row: int, scale: GradeScale) -> tuple[float, float] | None:
        """The lowest and the highest grade on a scale that the judge may have meant."""
        low, high = (float(self.figures[name][row]) for name in FIGURES[1:])
        return None if np.isnan(low) or np.isnan(high) else (scale.to_grade(low), scale.to_grade(high))

    def pair(self, row: int) -> Pair:
        (query,), (document,) = (self.pairs.texts(kind, [row]) for kind in ("query", "document"))
        return Pair(self.query_ids[row], query, self.document_ids[row], document)


def open_index(run: Path, pairs: Path | None = None, may_be_empty: bool = False) -> RunIndex:
    """Open the pairs of a run folder or of `pairs`; raise InputError if there are none, unless `may_be_empty`."""
    source = pairs or run / PAIRS_NAME
    judgements = run / JUDGEMENTS_NAME
    if not source.is_file():
        if may_be_empty and pairs is None and not judgements.is_file():
            return RunIndex(GradedPairs.from_rows([]))
        found = f"{JUDGEMENTS_NAME}, which holds no texts" if judgements.is_file() else "no pairs"
        raise InputError(
            f"{source}: got {found}; expected pairs with texts; fix: name the output folder of `bixse grade`, or "
            "--pairs FILE with the pairs that were graded"
        )
    return RunIndex(open_pairs(source), read_table(judgements, COLUMNS) if judgements.is_file() else None)


def share_of(*content: object) -> float:
    """Hash `content` to a number in [0, 1) that is the same in every process."""
    return int.from_bytes(hashlib.sha256(repr(content).encode()).digest()[:8], "big") / 2**64


def inclusion_probabilities(weights: Floats, size: int) -> Floats:
    """The (N,) probabilities in proportion to positive weights; they sum to `size`, and none is above 1.

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
    """The (N,) weights above 0: rare grades, uncertain grades and pairs that systems rank differently weigh more."""
    relevance, low, high = index.figures.values()
    levels = np.array([rubric.scale.to_relevance(value) for value in rubric.values])
    stratum = np.where(np.isnan(relevance), len(levels), nearest_level(np.nan_to_num(relevance), levels))
    uncertainty = np.maximum(index.entropies(), np.nan_to_num(high - low))
    spread = np.zeros(len(index))
    if len(runs) > 1:
        gains = np.array([_gains(index, run) for run in runs])
        spread = gains.max(axis=0) - gains.min(axis=0)
    # root of the number of pairs with the grade: power allocation, Bankier 1988, doi:10.2307/2684289
    values: Floats = (1 + GAIN * uncertainty) * (1 + GAIN * spread) / np.sqrt(np.bincount(stratum)[stratum])
    return values


def _gains(index: RunIndex, run: Ranking) -> Floats:
    found = np.zeros(len(index))
    for query_id, scores in run.items():
        for rank, document_id in enumerate(sorted(scores, key=lambda name: -scores[name]), start=1):
            row = index.row_of.get((query_id, document_id))
            if row is not None:
                found[row] = 1 / np.log2(1 + rank)
    return found


class LabelPlan:
    """The drawn pairs by query; queries come in random order.

    Pareto sampling (Rosén 1997, doi:10.1016/S0378-3758(96)00186-3) draws a fixed number, from the ids and the seed
    alone: the same files give the same plan. People who stop early have labelled a random part of the plan, so that the
    ratios of the probabilities stay valid.
    """

    def __init__(self, index: RunIndex, rubric: Rubric, settings: UiSettings) -> None:
        self.seed = settings.seed
        runs = [read_run(path) for path in settings.runs]
        self.probabilities = inclusion_probabilities(label_values(index, rubric, runs), settings.planned)
        """The (N,) inclusion probabilities."""
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


class Desk:
    """The assignment of the plan's pairs to people: one person per pair, and everybody for the pairs of `for_all`."""

    def __init__(self, plan: LabelPlan, index: RunIndex, labels: LabelLog) -> None:
        self.plan, self._index, self._labels = plan, index, labels
        self._held: dict[int, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def words(self, row: int) -> dict[str, LabelEvent]:
        return self._labels.words.get((self._index.query_ids[row], self._index.document_ids[row]), {})

    def rows_for(self, query_id: str, person: str) -> list[int]:
        """Reserve and return a person's rows of a query, in an order per person, so that no text is favoured."""
        with self._lock:
            rows = [row for row in self.plan.rows_of_query.get(query_id, ()) if self._may(row, person)]
            for row in rows:
                self._held[row] = (person, time.monotonic())
        return sorted(rows, key=lambda row: share_of(self.plan.seed, person, row))

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
        """The person's rows of unfinished queries, for which the judge's grades stay hidden."""
        found: set[int] = set()
        for rows in self.plan.rows_of_query.values() if person else ():
            own = [row for row in rows if self._may(row, person)]
            if any(self.is_open(row, person) for row in own):
                found.update(own)
        return found

    def next_query(self, person: str) -> str | None:
        """The first query with a pair to label; skipped pairs come last."""
        with self._lock:
            skipped = None
            for query_id in self.plan.queries:
                for row in self.plan.rows_of_query[query_id]:
                    if self._may(row, person) and self.is_open(row, person):
                        if person not in self.words(row):
                            return query_id
                        skipped = skipped or query_id
            return skipped
