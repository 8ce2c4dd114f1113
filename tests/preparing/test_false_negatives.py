from __future__ import annotations

import pytest

from bixse.data.graded_pairs import GradedPairs
from bixse.errors import InputError
from bixse.preparing.mine.false_negatives import false_negatives
from bixse.preparing.mine.mined_pairs import MinedPair


def graded(*rows):
    return GradedPairs.from_rows(
        {"query_id": q, "query": q, "document_id": d, "document": d, "relevance": z} for q, d, z in rows
    )


MINED = [
    MinedPair(query_id, "q", document_id, "d", None, source, rank)
    for query_id, document_id, source, rank in (
        ("q1", "a", "bm25:1,demo:2", 1),
        ("q1", "b", "demo:1", 2),
        ("q1", "c", "bm25:90", 50),
        ("q2", "a", "bm25:1", 1),
        ("q2", "never graded", "bm25:2", 2),
    )
]
GRADED = graded(("q1", "a", 0.5), ("q1", "b", 0.49), ("q1", "c", 1.0), ("q2", "a", 0.0), ("q2", "not mined", 1.0))


@pytest.mark.parametrize("threshold", [0.0, 1.01, float("nan")])
def test_a_threshold_that_is_no_relevance(threshold):
    with pytest.raises(InputError, match="--relevant-from"):
        false_negatives(GRADED, MINED, threshold)


@pytest.mark.parametrize("pairs", [graded(("q9", "a", 1.0)), graded()])
def test_grades_of_other_pairs_or_none_are_refused(pairs):
    with pytest.raises(InputError, match="of the 5 mined pairs"):
        false_negatives(pairs, MINED)


def test_shares_by_rank_and_by_retriever():
    found = false_negatives(GRADED, MINED, threshold=0.5)
    assert found.mined == 5
    assert [(name, share.relevant, share.graded) for name, share in found.groups.items()] == [
        ("all", 2, 4), ("rank 1", 1, 2), ("rank 2-3", 0, 1), ("rank 31-100", 1, 1),
        ("found by bm25", 2, 3), ("found by demo", 1, 2),
    ]  # fmt: skip


@pytest.mark.parametrize(("threshold", "relevant"), [(0.49, 3), (0.5, 2), (1.0, 1)])
def test_the_share_counts_from_the_threshold_on(threshold, relevant):
    assert false_negatives(GRADED, MINED, threshold).overall.relevant == relevant
