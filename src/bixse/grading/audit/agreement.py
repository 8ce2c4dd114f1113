"""How far two sets of grades agree: measures of a table of counts, with intervals over queries.

Every measure here depends only on how often each pair of grades occurs, so it is a function of that table: rows are
the human's grades, columns the judge's, from low to high. The tables of resampled queries are sums of the queries' own
tables, so a thousand resamples cost one sparse product and no pass over the pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from bixse.errors import InputError
from bixse.evaluation.significance import interval_bounds, resamples

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Floats: TypeAlias = npt.NDArray[np.float64]
Measure: TypeAlias = Callable[[Floats], Floats]
"""From tables of counts, shape (..., rows, columns), to one value each; NaN where it is not defined."""
_BLOCK_CELLS = 1 << 22
"""Cells of resampled tables held at once: bounds memory to some 100 MB."""


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval over queries; None where it is not defined."""

    value: float | None
    """The value over all pairs."""
    low: float | None = None
    """Lower end of the interval."""
    high: float | None = None
    """Upper end."""

    @property
    def side(self) -> Literal["above", "below", "across"]:
        """Where the whole interval lies from 0; "across" also where there is none."""
        if self.low is not None and self.low > 0:
            return "above"
        return "below" if self.high is not None and self.high < 0 else "across"


@dataclass(frozen=True)
class CountsByQuery:
    """One table of counts a query."""

    cells: Any
    """(Q queries, rows * columns) counts, a scipy.sparse matrix."""
    rows: int
    """Human grades told apart."""
    columns: int
    """Judge's grades told apart."""

    @property
    def total(self) -> Floats:
        """The table over all queries, shape (rows, columns)."""
        table: Floats = np.asarray(self.cells.sum(axis=0), dtype=np.float64).reshape(self.rows, self.columns)
        return table

    def resampled(self, samples: int, seed: int) -> Iterator[Floats]:
        """Tables of resampled queries in blocks of shape (S, rows, columns), `samples` tables in all."""
        block = max(1, _BLOCK_CELLS // (self.rows * self.columns))
        for times in query_draws(self.cells.shape[0], samples, seed):
            for start in range(0, len(times), block):
                yield np.asarray(times[start : start + block] @ self.cells).reshape(-1, self.rows, self.columns)


def counts_by_query(human: Floats, judged: Floats, query_ids: Sequence[str], levels: Floats | None) -> CountsByQuery:
    """Count pairs of grades, query by query.

    Args:
        human: (N,) human grades.
        judged: (N,) the judge's, on the same scale.
        query_ids: (N,) query of each pair.
        levels: rising grades; every grade counts as the nearest one (a half as the higher), which makes the table
            square. None: every distinct grade has its own row or column.

    Example:
        >>> counts = counts_by_query(np.array([0.0, 3.0, 3.0]), np.array([0.2, 2.5, 1.0]), ["q1", "q1", "q2"],
        ...                          np.arange(4.0))
        >>> counts.total[3].tolist()
        [0.0, 1.0, 0.0, 1.0]
    """
    from scipy.sparse import coo_matrix  # type: ignore[import-untyped,unused-ignore]

    if levels is None:
        (row_values, row), (column_values, column) = (
            np.unique(grades, return_inverse=True) for grades in (human, judged)
        )
        rows, columns = len(row_values), len(column_values)
    else:
        row, column = nearest_level(human, levels), nearest_level(judged, levels)
        rows = columns = len(levels)
    names, query = np.unique(np.asarray(query_ids, dtype=str), return_inverse=True)
    cells = coo_matrix((np.ones(len(row)), (query, row * columns + column)), shape=(len(names), rows * columns))
    return CountsByQuery(cells.tocsr(), rows, columns)


def nearest_level(grades: Floats, levels: Floats) -> npt.NDArray[np.int64]:
    """Position of the level nearest to each grade; half-way counts as the higher.

    Example:
        >>> nearest_level(np.array([0.4, 1.5, 2.9]), np.arange(4.0)).tolist()
        [0, 2, 3]
    """
    return np.searchsorted((levels[1:] + levels[:-1]) / 2, grades, side="right").astype(np.int64)


def agreement_within(steps: int) -> Measure:
    """The share of pairs whose grades lie exactly this many levels apart; -1: two or more."""

    def measure(tables: Floats) -> Floats:
        apart = _levels_apart(tables)
        chosen = apart >= 2 if steps < 0 else apart == steps
        return _quotient((tables * chosen).sum(axis=(-2, -1)), tables.sum(axis=(-2, -1)))

    return measure


def cohen_kappa(weights: Literal["none", "linear", "quadratic"] = "none") -> Measure:
    """Cohen's kappa: 1 - observed / expected disagreement, where the expected one keeps each side's own grades.

    Disagreement counts 1 (Cohen 1960, doi:10.1177/001316446002000104), the number of levels apart, or its square
    (Cohen 1968, doi:10.1037/h0026256). Equal to scikit-learn's `cohen_kappa_score`; not defined where both sides use
    one and the same grade only.

    Example:
        >>> float(cohen_kappa()(np.array([[20.0, 5.0], [10.0, 15.0]])))
        0.4
    """

    def measure(tables: Floats) -> Floats:
        apart = _levels_apart(tables)
        weight = {"none": (apart > 0).astype(np.float64), "linear": apart, "quadratic": apart**2}[weights]
        total = tables.sum(axis=(-2, -1))
        expected = tables.sum(axis=-1)[..., :, None] * tables.sum(axis=-2)[..., None, :]
        return 1 - _quotient((tables * weight).sum(axis=(-2, -1)) * total, (expected * weight).sum(axis=(-2, -1)))

    return measure


def binary_kappa(first: int) -> Measure:
    """Cohen's kappa of relevant or not, where levels from position `first` on are relevant."""
    kappa = cohen_kappa()

    def measure(tables: Floats) -> Floats:
        halves = np.add.reduceat(np.add.reduceat(tables, [0, first], axis=-1), [0, first], axis=-2)
        return kappa(halves)

    return measure


def krippendorff_alpha(tables: Floats) -> Floats:
    """Krippendorff's alpha for ordinal grades of two sides (2011, "Computing Krippendorff's Alpha-Reliability").

    Chance is drawn from both sides' grades together, so a judge with another habit of grading is marked down.

    Example:
        >>> float(krippendorff_alpha(np.diag([3.0, 2.0, 1.0])))
        1.0
    """
    coincidences = tables + np.swapaxes(tables, -1, -2)
    used = coincidences.sum(axis=-1)
    middle = used.cumsum(axis=-1) - used / 2
    distance = (middle[..., :, None] - middle[..., None, :]) ** 2
    observed = (coincidences * distance).sum(axis=(-2, -1))
    expected = (used[..., :, None] * used[..., None, :] * distance).sum(axis=(-2, -1))
    return 1 - _quotient((used.sum(axis=-1) - 1) * observed, expected)


def spearman(tables: Floats) -> Floats:
    """Spearman's rank correlation, ties given their mean rank; equal to scipy's `spearmanr`."""
    rows, columns = tables.sum(axis=-1), tables.sum(axis=-2)
    row_ranks, column_ranks = (_centred_ranks(margin) for margin in (rows, columns))
    together = (row_ranks * (tables * column_ranks[..., None, :]).sum(axis=-1)).sum(axis=-1)
    spread = (rows * row_ranks**2).sum(axis=-1) * (columns * column_ranks**2).sum(axis=-1)
    return _quotient(together, np.sqrt(spread))


def kendall_tau_b(tables: Floats) -> Floats:
    """Kendall's tau-b (1945, doi:10.1093/biomet/33.3.239); equal to scipy's `kendalltau`."""
    below = np.zeros_like(tables)
    below[..., 1:, 1:] = tables[..., :-1, :-1].cumsum(axis=-1).cumsum(axis=-2)
    concordant = (tables * below).sum(axis=(-2, -1))
    everything = _pairs_of(tables.sum(axis=(-2, -1)))
    tied_rows, tied_columns = (_pairs_of(tables.sum(axis=axis)).sum(axis=-1) for axis in (-1, -2))
    decided = everything - tied_rows - tied_columns + _pairs_of(tables).sum(axis=(-2, -1))
    return _quotient(2 * concordant - decided, np.sqrt((everything - tied_rows) * (everything - tied_columns)))


def query_draws(queries: int, samples: int, seed: int) -> Iterator[Floats]:
    """How often each query is drawn, in blocks of shape (S, Q): the resamples of `evaluation.significance`."""
    for drawn in resamples(queries, samples, seed):
        cells = drawn + np.arange(len(drawn))[:, None] * queries
        yield np.bincount(cells.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(np.float64)


def draws(counts: CountsByQuery, measures: Mapping[str, Measure], samples: int, seed: int) -> dict[str, Floats]:
    """Each measure on resampled queries, shape (samples,); equal seeds and queries draw alike, so draws pair up."""
    found: dict[str, list[Floats]] = {name: [] for name in measures}
    for tables in counts.resampled(samples, seed):
        for name, measure in measures.items():
            found[name].append(measure(tables))
    return {name: np.concatenate(values) for name, values in found.items()}


def estimates(counts: CountsByQuery, measures: Mapping[str, Measure], samples: int, seed: int) -> dict[str, Estimate]:
    """Each measure with its interval.

    Example:
        >>> levels, ids = np.arange(2.0), ["q1", "q1", "q2", "q3"]
        >>> counts = counts_by_query(np.array([0.0, 1, 1, 0]), np.array([0.0, 1, 1, 1]), ids, levels)
        >>> round(estimates(counts, {"kappa": cohen_kappa()}, samples=100, seed=0)["kappa"].value, 3)
        0.5
    """
    drawn = draws(counts, measures, samples, seed)
    return {name: estimate_of(float(measure(counts.total)), drawn[name]) for name, measure in measures.items()}


def mean_estimate(values: Floats, query_ids: Sequence[str], samples: int, seed: int) -> Estimate:
    """The mean over pairs with its interval over queries, which bring all their pairs (cluster bootstrap).

    Raises:
        InputError: fewer than 2 queries.
    """
    names, query = np.unique(np.asarray(query_ids, dtype=str), return_inverse=True)
    if len(names) < 2:
        raise InputError(
            f"audit: got pairs of {len(names)} queries; expected at least 2 for an interval; "
            "fix: label documents of more queries (some 50 or more)"
        )
    sums, sizes = np.bincount(query, weights=values), np.bincount(query)
    drawn = np.concatenate([times @ sums / (times @ sizes) for times in query_draws(len(names), samples, seed)])
    return estimate_of(float(values.mean()), drawn)


def estimate_of(value: float, drawn: Floats) -> Estimate:
    """A value with the percentile interval of its draws (95 %); draws where it is not defined are left out."""
    defined = drawn[np.isfinite(drawn)]
    if not np.isfinite(value) or not defined.size:
        return Estimate(None)
    low, high = np.quantile(defined, interval_bounds(0.95))
    return Estimate(value, float(low), float(high))


def _levels_apart(tables: Floats) -> Floats:
    positions = np.arange(tables.shape[-1], dtype=np.float64)
    return np.abs(positions[:, None] - positions[None, :])


def _centred_ranks(margin: Floats) -> Floats:
    """Mean rank of each level less the mean of all ranks, for counts of shape (..., levels)."""
    ranks: Floats = margin.cumsum(axis=-1) - margin / 2 - margin.sum(axis=-1, keepdims=True) / 2
    return ranks


def _pairs_of(counts: Floats) -> Floats:
    return counts * (counts - 1) / 2


def _quotient(above: Floats, below: Floats) -> Floats:
    """A quotient, NaN where it is not defined."""
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient: Floats = np.where(below > 0, above / below, np.nan)
    return quotient
