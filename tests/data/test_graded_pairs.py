import re

import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict

from bixse.data import columns
from bixse.data.collection import Collection
from bixse.data.columns import text_id
from bixse.data.corpus import Document
from bixse.data.graded_pairs import Pairs
from bixse.data.pairs_files import as_pairs
from bixse.errors import InputError
from bixse.files import parquet
from bixse.relevance import GradeScale

ROWS = [
    {"query_id": "q1", "query": "copy", "document_id": "d1", "document": "shutil.copy", "relevance": 1.0},
    {"query_id": "q2", "query": "move", "document_id": "d2", "document": "shutil.move", "relevance": 0.5, "task": "t"},
    {"query_id": "q1", "query": "copy", "document_id": "d3", "document": "shutil.move", "relevance": 0.0},
]
TABLE = pa.table({"query": ["a", "b"], "document": ["x", "y"], "label": [1.0, 0.5]})


def from_judged(judged, split="test"):
    corpus = {"d1": Document("copy", "copies"), "d2": Document("", "moves")}
    collection = Collection("toy", corpus, {"q1": "copy a file"}, {"test": judged, "empty": {}})
    return Pairs.from_collection(collection, split, GradeScale(0, 3))


@pytest.mark.parametrize(
    ("judged", "split", "fact"),
    [
        ({}, "dev", "['empty', 'test']"),
        ({"q9": {"d1": 1}}, "test", "'q9'"),
        ({"q1": {"d9": 1}}, "test", "'d9'"),
        *(({"q1": {"d1": grade}}, "test", f"{grade}") for grade in (-1, 4, float("nan"))),
    ],
)
def test_unknown_split_or_id_and_grade_outside_the_scale_are_refused(judged, split, fact):
    with pytest.raises(InputError, match=re.escape(fact)):
        from_judged(judged, split)


def test_collection_becomes_pairs():
    pairs = from_judged({"q1": {"d1": 3, "d2": 0}})
    assert pairs.documents == ["copy copies", "moves"]
    assert pairs.relevance.tolist() == [1.0, 0.0]
    assert pairs.extra == {"grade": [3, 0]}
    empty = from_judged({}, "empty")
    assert (len(empty), list(empty.groups()), list(empty.rows())) == (0, [], [])


def test_groups_have_the_order_of_first_appearance():
    first, second = Pairs.from_rows(ROWS).groups()
    assert (first.query_id, first.document_ids, first.relevance, first.task) == ("q1", ["d1", "d3"], [1.0, 0.0], None)
    assert (second.query_id, second.document_ids, second.task) == ("q2", ["d2"], "t")


def test_missing_ids_are_made_from_the_text():
    rows = [{"query_id": "q1", "query": "a", "document": "a", "relevance": 1}, {**ROWS[1], "query_id": None}]
    assert Pairs.from_rows(rows).query_ids == ["q1", text_id("move")]
    assert Pairs.from_rows(rows).document_ids[0] == "ca978112ca1bbdca"  # sha256sum of "a"


def test_hash_is_stable_and_depends_on_every_column():
    pairs = Pairs.from_rows(ROWS)
    assert pairs.content_hash() == "852bb54c4a450e42aa431a434493db14fb9a2df449d292a8254db15735234688"
    changes = [{name: "x"} for name in ("query_id", "query", "document_id", "document", "task")]
    for change in (*changes, {"relevance": 0.99}):
        assert Pairs.from_rows([{**ROWS[0], **change}, *ROWS[1:]]).content_hash() != pairs.content_hash()
    assert Pairs.from_rows(ROWS[::-1]).content_hash() != pairs.content_hash()


@pytest.mark.parametrize(
    ("columns", "fact"),
    [
        ({"query": ["a"], "document": ["x"]}, "relevance"),
        ({"query": ["a"], "text": ["x"], "label": [1.0]}, "document"),
        ({"query": [["a"]], "document": ["x"], "label": [1.0]}, "query"),
        ({"query": ["a"], "document": ["x"], "label": ["high"]}, "label"),
        ({"query": ["a", None], "document": ["x", "y"], "label": [1.0, 1.0]}, "row 2"),
        ({"query": ["a", "b"], "document": ["x", "y"], "label": [1.0, 1.5]}, "row 2"),
        ({"query": ["a", "b"], "document": ["x", "y"], "label": [None, 1.0]}, "row 1"),
    ],
)
def test_missing_column_or_invalid_value_is_refused(columns, fact):
    with pytest.raises(InputError, match=fact):
        Pairs.from_arrow(pa.table(columns))


def test_row_of_a_later_batch_is_named_and_a_stream_of_unknown_length_is_refused():
    wrong = pa.RecordBatch.from_pydict({"query": ["c"], "document": ["z"], "label": [-1.0]})
    with pytest.raises(InputError, match="row 3"):
        Pairs.from_arrow([*TABLE.to_batches(), wrong])
    with pytest.raises(InputError, match="IterableDataset"):
        Pairs.from_dataset(Dataset(TABLE).to_iterable_dataset())


def test_tables_frames_and_data_sets_give_the_same_pairs():
    same = [
        Pairs.from_arrow(TABLE),
        Pairs.from_arrow(iter(TABLE.to_batches(max_chunksize=1))),
        as_pairs(TABLE.to_pandas()),
        Pairs.from_dataset(Dataset(TABLE)),
        Pairs.from_dataset(Dataset(pa.concat_tables([TABLE, TABLE])).select([2, 1])),
    ]
    assert len({pairs.content_hash() for pairs in same}) == 1
    assert same[0].relevance.tolist() == [1.0, 0.5]


def test_each_key_of_a_dataset_dict_is_a_task():
    pairs = Pairs.from_dataset(DatasetDict({"nli": Dataset(TABLE), "qa": Dataset(TABLE)}))
    groups = [(group.task, group.query) for group in pairs.groups()]
    assert groups == [("nli", "a"), ("nli", "b"), ("qa", "a"), ("qa", "b")]
    assert len(set(pairs.query_ids)) == 4


def test_pairs_on_disk_equal_pairs_in_memory(monkeypatch, cache_path):
    rows = [{**row, "document": f"{row['document']} {number}"} for number in range(500) for row in ROWS]
    in_memory = Pairs.from_rows(rows)
    monkeypatch.setattr(parquet, "BYTES_IN_MEMORY", 1000)
    monkeypatch.setattr(columns, "KEYS_AT_ONCE", 7)
    on_disk = Pairs.from_arrow(in_memory.to_arrow().to_batches(max_chunksize=7))
    assert on_disk.content_hash() == in_memory.content_hash()
    assert list(on_disk.groups()) == list(in_memory.groups())
    assert on_disk.numbers("document").tolist() == in_memory.numbers("document").tolist()
    assert Pairs.joined({"a": on_disk}).documents == in_memory.documents
    assert not list(cache_path.rglob("*.arrow")), "the file has no name"


def test_pairs_are_rows_that_are_indexed_and_iterated_and_two_forms_of_a_dataset():
    rows = [
        {"query": q, "document": d, "relevance": z} for q, d, z in (("a", "x", 1.0), ("a", "y", 0.0), ("b", "x", 0.5))
    ]
    pairs = Pairs.from_rows(rows)
    assert [row["document"] for row in pairs] == ["x", "y", "x"]
    assert pairs[-1] == list(pairs)[2] and pairs[0]["relevance"] == 1.0
    with pytest.raises(IndexError):
        pairs[3]
    assert pairs.to_dataset().column_names == ["query", "document", "label"]
    assert list(pairs.to_dataset("labeled-list")) == [
        {"query": "a", "documents": ["x", "y"], "labels": [1.0, 0.0]},
        {"query": "b", "documents": ["x"], "labels": [0.5]},
    ]
    with pytest.raises(InputError):
        pairs.to_dataset("triplet")
