from __future__ import annotations

import pytest

from bixse.data.graded_pairs import GradedPairs
from bixse.errors import InputError
from bixse.mining.false_negatives import false_negative_share, false_negatives
from bixse.mining.mined_pairs import MinedPair


def mined(query_id, document_id, source, rank):
    return MinedPair(query_id, "q", document_id, "d", None, source, rank)


def graded(*rows):
    return GradedPairs.from_rows(
        {"query_id": q, "query": q, "document_id": d, "document": d, "relevance": z} for q, d, z in rows
    )


MINED = [
    mined("q1", "a", "bm25:1,demo:2", 1),
    mined("q1", "b", "demo:1", 2),
    mined("q1", "c", "bm25:90", 50),
    mined("q2", "a", "bm25:1", 1),
    mined("q2", "never graded", "bm25:2", 2),
]
GRADED = graded(("q1", "a", 0.5), ("q1", "b", 0.49), ("q1", "c", 1.0), ("q2", "a", 0.0), ("q2", "not mined", 1.0))


@pytest.mark.parametrize("threshold", [0.0, -1.0, 1.01, float("nan")])
def test_a_threshold_that_is_no_relevance(threshold):
    with pytest.raises(InputError, match="--relevant-from: got"):
        false_negative_share(GRADED, threshold)


def test_grades_of_other_pairs_are_refused():
    with pytest.raises(InputError, match="none of them one of the 5 mined pairs"):
        false_negatives(graded(("q9", "a", 1.0)), MINED)


def test_shares_by_rank_and_by_retriever():
    found = false_negatives(GRADED, MINED, threshold=0.5)
    assert (found.overall.relevant, found.overall.graded, found.mined) == (2, 4, 5)
    assert {band: (s.relevant, s.graded) for band, s in found.by_band.items()} == {
        "1": (1, 2),
        "2-3": (0, 1),
        "31-100": (1, 1),
    }
    assert list(found.by_band) == ["1", "2-3", "31-100"]
    assert {label: (s.relevant, s.graded) for label, s in found.by_retriever.items()} == {
        "bm25": (2, 3),
        "demo": (1, 2),
    }


def test_the_share_counts_from_the_threshold_on():
    assert false_negative_share(GRADED, 0.5).value == 3 / 5
    assert false_negative_share(GRADED, 0.49).value == 4 / 5
    assert false_negative_share(GRADED, 1.0).value == 2 / 5


def test_an_empty_table_has_no_share():
    with pytest.raises(InputError, match="got none"):
        false_negative_share(GradedPairs.from_rows([]))
