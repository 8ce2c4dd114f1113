"""`bixse mine` as a command."""

from __future__ import annotations

import json

import pytest

from bixse.cli import main as command
from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.preparing.mined_pairs import load_mined_pairs


def call(capsys, *words):
    code = command.main(["mine", *map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out", "out"], "no texts"),
        (["--collection", "toy", "--out", "out", "--relevant-from", "0.5"], "--relevant-from: got it without --report"),
        (["--collection", "toy", "--out", "out", "--mined", "x"], "--mined: got it without --report"),
        (["--report", "graded.jsonl"], "--report: got no --mined"),
        (["--report", "graded.jsonl", "--mined", "toy"], "graded.jsonl: got no such file"),
    ],
)
def test_wrong_usage(capsys, collection, monkeypatch, words, said):
    monkeypatch.chdir(collection.parent)
    code, envelope = call(capsys, *words)
    assert code == 2
    (message,) = envelope["errors"]
    assert said in message
    assert "fix: " in message
    assert not (collection.parent / "out").exists()


def test_mine_and_show_again(capsys, collection, tmp_path):
    words = ["mine", "--collection", str(collection), "--split", "train", "--out", str(tmp_path / "out")]
    assert command.main(words) == 0
    shown = capsys.readouterr()
    assert "48 pairs of 6 queries, to be graded" in shown.out
    assert "found by bm25" in shown.out
    assert "empty documents: 1" in shown.out
    assert command.main(words) == 0
    again = capsys.readouterr()
    assert again.out == shown.out
    assert "finished before" in again.err


def test_queries_without_candidates_end_with_three(capsys, collection, tmp_path):
    with (collection / "queries.jsonl").open("a") as file:
        file.writelines(f'{{"_id": "strange-{number}", "text": "weather"}}\n' for number in range(12))
    for _ in range(2):  # the second time from the record
        code, envelope = call(capsys, "--collection", collection, "--out", tmp_path / "out")
        assert (code, envelope["status"]) == (3, "partial")
        assert envelope["metrics"]["without_candidates"] == [f"strange-{number}" for number in range(12)]
        assert "12 of 22 queries have no candidate: strange-0, " in " ".join(envelope["warnings"])
        assert "strange-9 and 2 more" in envelope["warnings"][-1]


def test_report_after_grading(capsys, collection, tmp_path):
    out = tmp_path / "out"
    options = ("--split", "train", "--strategy", "hard-negatives", "--exclude-judged", "train", "--per-query", "4")
    assert call(capsys, "--collection", collection, *options, "--out", out)[0] == 0
    rows = [
        {"query_id": p.query_id, "query": p.query, "document_id": p.document_id, "document": p.document,
         "relevance": 0.75 if number % 4 == 0 else 0.25}
        for number, p in enumerate(load_mined_pairs(out))
    ]  # fmt: skip
    save_graded_pairs(GradedPairs.from_rows(rows[:-4]), tmp_path / "graded.parquet")
    code, envelope = call(capsys, "--report", tmp_path / "graded.parquet", "--mined", out)
    figures = envelope["metrics"]
    assert (code, figures["mined"], figures["overall"]["graded"], figures["overall"]["relevant"]) == (0, 24, 20, 5)
    assert figures["by_retriever"]["bm25"]["share"] == 0.25
    assert sum(band["graded"] for band in figures["by_band"].values()) == 20
    assert command.main(["mine", "--report", str(tmp_path / "graded.parquet"), "--mined", str(out),
                         "--relevant-from", "0.8"]) == 0  # fmt: skip
    shown = capsys.readouterr().out
    assert "20 of 24 mined pairs have a grade" in shown
    assert "0 of 20 (0.0 %, 95 % interval 0.0 to 16.1 %)" in shown
