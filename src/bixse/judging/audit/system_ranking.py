"""Do a judge's labels rank retrieval systems as human labels do?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bixse.errors import InputError
from bixse.evaluation.metrics import PRIMARY_METRIC, evaluate_run
from bixse.evaluation.statistics import percentile_estimate, query_draws, quotient

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bixse.evaluation.statistics import Floats
    from bixse.judging.audit.labels import PairIds
    from bixse.relevance import Ranking
    from bixse.results import IntervalEstimate


@dataclass(frozen=True)
class SystemScore:
    """The mean nDCG@10 of one run under both sides' labels."""

    name: str
    human: float
    judge: float


@dataclass(frozen=True)
class SystemRanking:
    """Systems under human and judge labels of the same pairs."""

    systems: tuple[SystemScore, ...]
    """Best first by human labels."""
    tau: IntervalEstimate
    """Kendall's tau-b of the two rankings."""
    tau_ap: float
    """Yilmaz, Aslam and Robertson's tau: mistakes at the top weigh more (2008, doi:10.1145/1390334.1390435)."""
    queries: int
    """Queries with a relevant document on both sides."""


def rank_systems(
    human: Mapping[PairIds, float],
    judged: Mapping[PairIds, float],
    runs: Mapping[str, Ranking],
    samples: int = 1000,
    seed: int = 0,
) -> SystemRanking:
    """Score every run, at least 2, by nDCG@10 under both sides' labels of the pairs that both have labelled.

    `human` and `judged` are the relevance of each pair; irrelevant is 0, and expected grades count as they are. Pairs
    of a run that no side labelled count as irrelevant. Queries are resampled for the interval of tau.
    """
    if len(runs) < 2:
        raise InputError(f"runs: got {len(runs)}; expected at least 2 to rank; fix: give more run files")
    labels: tuple[dict[str, dict[str, float]], ...] = ({}, {})
    for query_id, document_id in human.keys() & judged.keys():
        for side, relevance in zip(labels, (human, judged), strict=True):
            side.setdefault(query_id, {})[document_id] = relevance[query_id, document_id]
    queries = sorted(query for query in labels[0] if all(max(side[query].values()) > 0 for side in labels))
    if len(queries) < 2:
        raise InputError(
            f"runs: got {len(queries)} queries with a relevant document by both sides; expected at least 2; "
            "fix: label more queries"
        )
    names = list(runs)
    scores = np.array([[_ndcg(side, runs[name], queries) for name in names] for side in labels])
    human_scores, judge_scores = scores.mean(axis=2)
    drawn = [_tau_b(times @ scores[0].T, times @ scores[1].T) for times in query_draws(len(queries), samples, seed)]
    order = sorted(range(len(names)), key=lambda i: (-human_scores[i], names[i]))
    return SystemRanking(
        systems=tuple(SystemScore(names[i], float(human_scores[i]), float(judge_scores[i])) for i in order),
        tau=percentile_estimate(float(_tau_b(human_scores, judge_scores)), np.concatenate(drawn)),
        tau_ap=tau_ap(human_scores.tolist(), judge_scores.tolist()),
        queries=len(queries),
    )


def tau_ap(reference: Sequence[float], estimated: Sequence[float]) -> float:
    """Of the systems above each one by the estimate, the share that the reference also puts above; from -1 to 1.

    The estimate's ties are broken by the reference against it: what the estimate does not tell apart is a mistake.

    Example:
        >>> tau_ap([0.9, 0.8, 0.7], [0.5, 0.4, 0.3]), tau_ap([0.9, 0.8, 0.7], [0.4, 0.5, 0.3])
        (1.0, 0.0)
    """
    order = sorted(range(len(reference)), key=lambda i: (-estimated[i], reference[i]))
    shares = [
        sum(reference[above] > reference[i] for above in order[:place]) / place
        for place, i in enumerate(order)
        if place
    ]
    return 2 * sum(shares) / len(shares) - 1


def _ndcg(qrels: Mapping[str, Mapping[str, float]], run: Ranking, queries: Sequence[str]) -> list[float]:
    values = evaluate_run({query: qrels[query] for query in queries}, run, [PRIMARY_METRIC])[PRIMARY_METRIC]
    return [values[query] for query in queries]


def _tau_b(first: Floats, second: Floats) -> Floats:
    higher, lower = np.triu_indices(first.shape[-1], k=1)
    signs = [np.sign((values[..., higher] - values[..., lower]).round(12)) for values in (first, second)]
    agreeing = (signs[0] * signs[1]).sum(axis=-1)
    decided = np.abs(signs[0]).sum(axis=-1) * np.abs(signs[1]).sum(axis=-1)
    return quotient(agreeing, np.sqrt(decided))
