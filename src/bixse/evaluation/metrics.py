"""Graded retrieval metrics, equal to trec_eval's implementation where it has the metric."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter

from bixse.errors import InputError, did_you_mean
from bixse.relevance import MIN_RELEVANT_GRADE, Qrels, Ranking, numbers, ranked

if TYPE_CHECKING:
    Floats: TypeAlias = NDArray[np.float64]

PerQuery: TypeAlias = dict[str, dict[str, float]]
"""Metric name -> query id -> value in [0, 1]."""
STORED_PER_QUERY = TypeAdapter(dict[str, dict[str, Annotated[float, Field(ge=0, le=1 + 1e-9, allow_inf_nan=False)]]])
"""The check of figures that are read from a file."""
PRIMARY_METRIC = "ndcg@10"
"""The metric that compares systems and selects checkpoints."""
METRICS = (PRIMARY_METRIC, "recall@100", "mrr@10", "map@100")
"""The main metric of BEIR, its recall, the metric of MS MARCO, and that of TREC."""

IR_NAMES = {"ndcg": "nDCG", "recall": "R", "precision": "P", "mrr": "RR", "map": "AP"}
"""Metric -> its name in ir_measures."""


def ir_name(metric: str) -> str:
    """Return the name of a metric in ir_measures.

    Example:
        >>> ir_name("ndcg@10"), ir_name("recall@100")
        ('nDCG@10', 'R@100')
    """
    name, at, cutoff = metric.partition("@")
    return IR_NAMES.get(name, name) + at + cutoff


@dataclass(frozen=True)
class _Judged:
    gains: Floats
    """Grade of each ranked document, best first; 0 if unjudged or below 0."""
    ideal: Floats
    """All grades above 0, highest first."""
    hits: Floats
    """1 for each relevant ranked document, else 0."""
    relevant: int


def evaluate_run(
    qrels: Qrels, run: Ranking, metrics: Iterable[str] = METRICS, min_relevant_grade: float = MIN_RELEVANT_GRADE
) -> PerQuery:
    """Score every judged query of a run; equal to trec_eval where it has the metric, with its ties and float32 scores.

    Each metric may have a cutoff `@k` (rank k counts; without it the complete ranking):

    - `ndcg`: gain = grade, discount log2(rank + 1), ideal ranking of all judged documents; Järvelin and Kekäläinen
      2002, doi:10.1145/582415.582418, in trec_eval's linear form.
    - `recall`; `precision` (always with @k); `mrr`: reciprocal rank of the first relevant document; `map`: average
      precision. These are binary: a document is relevant from grade `min_relevant_grade` on (above 0; 2 in TREC Deep
      Learning).

    Grades may be fractional. Grades below 0 and unjudged documents count as 0. Queries without a grade above 0 are
    ignored. A judged query that the run lacks scores 0, as with trec_eval's option -c. A query without a document at
    `min_relevant_grade` scores 0 in the binary metrics, as in trec_eval.

    Example:
        >>> evaluate_run({"q1": {"d1": 3, "d2": 1}}, {"q1": {"d2": 0.9, "d1": 0.8}}, ["ndcg@10", "mrr@10"])
        {'ndcg@10': {'q1': 0.7967...}, 'mrr@10': {'q1': 1.0}}
    """
    measures = {name: _parse(name) for name in metrics}
    if not measures:
        raise InputError(f"metrics: got none; expected some such as {', '.join(METRICS)}; fix: name one")
    check_min_relevant_grade(min_relevant_grade)
    judged_queries = [
        query_id
        for query_id, judged in qrels.items()
        if (numbers(judged, f"qrels of query {query_id!r}: grade") > 0).any()
    ]
    if not judged_queries:
        raise InputError(
            f"qrels: got {len(qrels)} queries and none with a grade above 0; expected at least one relevant document; "
            "fix: choose a split with judgements"
        )
    if run and not any(query_id in run for query_id in judged_queries):
        raise InputError(
            f"run: got queries such as {next(iter(run))!r}; expected judged ones such as {judged_queries[0]!r}; "
            "fix: use the run and the judgements of one collection and split"
        )
    values: PerQuery = {name: {} for name in measures}
    for query_id in judged_queries:
        judged = _judge(qrels[query_id], run.get(query_id, {}), min_relevant_grade)
        for name, (measure, cutoff) in measures.items():
            values[name][query_id] = measure(judged, cutoff)
    return values


def check_min_relevant_grade(grade: float) -> None:
    """Raise InputError for 0 or below."""
    if not grade > 0:
        raise InputError(
            f"min_relevant_grade: got {grade}; expected above 0 (unjudged documents have grade 0); "
            "fix: use the lowest grade that counts as relevant"
        )


def mean(per_query: PerQuery) -> dict[str, float]:
    """Return the mean of each metric over its queries."""
    return {name: math.fsum(values.values()) / len(values) for name, values in per_query.items()}


def _judge(grades: Mapping[str, float], scores: Mapping[str, float], min_relevant_grade: float) -> _Judged:
    order = ranked(scores)
    gains = np.fromiter((max(grades.get(document_id, 0), 0) for document_id in order), np.float64, len(order))
    ideal = np.array(sorted((grade for grade in grades.values() if grade > 0), reverse=True), dtype=np.float64)
    return _Judged(
        gains=gains,
        ideal=ideal,
        hits=(gains >= min_relevant_grade).astype(np.float64),
        relevant=int((ideal >= min_relevant_grade).sum()),
    )


def _dcg(gains: Floats) -> float:
    """Return the DCG, summed from rank 1 down, which is the order of trec_eval."""
    if not len(gains):
        return 0.0
    discounts = np.array([math.log2(rank + 1) for rank in range(1, len(gains) + 1)])
    return float(np.add.accumulate(gains / discounts)[-1])


def _ndcg(judged: _Judged, cutoff: int | None) -> float:
    return _dcg(judged.gains[:cutoff]) / _dcg(judged.ideal[:cutoff])


def _recall(judged: _Judged, cutoff: int | None) -> float:
    return float(judged.hits[:cutoff].sum()) / judged.relevant if judged.relevant else 0.0


def _precision(judged: _Judged, cutoff: int | None) -> float:
    return float(judged.hits[:cutoff].sum()) / (cutoff or 1)


def _reciprocal_rank(judged: _Judged, cutoff: int | None) -> float:
    positions = np.flatnonzero(judged.hits[:cutoff])
    return 1.0 / (int(positions[0]) + 1) if len(positions) else 0.0


def _average_precision(judged: _Judged, cutoff: int | None) -> float:
    positions = np.flatnonzero(judged.hits[:cutoff])
    if not len(positions):
        return 0.0
    precisions = np.arange(1, len(positions) + 1) / (positions + 1)
    return float(np.add.accumulate(precisions)[-1]) / judged.relevant  # by rank, as trec_eval; np.sum is pairwise


_Measure: TypeAlias = Callable[[_Judged, "int | None"], float]
_MEASURES: dict[str, _Measure] = {
    "ndcg": _ndcg,
    "recall": _recall,
    "precision": _precision,
    "mrr": _reciprocal_rank,
    "map": _average_precision,
}


def _parse(name: str) -> tuple[_Measure, int | None]:
    match = re.fullmatch(r"([a-z]+)(?:@([1-9][0-9]*))?", name)
    if match is not None and match[1] in _MEASURES and not (match[1] == "precision" and match[2] is None):
        return _MEASURES[match[1]], int(match[2]) if match[2] else None
    base = name.lower().partition("@")[0]
    hint = f"write {base}@10" if base in _MEASURES else did_you_mean(base, _MEASURES, "write a known name")
    raise InputError(f"metric: got {name!r}; expected {', '.join(_MEASURES)} with a cut-off such as @10; fix: {hint}")
