"""`bixse mine` as a command."""

from __future__ import annotations

import json

import pytest

from bixse.cli import main as command


def call(capsys, *words):
    code = command.main(["mine", *map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out", "out"], "no texts"),
        (["--collection", "toy", "--out", "out", "--depth", "3"], "with depth 3"),
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
