"""A collection folder as a task, read document by document."""

import json

import pytest

from bixse.errors import InputError, InvalidFileError
from bixse.evaluation.tasks import collection_task


def write(folder, corpus, queries=({"_id": "q1", "text": "copy"},), qrels="q1\td1\t2\n"):
    (folder / "qrels").mkdir(parents=True)
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{qrels}")
    return folder


def test_documents_come_in_file_order_with_their_titles_as_often_as_wanted(tmp_path):
    rows = [{"_id": "d1", "title": "Move", "text": "a file"}, {"_id": 1, "text": "copy"}, {"_id": "e", "text": ""}]
    task = collection_task(write(tmp_path / "c", rows))
    for _ in range(2):
        assert list(task.documents()) == [("d1", "Move a file"), ("1", "copy"), ("e", "")]
    assert (task.name, task.count) == ("c", 3)
    assert "'e'" in task.warnings[0]


def test_judged_queries_alone_are_taken(tmp_path):
    rows = [{"_id": "q0", "text": "other"}, {"_id": "q1", "text": "copy"}]
    (own,) = collection_task(write(tmp_path / "c", [{"_id": "d1", "text": "a"}], rows)).query_sets
    assert (own.queries, own.qrels) == ({"q1": "copy"}, {"q1": {"d1": 2.0}})


@pytest.mark.parametrize(
    "corpus", [[{"_id": "d1", "text": "a"}] * 2, [{"_id": "d 1", "text": "a"}], [{"_id": "d9", "text": "a"}]]
)
def test_a_corpus_that_cannot_be_used(tmp_path, corpus):
    with pytest.raises(InvalidFileError):
        collection_task(write(tmp_path / "c", corpus))


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
        collection_task(write(tmp_path / "c", [{"_id": "d1", "text": "a"}], queries, qrels))


def test_folders_that_cannot_be_used(tmp_path):
    folder = write(tmp_path / "c", [{"_id": "d1", "text": " "}])
    with pytest.raises(InputError, match="got 1 documents"):
        collection_task(folder)
    with pytest.raises(InputError, match="'dev'"):
        collection_task(folder, "dev")
    with pytest.raises(InputError, match="no such folder"):
        collection_task(tmp_path / "none")
    with pytest.raises(InputError, match="min_relevant_grade"):
        collection_task(folder, min_relevant_grade=0)
    (folder / "corpus.jsonl").unlink()
    with pytest.raises(InputError, match=r"corpus\.jsonl"):
        collection_task(folder)
