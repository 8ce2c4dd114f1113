"""The agreement of two sets of grades, such as kappa, measured on their table of counts.

Rows are the human's grades, columns the judge's, from low to high. The table without a query is the difference of two
tables, so an interval costs no pass over the pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_matrix

from bixse.evaluation.intervals import Floats, jackknife_estimate, numbered_queries, quotient
from bixse.rendering.table import format_number

if TYPE_CHECKING:
    from bixse.results import IntervalEstimate


AgreementMeasure: TypeAlias = Callable[[Floats], Floats]
"""A function of tables of counts, shape (..., rows, columns): one value per table, or NaN."""
MOST_GROUPS = 1000
"""Tables per interval: with one per query, ranks of many queries and distinct grades would take minutes."""
_BLOCK_SIZE = 1 << 22  # counts of tables in memory: about 100 MB


@dataclass(frozen=True)
class CountsByQuery:
    """One table of counts per query."""

    counts: Any  # scipy.sparse, (Q queries, rows * columns)
    shape: tuple[int, int]  # number of distinct grades of the human, and of the judge

    @property
    def total(self) -> Floats:
        table: Floats = np.asarray(self.counts.sum(axis=0), dtype=np.float64).reshape(self.shape)
        return table

    def values(self, measures: Mapping[str, AgreementMeasure]) -> dict[str, float]:
        return {name: float(measure(self.total)) for name, measure in measures.items()}

    def left_out(self, measures: Mapping[str, AgreementMeasure]) -> dict[str, Floats]:
        """Return each measure of the table without one of the queries, or of `MOST_GROUPS` groups of them, (Q,)."""
        queries = self.counts.shape[0]
        groups = np.arange(queries) % MOST_GROUPS
        counts = coo_matrix((np.ones(queries), (groups, np.arange(queries)))).tocsr() @ self.counts
        block = max(1, _BLOCK_SIZE // (self.shape[0] * self.shape[1]))
        parts: dict[str, list[Floats]] = {name: [] for name in measures}
        for start in range(0, counts.shape[0], block):
            tables = self.total - counts[start : start + block].toarray().reshape(-1, *self.shape)
            for name, measure in measures.items():
                parts[name].append(measure(tables))
        return {name: np.concatenate(values) for name, values in parts.items()}

    def estimates(self, measures: Mapping[str, AgreementMeasure], few: str) -> dict[str, IntervalEstimate]:
        """Return the measures with 95 % intervals, or without for the reason `few` (`few_of_classes`)."""
        values = self.values(measures)
        if few:
            return {name: jackknife_estimate(value, np.empty(0), few) for name, value in values.items()}
        left_out = self.left_out(measures)
        return {name: jackknife_estimate(value, left_out[name], highest=1.0) for name, value in values.items()}


def agreement_in_words(kappa: IntervalEstimate, name: str = "kappa") -> str:
    """Return what a kappa says, as the end of a sentence about the judge.

    Example:
        >>> from bixse.results import IntervalEstimate
        >>> agreement_in_words(IntervalEstimate(0.0, -0.11, 0.1))
        'is not shown to agree with people more than chance would: kappa 0.00, -0.11 to 0.10'
    """
    if kappa.value is None:
        return f"cannot be compared with people yet: {kappa.few or 'kappa is not defined for these labels'}"
    if kappa.low is None:
        return f"cannot be compared with people yet: {name} {format_number(kappa.value, 2)} ({kappa.few})"
    verdict = {
        "better": "agrees with people more than chance would",
        "no difference": "is not shown to agree with people more than chance would",
        "worse": "agrees with people less than chance would",
    }[kappa.verdict()]
    value, low, high = (format_number(figure, 2) for figure in (kappa.value, kappa.low, kappa.high))
    return f"{verdict}: {name} {value}, {low} to {high}"


def counts_by_query(
    human: Floats, judged: Floats, query_ids: Sequence[str], levels: Floats | None, weights: Floats | None = None
) -> CountsByQuery:
    """Count pairs of (N,) grades on one scale per query; raise InputError for fewer than 2 queries.

    With rising `levels` each grade counts as its nearest level, which makes the table square. Without levels, each
    distinct grade has its own row or column. (N,) `weights`, for example 1 / probability, replace counts of 1.
    """
    if levels is None:
        row, column = (np.unique(grades, return_inverse=True)[1] for grades in (human, judged))
        rows, columns = int(row.max()) + 1, int(column.max()) + 1
    else:
        row, column = nearest_level(human, levels), nearest_level(judged, levels)
        rows = columns = len(levels)
    query, queries = numbered_queries(query_ids, len(human))
    counts = coo_matrix(
        (np.ones(len(row)) if weights is None else weights, (query, row * columns + column)),
        shape=(queries, rows * columns),
    )
    return CountsByQuery(counts.tocsr(), (rows, columns))


def nearest_level(grades: Floats, levels: Floats) -> npt.NDArray[np.int64]:
    """Return the index of the level nearest to each grade; a grade half-way counts as the higher level."""
    return np.searchsorted((levels[1:] + levels[:-1]) / 2, grades, side="right").astype(np.int64)


def agreement_within(steps: int) -> AgreementMeasure:
    """Return the share of pairs whose grades are exactly `steps` levels apart; -1 means two or more."""

    def measure(tables: Floats) -> Floats:
        apart = _levels_apart(tables)
        chosen = apart >= 2 if steps < 0 else apart == steps
        return quotient((tables * chosen).sum(axis=(-2, -1)), tables.sum(axis=(-2, -1)))

    return measure


def cohen_kappa(power: int = 0, first: int | None = None) -> AgreementMeasure:
    """Return the measure Cohen's kappa: 1 - observed / expected disagreement, given each side's frequency of grades.

    Disagreement counts 1 (power 0; Cohen 1960, doi:10.1177/001316446002000104), the number of levels apart (1), or its
    square (2; Cohen 1968, doi:10.1037/h0026256). With `first` there are two grades: levels from this index on are
    relevant. Equal to scikit-learn's `cohen_kappa_score`.
    """

    def measure(tables: Floats) -> Floats:
        apart = _levels_apart(tables, first)
        weight = np.where(apart > 0, apart**power, 0.0)
        total = tables.sum(axis=(-2, -1))
        expected = tables.sum(axis=-1)[..., :, None] * tables.sum(axis=-2)[..., None, :]
        return 1 - quotient((tables * weight).sum(axis=(-2, -1)) * total, (expected * weight).sum(axis=(-2, -1)))

    return measure


def krippendorff_alpha(tables: Floats) -> Floats:
    """Return Krippendorff's alpha for ordinal grades (2011, "Computing Krippendorff's Alpha-Reliability").

    Chance is drawn from both sides' grades together, so a judge with other frequencies of grades gets a lower value.
    """
    coincidences = tables + np.swapaxes(tables, -1, -2)
    used = coincidences.sum(axis=-1)
    middle = used.cumsum(axis=-1) - used / 2
    distance = (middle[..., :, None] - middle[..., None, :]) ** 2
    observed = (coincidences * distance).sum(axis=(-2, -1))
    expected = (used[..., :, None] * used[..., None, :] * distance).sum(axis=(-2, -1))
    return 1 - quotient((used.sum(axis=-1) - 1) * observed, expected)


def spearman(tables: Floats) -> Floats:
    """Return Spearman's rank correlation, with mean ranks for ties; equal to scipy's `spearmanr`."""
    rows, columns = tables.sum(axis=-1), tables.sum(axis=-2)
    # the mean rank of each level minus the mean of all ranks
    row_ranks, column_ranks = (
        margin.cumsum(axis=-1) - margin / 2 - margin.sum(axis=-1, keepdims=True) / 2 for margin in (rows, columns)
    )
    together = (row_ranks * (tables * column_ranks[..., None, :]).sum(axis=-1)).sum(axis=-1)
    spread = (rows * row_ranks**2).sum(axis=-1) * (columns * column_ranks**2).sum(axis=-1)
    return quotient(together, np.sqrt(spread))


def kendall_tau_b(tables: Floats) -> Floats:
    """Return Kendall's tau-b (1945, doi:10.1093/biomet/33.3.239); equal to scipy's `kendalltau`."""
    below = np.zeros_like(tables)
    below[..., 1:, 1:] = tables[..., :-1, :-1].cumsum(axis=-1).cumsum(axis=-2)
    concordant = (tables * below).sum(axis=(-2, -1))
    everything = _pairs_of(tables.sum(axis=(-2, -1)))
    tied_rows, tied_columns = (_pairs_of(tables.sum(axis=axis)).sum(axis=-1) for axis in (-1, -2))
    decided = everything - tied_rows - tied_columns + _pairs_of(tables).sum(axis=(-2, -1))
    return quotient(2 * concordant - decided, np.sqrt((everything - tied_rows) * (everything - tied_columns)))


def of_levels(first: int) -> dict[str, AgreementMeasure]:
    """Return name -> measure of square tables; levels from index `first` on are relevant."""
    return {
        "exact": agreement_within(0),
        "one_off": agreement_within(1),
        "further_off": agreement_within(-1),
        "kappa": cohen_kappa(),
        "linear_kappa": cohen_kappa(1),
        "quadratic_kappa": cohen_kappa(2),
        "binary_kappa": cohen_kappa(first=first),
        "alpha": krippendorff_alpha,
    }


OF_RANKS: dict[str, AgreementMeasure] = {"spearman": spearman, "kendall": kendall_tau_b}
"""Name -> measure of tables with one row or column per distinct grade."""


def _levels_apart(tables: Floats, first: int | None = None) -> Floats:
    positions = np.arange(tables.shape[-1], dtype=np.float64)
    positions = positions if first is None else (positions >= first).astype(np.float64)
    return np.abs(positions[:, None] - positions[None, :])


def _pairs_of(counts: Floats) -> Floats:
    return counts * (counts - 1) / 2
