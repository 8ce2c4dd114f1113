"""Estimates of nDCG, precision and differences from a judge's grades of all pairs and people's labels of some."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bixse.errors import InputError
from bixse.evaluation.statistics import quotient
from bixse.judging.audit.labelled_sample import SampledMean, judged_pool
from bixse.report.table import VERDICT_WORDS, format_difference, format_interval, format_number, format_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bixse.evaluation.statistics import Floats
    from bixse.judging.audit.labelled_sample import JudgedPool, Pairs
    from bixse.relevance import Ranking
    from bixse.report.table import Cell
    from bixse.results import IntervalEstimate


FEW_LABELS_METRICS = ("ndcg@10", "precision@10")
NO_NDCG = (
    "ndcg: got labels of pairs; expected labels of every graded pair of some queries, as the ideal ranking of a query "
    "is no sum over labels; fix: label whole queries, or read precision@k"
)
HEADERS = ("metric", "system", "judge alone", "estimate", "these queries", "queries like these", "labels worth")
_WORDS = {"above": "better", "below": "worse", "across": "no difference"}


@dataclass(frozen=True)
class FewLabelsEstimate:
    """A metric of a system, or its difference from another system, with the worth of the judge's grades."""

    metric: str
    system: str
    baseline: str | None  # subtracted
    queries: IntervalEstimate
    """Interval for queries like these. The ends are None if the labels are too few, or too much alike."""
    labels: IntervalEstimate
    """The same value with the interval for these very queries, as if people labelled every pair."""
    plain: IntervalEstimate
    """The same as `labels`, without the judge's grades."""
    judge: float
    """Value from the judge's grades alone, with the judge's bias."""
    labels_worth: int | None
    """Number of labels for an equally narrow interval without the judge; None if unknown."""


@dataclass(frozen=True)
class FewLabels:
    """All estimates from one sample of labels."""

    estimates: tuple[FewLabelsEstimate, ...]
    drawn: str  # "pairs" or "queries"
    labelled: int
    labelled_queries: int
    pairs: int
    pool_queries: int
    outside: int  # labels of pairs without a grade; left out
    ungraded: Mapping[str, int]
    """System -> number of ungraded documents within the deepest cut-off; they count as irrelevant."""

    def text(self) -> str:
        """Return a table, a verdict on each difference, and the omissions."""
        lines = [
            f"{self.labelled} labels of {self.labelled_queries} queries ({self.drawn} were drawn); {self.pairs} graded "
            f"pairs of {self.pool_queries} queries",
            "",
            format_table([_row(own) for own in self.estimates], HEADERS),
            "",
            *(_verdict(own) for own in self.estimates if own.baseline is not None),
        ]
        if self.drawn == "pairs":
            lines.append("nDCG is left out: it needs labels of every graded pair of some queries")
        if self.outside:
            lines.append(f"{self.outside} labels are of pairs without a grade: left out")
        lines += [
            f"{name}: {count} documents it shows have no grade: they count as irrelevant"
            for name, count in self.ungraded.items()
            if count
        ]
        return "\n".join(lines)


def evaluate_few_labels(
    runs: Mapping[str, Ranking],
    grades: Pairs,
    labels: Pairs,
    probabilities: Pairs | None = None,
    metrics: Sequence[str] | None = None,
    relevant_from: float = 0.5,
) -> FewLabels:
    """Estimate metrics that people's labels of every graded pair would give, from labels of a sample.

    The estimate is the judge's value corrected by the differences of its grades from the labels: see
    `bixse.judging.audit.labelled_sample`. It is unbiased: exactly so for independently drawn pairs or queries.

    Args:
        runs: name -> run; each pair of systems is compared.
        grades: the judge's relevance in [0, 1] of every pair of the pool; all its queries count.
        labels: people's relevance in [0, 1] of the drawn pairs.
        probabilities: probability of each drawn pair; None for equal ones.
        metrics: "precision@k" and, from whole queries, "ndcg@k"; None for both at 10, as far as they can be had.
        relevant_from: lowest relevance that counts as relevant for precision.

    Raises:
        InputError: no run, another metric, nDCG from labels of pairs, a run without a query of the pool, or unusable
            labels (see `bixse.judging.audit.labelled_sample.judged_pool`).

    """
    pool = judged_pool(grades, labels, probabilities)
    default = FEW_LABELS_METRICS if pool.whole_queries else FEW_LABELS_METRICS[1:]
    wanted = [_parse(name, relevant_from) for name in (default if metrics is None else metrics)]
    if not pool.whole_queries and any(metric.measure == "ndcg" for metric in wanted):
        raise InputError(NO_NDCG)
    if not 0 < relevant_from <= 1:
        raise InputError(
            f"relevant_from: got relevance {relevant_from:g}; expected above 0 and up to 1; fix: name the lowest grade "
            "that counts as relevant, above the lowest of the scale"
        )
    if not runs or not wanted:
        raise InputError("runs: got no run or no metric; expected at least one of each; fix: name a system")
    for name, run in runs.items():
        if not run.keys() & {query for query, _ in pool.pairs}:
            raise InputError(
                f"{name}: got no query that the judge graded; expected queries such as {pool.pairs[0][0]!r}; fix: use "
                "the grades of this collection"
            )
    ranks = {name: pool.ranks(run) for name, run in runs.items()}
    contrasts: list[tuple[str, str | None]] = [*((name, None) for name in runs), *combinations(runs, 2)]
    deepest = max(metric.depth for metric in wanted)
    asked = {query for query, _ in pool.pairs}
    shown = {name: sum(min(len(run[query]), deepest) for query in run.keys() & asked) for name, run in runs.items()}
    return FewLabels(
        tuple(_estimate(pool, metric, *contrast, ranks) for metric in wanted for contrast in contrasts),
        "queries" if pool.whole_queries else "pairs",
        labelled=len(pool.labels),
        labelled_queries=len(pool.of_queries.labelled),
        pairs=len(pool.pairs),
        pool_queries=pool.sample.queries,
        outside=pool.outside,
        ungraded={name: shown[name] - int(((own > 0) & (own <= deepest)).sum()) for name, own in ranks.items()},
    )


class _Metric(NamedTuple):
    name: str
    measure: str
    depth: int
    relevant_from: float

    def relevance(self, values: Floats) -> Floats:
        """Return relevance unchanged for nDCG, 0 or 1 for precision."""
        return values if self.measure == "ndcg" else (values >= self.relevant_from).astype(np.float64)

    def weights(self, ranks: Any) -> Floats:
        """Return the (U,) gains of a relevant document at its rank."""
        shown = (ranks > 0) & (ranks <= self.depth)
        discounted = 1 / np.log2(np.maximum(ranks, 1) + 1)
        gains: Floats = np.where(shown, discounted if self.measure == "ndcg" else 1 / self.depth, 0.0)
        return gains

    def values(self, pool: JudgedPool, relevance: Floats, weight: Floats) -> Floats:
        """Return the (Q,) metric of (U,) relevances; 0 for queries without a relevant document."""
        gain = pool.sample.sum_by_query(weight * relevance)
        return np.nan_to_num(quotient(gain, pool.ideal(relevance, self.depth))) if self.measure == "ndcg" else gain


def _parse(name: str, relevant_from: float) -> _Metric:
    match = re.fullmatch(r"(ndcg|precision)@([1-9][0-9]*)", name)
    if match is None:
        raise InputError(f"metric: got {name!r}; expected ndcg@k or precision@k; fix: write a cut-off such as @10")
    return _Metric(name, match[1], int(match[2]), relevant_from)


def _estimate(
    pool: JudgedPool, metric: _Metric, system: str, baseline: str | None, ranks: Mapping[str, Any]
) -> FewLabelsEstimate:
    weight, per_unit = metric.weights(ranks[system]), 1.0
    if baseline is not None:
        weight = weight - metric.weights(ranks[baseline])
    estimator = _precision_from_pairs
    if pool.whole_queries:
        estimator, per_unit = _from_queries, len(pool.labels) / len(pool.of_queries.labelled)
    powered, plain = (estimator(pool, metric, weight, judge) for judge in (True, False))
    growth = plain.growth_to(powered.label_variance())
    return FewLabelsEstimate(
        metric=metric.name,
        system=system,
        baseline=baseline,
        queries=powered.of_queries(),
        labels=powered.of_labels(),
        plain=plain.of_labels(),
        judge=float(metric.values(pool, metric.relevance(pool.grades), weight).mean()),
        labels_worth=None if growth is None else round(plain.labels(growth) * per_unit),
    )


def _from_queries(pool: JudgedPool, metric: _Metric, weight: Floats, judge: bool) -> SampledMean:
    """Estimate with queries as units, since the metric of labelled queries is known."""
    sample, labels = pool.of_queries, np.zeros(len(pool.pairs))
    labels[pool.sample.labelled] = pool.labels
    known = metric.values(pool, metric.relevance(labels), weight)[sample.labelled]
    graded = metric.values(pool, pool.grades, weight)
    predicted = sample.predict(known, graded if judge else None)
    residual = known - predicted[sample.labelled]
    per_query = predicted + sample.sum_labelled(residual / sample.probability)
    return SampledMean(sample, per_query, residual, np.ones(sample.queries))


def _precision_from_pairs(pool: JudgedPool, metric: _Metric, weight: Floats, judge: bool) -> SampledMean:
    """Estimate a sum over documents, in which each label represents 1 / probability documents."""
    sample = pool.sample
    known = metric.relevance(pool.labels)
    predicted = sample.predict(known, pool.grades if judge else None, weight)
    residual = weight[sample.labelled] * (known - predicted[sample.labelled])
    per_query = sample.sum_by_query(weight * predicted) + sample.sum_labelled(residual / sample.probability)
    return SampledMean(sample, per_query, residual, weight)


def _row(own: FewLabelsEstimate) -> list[Cell]:
    signed = own.baseline is not None
    write = format_difference if signed else format_number
    return [
        own.metric,
        own.system if own.baseline is None else f"{own.system} - {own.baseline}",
        write(own.judge),
        write(own.queries.value or 0.0),
        format_interval(own.labels.low, own.labels.high, signed) or "too few labels",
        format_interval(own.queries.low, own.queries.high, signed),
        own.labels_worth,
    ]


def _verdict(own: FewLabelsEstimate) -> str:
    verdict = VERDICT_WORDS[_WORDS[own.queries.side]]  # type: ignore[index]
    return f"{own.metric}, {own.system} against {own.baseline}: {verdict}"
