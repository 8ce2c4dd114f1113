from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bixse.data.collection import Collection, Document
from bixse.data.collection_files import load_collection, load_corpus, save_collection, warn_of_empty
from bixse.errors import InputError, InvalidFileError, StorageError

CORPUS = [{"_id": "d1", "title": "copy", "text": "copies"}, {"_id": "d2", "title": "", "text": "moves"}]
QUERIES = [{"_id": "q1", "text": "copy a file"}]
QRELS = "query-id\tcorpus-id\tscore\nq1\td1\t3\nq1\td2\t0\n"


def make(
    folder: Path,
    corpus: list[Any] | str = CORPUS,
    queries: list[Any] | str = QUERIES,
    qrels: str | bytes | None = QRELS,
) -> Path:
    for name, rows in (("corpus.jsonl", corpus), ("queries.jsonl", queries)):
        text = rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows)
        (folder / name).write_text(text, encoding="utf-8")
    if qrels is not None:
        (folder / "qrels").mkdir()
        (folder / "qrels" / "test.tsv").write_bytes(qrels.encode() if isinstance(qrels, str) else qrels)
    return folder


def faults(folder: Path) -> list[str]:
    with pytest.raises(InvalidFileError) as caught:
        load_collection(folder)
    return str(caught.value).splitlines()[1:]


def test_a_missing_folder_and_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"got no such folder; expected .*corpus\.jsonl"):
        load_collection(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="got a file"):
        load_collection(tmp_path / "file")


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl"])
def test_a_missing_part(tmp_path: Path, name: str) -> None:
    (make(tmp_path) / name).unlink()
    with pytest.raises(InputError, match=f"{name}: got no such file"):
        load_collection(tmp_path)
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=f"{name}: got a folder"):
        load_collection(tmp_path)


def test_a_missing_split(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"got split 'dev'; expected one of \['test'\]"):
        load_collection(make(tmp_path), ["dev"])
    with pytest.raises(InputError, match="got split"):
        load_collection(tmp_path, ["../qrels/test"])


def test_a_split_where_there_are_none(tmp_path: Path) -> None:
    folder = make(tmp_path, qrels=None)
    assert load_collection(folder).qrels == {}
    with pytest.raises(InputError, match=r"expected one of qrels/<split>\.tsv"):
        load_collection(folder, ["test"])


@pytest.mark.parametrize("qrels", ["", "query-id\tcorpus-id\tscore\n"])
def test_an_empty_split(tmp_path: Path, qrels: str) -> None:
    with pytest.raises(InputError, match="got no judgement"):
        load_collection(make(tmp_path, qrels=qrels))


def test_a_split_without_anything_relevant(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="got no judgement above 0"):
        load_collection(make(tmp_path, qrels="query-id\tcorpus-id\tscore\nq1\td1\t0\n"))


def test_judgements_of_unknown_ids_are_all_named(tmp_path: Path) -> None:
    found = faults(make(tmp_path, qrels=QRELS + "q1\td9\t1\nq9\td8\t1\n"))
    assert len(found) == 3
    assert "column 'corpus-id': got 'd9' (judged for query 'q1'); expected an id of corpus.jsonl" in found[0]
    assert "column 'query-id': got 'q9'" in found[1]


def test_latin1(tmp_path: Path) -> None:
    folder = make(tmp_path, qrels=QRELS.replace("q1", "é").encode("latin-1"))
    with pytest.raises(InputError, match="got byte 0xe9"):
        load_collection(folder)
    (folder / "queries.jsonl").write_bytes('{"_id": "1", "text": "é"}'.encode("latin-1"))
    with pytest.raises(InputError, match=r"queries\.jsonl: got byte 0xe9 in line 1"):
        load_collection(folder)


@pytest.mark.parametrize(
    ("row", "where"),
    [
        ({"title": "no id", "text": "x"}, "_id"),
        ({"_id": "", "text": "x"}, "_id"),
        ({"_id": None, "text": "x"}, "_id"),
        ({"_id": 1.5, "text": "x"}, "_id"),
        ({"_id": True, "text": "x"}, "_id"),
        ({"_id": ["a"], "text": "x"}, "_id"),
        (["d3", "x"], "_id"),
        (None, "_id"),
        ({"_id": "d3"}, "text"),
        ({"_id": "d3", "contents": "under another name"}, "text"),
        ({"_id": "d3", "title": "x", "text": 5}, "text"),
        ({"_id": "d3", "title": ["x"], "text": "x"}, "title"),
        ({"_id": "d3", "text": "half \ud83d"}, "text"),
        ({"_id": "d1", "text": "again"}, "_id"),
    ],
)
def test_a_faulty_document(tmp_path: Path, row: object, where: str) -> None:
    (found,) = faults(make(tmp_path, corpus=[*CORPUS, row]))
    assert found.startswith(f"  row 3, column '{where}': got ")


@pytest.mark.parametrize("row", [{"_id": "q2"}, {"_id": "q2", "title": "only"}, {"_id": "q2", "text": None}])
def test_a_faulty_query(tmp_path: Path, row: object) -> None:
    (found,) = faults(make(tmp_path, queries=[*QUERIES, row]))
    assert found.startswith("  row 2, column 'text': got an empty text")


def test_a_file_that_is_no_jsonl_shows_twenty_faults_and_the_count(tmp_path: Path) -> None:
    folder = make(tmp_path, corpus="_id\ttitle\n" * 25 + "[" * 100_000)
    found = faults(folder)
    assert len(found) == 21
    assert found[0].startswith("  row 1: got '_id\\ttitle'; expected one JSON object per line")
    assert found[-1] == "  ... and 6 more"


def test_no_documents(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"corpus\.jsonl: got no rows"):
        load_collection(make(tmp_path, corpus="\n"))


def test_a_document_without_title_and_text_is_kept_and_counted(tmp_path: Path) -> None:
    empty = [{"_id": "d3", "title": " ", "text": ""}, {"_id": "d4", "text": None}]
    folder = make(tmp_path, corpus=[*CORPUS, *empty], qrels=QRELS + "q1\td3\t1\n")
    corpus = load_collection(folder).corpus
    assert [document.content for document in corpus.values()] == ["copy copies", "moves", "", ""]
    assert warn_of_empty(["d3", "d4"], 4) == [
        "2 of 4 documents have neither title nor text ('d3'): they are kept as they are"
    ]
    assert warn_of_empty(["d3"], 3) == ["1 of 3 documents has neither title nor text ('d3'): it is kept as it is"]
    assert warn_of_empty([], 3) == []


def test_a_corpus_of_empty_documents(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"corpus\.jsonl: got 2 documents, none of them with a title or a text"):
        load_corpus(make(tmp_path, corpus=[{"_id": "d1", "text": ""}, {"_id": "d2", "title": " "}]))


def test_bom_windows_line_ends_and_number_ids(tmp_path: Path) -> None:
    folder = make(tmp_path, corpus="\ufeff" + '{"_id": 7, "text": "x"}\r\n\r\n', qrels=QRELS.replace("d1", "7")[:-8])
    assert load_collection(folder).corpus == {"7": Document("", "x")}


def test_the_corpus_alone_needs_no_queries(tmp_path: Path) -> None:
    (make(tmp_path) / "queries.jsonl").unlink()
    assert load_corpus(tmp_path)["d1"].content == "copy copies"


def test_a_full_disk_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collection = load_collection(make(tmp_path))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", no_space)
    with pytest.raises(StorageError, match=r"corpus\.jsonl: got No space left on device"):
        save_collection(collection, tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


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
def test_any_collection_survives_writing_and_reading(
    tmp_path: Path, corpus: dict[str, tuple[str, str]], queries: dict[str, str], data: st.DataObject
) -> None:
    judged = st.dictionaries(st.sampled_from(sorted(corpus)), st.floats(0.25, 3), min_size=1)
    qrels = data.draw(st.dictionaries(st.sampled_from(sorted(queries)), judged, min_size=1))
    documents = {name: Document(*content) for name, content in corpus.items()}
    collection = Collection(tmp_path.name, documents, queries, {"test": qrels})
    save_collection(collection, tmp_path)
    assert load_collection(tmp_path) == collection
