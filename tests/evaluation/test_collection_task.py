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


QUERY = {"_id": "q1", "text": "x"}


@pytest.mark.parametrize(
    ("text", "queries", "qrels", "options", "fact"),
    [
        ("a", [{"_id": "q2", "text": "x"}], "q1\td1\t1\n", {}, "q1"),
        ("a", [{"_id": "q1", "text": " "}], "q1\td1\t1\n", {}, "'text': got an empty"),
        ("a", [QUERY], "q1\td1\t0\n", {}, "above 0"),
        (" ", [QUERY], "q1\td1\t1\n", {}, "got 1 documents"),
        ("a", [QUERY], "q1\td1\t1\n", {"split": "dev"}, "'dev'"),
        ("a", [QUERY], "q1\td1\t1\n", {"min_relevant_grade": 0}, "min_relevant_grade"),
    ],
)
def test_queries_and_options_that_cannot_be_used(tmp_path, text, queries, qrels, options, fact):
    folder = write(tmp_path / "c", [{"_id": "d1", "text": text}], queries, qrels)
    with pytest.raises(InputError, match=fact):
        collection_task(folder, **options)


@pytest.mark.parametrize("missing", ["none", "corpus.jsonl"])
def test_a_missing_folder_or_corpus(tmp_path, missing):
    folder = write(tmp_path / "c", [{"_id": "d1", "text": "a"}])
    (folder / "corpus.jsonl").unlink()
    with pytest.raises(InputError, match=missing):
        collection_task(folder if missing == "corpus.jsonl" else tmp_path / missing)
