"""Collection folders that are read document by document."""

from __future__ import annotations

import json

import pytest

from bixse.errors import InputError, InvalidFileError
from bixse.evaluation.suites.folder_stream import check_corpus, read_judged_queries, stream_documents

QRELS = {"q1": {"d1": 2.0}}


def write(folder, corpus, queries=({"_id": "q1", "text": "copy"},), qrels="q1\td1\t2\n"):
    (folder / "qrels").mkdir(parents=True)
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{qrels}")
    return folder


def test_documents_come_in_file_order_with_their_titles(tmp_path):
    rows = [{"_id": "d2", "title": "Move", "text": "a file"}, {"_id": 1, "text": "copy"}, {"_id": "e", "text": ""}]
    folder = write(tmp_path / "c", rows)
    assert list(stream_documents(folder)) == [("d2", "Move a file"), ("1", "copy"), ("e", "")]
    assert check_corpus(folder, {"q1": {"1": 1.0}}) == 3


def test_a_corpus_that_lacks_a_judged_document_or_has_an_id_twice(tmp_path):
    folder = write(tmp_path / "c", [{"_id": "d9", "text": "a"}])
    with pytest.raises(InputError, match="such as 'd1'"):
        check_corpus(folder, QRELS)
    folder = write(tmp_path / "d", [{"_id": "d1", "text": "a"}] * 2)
    with pytest.raises(InvalidFileError):
        check_corpus(folder, QRELS)


def test_judged_queries_alone_are_read(tmp_path):
    rows = [{"_id": "q0", "text": "other"}, {"_id": "q1", "text": "copy"}]
    queries, qrels = read_judged_queries(write(tmp_path / "c", [], rows), "test")
    assert (queries, qrels) == ({"q1": "copy"}, QRELS)


@pytest.mark.parametrize(
    ("queries", "qrels"),
    [
        ([{"_id": "q2", "text": "x"}], "q1\td1\t1\n"),
        ([{"_id": "q1", "text": " "}], "q1\td1\t1\n"),
        ([{"_id": "q1", "text": "x"}], "q1\td1\t0\n"),
    ],
)
def test_queries_that_cannot_be_used(tmp_path, queries, qrels):
    with pytest.raises(InputError):
        read_judged_queries(write(tmp_path / "c", [], queries, qrels), "test")
