from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bixse.data.collection import Collection, Document, load_collection, load_corpus, save_collection, warn_of_empty
from bixse.errors import InputError, InvalidFileError

CORPUS = [{"_id": "d1", "title": "copy", "text": "copies"}, {"_id": "d2", "title": "", "text": "moves"}]
QUERIES = [{"_id": "q1", "text": "copy a file"}]
QRELS = "query-id\tcorpus-id\tscore\nq1\td1\t3\nq1\td2\t0\n"


def make(
    folder,
    corpus=CORPUS,
    queries=QUERIES,
    qrels=QRELS,
):
    for name, rows in (("corpus.jsonl", corpus), ("queries.jsonl", queries)):
        text = rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows)
        (folder / name).write_text(text, encoding="utf-8")
    if qrels is not None:
        (folder / "qrels").mkdir()
        (folder / "qrels" / "test.tsv").write_bytes(qrels.encode() if isinstance(qrels, str) else qrels)
    return folder


def errors(folder):
    with pytest.raises(InvalidFileError) as caught:
        load_collection(folder)
    return [(error.row, error.column) for error in caught.value.errors]


def test_a_missing_folder_and_a_file(tmp_path):
    with pytest.raises(InputError, match=r"got no such folder; expected .*corpus\.jsonl"):
        load_collection(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="got a file"):
        load_collection(tmp_path / "file")


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl"])
def test_a_missing_part(tmp_path, name):
    (make(tmp_path) / name).unlink()
    with pytest.raises(InputError, match=name):
        load_collection(tmp_path)


def test_a_missing_split(tmp_path):
    with pytest.raises(InputError, match=r"got split 'dev'; expected one of \['test'\]"):
        load_collection(make(tmp_path), ["dev"])
    with pytest.raises(InputError, match="got split"):
        load_collection(tmp_path, ["../qrels/test"])


def test_a_split_where_there_are_none(tmp_path):
    folder = make(tmp_path, qrels=None)
    assert load_collection(folder).qrels == {}
    with pytest.raises(InputError, match=r"expected one of qrels/<split>\.tsv"):
        load_collection(folder, ["test"])


@pytest.mark.parametrize("qrels", ["", "query-id\tcorpus-id\tscore\n"])
def test_an_empty_split(tmp_path, qrels):
    with pytest.raises(InputError, match="got no judgement"):
        load_collection(make(tmp_path, qrels=qrels))


def test_a_split_without_anything_relevant(tmp_path):
    with pytest.raises(InputError, match="got no judgement above 0"):
        load_collection(make(tmp_path, qrels="query-id\tcorpus-id\tscore\nq1\td1\t0\n"))


def test_judgements_of_unknown_ids_are_all_named(tmp_path):
    found = errors(make(tmp_path, qrels=QRELS + "q1\td9\t1\nq9\td8\t1\n"))
    assert found == [(None, "corpus-id"), (None, "query-id"), (None, "corpus-id")]


@pytest.mark.parametrize(
    ("row", "where"),
    [
        ({"title": "no id", "text": "x"}, "_id"),
        ({"_id": "a b", "text": "x"}, "_id"),
        ({"_id": "d1", "text": "again"}, "_id"),
        ({"_id": "d3", "contents": "under another name"}, "text"),
        ({"_id": "d3", "title": "x", "text": 5}, "text"),
        ({"_id": "d3", "title": ["x"], "text": "x"}, "title"),
    ],
)
def test_an_invalid_document(tmp_path, row, where):
    assert errors(make(tmp_path, corpus=[*CORPUS, row])) == [(3, where)]


@pytest.mark.parametrize("row", [{"_id": "q1", "text": "again"}, {"_id": "q2", "text": " "}])
def test_an_invalid_query(tmp_path, row):
    assert [row for row, _ in errors(make(tmp_path, queries=[*QUERIES, row]))] == [2]


def test_a_document_without_title_and_text_is_kept_and_counted(tmp_path):
    empty = [{"_id": "d3", "title": " ", "text": ""}, {"_id": "d4", "text": None}]
    folder = make(tmp_path, corpus=[*CORPUS, *empty], qrels=QRELS + "q1\td3\t1\n")
    corpus = load_collection(folder).corpus
    assert [document.content for document in corpus.values()] == ["copy copies", "moves", "", ""]
    assert warn_of_empty(["d3", "d4"], 4) == [
        "2 of 4 documents have neither title nor text ('d3'): they are kept as they are"
    ]
    assert warn_of_empty([], 3) == []


def test_a_corpus_of_empty_documents(tmp_path):
    with pytest.raises(InputError, match=r"corpus\.jsonl: got 2 documents, none of them with a title or a text"):
        load_corpus(make(tmp_path, corpus=[{"_id": "d1", "text": ""}, {"_id": "d2", "title": " ", "text": ""}]))


def test_the_corpus_alone_needs_no_queries(tmp_path):
    (make(tmp_path) / "queries.jsonl").unlink()
    assert load_corpus(tmp_path)["d1"].content == "copy copies"


words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=15).filter(str.strip)
ids = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=8)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    corpus=st.dictionaries(ids, st.tuples(st.just("") | words, st.just("") | words), min_size=1, max_size=4).filter(
        lambda corpus: any(title or text for title, text in corpus.values())
    ),
    queries=st.dictionaries(ids, words, min_size=1, max_size=4),
    data=st.data(),
)
def test_any_collection_survives_writing_and_reading(tmp_path, corpus, queries, data):
    judged = st.dictionaries(st.sampled_from(sorted(corpus)), st.floats(0.25, 3), min_size=1)
    qrels = data.draw(st.dictionaries(st.sampled_from(sorted(queries)), judged, min_size=1))
    documents = {name: Document(*content) for name, content in corpus.items()}
    collection = Collection(tmp_path.name, documents, queries, {"test": qrels})
    save_collection(collection, tmp_path)
    assert load_collection(tmp_path) == collection
