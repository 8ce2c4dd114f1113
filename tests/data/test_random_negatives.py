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
    table = with_random_negatives(pairs, COLLECTION, number, seed)
    rows = list(table.rows())
    assert rows[: len(pairs)] == list(pairs.rows()), "what was judged stays as it is"
    found = {}
    for row in rows[len(pairs) :]:
        assert row["relevance"] == 0
        assert row["document"] == CORPUS[row["document_id"]].content
        found.setdefault(row["query_id"], []).append(row["document_id"])
    return found


def test_never_a_document_that_is_judged_for_the_query():
    for seed in range(20):
        found = drawn(PAIRS, 120, seed)
        assert {name: len(set(some)) for name, some in found.items()} == dict.fromkeys(("q0", "q1", "q2"), 120)
        assert not {f"d{n}" for n in range(52)} & set(found["q0"]), "judged by a split, or by a pair of the file"
        assert "d53" not in found["q1"], "judged under another id, by its text"
        assert not {"d54", "d60"} & set(found["q2"]), "judged for the same query under another id"
    assert set(drawn(PAIRS, 148)["q0"]) == set(CORPUS) - {f"d{n}" for n in range(52)}, "all that are left"


def test_the_draw_depends_on_the_seed_and_not_on_other_queries():
    assert drawn(PAIRS, 5) == drawn(PAIRS, 5)
    assert drawn(PAIRS, 5) != drawn(PAIRS, 5, seed=1)
    assert drawn(PAIRS.select(np.array([name == "q1" for name in PAIRS.query_ids])), 5)["q1"] == drawn(PAIRS, 5)["q1"]


@pytest.mark.parametrize("number", [0, -1, 149])
def test_too_many_or_too_few(number):
    with pytest.raises(InputError, match=str(number)):
        with_random_negatives(PAIRS, COLLECTION, number)
