from __future__ import annotations

import pytest

from bixse.data.collection import Collection, Document
from bixse.data.graded_pairs import GradedPairs, text_id
from bixse.errors import InputError
from bixse.relevance import GradeScale

ROWS = [
    {"query_id": "q1", "query": "copy", "document_id": "d1", "document": "shutil.copy", "relevance": 1.0},
    {"query_id": "q2", "query": "move", "document_id": "d2", "document": "shutil.move", "relevance": 0.5, "task": "t"},
    {"query_id": "q1", "query": "copy", "document_id": "d3", "document": "shutil.move", "relevance": 0.0},
]
COLLECTION = Collection(
    "toy",
    {"d1": Document("copy", "copies"), "d2": Document("", "moves")},
    {"q1": "copy a file"},
    {"test": {"q1": {"d1": 3, "d2": 0}}, "empty": {}},
)


def test_a_split_the_collection_lacks() -> None:
    with pytest.raises(InputError, match=r"got split 'dev'; expected one of \['empty', 'test'\]"):
        GradedPairs.from_collection(COLLECTION, "dev", GradeScale())


@pytest.mark.parametrize("judged", [{"q9": {"d1": 1}}, {"q1": {"d9": 1}}])
def test_judgements_of_unknown_ids(judged: dict[str, dict[str, float]]) -> None:
    collection = Collection("toy", COLLECTION.corpus, COLLECTION.queries, {"test": judged})
    with pytest.raises(InputError, match="expected ids of the collection"):
        GradedPairs.from_collection(collection, "test", GradeScale())


@pytest.mark.parametrize("grade", [-1, 4, float("nan")])
def test_a_grade_off_the_scale(grade: float) -> None:
    collection = Collection("toy", COLLECTION.corpus, COLLECTION.queries, {"test": {"q1": {"d1": grade}}})
    with pytest.raises(InputError, match="state the scale"):
        GradedPairs.from_collection(collection, "test", GradeScale(0, 3))


def test_from_a_collection() -> None:
    pairs = GradedPairs.from_collection(COLLECTION, "test", GradeScale(0, 3))
    assert pairs.documents == ["copy copies", "moves"]
    assert pairs.relevance.tolist() == [1.0, 0.0]
    assert pairs.extra == {"grade": [3, 0]}
    assert len(GradedPairs.from_collection(COLLECTION, "empty", GradeScale(0, 3))) == 0


def test_groups_keep_first_appearance_and_order() -> None:
    first, second = GradedPairs.from_rows(ROWS).groups()
    assert (first.query_id, first.document_ids, first.relevance, first.task) == ("q1", ["d1", "d3"], [1.0, 0.0], None)
    assert (second.query_id, second.document_ids, second.task) == ("q2", ["d2"], "t")


def test_no_rows() -> None:
    pairs = GradedPairs.from_rows([])
    assert (len(pairs), list(pairs.groups()), list(pairs.rows()), pairs.relevance.shape) == (0, [], [], (0,))


def test_selecting_queries_keeps_order_and_columns() -> None:
    chosen = GradedPairs.from_rows(ROWS).select_queries(["q2", "unknown", "q1"])
    assert list(chosen.rows()) == list(GradedPairs.from_rows(ROWS).rows())
    assert len(GradedPairs.from_rows(ROWS).select_queries(["unknown"])) == 0


def test_ids_come_from_the_text_alone() -> None:
    pairs = GradedPairs.from_rows([{"query": "a", "document": "a", "relevance": 1}])
    assert pairs.query_ids == pairs.document_ids == ["ca978112ca1bbdca"]  # sha256sum of "a"
    assert text_id("a ") != text_id("a")


def test_hash_is_stable_and_sees_every_column() -> None:
    pairs = GradedPairs.from_rows(ROWS)
    assert pairs.content_hash() == "389c511a9bc6b91b1ce818d400226dad21461e7f31a310f2cf7532337e48564b"
    for change in ({"query_id": "x"}, {"query": "x"}, {"document_id": "x"}, {"document": "x"}, {"relevance": 0.99}):
        assert GradedPairs.from_rows([{**ROWS[0], **change}, *ROWS[1:]]).content_hash() != pairs.content_hash()
    assert GradedPairs.from_rows(ROWS[::-1]).content_hash() != pairs.content_hash()


def test_hash_keeps_neighbouring_texts_apart() -> None:
    first = GradedPairs.from_rows([{**ROWS[0], "query": "ab", "document": "c"}])
    second = GradedPairs.from_rows([{**ROWS[0], "query": "a", "document": "bc"}])
    assert first.content_hash() != second.content_hash()
