"""Random documents as irrelevant pairs: which are drawn, and which never."""

import numpy as np
import pytest

from bixse.data.collection import Collection, Document
from bixse.data.graded_pairs import GradedPairs, with_random_negatives
from bixse.errors import InputError

CORPUS = {f"d{n}": Document("title" if n % 2 else "", f"text {n}") for n in range(200)}
COLLECTION = Collection(
    "toy",
    CORPUS,
    {"q0": "query 0", "q1": "query 1", "other": "query 2"},
    {"train": {"q0": {f"d{n}": 0 for n in range(50)}}, "test": {"q0": {"d50": 3}, "other": {"d60": 1}}},
)
PAIRS = GradedPairs.from_rows(
    [
        {"query_id": "q0", "query": "query 0", "document_id": "d51", "document": "text 51", "relevance": 1.0},
        {"query_id": "q1", "query": "query 1", "document_id": "own", "document": "title text 53", "relevance": 0.5},
        {"query_id": "q2", "query": "query 2", "document_id": "own2", "document": "text 54", "relevance": 1.0},
    ]
)


def drawn(pairs, number, seed=0):
    rows = list(with_random_negatives(pairs, COLLECTION, number, seed).rows())
    assert rows[: len(pairs)] == list(pairs.rows()), "judged pairs stay as they are"
    names = {}
    for row in rows[len(pairs) :]:
        assert (row["relevance"], row["document"]) == (0, CORPUS[row["document_id"]].content)
        names.setdefault(row["query_id"], []).append(row["document_id"])
    return names


def test_judged_document_is_never_drawn():
    for seed in range(20):
        names = drawn(PAIRS, 120, seed)
        assert {query: len(set(some)) for query, some in names.items()} == dict.fromkeys(("q0", "q1", "q2"), 120)
        assert not {f"d{n}" for n in range(52)} & set(names["q0"]), "judged by a split, or by a pair of the file"
        assert "d53" not in names["q1"], "judged under another id, by its text"
        assert not {"d54", "d60"} & set(names["q2"]), "judged for the same query under another id"
    assert set(drawn(PAIRS, 148)["q0"]) == set(CORPUS) - {f"d{n}" for n in range(52)}, "all remaining documents"


def test_draw_depends_on_the_seed_and_not_on_other_queries():
    assert drawn(PAIRS, 5) == drawn(PAIRS, 5)
    assert drawn(PAIRS, 5) != drawn(PAIRS, 5, seed=1)
    assert drawn(PAIRS.select(np.array([name == "q1" for name in PAIRS.query_ids])), 5)["q1"] == drawn(PAIRS, 5)["q1"]


@pytest.mark.parametrize("number", [0, -1, 149])
def test_number_that_cannot_be_drawn_is_refused(number):
    with pytest.raises(InputError, match=str(number)):
        with_random_negatives(PAIRS, COLLECTION, number)
