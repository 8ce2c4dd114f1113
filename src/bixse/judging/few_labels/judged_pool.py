"""The pairs that a judge graded and the labels that people gave to some of them: what was drawn, and how."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from bixse.data.trec import ranked
from bixse.errors import InputError
from bixse.judging.few_labels.estimator import LabelledSample

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from bixse.evaluation.statistics import Floats
    from bixse.relevance import Ranking

Pairs: TypeAlias = "Mapping[tuple[str, str], float]"
"""(query id, document id) -> value."""


@dataclass(frozen=True)
class JudgedPool:
    """U graded pairs, n of them labelled, of Q queries."""

    pairs: tuple[tuple[str, str], ...]
    """In sorted order."""
    grades: Floats
    """(U,) the judge's relevance."""
    sample: LabelledSample
    labels: Floats
    """(n,) people's relevance."""
    outside: int
    """Labels of pairs that the judge did not grade: they are left out."""

    @cached_property
    def whole_queries(self) -> bool:
        """All pairs of each labelled query are labelled, with one probability: queries were drawn."""
        sample = self.sample
        own = sample.query[sample.labelled]
        sizes, labelled = (np.bincount(which, minlength=sample.queries) for which in (sample.query, own))
        alike = all(np.ptp(sample.probability[own == query]) == 0 for query in np.unique(own))
        return alike and bool((labelled[labelled > 0] == sizes[labelled > 0]).all())

    @cached_property
    def of_queries(self) -> LabelledSample:
        """The sample with queries as its units, where these were drawn."""
        sample = self.sample
        labelled, first = np.unique(sample.query[sample.labelled], return_index=True)
        return LabelledSample(np.arange(sample.queries), sample.queries, labelled, sample.probability[first])

    def ranks(self, run: Ranking) -> npt.NDArray[np.int64]:
        """(U,) the rank of each pair's document in the run, from 1; 0 where it was not found."""
        found = {query: {name: rank for rank, name in enumerate(ranked(run[query]), 1)} for query in run}
        return np.array([found.get(query, {}).get(name, 0) for query, name in self.pairs], dtype=np.int64)

    def ideal(self, relevance: Floats, depth: int) -> Floats:
        """(Q,) ideal DCG@depth of (U,) relevances."""
        order = np.lexsort((-relevance, self.sample.query))
        query = self.sample.query[order]
        place = np.arange(len(order)) - np.searchsorted(query, query)
        gains = np.zeros(len(order))
        gains[order] = np.where(place < depth, relevance[order] / np.log2(place + 2), 0.0)
        return self.sample.sum_by_query(gains)


def judged_pool(grades: Pairs, labels: Pairs, probabilities: Pairs | None = None) -> JudgedPool:
    """Join a judge's grades and people's labels, all in [0, 1].

    Without `probabilities` the labelled pairs (or, where every pair of the labelled queries is labelled, the queries)
    are taken as drawn uniformly.

    Raises:
        InputError: no pair has both, some labels have a probability and some have none, one of them lies outside
            (0, 1], or fewer than 2 queries.
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
    number = {name: place for place, name in enumerate(names)}
    query = np.array([number[name] for name, _ in pairs], dtype=np.int64)
    labelled = np.array(common, dtype=np.int64)
    known = np.array([labels[pairs[place]] for place in common], dtype=np.float64)
    graded = np.array([grades[pair] for pair in pairs], dtype=np.float64)
    given = [probabilities.get(pairs[place]) for place in common] if probabilities else []
    sure = np.ones(len(labelled))
    if not given:
        sample = LabelledSample(query, len(names), labelled, sure)
        whole = JudgedPool(pairs, graded, sample, known, 0).whole_queries
        share = len(set(query[labelled].tolist())) / len(names) if whole else len(labelled) / len(pairs)
        sure = np.full(len(labelled), share)
    else:
        without = given.count(None)
        bad = [value for value in given if value is not None and not 0 < value <= 1]
        if without or bad:
            got = f"{without} of {len(given)} labels without one" if without else f"{bad[0]}"
            raise InputError(
                f"probability: got {got}; expected one in (0, 1] for each label; fix: write the probability with which "
                "each pair was drawn, or leave the column out where all were drawn alike"
            )
        sure = np.array(given, dtype=np.float64)
    return JudgedPool(
        pairs, graded, LabelledSample(query, len(names), labelled, sure), known, len(labels.keys() - grades.keys())
    )
