"""Rules of pairs beyond those of rows (`tests/data/test_row_files.py`): ids from texts, rows compared to each other."""

import shlex

import pyarrow as pa
import pytest

from bixse.audit.labels import read_labels
from bixse.cli.main import main
from bixse.data.columns import text_id
from bixse.data.graded_pairs import Pairs
from bixse.data.pairs_files import load_graded_pairs, load_pairs, load_scores, load_several, save_graded_pairs
from bixse.data.trec import read_qrels
from bixse.errors import InputError, InvalidFileError
from bixse.files.rows import write_rows
from helpers.row_files import faults, jsonl

ROW = {"query": "copy a folder", "document": "shutil.copytree", "relevance": 1.0}
ABSENT = object()
FULL = {
    "query_id": "q1", "query": " é\n", "document_id": "日", "document": '"', "relevance": 1 / 3,
    "task": "t", "grade": 1e300, "grade_probs": [0.1, 5e-324], "judge": "a, b",
}  # fmt: skip


@pytest.fixture
def pairs_of(tmp_path):
    return lambda *rows: jsonl(tmp_path / "pairs.jsonl", *rows)


@pytest.mark.parametrize(
    ("column", "value"),
    [("query", ""), ("document", None), ("relevance", 1.01), ("relevance", None), ("query_id", "a b"),
     ("document_id", 1.5), ("task", 5), ("grade", "good"), ("grade_probs", [0.5, None]), ("judge", ["x"]),
     ("query", ABSENT), ("document", ABSENT), ("relevance", ABSENT)],
)  # fmt: skip
def test_invalid_or_missing_value_is_named(pairs_of, column, value):
    row = {name: content for name, content in {**ROW, column: value}.items() if content is not ABSENT}
    assert faults(load_graded_pairs, pairs_of(ROW, row)) == [(2, column)]


def test_repeated_pair_is_read_once(pairs_of):
    same = {**ROW, "query_id": "1", "document_id": "1"}  # a query and a document may share an id
    rows = [same, same, {**same, "relevance": "1.0"}, {**same, "task": "other", "relevance": 0.5}]
    assert load_graded_pairs(pairs_of(*rows)).relevance.tolist() == [1.0, 0.5]


@pytest.mark.parametrize(
    ("load", "rows", "where"),
    [
        (load_graded_pairs, [ROW, {**ROW, "document": "other"}, {**ROW, "relevance": 0.25}], [(3, "relevance")]),
        (load_graded_pairs, [{**ROW, "document_id": "d1"}, {**ROW, "document_id": "d1", "document": "other"}],
         [(2, "document_id")]),
        (load_pairs, [{"query_id": "1", "query": query, "document": "b"} for query in ("a", "other", "")],
         [(2, "query_id"), (3, "query")]),
    ],
)  # fmt: skip
def test_rows_that_contradict_each_other_are_refused_together(pairs_of, load, rows, where):
    assert faults(load, pairs_of(*rows)) == where


def test_pairs_to_grade_need_no_relevance(pairs_of):
    rows = [
        {"query": "q", "document": "d", "task": "t", "grade": "none yet"},
        {"query_id": "7", "query": "q2", "document_id": "x", "document": "d", "relevance": None},
        {"query_id": "7", "query": "q2", "document_id": "x", "document": "d"},
    ]
    first, second = load_pairs(pairs_of(*rows))  # the third repeats the second
    assert (first.query, first.task, first.document_id) == ("q", "t", text_id("d"))
    assert (second.query_id, second.document_id, second.task) == ("7", "x", None)


def test_several_files_are_one_table_named_by_their_files(tmp_path):
    paths = [tmp_path / "b file.jsonl.gz", tmp_path / "a.csv"]
    for path in paths:
        save_graded_pairs(Pairs.from_rows([{**ROW, "query_id": "1"}]), path)
    assert list(load_several(paths).query_ids) == ["a/1", "b_file/1"]
    for wrong in ([], [paths[0], tmp_path / "b_file.tsv"]):
        with pytest.raises(InputError):
            load_several(wrong)


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".csv", ".tsv", ".jsonl.gz"])
def test_pairs_survive_writing_and_reading(tmp_path, suffix):
    path = tmp_path / f"pairs{suffix}"
    with pytest.raises(InputError, match="no pairs"):
        save_graded_pairs(Pairs.from_rows([]), path)
    pairs = Pairs.from_rows([ROW, FULL])
    save_graded_pairs(pairs, path)
    assert list(load_graded_pairs(path).rows()) == list(pairs.rows())


NEARLY_RIGHT = [
    ("pairs.csv", 'query,document,relevance\ncopy,shutil,"0,5"\n', " 0.5"),
    ("pairs.tsv", "query\tdocument\trelevance\ncopy\tshutil\t0,5\n", " 0.5"),
    ("pairs.jsonl", '{"query": "copy", "document": "shutil", "relevance": "0,5"}\n', " 0.5"),
    ("qrels.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t0,5\n", " 0.5"),
    ("pairs.csv", "query;document;relevance\ncopy;shutil;1\n", "semicolons"),
    ("pairs.csv", "query\tdocument\trelevance\ncopy\tshutil\t1\n", "tabs"),
    ("pairs.tsv", "query,document,relevance\ncopy,shutil,1\n", "commas"),
    ("pairs.csv", "query,document,Relevance\ncopy,shutil,1\n", "'Relevance'"),
    ("pairs.jsonl", '{"Query": "copy", "document": "shutil", "relevance": 1}\n', "'Query'"),
    ("pairs.parquet", {"query": ["a"], "DOCUMENT": ["b"], "relevance": [1.0]}, "'DOCUMENT'"),
]


def fixes(path):
    with pytest.raises(InvalidFileError) as caught:
        (read_qrels if path.name == "qrels.tsv" else load_graded_pairs)(path)
    return [error.fix for error in caught.value.errors]


@pytest.mark.parametrize(("name", "content", "fix"), NEARLY_RIGHT)
def test_fix_names_the_value_separator_or_column(tmp_path, name, content, fix):
    if isinstance(content, dict):
        write_rows(pa.table(content), tmp_path / name)
    else:
        (tmp_path / name).write_text(content)
    assert all(fix in advice for advice in fixes(tmp_path / name))


def test_the_command_that_is_named_maps_the_columns(tmp_path):
    (tmp_path / "my clicks.csv").write_text("search,title,stars\ncopy a folder,copytree,4\nmove,walk,1\n")
    fix = fixes(tmp_path / "my clicks.csv")[0]
    command = fix[fix.index("bixse convert") :].replace("LOW HIGH", "1 5")
    for name in ("search", "title", "stars"):
        command = command.replace("NAME", name, 1)
    assert main([*shlex.split(command)[1:], "--out", str(tmp_path / "out")]) == 0
    assert load_graded_pairs(tmp_path / "out" / "pairs.parquet").relevance.tolist() == [0.75, 0.0]


WIDE = {f"column {number}": 1 for number in range(200)}


@pytest.mark.parametrize(
    ("read", "content", "where", "column"),
    [
        (load_scores, "query,score,grade\na,.5,1\nb,.4,\nc,.3,0\n", "row 2", "relevance"),
        (load_scores, "query,score,label\na,.5,1\nb,.4,\n", "row 2", "relevance"),
        (load_scores, "query,score,grade\na,.5,\nb,.4,\n", "row 1", "relevance"),  # the column is there
        (load_scores, "query,score,rating\na,.5,1\nb,.4,\n", "", "relevance"),
        (load_scores, [{"query": "a", "score": 1}, {"query": "b", "score": 0, "grade": 1}], "row 1", "relevance"),
        (load_scores, [{"query": "a", "score": 1} | WIDE, {"score": 0, "qid": "b", "grade": 1}], "row 1", "relevance"),
        (load_scores, [{"score": 1, "label": 1} | WIDE, {"qid": "b", "score": 0, "label": 1}], "row 1", "query"),
        (load_scores, [{"score": 1, "label": 1}, {"score": 0, "label": 1}], "", "query"),
        (read_labels, "query,document,grade\na,d,1\n,e,0\n", "row 2", "query_id"),
        (read_labels, "question,document,grade\na,d,1\n,e,0\n", "", "query_id"),
        (read_labels, "query,document,relevance\na,d,\nb,e,\n", "", "grade"),
    ],
)
def test_a_column_is_missing_only_if_no_row_has_any_of_its_names(tmp_path, read, content, where, column):
    path = tmp_path / "rows.csv"
    if isinstance(content, str):
        path.write_text(content)
    else:
        path = jsonl(tmp_path / "rows.jsonl", *content)
    with pytest.raises(InvalidFileError) as raised:
        read(path)
    assert raised.value.where == ", ".join(filter(None, [where, f"column {column!r}"]))
    is_missing = not where and "relevance" not in str(content)
    assert raised.value.got.startswith("columns" if is_missing else "nothing")
