"""What a study does to its training pairs before a cell is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bixse.data.graded_pairs import GradedPairs
from bixse.data.transforms import transforms
from bixse.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping


def transformed(pairs: GradedPairs, settings: Mapping[str, Any], seed: int) -> GradedPairs:
    """Training pairs after a cell's transforms, in this order.

    Args:
        pairs: all training pairs.
        settings: any of `cutoff` (keep relevance from it), `binarise` (relevance 1 from it, else 0), `noise`
            (probability of swapped labels), `size` (pairs to keep, stratified), `labels_per_query` with `labels` (the
            labels that the budget buys).
        seed: of everything random; the same draws for every loss of that seed.

    Raises:
        InputError: no pair is left.
    """
    if "labels" in settings:
        pairs = bought(pairs, settings["labels_per_query"], settings["labels"], seed)
    if "cutoff" in settings:
        pairs = transforms.keep_from(pairs, settings["cutoff"])
    if "size" in settings:
        pairs = transforms.sampled(pairs, settings["size"], seed)
    if "binarise" in settings:
        pairs = transforms.binarised(pairs, settings["binarise"])
    if settings.get("noise"):
        pairs = transforms.with_label_noise(pairs, settings["noise"], seed)
    if not len(pairs):
        raise InputError(f"cell: got no pairs after {dict(settings)}; expected some; fix: change the values")
    return pairs


def bought(pairs: GradedPairs, per_query: int, labels: int, seed: int) -> GradedPairs:
    """The pairs that a budget of labels buys: queries in random order, some random documents of each.

    A label is bought before it is known, so documents are drawn without regard to their relevance.

    Args:
        pairs: all graded pairs.
        per_query: labels per query; queries with fewer candidates give what they have.
        labels: the budget.
        seed: of both draws; queries drawn for a small budget are also in a larger one.

    Raises:
        InputError: the budget is larger than what there is.

    Example:
        >>> rows = [{"query": q, "document": f"{q}{d}", "relevance": d / 2} for q in "ab" for d in range(3)]
        >>> found = bought(GradedPairs.from_rows(rows), per_query=1, labels=2, seed=0)
        >>> sorted(found.queries)
        ['a', 'b']
    """
    groups = pairs.groups()
    taken: list[dict[str, Any]] = []
    for number in np.random.default_rng(seed).permutation(len(groups)):
        if len(taken) >= labels:
            break
        group = groups[number]
        drawn = np.random.default_rng((seed, int(number))).permutation(len(group.documents))
        for place in drawn[: min(per_query, labels - len(taken))]:
            taken.append({
                "query_id": group.query_id, "query": group.query, "task": group.task,
                "document_id": group.document_ids[place], "document": group.documents[place],
                "relevance": group.relevance[place],
            })  # fmt: skip
    if len(taken) < labels:
        raise InputError(
            f"labels: got a budget of {labels}, {per_query} a query; expected at most the {len(taken)} that "
            f"{len(groups)} queries have; fix: a smaller budget"
        )
    return GradedPairs.from_rows(taken)
