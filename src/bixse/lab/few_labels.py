"""Estimate nDCG, precision and differences from a judge's grades of all pairs and people's labels of a sample.

Prediction-powered: unit u (a pair, or a query) has the value v_u and the prediction m_u; labelled units S are drawn
with probabilities pi_u. The estimate of the sum of v is sum_u m_u + sum_S (v_u - m_u) / pi_u. It is unbiased for
predictions that do not use labels of the same query (Horvitz and Thompson 1952, doi:10.1080/01621459.1952.10483446;
Angelopoulos et al. 2023, arXiv:2301.09633). So m_u = a + lambda f_u of the judge's grade f_u is fitted to the labels of
all *other* queries. The slope is PPI++'s power tuning (arXiv:2311.01453): least squares gives the smallest variance. It
is shrunk by its own uncertainty, so that a useless judge gets lambda = 0, and labels alone count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import stdtrit

from bixse.audit.labels import Labels, impossible_lines, read_labels, unjoined_labels
from bixse.data.joined import Unjoined, check_joined, unanswered
from bixse.errors import InputError
from bixse.evaluation.intervals import quotient
from bixse.evaluation.statistics import Floats, interval_bounds
from bixse.files.files import write_atomically
from bixse.relevance import MIN_RELEVANT_GRADE, GradeScale, Ranking, ranked
from bixse.rendering.table import Cell, format_number, format_table
from bixse.rendering.wording import format_difference, format_interval
from bixse.results import UNITS_FROM, VERDICT_WORDS, IntervalEstimate, too_few

FEW_LABELS_METRICS = ("ndcg@10", "precision@10")
HEADERS = ("metric", "system", "judge alone", "estimate", "these queries", "queries like these", "labels worth")


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
    joined: tuple[str, ...] = ()
    """Warnings of labels, queries and documents that only one side has."""

    def text(self) -> str:
        """Return a table, a verdict on each difference, and the omissions."""
        lines = [
            f"{self.labelled} labels of {self.labelled_queries} queries ({self.drawn} were drawn); {self.pairs} graded "
            f"pairs of {self.pool_queries} queries",
            "",
            format_table([_row(estimate) for estimate in self.estimates], HEADERS),
            "",
        ]
        for each in self.estimates:
            if each.baseline is not None:
                few = f" ({each.queries.few})" if each.queries.few else ""
                verdict = VERDICT_WORDS[each.queries.verdict()]
                lines.append(f"{each.metric}, {each.system} against {each.baseline}: {verdict}{few}")
        if self.drawn == "pairs":
            lines.append("nDCG is left out: it needs labels of every graded pair of some queries")
        return "\n".join(lines)


def evaluate_few_labels(
    runs: Mapping[str, Ranking],
    grades: PairValues,
    labels: PairValues,
    probabilities: PairValues | None = None,
    metrics: Sequence[str] | None = None,
    positive_from: float = 0.5,
    scaled: bool = False,
) -> FewLabels:
    """Estimate metrics that people's labels of every graded pair would give, from labels of a sample.

    The estimate is the judge's value corrected by the differences of its grades from the labels: see
    `bixse.lab.few_labels`. It is unbiased: exactly so for independently drawn pairs or queries.

    Args:
        runs: name -> run; each pair of systems is compared.
        grades: the judge's relevance in [0, 1] of every pair of the pool; all its queries count.
        labels: people's relevance in [0, 1] of the drawn pairs.
        probabilities: probability with which each pair was drawn; None: all are equal.
        metrics: "precision@k" and, from whole queries, "ndcg@k"; None for both at 10, if the labels allow them.
        positive_from: lowest relevance that counts as relevant for precision.
        scaled: multiply the probabilities so that the labels stand for all pairs: people stopped before the end.

    Raises:
        InputError: no run, another metric, nDCG from labels of pairs, a run without a query of the pool, or unusable
            labels (see `bixse.lab.few_labels.judged_pool`).
    """
    pool = judged_pool(grades, labels, probabilities, scaled)
    default = FEW_LABELS_METRICS if pool.whole_queries else FEW_LABELS_METRICS[1:]
    wanted = [_parse(name, positive_from) for name in (default if metrics is None else metrics)]
    if not pool.whole_queries and any(metric.measure == "ndcg" for metric in wanted):
        raise InputError(
            "ndcg: got labels of pairs; expected labels of every graded pair of some queries, as the ideal ranking of "
            "a query is no sum over labels; fix: label whole queries, or read precision@k"
        )
    if not 0 < positive_from <= 1:
        raise InputError(
            f"positive_from: got relevance {positive_from:g}; expected above 0 and up to 1; fix: name the lowest grade "
            "that counts as relevant, above the lowest of the scale"
        )
    if not runs or not wanted:
        raise InputError("runs: got no run or no metric; expected at least one of each; fix: name what is missing")
    ranks = {name: pool.ranks(run) for name, run in runs.items()}
    contrasts: list[tuple[str, str | None]] = [*((name, None) for name in runs), *combinations(runs, 2)]
    deepest = max(metric.depth for metric in wanted)
    asked = dict.fromkeys(query for query, _ in pool.pairs)
    fix = "use grades, labels and runs of one collection"
    joined = check_joined("labels", [unjoined_labels("the judge", grades, labels)], fix)
    for name, run in runs.items():
        shown = [(query, hit) for query in asked if query in run for hit in ranked(run[query])[:deepest]]
        lost = Unjoined.of("documents without a grade", shown, grades, "they count as irrelevant")
        joined += check_joined(name, [unanswered(asked, run), lost], fix)
    return FewLabels(
        tuple(_estimate(pool, metric, *contrast, ranks) for metric in wanted for contrast in contrasts),
        "queries" if pool.whole_queries else "pairs",
        labelled=len(pool.labels),
        labelled_queries=len(pool.of_queries.labelled),
        pairs=len(pool.pairs),
        pool_queries=pool.sample.queries,
        joined=tuple(joined),
    )


def few_labels_of_files(
    runs: Mapping[str, Ranking],
    grades: Path,
    human: Path,
    scale: GradeScale | None = None,
    min_relevant_grade: float = MIN_RELEVANT_GRADE,
    out: Path | None = None,
) -> tuple[FewLabels, list[str], Labels]:
    """Return `evaluate_few_labels` of files, which `out` keeps, lines on impossible labels, and people's labels."""
    people = read_labels(human, scale)
    judge = read_labels(grades, otherwise=people.scale)
    result = evaluate_few_labels(
        runs,
        judge.relevance,
        people.relevance,
        people.probability,
        positive_from=people.scale.to_relevance(min_relevant_grade),
        scaled=bool(people.plans),
    )
    if out is not None:
        write_atomically(out, json.dumps(asdict(result), indent=1) + "\n")
    return result, impossible_lines([*people.impossible, *judge.impossible]), people


class _Metric(NamedTuple):
    name: str
    measure: str
    depth: int
    positive_from: float

    def relevance(self, values: Floats) -> Floats:
        """Return relevance unchanged for nDCG, 0 or 1 for precision."""
        return values if self.measure == "ndcg" else (values >= self.positive_from).astype(np.float64)

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


def _parse(name: str, positive_from: float) -> _Metric:
    match = re.fullmatch(r"(ndcg|precision)@([1-9][0-9]*)", name)
    if match is None:
        raise InputError(f"metric: got {name!r}; expected ndcg@k or precision@k; fix: write a cut-off such as @10")
    return _Metric(name, match[1], int(match[2]), positive_from)


def _estimate(
    pool: JudgedPool, metric: _Metric, system: str, baseline: str | None, ranks: Mapping[str, Any]
) -> FewLabelsEstimate:
    weight = metric.weights(ranks[system])
    if baseline is not None:
        weight = weight - metric.weights(ranks[baseline])
    per_unit = len(pool.labels) / len(pool.of_queries.labelled) if pool.whole_queries else 1.0
    powered, plain = (_sampled_mean(pool, metric, weight, judge) for judge in (True, False))
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


def _sampled_mean(pool: JudgedPool, metric: _Metric, weight: Floats, judge: bool) -> SampledMean:
    """Estimate from labelled units, each of which represents 1 / probability units.

    Units are queries, whose metric is known if they are labelled, or pairs, over which precision is a sum.
    """
    if pool.whole_queries:
        sample, units, importance, labels = pool.of_queries, np.ones(pool.sample.queries), None, np.zeros(len(weight))
        labels[pool.sample.labelled] = pool.labels
        known = metric.values(pool, metric.relevance(labels), weight)[sample.labelled]
        graded = metric.values(pool, pool.grades, weight)
    else:
        sample, units, importance = pool.sample, weight, weight
        known, graded = metric.relevance(pool.labels), pool.grades
    predicted = sample.predict(known, graded if judge else None, importance)
    residual = units[sample.labelled] * (known - predicted[sample.labelled])
    per_query = sample.sum_by_query(units * predicted) + sample.sum_labelled(residual / sample.probability)
    return SampledMean(sample, per_query, residual, units)


def _row(estimate: FewLabelsEstimate) -> list[Cell]:
    signed = estimate.baseline is not None
    write = format_difference if signed else format_number
    return [
        estimate.metric,
        estimate.system if estimate.baseline is None else f"{estimate.system} - {estimate.baseline}",
        write(estimate.judge),
        write(estimate.queries.value or 0.0),
        format_interval(estimate.labels.low, estimate.labels.high, signed) or estimate.labels.few,
        format_interval(estimate.queries.low, estimate.queries.high, signed),
        estimate.labels_worth,
    ]


_SMALLEST = 1e-12  # smaller variances of grades in [0, 1] are rounding


@dataclass(frozen=True)
class LabelledSample:
    """A sample of n labelled units among U units (pairs, or queries) of Q queries."""

    query: npt.NDArray[np.int64]  # (U,) query index per unit
    queries: int
    labelled: npt.NDArray[np.int64]  # (n,) indices of the labelled units
    probability: Floats  # (n,) with which each labelled unit was drawn, in (0, 1]

    def predict(self, values: Floats, grades: Floats | None, importance: Floats | None = None) -> Floats:
        """Predict (U,) values of all units from the (n,) labelled `values` of other queries.

        `grades` (U,) are the judge's; without grades, the mean is the prediction. `importance` (U,) weights the units.
        """
        weights = 1 / self.probability
        if importance is not None:
            # a unit that is certain to be labelled adds no variance, and informs little about the rest
            weights = (importance[self.labelled] * weights) ** 2 * np.maximum(1 - self.probability, 1e-3)
        x = np.zeros_like(weights) if grades is None else grades[self.labelled]
        total, mean_x, mean = self._others(weights), self._others(weights, x), self._others(weights, values)
        if grades is None:
            return mean[self.query]
        spread_x, spread, together = (
            self._others(weights, left * right) - centre
            for left, right, centre in ((x, x, mean_x**2), (values, values, mean**2), (x, values, mean_x * mean))
        )
        usable = (spread_x > _SMALLEST) & (spread > _SMALLEST)
        slope = np.divide(together, spread_x, out=np.zeros_like(mean), where=usable)
        explained = np.divide(slope * together, spread, out=np.zeros_like(mean), where=usable).clip(0, 1 - 1e-9)
        freedom = np.nan_to_num(quotient(total**2, self._others(weights**2))) - 4
        signal = explained / (1 - explained) * np.maximum(freedom, 0)  # Fisher's F of the slope
        slope *= 1 - 1 / np.maximum(signal, 1)
        predicted: Floats = mean[self.query] + slope[self.query] * (grades - mean_x[self.query])
        return predicted

    def _others(self, weights: Floats, values: Floats | None = None) -> Floats:
        """Return (Q,) weighted means, or sums of weights, over the labelled units of all other queries."""
        sums = self.sum_labelled(weights if values is None else weights * values)
        others: Floats = sums.sum() - sums
        if values is None:
            return np.where(others > _SMALLEST * sums.sum(), others, 0.0)
        return np.nan_to_num(quotient(others, self._others(weights)))

    def sum_by_query(self, of_units: Floats) -> Floats:
        """Return (Q,) sums of (U,) values per query."""
        return np.bincount(self.query, of_units, self.queries).astype(np.float64)

    def sum_labelled(self, of_labelled: Floats) -> Floats:
        """Return (Q,) sums of the (n,) values of labelled units per query."""
        return np.bincount(self.query[self.labelled], of_labelled, self.queries).astype(np.float64)


@dataclass(frozen=True)
class SampledMean:
    """The mean of a metric over Q queries, from a sample of labels."""

    sample: LabelledSample
    per_query: Floats  # (Q,) unbiased values; they can leave [0, 1]
    residual: Floats  # (n,) label minus prediction, not divided by the probability
    importance: Floats  # (U,) weight of each unit's value

    @property
    def value(self) -> float:
        return float(self.per_query.mean())

    def label_variance(self, growth: float = 1.0) -> float:
        """Return the variance from the choice of labels at `growth` times each unit's probability (at most 1)."""
        probability = self.sample.probability
        drawn = np.minimum(1, growth * probability)
        scatter = float((self.residual**2 / probability * (1 / drawn - 1)).sum()) / self.sample.queries**2
        return scatter * (1 - 1 / max(self._units, 2.0))  # n - 1 units predict one worse than n would

    def labels(self, growth: float = 1.0) -> float:
        """Return the expected number of labelled units at `growth` times each unit's probability."""
        probability = self.sample.probability
        return float((np.minimum(1, growth * probability) / probability).sum())

    def of_labels(self) -> IntervalEstimate:
        """Return the interval for these queries, as if every pair were labelled."""
        return self._interval(self.label_variance(), max(self._units - 1, 1.0))

    def of_queries(self) -> IntervalEstimate:
        """Return the interval for queries like these, over the choice of queries and of labels."""
        labels = self.label_variance()
        queries = max(float(self.per_query.var(ddof=1)) / self.sample.queries - labels, 0.0)
        seen = len(np.unique(self.sample.query[self.sample.labelled]))
        # Satterthwaite's degrees of freedom for the sum of both variances (1946, doi:10.2307/3002019)
        parts = labels**2 / max(self._units - 1, 1.0) + queries**2 / max(seen - 1, 1)
        freedom = (labels + queries) ** 2 / parts if parts else 1.0
        return self._interval(labels + queries, freedom, too_few(self.sample.queries))

    def growth_to(self, variance: float) -> float | None:
        """Return the factor on the probabilities that lowers the labels' variance to `variance`, or None."""
        most = 1 / float(self.sample.probability.min())
        if self._unknown or variance < 0 or not self.residual.any():
            return None
        low = most
        while low > _SMALLEST and self.label_variance(low) <= variance:
            low /= 2
        return float(brentq(lambda growth: self.label_variance(growth) - variance, low, most))

    @cached_property
    def _units(self) -> float:
        """The effective number of labelled units (Kish 1965)."""
        counts = (self.importance[self.sample.labelled] / self.sample.probability) ** 2
        return float(np.nan_to_num(quotient(counts.sum() ** 2, (counts**2).sum())))

    @property
    def _unknown(self) -> str:
        """The reason why the metric's labels do not show their scatter, or ""."""
        counts, labelled = self.importance != 0, self.sample.labelled
        complete = counts[labelled].sum() == counts.sum() and (self.sample.probability[counts[labelled]] == 1).all()
        scatters = bool((np.abs(self.residual[counts[labelled]]) > _SMALLEST).any())
        enough = complete or not counts.any() or (int(counts[labelled].sum()) > 1 and scatters)
        return "" if enough else "too few labels, or all alike"

    def _interval(self, variance: float, freedom: float, few: str = "") -> IntervalEstimate:
        few = few or too_few(len(self.sample.labelled), "labelled units", UNITS_FROM) or self._unknown
        if few or variance <= _SMALLEST:  # all is labelled: no interval is needed for these queries
            return IntervalEstimate(self.value, few=few or ("exact" if self.value else ""))
        half = float(stdtrit(freedom, interval_bounds(0.95)[1])) * float(np.sqrt(variance))
        return IntervalEstimate(self.value, self.value - half, self.value + half)


PairValues: TypeAlias = "Mapping[tuple[str, str], float]"
"""(query id, document id) -> value."""


@dataclass(frozen=True)
class JudgedPool:
    """A pool of U graded pairs of Q queries, with n labelled pairs."""

    pairs: tuple[tuple[str, str], ...]
    grades: Floats  # (U,) relevance by the judge
    sample: LabelledSample
    labels: Floats  # (n,) relevance by people

    @cached_property
    def whole_queries(self) -> bool:
        """True if whole queries were drawn: all pairs of each labelled query have a label and one probability."""
        sample = self.sample
        query_of_label = sample.query[sample.labelled]
        sizes, labelled = (np.bincount(which, minlength=sample.queries) for which in (sample.query, query_of_label))
        alike = all(np.ptp(sample.probability[query_of_label == query]) == 0 for query in np.unique(query_of_label))
        return alike and bool((labelled[labelled > 0] == sizes[labelled > 0]).all())

    @cached_property
    def of_queries(self) -> LabelledSample:
        """The sample with queries as its units."""
        sample = self.sample
        labelled, first = np.unique(sample.query[sample.labelled], return_index=True)
        return LabelledSample(np.arange(sample.queries), sample.queries, labelled, sample.probability[first])

    def ranks(self, run: Ranking) -> npt.NDArray[np.int64]:
        """Return the (U,) ranks of the pairs' documents in the run, from 1; 0 for missing documents."""
        ranks = {query: {name: rank for rank, name in enumerate(ranked(run[query]), 1)} for query in run}
        return np.array([ranks.get(query, {}).get(name, 0) for query, name in self.pairs], dtype=np.int64)

    def ideal(self, relevance: Floats, depth: int) -> Floats:
        """Return the (Q,) ideal DCG@depth of (U,) relevances."""
        order = np.lexsort((-relevance, self.sample.query))
        query = self.sample.query[order]
        position = np.arange(len(order)) - np.searchsorted(query, query)
        gains = np.zeros(len(order))
        gains[order] = np.where(position < depth, relevance[order] / np.log2(position + 2), 0.0)
        return self.sample.sum_by_query(gains)


def judged_pool(
    grades: PairValues, labels: PairValues, probabilities: PairValues | None = None, scaled: bool = False
) -> JudgedPool:
    """Join a judge's grades and people's labels, all in [0, 1].

    Without `probabilities`, labelled pairs (or labelled queries, if all their pairs are labelled) count as drawn
    uniformly. `scaled` multiplies the probabilities so that the labelled units stand for all units.
    Raise InputError for no common pair, fewer than 2 queries, or unusable or missing probabilities.
    """
    pairs = tuple(sorted(grades))
    names = sorted({query for query, _ in pairs})
    common = [position for position, pair in enumerate(pairs) if pair in labels]
    if not common:
        examples = [repr(next(iter(side), None)) for side in (labels, grades)]
        raise InputError(
            f"labels: got none of a graded pair (labels such as {examples[0]}, grades such as {examples[1]}); expected "
            "labels of pairs that the judge graded; fix: use the same ids, or grade these pairs too"
        )
    if len(names) < 2:
        raise InputError(f"grades: got pairs of {len(names)} query; expected at least 2; fix: grade more queries")
    number = {name: position for position, name in enumerate(names)}
    query = np.array([number[name] for name, _ in pairs], dtype=np.int64)
    labelled = np.array(common, dtype=np.int64)
    known = np.array([labels[pairs[position]] for position in common], dtype=np.float64)
    graded = np.array([grades[pair] for pair in pairs], dtype=np.float64)
    chances = [probabilities.get(pairs[position]) for position in common] if probabilities else []
    without = chances.count(None)
    bad = [value for value in chances if value is not None and not 0 < value <= 1]
    if without or bad:
        got = f"{without} of {len(chances)} labels without one" if without else f"{bad[0]}"
        raise InputError(
            f"probability: got {got}; expected one in (0, 1] for each label; fix: write the probability with which "
            "each pair was drawn, or leave the column out if all were drawn with equal probability"
        )
    sure = np.array(chances or [1.0] * len(common), dtype=np.float64)
    sample = LabelledSample(query, len(names), labelled, sure)
    pool = JudgedPool(pairs, graded, sample, known)
    if chances and not scaled:
        return pool
    units = pool.of_queries if pool.whole_queries else sample
    share = (1 / units.probability).sum() / len(units.query)
    return replace(pool, sample=replace(sample, probability=np.minimum(1, share * sure)))
