"""The audit of judges: join their labels with human ones and measure what can be trusted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from bixse.errors import InputError
from bixse.evaluation.calibration.reliability import calibration_report, reliability_curve
from bixse.evaluation.statistics import check_samples, mean_estimate, numbered_queries, percentile_estimate
from bixse.grading.audit import agreement
from bixse.grading.audit.agreement import counts_by_query, draws, estimates
from bixse.grading.audit.audit_report import (
    AuditReport,
    Disagreement,
    GradeShare,
    JudgeAudit,
    JudgeDifference,
    MeanRelevance,
    QueryDisagreement,
    SelfAgreement,
)
from bixse.grading.audit.system_ranking import rank_systems

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bixse.evaluation.statistics import Floats
    from bixse.grading.audit.labels import Labels, Pair
    from bixse.relevance import Run
    from bixse.results import IntervalEstimate

MOST_LEVELS = 21
"""More distinct grades than this are no ordinal scale."""
WORST_PAIRS, WORST_OF_A_QUERY = 20, 2
"""How many of the largest disagreements are kept, and of one query."""


def audit(
    judges: Sequence[Labels],
    human: Labels,
    relevant_from: float | None = None,
    runs: Mapping[str, Run] | None = None,
    samples: int = 1000,
    seed: int = 0,
) -> AuditReport:
    """Measure how far judges' labels can be trusted.

    Args:
        judges: the judges, each with a name of its own; a judge on another scale is compared by its place on it.
        human: human labels; their scale is the scale of the audit.
        relevant_from: grade from which a pair is relevant; by default the lowest in the upper half of the scale, which
            is 2 on 0 to 3, as in TREC Deep Learning.
        runs: name -> TREC run, to be ranked under each side's labels.
        samples: resamples of the queries for the 95 % intervals.
        seed: of the resampling.

    Raises:
        InputError: no judge, two of one name, a judge without a pair in common with the human labels, fewer than 2
            common queries, or arguments outside their range.

    Example:
        >>> from bixse.grading.audit.labels import Labels
        >>> from bixse.relevance import GradeScale
        >>> def labels(name, grades):
        ...     pairs = {(f"q{i // 2}", f"d{i}"): grade for i, grade in enumerate(grades)}
        ...     return Labels(name, "", GradeScale(0, 3), pairs, {pair: grade / 3 for pair, grade in pairs.items()})
        >>> report = audit([labels("judge", [3, 0, 2, 0])], labels("people", [3, 0, 1, 0]))
        >>> report.judges[0].measures["exact"].value, report.relevant_from
        (0.75, 2.0)
    """
    names = [judge.name for judge in judges]
    if not names or len(set(names)) < len(names):
        raise InputError(f"audit: got the judges {names}; expected names of their own; fix: name each file once")
    check_samples(samples)
    levels = grade_levels(human)
    relevant_from = first_relevant(levels, relevant_from)
    joined = [_Joined.of(judge, human, levels, relevant_from) for judge in judges]
    return AuditReport(
        scale=(human.scale.minimum, human.scale.maximum),
        levels=tuple(levels.tolist()),
        relevant_from=relevant_from,
        human_path=human.path,
        human_pairs=len(human.grades),
        human_queries=len({query for query, _ in human.grades}),
        human_impossible=human.impossible,
        judges=tuple(_audit_one(pairs, human, runs, samples, seed) for pairs in joined),
        differences=tuple(
            difference
            for one, other in combinations(joined, 2)
            for difference in _differences(one, other, samples, seed)
        ),
        samples=samples,
        seed=seed,
    )


def grade_levels(human: Labels) -> Floats:
    """The grades of the human scale: its whole numbers, or the labels found where these are no whole numbers.

    Raises:
        InputError: more than 21 levels.
    """
    found = {human.scale.minimum, human.scale.maximum, *human.grades.values()}
    whole = all(float(grade).is_integer() for grade in found)
    levels = np.arange(human.scale.minimum, human.scale.maximum + 1) if whole else np.array(sorted(found))
    if len(levels) > MOST_LEVELS:
        raise InputError(
            f"{human.path}: got {len(levels)} distinct grades; expected an ordinal scale of at most {MOST_LEVELS}; "
            "fix: map the labels to a few grades"
        )
    return levels.astype(np.float64)


def first_relevant(levels: Floats, relevant_from: float | None) -> float:
    """The grade from which a pair counts as relevant; the lowest in the upper half of the scale where none is stated.

    Raises:
        InputError: a grade that leaves nothing relevant or nothing irrelevant.

    Example:
        >>> first_relevant(np.arange(4.0), None)
        2.0
    """
    if relevant_from is None:
        return float(levels[levels >= (levels[0] + levels[-1]) / 2][0])
    if not levels[0] < relevant_from <= levels[-1]:
        raise InputError(
            f"relevant-from: got {relevant_from:g}; expected above {levels[0]:g} and up to {levels[-1]:g}, the scale "
            "of the human labels; fix: name the lowest grade that counts as relevant"
        )
    return relevant_from


@dataclass(frozen=True)
class _Joined:
    """One judge's usable labels beside the human ones, N pairs in sorted order."""

    judge: Labels
    pairs: list[Pair]
    human: Floats
    judged: Floats
    """On the human scale."""
    relevance: Floats
    """The judge's, in [0, 1]."""
    relevant: Floats
    """1 where people find the pair relevant."""
    levels: Floats
    first: int
    """Position of the lowest relevant level."""

    @classmethod
    def of(cls, judge: Labels, human: Labels, levels: Floats, relevant_from: float) -> _Joined:
        pairs = sorted(human.grades.keys() & judge.grades.keys())
        if not pairs:
            ids = [next(iter(side.grades)) for side in (judge, human)]
            raise InputError(
                f"{judge.path}: got no pair of the human labels (pairs such as {ids[0]}; human ones such as {ids[1]}); "
                "expected labels of the same queries and documents; fix: use the ids of the human labels"
            )
        grades = np.array([human.grades[pair] for pair in pairs], dtype=np.float64)
        return cls(
            judge=judge,
            pairs=pairs,
            human=grades,
            judged=np.array([_on(human, judge, judge.grades[pair]) for pair in pairs], dtype=np.float64),
            relevance=np.array([judge.relevance[pair] for pair in pairs], dtype=np.float64),
            relevant=(grades >= relevant_from).astype(np.float64),
            levels=levels,
            first=int(np.searchsorted(levels, relevant_from)),
        )

    @property
    def query_ids(self) -> list[str]:
        return [query for query, _ in self.pairs]

    def only(self, chosen: set[Pair]) -> _Joined:
        """The same on some of the pairs."""
        kept = np.array([pair in chosen for pair in self.pairs])
        arrays = {name: getattr(self, name)[kept] for name in ("human", "judged", "relevance", "relevant")}
        return replace(self, pairs=[pair for pair in self.pairs if pair in chosen], **arrays)


def _on(human: Labels, judge: Labels, grade: float) -> float:
    """A judge's grade on the human scale."""
    return grade if judge.scale == human.scale else human.scale.to_grade(judge.scale.to_relevance(grade))


def _audit_one(pairs: _Joined, human: Labels, runs: Mapping[str, Run] | None, samples: int, seed: int) -> JudgeAudit:
    judge, levels, count = pairs.judge, pairs.levels, len(pairs.levels)
    position = agreement.nearest_level(pairs.judged, levels)
    table = counts_by_query(pairs.human, pairs.judged, pairs.query_ids, levels).total.astype(int)
    shares = reliability_curve((position + 0.5) / count, pairs.relevant, bins=count)
    share_of = {int(share.predicted * count): share for share in shares}
    errors = (pairs.relevance - pairs.relevant) ** 2 - (pairs.relevant.mean() - pairs.relevant) ** 2
    labelled = {pair: human.scale.to_relevance(grade) for pair, grade in human.grades.items()}
    return JudgeAudit(
        name=judge.name,
        path=judge.path,
        pairs=len(pairs.pairs),
        queries=len(set(pairs.query_ids)),
        without_grade=len(human.grades.keys() & judge.missing.keys()),
        human_only=len(human.grades.keys() - judge.grades.keys() - judge.missing.keys()),
        judge_only=len(judge.grades.keys() - human.grades.keys()),
        statuses=judge.statuses,
        impossible=judge.impossible,
        mapped=judge.mapped,
        measures=_measures(pairs, samples, seed),
        confusion=tuple(map(tuple, table.tolist())),
        by_grade=tuple(
            GradeShare(grade, share.count, share.observed, share.low, share.high)
            if (share := share_of.get(index)) is not None
            else GradeShare(grade, 0, None, None, None)
            for index, grade in enumerate(levels.tolist())
        ),
        by_human_grade=tuple(_mean_relevance(pairs, index) for index in range(count)),
        calibration=calibration_report(pairs.relevance, pairs.relevant, pairs.query_ids, samples=samples, seed=seed),
        against_constant=mean_estimate(errors, pairs.query_ids, samples, seed),
        worst_queries=_by_query(pairs),
        worst_pairs=_worst_pairs(pairs),
        self_agreement=_self_agreement(judge, human, levels, samples, seed),
        systems=rank_systems(labelled, judge.relevance, runs, samples, seed) if runs else None,
    )


def _measures(pairs: _Joined, samples: int, seed: int) -> dict[str, IntervalEstimate]:
    square = counts_by_query(pairs.human, pairs.judged, pairs.query_ids, pairs.levels)
    every = counts_by_query(pairs.human, pairs.judged, pairs.query_ids, None)
    of_levels = {
        "exact": agreement.agreement_within(0),
        "one_off": agreement.agreement_within(1),
        "further_off": agreement.agreement_within(-1),
        "kappa": agreement.cohen_kappa(),
        "linear_kappa": agreement.cohen_kappa("linear"),
        "quadratic_kappa": agreement.cohen_kappa("quadratic"),
        "binary_kappa": agreement.binary_kappa(pairs.first),
        "alpha": agreement.krippendorff_alpha,
    }
    of_ranks = {"spearman": agreement.spearman, "kendall": agreement.kendall_tau_b}
    return {
        "mean_difference": mean_estimate(pairs.judged - pairs.human, pairs.query_ids, samples, seed),
        **estimates(square, of_levels, samples, seed),
        **estimates(every, of_ranks, samples, seed),
    }


def _mean_relevance(pairs: _Joined, index: int) -> MeanRelevance:
    chosen = agreement.nearest_level(pairs.human, pairs.levels) == index
    mean = float(pairs.relevance[chosen].mean()) if chosen.any() else None
    return MeanRelevance(float(pairs.levels[index]), int(chosen.sum()), mean)


def _by_query(pairs: _Joined) -> tuple[QueryDisagreement, ...]:
    query, _ = numbered_queries(pairs.query_ids, len(pairs.pairs))
    same = agreement.nearest_level(pairs.judged, pairs.levels) == agreement.nearest_level(pairs.human, pairs.levels)
    difference = pairs.judged - pairs.human
    sizes = np.bincount(query)
    means = [np.bincount(query, weights=values) / sizes for values in (same, np.abs(difference), difference)]
    found = [
        QueryDisagreement(name, int(size), *map(float, values))
        for name, size, *values in zip(sorted(set(pairs.query_ids)), sizes, *means, strict=True)
    ]
    return tuple(sorted(found, key=lambda row: (-row.apart, row.query_id)))


def _worst_pairs(pairs: _Joined) -> tuple[Disagreement, ...]:
    order = np.argsort(-np.abs(pairs.judged - pairs.human), kind="stable")
    taken: Counter[str] = Counter()
    worst: list[Disagreement] = []
    for index in order.tolist():
        (query_id, document_id), human, judged = pairs.pairs[index], pairs.human[index], pairs.judged[index]
        if human == judged or len(worst) == WORST_PAIRS:
            break
        taken[query_id] += 1
        if taken[query_id] <= WORST_OF_A_QUERY:
            worst.append(Disagreement(query_id, document_id, float(human), float(judged)))
    return tuple(worst)


def _self_agreement(judge: Labels, human: Labels, levels: Floats, samples: int, seed: int) -> SelfAgreement | None:
    """The judge against itself over every pair asked twice, human-labelled or not; None for fewer than 2 queries."""
    twice = sorted(judge.grades.keys() & judge.again.keys())
    if len({query for query, _ in twice}) < 2:
        return None
    first, second = (
        np.array([_on(human, judge, side[pair]) for pair in twice], dtype=np.float64)
        for side in (judge.grades, judge.again)
    )
    counts = counts_by_query(first, second, [query for query, _ in twice], levels)
    found = estimates(counts, {"exact": agreement.agreement_within(0), "kappa": agreement.cohen_kappa()}, samples, seed)
    apart = float(np.abs(first - second).mean()) / (human.scale.maximum - human.scale.minimum)
    return SelfAgreement(len(twice), found["exact"], found["kappa"], apart)


def _differences(one: _Joined, other: _Joined, samples: int, seed: int) -> list[JudgeDifference]:
    """Both judges on the pairs that both graded; nothing where these are of fewer than 2 queries."""
    common = set(one.pairs) & set(other.pairs)
    if len({query for query, _ in common}) < 2:
        return []
    sides = [one.only(common), other.only(common)]
    measures = {"kappa": agreement.cohen_kappa(), "quadratic_kappa": agreement.cohen_kappa("quadratic")}
    counts = [counts_by_query(side.human, side.judged, side.query_ids, side.levels) for side in sides]
    drawn = [draws(side, measures, samples, seed) for side in counts]
    found = {
        name: percentile_estimate(
            float(measure(counts[0].total) - measure(counts[1].total)), drawn[0][name] - drawn[1][name]
        )
        for name, measure in measures.items()
    }
    errors = [(side.relevance - side.relevant) ** 2 for side in sides]
    found["brier"] = mean_estimate(errors[0] - errors[1], sides[0].query_ids, samples, seed)
    return [
        JudgeDifference(one.judge.name, other.judge.name, name, len(common), difference)
        for name, difference in found.items()
    ]
