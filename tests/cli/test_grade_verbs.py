"""`bixse grade` and its neighbours as commands, on judgements that exist already."""

import json
import shutil

import pyarrow.parquet as pq
import pytest

from bixse.cli.main import main
from bixse.data.pairs_files import load_graded_pairs

TEXTS = {"copy a folder": "shutil.copytree copies a tree", "wait": "time.sleep waits", "sort": "list.sort sorts"}


@pytest.fixture
def judged(tmp_path):
    """A file that umbrela wrote: two grades, and an answer it could not read (which it calls 0)."""
    path = tmp_path / "judged.jsonl"
    rows = [
        {"model": "gpt-x", "query": query, "passage": passage, "prompt": "...", "prediction": f"##final score: {grade}",
         "judgment": grade, "result_status": 1}
        for (query, passage), grade in zip(TEXTS.items(), (3, 1, 0), strict=True)
    ]  # fmt: skip
    rows[2] |= {"prediction": "I cannot say", "result_status": 0}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def envelope(capsys):
    return json.loads(capsys.readouterr().out)


def test_a_replayed_file_becomes_graded_pairs(judged, tmp_path, capsys):
    out = tmp_path / "out"
    code = main(["grade", "--judge", f"replay:umbrela:{judged}", "--out", str(out), "--json"])
    found = envelope(capsys)
    assert code == 3, "one pair has no grade"
    assert found["status"] == "partial"
    assert found["metrics"]["statuses"] == {"graded": 2, "no-option": 1}
    assert any("1 pairs have a status and no relevance" in warning for warning in found["warnings"])
    table = load_graded_pairs(found["artifacts"]["pairs"])
    assert dict(zip(table.queries, table.relevance.tolist(), strict=True)) == {
        "copy a folder": 1.0,
        "wait": pytest.approx(1 / 3),
    }
    rows = pq.read_table(out / "judgements.parquet").to_pylist()
    assert [row["relevance"] is None for row in rows] == [False, False, True]


def test_what_a_person_reads(judged, tmp_path, capsys):
    main(["grade", "--judge", f"replay:umbrela:{judged}", "--out", str(tmp_path / "out")])
    text = capsys.readouterr().out
    assert "2 of 3 pairs graded" in text
    assert "no-option" in text
    assert "0.9 to 1.0 | " in text
    assert "bixse train --pairs" in text


def test_grades_are_audited(judged, tmp_path, capsys):
    out = tmp_path / "out"
    main(["grade", "--judge", f"replay:umbrela:{judged}", "--out", str(out)])
    rows = pq.read_table(out / "judgements.parquet").to_pylist()
    human = tmp_path / "human.txt"
    human.write_text("".join(f"{row['query_id']} 0 {row['document_id']} {i + 1}\n" for i, row in enumerate(rows)))
    capsys.readouterr()
    words = ["--human", str(human), "--scale", "0", "3", "--out", str(tmp_path / "audit"), "--json"]
    code = main(["grade", "audit", "--judge", str(out / "judgements.parquet"), *words])
    assert code == 0
    assert envelope(capsys)["artifacts"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--regrade", "0.1"], "--regrade"),
        (["--document-characters", "5"], "--document-characters"),
        (["--price-in", "1"], "expected both"),
        (["--samples", "0"], "samples"),
        (["--scale", "3", "0"], "grade scale"),
        (["--rubric", "trec-dl"], "did you mean 'trec-dl-0-3'"),
        (["--mode", "guess"], "mode"),
        (["--pairs", "none.csv"], "no such file"),
    ],
)
def test_wrong_usage_is_told_and_leaves_nothing(judged, tmp_path, capsys, words, says):
    out = tmp_path / "out"
    assert main(["grade", "--judge", f"replay:umbrela:{judged}", "--out", str(out), *words, "--json"]) == 2
    (error,) = envelope(capsys)["errors"]
    assert says in error
    assert "fix" in error
    assert not out.exists()


@pytest.mark.parametrize(
    ("judge", "says"),
    [
        (["replay:umbrella:x"], "did you mean 'umbrela'"),
        (["replay:umbrela:none.jsonl"], "none.jsonl"),
        (["http://localhost:1", "some/model"], "name one judge"),
        (["http://user:secret@localhost:1"], "fix"),
        (["http://127.0.0.1:9"], "expected a running server"),
        (["no/such-model"], "no/such-model"),
    ],
)
def test_a_judge_that_cannot_be_used_is_told(tmp_path, capsys, judge, says):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("query,document\na,b\n")
    code = main(["grade", "--judge", *judge, "--pairs", str(pairs), "--out", str(tmp_path / "out"), "--json"])
    (error,) = envelope(capsys)["errors"]
    assert code in (1, 2)
    assert says in error
    assert "secret" not in error
    assert "unexpected" not in error


def test_the_dry_run_of_a_replay_asks_nothing_with_pilot_0(judged, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["--dry-run", "--pilot", "0", "--price-in", "2", "--price-out", "8", "--out", str(out)]
    assert main(["grade", "--judge", f"replay:umbrela:{judged}", *words]) == 0
    text = capsys.readouterr().out
    assert "3 pairs, 3 questions" in text
    assert "a guess at four characters per token" in text
    assert not out.exists()


@pytest.fixture
def ranked(tmp_path):
    """A small collection with three queries, and where the judge's labels go."""
    folder = tmp_path / "col"
    (folder / "qrels").mkdir(parents=True)
    documents = {"d1": "copies a tree", "d2": "waits", "d3": "sorts"}
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": name, "title": "", "text": text}) + "\n" for name, text in documents.items())
    )
    queries = {"q1": "copy", "q2": "sort", "q3": "wait"}
    (folder / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": name, "text": text}) + "\n" for name, text in queries.items())
    )
    rows = ["query-id\tcorpus-id\tscore", "q1\td1\t3", "q1\td2\t0", "q2\td3\t2", "q2\td2\t1", "q3\td2\t1", "q3\td3\t0"]
    (folder / "qrels" / "test.tsv").write_text("\n".join(rows) + "\n")
    return folder


def rank(folder, labels, capsys):
    path = folder.parent / "judge.txt"
    path.write_text("".join(f"{query} 0 {document} {grade}\n" for query, document, grade in labels))
    words = [
        "--texts",
        str(folder),
        "--scale",
        "0",
        "3",
        "--candidates",
        "judged",
        "--out",
        str(folder.parent / "rank"),
    ]
    code = main(["grade", "rank", "--collection", str(folder), "--judge", f"replay:qrels:{path}", *words, "--json"])
    return code, envelope(capsys)


def test_a_ranking_whose_grades_tie_is_warned_of(ranked, capsys):
    pairs = [("q1", "d1"), ("q1", "d2"), ("q2", "d3"), ("q2", "d2"), ("q3", "d2"), ("q3", "d3")]
    code, found = rank(
        ranked, [(*pair, place % 2 if pair[0] == "q1" else 2) for place, pair in enumerate(pairs)], capsys
    )
    (warning,) = found["warnings"]
    assert "2 of 3 queries" in warning
    assert "hardly anything" in warning
    assert code == 0, "every candidate has a grade"
    shutil.rmtree(ranked.parent / "rank")
    _, found = rank(ranked, [(*pair, place % 2 if pair[0] != "q1" else 2) for place, pair in enumerate(pairs)], capsys)
    (warning,) = found["warnings"]
    assert "1 of 3 queries" in warning
    assert "hardly anything" not in warning
    shutil.rmtree(ranked.parent / "rank")
    _, found = rank(ranked, [(*pair, place % 2) for place, pair in enumerate(pairs)], capsys)
    assert found["warnings"] == []


def test_a_judge_ranks_the_judged_documents(tmp_path, capsys):
    folder = tmp_path / "col"
    (folder / "qrels").mkdir(parents=True)
    documents = {"d1": "copies a tree", "d2": "waits", "d3": "sorts"}
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": name, "title": "", "text": text}) + "\n" for name, text in documents.items())
    )
    (folder / "queries.jsonl").write_text('{"_id": "q1", "text": "copy"}\n{"_id": "q2", "text": "sort"}\n')
    (folder / "qrels" / "test.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq1\td1\t3\nq1\td2\t0\nq2\td3\t2\nq2\td2\t1\n"
    )
    labels = tmp_path / "judge.txt"
    labels.write_text("q1 0 d1 1\nq1 0 d2 2\nq2 0 d3 3\nq2 0 d2 0\n")  # wrong on q1, right on q2
    words = ["--texts", str(folder), "--scale", "0", "3", "--candidates", "judged", "--out", str(tmp_path / "rank")]
    code = main(["grade", "rank", "--collection", str(folder), "--judge", f"replay:qrels:{labels}", *words, "--json"])
    assert code == 0, capsys.readouterr()
    found = envelope(capsys)["metrics"]
    assert found["mrr@10"] == pytest.approx(0.75)
    assert found["ndcg@10"] == pytest.approx((0.6309297535714575 + 1.0) / 2)
    assert (tmp_path / "rank" / "run.trec").read_text().split()[2] == "d2"
