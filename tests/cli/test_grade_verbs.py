"""`bixse grade` and its neighbours as commands, on judgements that exist already."""

import json

import pyarrow.parquet as pq
import pytest

from bixse.cli.main import main
from bixse.data.collection import Collection, Document, save_collection
from bixse.data.pairs_files import load_graded_pairs
from helpers.command import call

TEXTS = {"copy a folder": "shutil.copytree copies a tree", "wait": "time.sleep waits", "sort": "list.sort sorts"}


@pytest.fixture
def judged(tmp_path):
    """Words that name a judge with two grades and one off the scale, and the pairs."""
    rows = ["query_id,query,document_id,document", *(f"{n},{q},{n},{d}" for n, (q, d) in enumerate(TEXTS.items()))]
    (tmp_path / "pairs.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "judged.txt").write_text("0 0 0 3\n1 0 1 1\n2 0 2 9\n")
    pairs = str(tmp_path / "pairs.csv")
    return ["--judge", f"replay:qrels:{tmp_path / 'judged.txt'}", "--scale", "0", "3", "--pairs", pairs]


def envelope(capsys):
    return json.loads(capsys.readouterr().out)


def test_a_replayed_file_becomes_graded_pairs(judged, tmp_path, capsys):
    out = tmp_path / "out"
    code = main(["grade", *judged, "--out", str(out), "--json"])
    found = envelope(capsys)
    assert code == 3, "one pair has no grade"
    assert found["status"] == "partial"
    assert found["metrics"]["statuses"] == {"graded": 2, "off-scale": 1}
    assert any("1 pairs have a status and no relevance" in warning for warning in found["warnings"])
    table = load_graded_pairs(found["artifacts"]["pairs"])
    assert dict(zip(table.queries, table.relevance.tolist(), strict=True)) == {
        "copy a folder": 1.0,
        "wait": pytest.approx(1 / 3),
    }
    rows = pq.read_table(out / "judgements.parquet").to_pylist()
    assert [row["relevance"] is None for row in rows] == [False, False, True]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--prices", "1"], "prices"),
        (["--prices", "1", "-1"], "prices"),
        (["--max-usd", "1"], "add --prices"),
        (["--samples", "0"], "samples"),
        (["--rubric", "trec-dl"], "did you mean 'trec-dl-0-3'"),
        (["--mode", "guess"], "mode"),
        (["--pairs", "none.csv"], "no such file"),
    ],
)
def test_wrong_usage_is_told_and_leaves_nothing(judged, tmp_path, capsys, words, says):
    out = tmp_path / "out"
    assert main(["grade", *judged, "--out", str(out), *words, "--json"]) == 2
    (error,) = envelope(capsys)["errors"]
    assert says in error
    assert "fix" in error
    assert not out.exists()


@pytest.mark.parametrize(
    ("judge", "says"),
    [
        (["replay:umbrela:x", "--scale", "0", "3"], "expected replay:qrels:PATH"),
        (["replay:qrels:none.txt", "--scale", "0", "3"], "none.txt"),
        (["replay:qrels:none.txt"], "got no scale"),
        (["http://localhost:1", "some/model"], "name one judge"),
        (["http://user:secret@localhost:1"], "fix"),
        (["http://127.0.0.1:9"], "expected a running server"),
        (["no/such-model"], "no/such-model"),
        (["localhost:8000"], "http://localhost:8000"),
        (["10.0.0.7:8000/v1"], "http://10.0.0.7:8000/v1"),
        (["http://localhost:8000", "http://gpu-2:8000"], "behind one address"),
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


def test_the_dry_run_of_a_replay_asks_nothing(judged, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["--dry-run", "--prices", "2", "8", "--out", str(out)]
    assert main(["grade", *judged, *words]) == 0
    text = capsys.readouterr().out
    assert "3 pairs, 3 questions" in text
    assert "a guess at four characters per token" in text
    assert not out.exists()


DOCUMENTS = {"d1": Document("", "copies a tree"), "d2": Document("", "waits"), "d3": Document("", "sorts")}
QRELS = {"q1": {"d1": 3, "d2": 0}, "q2": {"d3": 2, "d2": 1}, "q3": {"d2": 1, "d3": 0}}
PAIRS = [(query, document) for query, judged in QRELS.items() for document in judged]


def rank(folder, grades, capsys):
    """Rank the judged documents by a judge's grades of `PAIRS`."""
    texts = {"q1": "copy", "q2": "sort", "q3": "wait"}
    queries = {query for query, _ in PAIRS[: len(grades)]}
    qrels = {query: QRELS[query] for query in QRELS if query in queries}
    save_collection(Collection("col", DOCUMENTS, texts, {"test": qrels}), folder / "col")
    labels = [f"{query} 0 {document} {grade}\n" for (query, document), grade in zip(PAIRS, grades, strict=False)]
    (folder / "judge.txt").write_text("".join(labels))
    words = ["--judge", f"replay:qrels:{folder / 'judge.txt'}", "--scale", "0", "3"]
    return call(
        capsys,
        "grade",
        "rank",
        "--collection",
        folder / "col",
        "--candidates",
        "judged",
        *words,
        "--out",
        folder / "rank",
    )


@pytest.mark.parametrize(
    ("grades", "tied", "worthless"),
    [([0, 1, 2, 2, 2, 2], 2, True), ([2, 2, 0, 1, 0, 1], 1, False), ([0, 1] * 3, 0, False)],
)
def test_a_ranking_whose_grades_tie_is_warned_of(tmp_path, capsys, grades, tied, worthless):
    code, found = rank(tmp_path, grades, capsys)
    assert code == 0, "every candidate has a grade"
    said = " ".join(found["warnings"])
    assert (f"{tied} of 3 queries" in said) == (tied > 0) == bool(said)
    assert ("hardly anything" in said) == worthless


def test_a_judge_ranks_the_judged_documents(tmp_path, capsys):
    code, found = rank(tmp_path, [1, 2, 3, 0], capsys)  # wrong on q1, right on q2
    assert code == 0, found
    assert found["metrics"]["mrr@10"] == pytest.approx(0.75)
    assert found["metrics"]["ndcg@10"] == pytest.approx((0.6309297535714575 + 1.0) / 2)
    assert (tmp_path / "rank" / "run.trec").read_text().split()[2] == "d2"
