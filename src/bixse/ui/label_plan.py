"""The pairs of a run folder, and the plan of labelling: which pairs, in which order, drawn with which probability."""

from __future__ import annotations

import hashlib
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.special import entr

from bixse.audit.agreement import nearest_level
from bixse.data.graded_pairs import Pair, Pairs
from bixse.data.pairs_files import open_pairs
from bixse.errors import InputError
from bixse.files.parquet import read_table
from bixse.judging.grade import JUDGEMENTS_NAME, PAIRS_NAME
from bixse.ui.ui_settings import SEED, UiSettings

if TYPE_CHECKING:
    from bixse.audit.labels import PairIds
    from bixse.evaluation.statistics import Floats
    from bixse.judging.rubrics import Rubric
    from bixse.relevance import GradeScale
    from bixse.ui.label_log import LabelEvent, LabelLog

FIGURES = ("relevance", "relevance_low", "relevance_high")
COLUMNS = ["query_id", "document_id", "status", "judge", "grade_probs", *FIGURES]
GAIN = 2.0  # weight of full uncertainty, which makes a pair count 1 + GAIN = 3 times
HELD = 900.0  # seconds for which a pair is reserved for the person that it was shown to


class RunIndex:
    """The N pairs that have texts, and the judge's answer for each."""

    def __init__(self, pairs: Pairs, judgements: Any = None) -> None:
        """Join pairs with the table of `judgements.parquet`, if there is one."""
        self.pairs = pairs
        self.query_ids, self.document_ids = list(pairs.query_ids), list(pairs.document_ids)
        self.row_of: dict[PairIds, int] = {
            pair: row for row, pair in enumerate(zip(self.query_ids, self.document_ids, strict=True))
        }
        table = pd.DataFrame() if judgements is None else judgements.to_pandas()
        table = table.reindex(columns=COLUMNS)
        rows = [self.row_of.get(pair, -1) for pair in zip(table["query_id"], table["document_id"], strict=True)]
        self.without_text = rows.count(-1)
        """Number of judged pairs without texts, which no page shows."""
        self.judge = ", ".join(sorted(table["judge"].dropna().unique()))
        judged = table.set_axis(rows).drop(index=-1, errors="ignore")
        judged = judged[~judged.index.duplicated(keep="last")].reindex(range(len(pairs)))
        self.status = judged["status"]
        """(N,) statuses by row, NaN for pairs that were not judged."""
        self.probabilities: dict[int, list[float]] = judged["grade_probs"].dropna().to_dict()
        """Row -> probabilities of the options, if the judge gave them."""
        self.relevance, self.low, self.high = (judged[name].to_numpy(np.float64) for name in FIGURES)
        """(N,) relevance by the judge and its bounds in [0, 1]; NaN if unknown."""

    def __len__(self) -> int:
        return len(self.pairs)

    def entropies(self) -> Floats:
        """The (N,) entropies of the option probabilities as shares of the maximum; 0 if unknown."""
        shares = pd.DataFrame(list(self.probabilities.values()), list(self.probabilities))
        values = entr(shares).sum(axis=1) / np.log(shares.count(axis=1).clip(lower=2))
        return np.asarray(values.reindex(range(len(self)), fill_value=0.0), np.float64)

    def grade(self, row: int, scale: GradeScale) -> float | None:
        """The judge's grade on a scale."""
        value = float(self.relevance[row])
        return None if np.isnan(value) else scale.to_grade(value)

    def bounds(self, row: int, scale: GradeScale) -> tuple[float, float] | None:
        """The lowest and the highest grade on a scale that the judge may have meant."""
        low, high = float(self.low[row]), float(self.high[row])
        return None if np.isnan(low + high) else (scale.to_grade(low), scale.to_grade(high))

    def pair(self, row: int) -> Pair:
        (query,), (document,) = (self.pairs.texts(kind, [row]) for kind in ("query", "document"))
        return Pair(self.query_ids[row], query, self.document_ids[row], document)


def open_index(run: Path, pairs: Path | None = None, may_be_empty: bool = False) -> RunIndex:
    """Open the pairs of a run folder or of `pairs`; raise InputError if there are none, unless `may_be_empty`."""
    source = pairs or run / PAIRS_NAME
    judgements = run / JUDGEMENTS_NAME
    if not source.is_file():
        if may_be_empty and pairs is None and not judgements.is_file():
            return RunIndex(Pairs.from_rows([]))
        got = f"{JUDGEMENTS_NAME}, which has no texts" if judgements.is_file() else "no pairs"
        raise InputError(
            f"{source}: got {got}; expected pairs with texts; fix: name the output folder of `bixse grade`, or "
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
        probabilities: Floats = np.where(certain, 1.0, (size - certain.sum()) * rest / rest.sum())
        if (probabilities <= 1).all():
            return probabilities
        certain |= probabilities >= 1


def label_values(index: RunIndex, rubric: Rubric) -> Floats:
    """The (N,) positive weights; pairs with rare or uncertain grades have higher weights."""
    levels = np.array([rubric.scale.to_relevance(value) for value in rubric.values])
    relevance = index.relevance
    stratum = np.where(np.isnan(relevance), len(levels), nearest_level(np.nan_to_num(relevance), levels))
    uncertainty = np.maximum(index.entropies(), np.nan_to_num(index.high - index.low))
    # root of the number of pairs with the grade: power allocation, Bankier 1988, doi:10.2307/2684289
    return np.asarray((1 + GAIN * uncertainty) / np.sqrt(np.bincount(stratum)[stratum]))


class LabelPlan:
    """The drawn pairs by query; queries come in random order.

    Pareto sampling (Rosén 1997, doi:10.1016/S0378-3758(96)00186-3) draws a fixed number, from the ids and the seed
    alone: the same files give the same plan. People who stop early have labelled a random part of the plan, so that the
    ratios of the probabilities stay valid.
    """

    def __init__(self, index: RunIndex, rubric: Rubric, settings: UiSettings, seed: int = SEED) -> None:
        self.seed = seed
        self.probabilities = inclusion_probabilities(label_values(index, rubric), settings.planned)
        """The (N,) inclusion probabilities."""
        self.name = hashlib.sha256(self.probabilities.round(6).tobytes()).hexdigest()[:8]
        """Digits of a hash of the probabilities: labels with other ones do not compare."""
        pairs = list(zip(index.query_ids, index.document_ids, strict=True))
        drawn = np.array([share_of(seed, "pair", *pair) for pair in pairs])
        # the floor keeps the division defined for certain pairs, whose odds are replaced by infinity
        odds = np.where(self.probabilities < 1, self.probabilities / np.maximum(1 - self.probabilities, 1e-300), np.inf)
        order = np.argsort(drawn / (1 - drawn) / odds, kind="stable")[: settings.planned].tolist()
        self.rows = sorted(order)
        self.for_all = {row for row in order if share_of(seed, "all", *pairs[row]) < settings.overlap}
        """Rows that everybody labels."""
        self.rows_of_query: dict[str, list[int]] = {}
        for row in self.rows:
            self.rows_of_query.setdefault(pairs[row][0], []).append(row)
        self.queries = sorted(self.rows_of_query, key=lambda query_id: share_of(seed, "query", query_id))


class Assignment:
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
        hidden: set[int] = set()
        for rows in self.plan.rows_of_query.values() if person else ():
            mine = [row for row in rows if self._may(row, person)]
            if any(self.is_open(row, person) for row in mine):
                hidden.update(mine)
        return hidden

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
