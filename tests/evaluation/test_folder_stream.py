"""Reading collection folders document by document."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from bixse.errors import InputError, InvalidFileError
from bixse.evaluation.suites.folder_stream import check_corpus, read_judged_queries, stream_documents

if TYPE_CHECKING:
    from pathlib import Path

QRELS = {"q1": {"d1": 2.0}}


def write(folder: Path, corpus: list, queries: list | None = None, qrels: str = "q1\td1\t2\n") -> Path:
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
    assert check_corpus(folder, {"q1": {"1": 1.0}}) == 3


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "one JSON object per line"),
        ("[1]", "one JSON object per line"),
        ({"text": "no id"}, "column '_id': got None"),
        ({"_id": "d1", "text": "again"}, "an id used once"),
        ({"_id": "d 2", "text": "white space"}, "no white space"),
        ({"_id": "d3", "text": 5}, "column 'text': got 5"),
    ],
)
def test_faulty_rows_are_listed(tmp_path, row, said) -> None:
    folder = write(tmp_path / "c", [{"_id": "d1", "text": "a"}, row])
    with pytest.raises(InvalidFileError, match="1 error") as error:
        check_corpus(folder, QRELS)
    assert said in str(error.value)
    assert "row 2" in str(error.value)


def test_many_faults_are_counted(tmp_path) -> None:
    folder = write(tmp_path / "c", [{"_id": "d1", "text": "a"}] * 101)
    with pytest.raises(InvalidFileError, match="100 errors") as error:
        check_corpus(folder, QRELS)
    assert "and 80 more" in str(error.value)


def test_a_corpus_that_lacks_a_judged_document(tmp_path) -> None:
    folder = write(tmp_path / "c", [{"_id": "d9", "text": "a"}])
    with pytest.raises(InputError, match="got none of 1 judged documents, such as 'd1'"):
        check_corpus(folder, QRELS)


def test_files_that_are_none(tmp_path) -> None:
    folder = write(tmp_path / "c", [])
    with pytest.raises(InputError, match="got no document"):
        check_corpus(folder, QRELS)
    (folder / "corpus.jsonl").write_bytes(b'{"_id": "d1", "text": "\xff"}\n')
    with pytest.raises(InputError, match="no UTF-8"):
        check_corpus(folder, QRELS)
    (folder / "corpus.jsonl").unlink()
    with pytest.raises(InputError, match=r"corpus\.jsonl: got No such file"):
        check_corpus(folder, QRELS)


def test_judged_queries_alone_are_read(tmp_path) -> None:
    rows = [{"_id": "q0", "text": "other"}, {"_id": "q1", "text": "copy"}]
    queries, qrels = read_judged_queries(write(tmp_path / "c", [], rows), "test")
    assert (queries, qrels) == ({"q1": "copy"}, QRELS)


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
