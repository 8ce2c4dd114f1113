"""Reading collection folders document by document."""

from __future__ import annotations

import json

import pytest

from bixse.errors import InputError, InvalidFileError
from bixse.evaluation.folder_stream import check_corpus, read_judged_queries, stream_documents

QRELS = {"q1": {"d1": 2.0}}


def write(folder, corpus, queries=None, qrels="q1\td1\t2\n"):
    (folder / "qrels").mkdir(parents=True)
    lines = [row if isinstance(row, str) else json.dumps(row) for row in corpus]
    (folder / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    rows = [{"_id": "q1", "text": "copy"}] if queries is None else queries
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{qrels}")
    return folder


def test_documents_come_in_file_order_with_their_titles(tmp_path) -> None:
    rows = [{"_id": "d2", "title": "Move", "text": "a file"}, {"_id": 1, "text": "copy"}, {"_id": "e", "text": ""}]
    folder = write(tmp_path / "c", rows)
    assert list(stream_documents(folder)) == [("d2", "Move a file"), ("1", "copy"), ("e", "")]
    found = check_corpus(folder, {"e": {"1": 1.0}, "q": {"1": 1.0, "x": 0.0}, "p": {"x": 1.0}})
    assert (found.count, found.empty, list(found.named_as_queries)) == (3, ["e"], ["e"])
    assert (found.missing, found.missing_judgements) == ({"x"}, 2)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "one JSON object per line"),
        ("[1]", "one JSON object per line"),
        ({"text": "no id"}, "column '_id': got None"),
        ({"_id": True, "text": "no id"}, "column '_id': got True"),
        ({"_id": "d1", "text": "again"}, "an id used once"),
        ({"_id": "d 2", "text": "white space"}, "no white space"),
        ({"_id": "d3", "text": 5}, "column 'text': got 5"),
        ({"_id": "d3", "text": "\ud800"}, "column 'text'"),
    ],
)
def test_invalid_rows_are_listed(tmp_path, row, said) -> None:
    folder = write(tmp_path / "c", [{"_id": "d1", "text": "a"}, row])
    with pytest.raises(InvalidFileError, match="row 2") as error:
        check_corpus(folder, QRELS)
    assert said in str(error.value)


def test_many_invalid_rows_are_counted(tmp_path) -> None:
    folder = write(tmp_path / "c", [{"_id": "d1", "text": "a"}] * 101)
    with pytest.raises(InvalidFileError, match="and 80 more"):
        check_corpus(folder, QRELS)


def test_files_that_cannot_be_used(tmp_path) -> None:
    folder = write(tmp_path / "c", [])
    with pytest.raises(InputError, match="got 0 documents"):
        check_corpus(folder, QRELS)
    (folder / "corpus.jsonl").write_bytes(b'{"_id": "d1", "text": "\xff"}\n')
    with pytest.raises(InputError, match="UTF-8"):
        check_corpus(folder, QRELS)
    (folder / "corpus.jsonl").unlink()
    with pytest.raises(InputError, match=r"corpus\.jsonl"):
        check_corpus(folder, QRELS)
    with pytest.raises(InputError, match="'dev'"):
        read_judged_queries(folder, "dev")
    with pytest.raises(InputError, match="no such folder"):
        read_judged_queries(tmp_path / "none", "test")


def test_judged_queries_alone_are_read(tmp_path) -> None:
    rows = [{"_id": "q0", "text": "other"}, {"_id": "q1", "text": "copy"}]
    assert read_judged_queries(write(tmp_path / "c", [], rows), "test") == ({"q1": "copy"}, QRELS)


@pytest.mark.parametrize(
    ("queries", "qrels", "said"),
    [
        ([{"_id": "q2", "text": "x"}], "q1\td1\t1\n", "1 judged queries without a text, such as 'q1'"),
        ([{"_id": "q1", "text": " "}], "q1\td1\t1\n", "column 'text'"),
        ([{"_id": "q1", "text": "x"}], "q1\td1\t0\n", "no judgement above 0"),
    ],
)
def test_queries_that_cannot_be_used(tmp_path, queries, qrels, said) -> None:
    with pytest.raises(InputError, match=said):
        read_judged_queries(write(tmp_path / "c", [], queries, qrels), "test")
