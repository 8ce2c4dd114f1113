"""A collection of what people have: every form of documents, queries and labels, and every kind of wrong file."""

import json
from pathlib import Path

import datasets
import numpy as np
import pandas
import pyarrow as pa
import pytest

import bixse
from bixse.converting.transforms import PairColumns, split_by_query
from bixse.data.collection import Collection, load_collection, save_collection
from bixse.data.given import page_text
from bixse.errors import InputError, InvalidFileError
from bixse.relevance import GradeScale
from helpers.row_files import jsonl

DOCUMENTS = [
    {"id": "d1", "title": "shutil", "text": "copy a tree of files"},
    {"id": "d2", "title": None, "text": "remove a file"},
    {"id": "d3", "title": "os", "text": "rename a file"},
]
QUERIES = [{"qid": 1, "question": "how to copy a folder"}, {"qid": 2, "question": "how to delete"}]
LABELS = [
    {"qid": 1, "doc_id": "d1", "stars": 3},
    {"qid": 1, "doc_id": "d2", "stars": 0},
    {"qid": 2, "doc_id": "d2", "stars": 2},
]
STARS = {"labels.grade": "stars"}
QRELS = {"test": {"1": {"d1": 3.0, "d2": 0.0}, "2": {"d2": 2.0}}}


def write(folder, name, rows):
    """Write rows to a file of any format, or a folder that `datasets` saves."""
    path, frame = folder / name, pandas.DataFrame(rows)
    if name.endswith(".jsonl"):
        return jsonl(path, *rows)
    if name.endswith(".parquet"):
        frame.to_parquet(path)
    elif name.endswith((".csv", ".tsv")):
        frame.to_csv(path, index=False, sep="\t" if name.endswith(".tsv") else ",")
    else:
        datasets.Dataset.from_list(rows).save_to_disk(path)
    return path


FORMS = {
    "rows": lambda folder, name, rows: rows,
    "frame": lambda folder, name, rows: pandas.DataFrame(rows),
    "Dataset": lambda folder, name, rows: datasets.Dataset.from_list(rows).select(range(len(rows))),
    "arrow": lambda folder, name, rows: pa.Table.from_pylist(rows),
    **{form: lambda folder, name, rows, form=form: write(folder, f"{name}{form}", rows)
       for form in (".csv", ".tsv", ".jsonl", ".parquet", "-saved")},
}  # fmt: skip


@pytest.fixture
def made():
    return Collection.of(DOCUMENTS, QUERIES, LABELS, columns=STARS)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_collection(form, tmp_path, made):
    parts = {"documents": DOCUMENTS, "queries": QUERIES, "labels": LABELS}
    given = [FORMS[form](tmp_path, name, rows) for name, rows in parts.items()]
    collection = bixse.Collection.of(*given, columns=STARS)
    assert collection.qrels == QRELS and collection.hash == made.hash
    assert collection.corpus["d1"].content == "shutil copy a tree of files" and collection.corpus["d2"].title == ""
    save_collection(collection, tmp_path / "saved")
    assert load_collection(tmp_path / "saved").hash == collection.hash


def test_dictionaries_and_trec_qrels_are_read_too(tmp_path, made):
    documents = {row["id"]: {"title": row["title"], "text": row["text"]} for row in DOCUMENTS}
    queries = {"1": "how to copy a folder", "2": "how to delete"}
    (tmp_path / "qrels.txt").write_text("1 0 d1 3\n1 0 d2 0\n2 0 d2 2\n")
    for labels in (QRELS["test"], tmp_path / "qrels.txt"):
        collection = Collection.of(documents, queries, labels)
        assert collection.hash == made.hash and not collection.warnings
    assert Collection.of(documents, queries).qrels == {}


def test_guesses_are_reported_and_a_stated_column_is_no_guess(made):
    assert [note.partition(":")[0] for note in made.warnings] == ["queries", "labels"]  # `id` is `_id`
    assert "queries.id = 'qid', queries.text = 'question'" in made.warnings[0] and "stars" not in made.warnings[1]
    renamed = [{"Doc ID": row["id"], "Text": row["text"]} for row in DOCUMENTS]
    assert list(Collection.of(renamed, QUERIES).corpus) == ["d1", "d2", "d3"]


def test_labels_without_grades_are_all_relevant_only_if_there_is_no_other_column():
    pairs = [{"qid": 1, "doc_id": "d1"}, {"qid": 2, "doc_id": "d2"}]
    collection = Collection.of(DOCUMENTS, QUERIES, pairs)
    assert collection.qrels == {"test": {"1": {"d1": 1.0}, "2": {"d2": 1.0}}}
    assert "each row counts as relevant" in collection.warnings[-1]
    with pytest.raises(InvalidFileError) as caught:
        Collection.of(DOCUMENTS, QUERIES, [{**row, "stars": 0} for row in pairs])
    assert [error.column for error in caught.value.errors] == ["labels.grade"]


def columns_of(caught):
    assert all(error.got and error.expected and error.fix for error in caught.value.errors)
    return [(error.row, error.column) for error in caught.value.errors]


@pytest.mark.parametrize(
    ("part", "content", "where"),
    [
        ("documents", "id,title\nd1,copy\n", [(None, "documents.text")]),
        ("documents", "doc_id,pid,text\nd1,p1,copy a tree\n", [(None, "documents.id")]),
        ("documents", "id,text,body\nd1,a b,c d\n", None),  # `text` is the name of BEIR
        ("documents", "id;text\nd1;copy\n", [(None, None)]),
        ("documents", "id,text\nd 1,copy\nd1,copy a\nd1,copy b\n", [(1, "id"), (3, "id")]),
        ("documents", "id,text\nd1,copy,this\n", [(1, None)]),
        ("queries", "qid,question\n1, \n", [(1, "question")]),
        ("queries", "qid,question,query\n1,copy a,copy b\n", [(None, "queries.text")]),
        ("labels", "qid,doc_id,stars\n1,d1,relevant\n2,d2,not\n", [(1, "stars"), (2, "stars")]),
        ("labels", "qid,doc_id,stars\n1,d1,\n", [(1, "stars")]),
        ("labels", "qid,doc_id,stars\n1,d1,1\n1,d1,2\n", [(2, "score")]),
        ("labels", "question,document,stars\nhow to,copy,1\n", [(None, "labels.query"), (None, "labels.document")]),
        ("labels", "qid,doc_id,stars\n1,d1,1\n1,d9,2\n7,d8,1\n", [(None, None), (None, None)]),
    ],
)
def test_wrong_file_is_refused_with_its_rows_and_columns(part, content, where, tmp_path):
    (tmp_path / f"{part}.csv").write_text(content)
    given = {"documents": DOCUMENTS, "queries": QUERIES, "labels": LABELS} | {part: tmp_path / f"{part}.csv"}
    columns = STARS if "stars" in content or part != "labels" else {}
    if where is None:
        given["labels"] = [LABELS[0]]
        assert len(Collection.of(**given, columns=columns).corpus) == 1
        return
    with pytest.raises(InvalidFileError) as caught:
        Collection.of(**given, columns=columns)
    assert columns_of(caught) == where


def test_separator_and_ambiguous_columns_name_their_fix(tmp_path):
    for content, fix in (("id;text\nd1;copy\n", "commas"), ("doc_id,pid,text\nd1,p1,a b\n", "--columns documents.id=")):
        (tmp_path / "documents.csv").write_text(content)
        with pytest.raises(InvalidFileError, match=fix):
            Collection.of(tmp_path / "documents.csv", QUERIES)


@pytest.mark.parametrize(
    ("columns", "got"),
    [
        ({"documents.body": "text"}, "'documents.body'"),
        ({"queries.text": "questoin"}, "'questoin'"),
        ({"documents.text": "id"}, "columns 'id, title, text'"),
        ({"documents.text": "id", "documents.id": "id"}, "'id' again"),
        ({"queries.text": "qid", "queries.id": "question"}, None),
    ],
)
def test_stated_column_must_exist(columns, got):
    with pytest.raises(InputError) as caught:
        Collection.of(DOCUMENTS, QUERIES, columns=columns)
    assert got is None or caught.value.got == got


@pytest.mark.parametrize("name", ["none.csv", "docs.xlsx", "docs.json", "empty.csv", "empty", "sheet.csv", "parts"])
def test_other_files_and_folders_are_refused(name, tmp_path):
    path = tmp_path / name
    if name == "empty":
        (path / "inner").mkdir(parents=True)
        (path / "picture.png").write_bytes(b"\x89PNG")
    elif name == "parts":
        datasets.DatasetDict({"train": datasets.Dataset.from_list(DOCUMENTS)}).save_to_disk(path)
    elif name != "none.csv":
        path.write_bytes(b"PK\x03\x04" if name == "sheet.csv" else b"")
    with pytest.raises(InputError) as caught:
        Collection.of(path, QUERIES)
    assert caught.value.got and caught.value.fix and "Traceback" not in str(caught.value)


FRAMES = [pandas.DataFrame(rows) for rows in ({}, {"id": [], "text": []}, [["d1", "copy a tree"]])]


@pytest.mark.parametrize("given", [7, [], ["copy a tree"], [{1: "d1"}], {"d1": 7}, {}, object(), *FRAMES])
def test_other_objects_are_refused(given):
    with pytest.raises(InputError) as caught:
        Collection.of(given, QUERIES)
    assert caught.value.where and caught.value.fix


def test_swapped_dictionaries_and_true_as_a_grade_name_their_fix():
    documents, queries = {"d1": {"text": "copy a tree"}}, {"1": "how to copy"}
    with pytest.raises(InputError) as caught:
        Collection.of(queries, documents)
    assert (caught.value.where, caught.value.fix) == ("queries", "pass (documents, queries, labels) in this order")
    with pytest.raises(InvalidFileError) as caught:
        Collection.of(documents, queries, [{"qid": 1, "doc_id": "d1", "grade": True}])
    assert "1 for true" in caught.value.fix


def test_ids_where_texts_belong_are_refused_and_codes_are_a_warning():
    with pytest.raises(InputError) as caught:
        Collection.of(DOCUMENTS, [{"id": "q1", "text": "d1"}, {"id": "q2", "text": "d3"}])
    assert caught.value.where == "queries" and "2 of 2" in caught.value.got
    with pytest.raises(InputError) as caught:
        Collection.of([{"id": "d1", "text": "1"}, {"id": "d2", "text": "2"}], QUERIES)
    assert caught.value.where == "documents"
    codes = Collection.of(DOCUMENTS, [{"id": "q1", "text": "如何复制文件"}, {"id": "q2", "text": "copy a file"}])
    assert not any("white space" in warning for warning in codes.warnings)
    codes = Collection.of(DOCUMENTS, [{"id": "q1", "text": "如何复制文件"}])
    assert "1 of 1 queries" in codes.warnings[-1] and "Chinese" in codes.warnings[-1]


def test_labels_of_missing_documents_are_dropped_only_when_asked():
    labels = [*LABELS, {"qid": 2, "doc_id": "gone", "stars": 1}]
    collection = Collection.of(DOCUMENTS, QUERIES, labels, columns=STARS, missing_documents="drop")
    assert collection.qrels == QRELS and any("'gone'" in warning for warning in collection.warnings)
    with pytest.raises(InvalidFileError):
        Collection.of(DOCUMENTS, QUERIES, labels, columns=STARS)


def test_folder_of_texts_has_a_document_per_file(tmp_path):
    (tmp_path / "docs" / ".git").mkdir(parents=True)
    (tmp_path / "docs" / ".git" / "hidden.txt").write_text("no document")
    (tmp_path / "docs" / "a b.txt").write_text("copy\na tree\n")
    (tmp_path / "docs" / "c.MD").write_text("# Remove\n\na file")
    (tmp_path / "docs" / "e.html").write_text("<html><head><title>Re\nname</title></head><body>a <i>fi</i>le</body>")
    (tmp_path / "docs" / "f.pdf").write_bytes(b"%PDF")
    (tmp_path / "docs" / "again").symlink_to(tmp_path / "docs")
    collection = Collection.of(tmp_path / "docs", {"1": "how to copy"}, {"1": {"a_b.txt": 1}})
    assert list(collection.corpus) == ["a_b.txt", "c.MD", "e.html"]
    assert collection.corpus["a_b.txt"].text == "copy\na tree" and collection.corpus["e.html"] == ("Re name", "a file")
    assert any("'f.pdf'" in warning for warning in collection.warnings)
    (tmp_path / "docs" / "a_b.txt").write_text("the same id")
    (tmp_path / "docs" / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match=r"latin\.txt"):
        Collection.of(tmp_path / "docs", {"1": "how to copy"})
    (tmp_path / "docs" / "latin.txt").unlink()
    with pytest.raises(InvalidFileError, match=r"a_b\.txt"):
        Collection.of(tmp_path / "docs", {"1": "how to copy"})


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<script>var a = '<p>x</p>';</script><p>one</p><p>two", ("", "one two")),
        ("<style>b {}</style>a<br>b &amp; c&nbsp;d", ("", "a b & c d")),
        ("<title>T</title><svg><title>icon</title></svg>text", ("T", "icon text")),
        ("<body><svg><title>icon</title></svg>text", ("", "icon text")),
        ("<svg><g></g></svg><title>T</title>text", ("T", "text")),
        ("<!-- note --><noscript>no</noscript><script>never closed <p>x", ("", "")),
        ("a < b and <unknown>c</unknown>", ("", "a < b and c")),
        ("", ("", "")),
    ],
)
def test_html_becomes_its_text(html, expected):
    assert page_text(html) == expected


SHARES = {"train": 0.6, "dev": 0.2, "test": 0.2}


def questions(count):
    """Return a collection in which each question stands twice, in another case and with other white space."""
    queries = {f"q{n}": f"how to  do thing {n}" for n in range(count)}
    queries |= {f"again{n}": f"How TO do\tthing {n} " for n in range(count)}
    return Collection.of(DOCUMENTS, queries, {name: {"d1": 1, "d2": 0} for name in queries})


def test_split_never_has_a_normalised_query_on_two_sides():
    parts = questions(50).split(**SHARES)
    sides = {name: side for side, judged in parts.qrels.items() for name in judged}
    assert len(sides) == 100 and list(parts.qrels) == list(SHARES)
    assert all(sides[f"q{n}"] == sides[f"again{n}"] for n in range(50))


def test_split_depends_on_texts_and_seed_alone_and_is_that_of_convert():
    small, large = questions(50).split(seed=3, **SHARES), questions(90).split(seed=3, **SHARES)
    assert all(small.qrels[side].keys() <= large.qrels[side].keys() for side in SHARES)
    assert small.qrels != questions(50).split(**SHARES).qrels
    pairs = bixse.Pairs.from_collection(questions(50), "test", GradeScale(0, 1))
    columns = PairColumns.of(pairs, ("query",))
    for side, part in split_by_query(columns, SHARES, 3).items():
        assert {pairs.query_ids[row] for row in part.rows.tolist()} == set(small.qrels[side])


@pytest.mark.parametrize(
    ("shares", "seed"), [({}, 0), ({"train": 0.5}, 0), ({"train": 1.5, "dev": -0.5}, 0), (SHARES, -1), (SHARES, 2**32)]
)
def test_wrong_shares_and_seeds_are_refused(shares, seed):
    with pytest.raises(InputError):
        questions(9).split(seed=seed, **shares)


def test_split_without_a_relevant_document_is_refused_with_the_counts(made):
    with pytest.raises(InputError) as caught:
        made.split(**SHARES)
    counts = [int(word) for word in caught.value.got.replace(",", "").split() if word.isdigit()]
    assert len(counts) == 4 and sum(counts[:3]) == counts[3] == 2
    irrelevant = Collection.of(DOCUMENTS, questions(50).queries, {f"q{n}": {"d1": int(n == 7)} for n in range(50)})
    with pytest.raises(InputError, match="of 1 queries"):
        irrelevant.split(train=0.5, test=0.5)
    for collection in (questions(50).split(**SHARES), Collection.of(DOCUMENTS, QUERIES)):
        with pytest.raises(InputError, match="labels of one"):
            collection.split(**SHARES)


def test_values_of_frames_that_mean_nothing_are_absent():
    frame = pandas.DataFrame({"id": ["d1", "d2"], "title": [np.nan, pandas.NA], "text": ["copy a", "move a"]})
    assert [document.title for document in Collection.of(frame, QUERIES).corpus.values()] == ["", ""]
    with pytest.raises(InvalidFileError):
        Collection.of(DOCUMENTS, QUERIES, pandas.DataFrame({"qid": [1], "doc_id": ["d1"], "grade": [np.nan]}))


def test_jsonl_without_a_title_in_its_first_rows_keeps_later_titles(tmp_path):
    rows = [{"id": "d1", "text": "copy a"}, {"id": "d2", "text": "move a", "title": "shutil"}]
    (tmp_path / "docs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert Collection.of(Path(tmp_path / "docs.jsonl"), QUERIES).corpus["d2"].title == "shutil"
