"""What pairs add to the rules of `tests/data/test_row_files.py`: ids made from texts, and rows against each other."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bixse.data.columns import text_id
from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import load_graded_pairs, load_pairs, load_several, save_graded_pairs
from bixse.errors import InputError, InvalidFileError

FORMATS = (".parquet", ".jsonl", ".csv", ".tsv", ".jsonl.gz")
ROW = {"query": "copy a folder", "document": "shutil.copytree", "relevance": 1.0}


def jsonl(folder, *rows):
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def places(read, path):
    with pytest.raises(InvalidFileError) as caught:
        read(path)
    return [(error.row, error.column) for error in caught.value.errors]


@pytest.mark.parametrize(
    ("column", "value"),
    [("query", ""), ("document", None), ("relevance", 1.01), ("relevance", None), ("query_id", "a b"),
     ("document_id", 1.5), ("task", 5), ("grade", "good"), ("grade_probs", [0.5, None]), ("judge", ["x"])],
)  # fmt: skip
def test_a_value_that_its_column_cannot_hold(tmp_path, column, value):
    assert places(load_graded_pairs, jsonl(tmp_path, ROW, {**ROW, column: value})) == [(2, column)]


@pytest.mark.parametrize("column", ["query", "document", "relevance"])
def test_a_missing_column(tmp_path, column):
    path = jsonl(tmp_path, {name: value for name, value in ROW.items() if name != column})
    assert places(load_graded_pairs, path) == [(1, column)]


def test_every_error_of_a_row_is_told(tmp_path):
    path = jsonl(tmp_path, {"query": "", "document": None, "relevance": 9, "grade": "x"})
    assert len(places(load_graded_pairs, path)) == 4


def test_absent_ids_are_made_from_the_text(tmp_path):
    pairs = load_graded_pairs(jsonl(tmp_path, ROW, {**ROW, "query_id": 0, "document": "other", "document_id": ""}))
    assert list(pairs.query_ids) == [text_id("copy a folder"), "0"]
    assert list(pairs.document_ids) == [text_id("shutil.copytree"), text_id("other")]


def test_the_same_pair_twice_is_kept_once(tmp_path):
    rows = [ROW, ROW, {**ROW, "relevance": "1.0"}, {**ROW, "task": "other", "relevance": 0.5}]
    assert load_graded_pairs(jsonl(tmp_path, *rows)).relevance.tolist() == [1.0, 0.5]


def test_the_same_pair_with_two_relevances(tmp_path):
    path = jsonl(tmp_path, ROW, {**ROW, "document": "other"}, {**ROW, "relevance": 0.25})
    assert places(load_graded_pairs, path) == [(3, "relevance")]


def test_one_id_with_two_texts(tmp_path):
    first, second = {**ROW, "document_id": "d1"}, {**ROW, "document_id": "d1", "document": "shutil.copy"}
    assert places(load_graded_pairs, jsonl(tmp_path, first, second)) == [(2, "document_id")]


def test_one_id_may_name_a_query_and_a_document(tmp_path):
    assert len(load_graded_pairs(jsonl(tmp_path, {**ROW, "query_id": "1", "document_id": "1"}))) == 1


def test_pairs_to_be_graded_need_no_relevance(tmp_path):
    rows = [
        {"query": "q", "document": "d", "task": "t", "grade": "none yet"},
        {"query_id": "7", "query": "q2", "document_id": "x", "document": "d", "relevance": None},
        {"query_id": "7", "query": "q2", "document_id": "x", "document": "d"},
    ]
    first, second = load_pairs(jsonl(tmp_path, *rows))  # the third is the second again
    assert (first.query, first.task, first.document_id) == ("q", "t", text_id("d"))
    assert (second.query_id, second.document_id, second.task) == ("7", "x", None)


def test_errors_of_pairs_to_be_graded_are_told_together(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("query_id,query,document\n1,a,b\n1,other,c\n2,,d\n")
    assert places(load_pairs, path) == [(2, "query_id"), (3, "query")]


def test_several_files_are_one_table_named_by_their_files(tmp_path):
    paths = [tmp_path / "b file.jsonl.gz", tmp_path / "a.csv"]
    for path in paths:
        save_graded_pairs(GradedPairs.from_rows([{**ROW, "query_id": "1"}]), path)
    both = load_several(paths)
    assert list(both.query_ids) == ["a/1", "b_file/1"]
    save_graded_pairs(both, tmp_path / "both.parquet")
    assert load_graded_pairs(tmp_path / "both.parquet").content_hash() == both.content_hash()
    for wrong in ([], [paths[0], tmp_path / "b_file.tsv"]):
        with pytest.raises(InputError):
            load_several(wrong)


@pytest.mark.parametrize("suffix", FORMATS)
def test_writing_nothing(tmp_path, suffix):
    with pytest.raises(InputError, match="no pairs"):
        save_graded_pairs(GradedPairs.from_rows([]), tmp_path / f"pairs{suffix}")


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(str.strip)
finite = st.floats(allow_nan=False, allow_infinity=False)
rows = st.fixed_dictionaries(
    {
        "query": texts,
        "document": texts,
        "relevance": st.floats(0, 1),
        "task": st.none() | texts,
        "grade": st.none() | finite,
        "grade_probs": st.none() | st.lists(finite, min_size=1, max_size=3),
    }
)


@pytest.mark.parametrize("suffix", FORMATS)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(rows, min_size=1, max_size=6, unique_by=lambda row: (row["query"], row["document"])))
def test_any_valid_pairs_survive_writing_and_reading(tmp_path, suffix, rows):
    pairs = GradedPairs.from_rows(rows)
    save_graded_pairs(pairs, tmp_path / f"pairs{suffix}")
    again = load_graded_pairs(tmp_path / f"pairs{suffix}")
    assert list(again.rows()) == list(pairs.rows())
    assert again.content_hash() == pairs.content_hash()
