"""`bixse convert` as a user meets it, up to training and evaluating on what it wrote."""

import json

import pytest
import source_files as files

from bixse.cli.main import main


def call(capsys, *words):
    code = main([*map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def refused(capsys, *words):
    code, envelope = call(capsys, *words)
    assert code == 2, envelope
    (message,) = envelope["errors"]
    assert "fix: " in message
    return message


@pytest.fixture
def pairs(tmp_path):
    verbs, things = ["copy", "move", "open", "sort", "join", "split"], ["file", "folder", "path", "line"]
    rows = [
        {"query": f"how do i {verb} the {thing}", "document": f"{other} a {thing}", "relevance": float(verb == other)}
        for verb in verbs
        for thing in things
        for other in (verb, verbs[0] if verb != verbs[0] else verbs[1])
    ]
    return files.put(tmp_path, {"rows.jsonl": files.lines(rows)}) / "rows.jsonl"


def test_text_of_a_conversion(capsys, pairs, tmp_path):
    words = ["convert", "pairs", str(pairs), "--noise", "0.5", "--size", "30", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    said = capsys.readouterr().out
    for part in (
        "48 judgements read, 48 of them",
        "queries 24",
        "48 rows to 30",
        "pairs: 30 pairs of",
        "0.9 to 1.0 | #",
    ):
        assert part in said
    assert f"next: bixse train --config {tmp_path / 'out' / 'train.yaml'}" in said
    assert main(words) == 0
    assert "finished before" in capsys.readouterr().err


def test_a_dry_run_and_rows_that_cannot_be_read_end_with_3(capsys, tmp_path):
    out = tmp_path / "out"
    path = files.put(tmp_path, {"nq.jsonl": files.E5["hotpot_qa"] + b"{broken\n"}) / "nq.jsonl"
    assert main(["convert", "e5", str(path), "--dry-run", "--out", str(out)]) == 3
    assert "row 4: got '{broken" in capsys.readouterr().out
    assert not out.exists()
    assert "--skip-invalid" in refused(capsys, "convert", "e5", path, "--out", out)
    assert "row 1, column 'relevance'" in refused(capsys, "convert", "pairs", path, "--dry-run")
    code, envelope = call(capsys, "convert", "e5", path, "--out", out, "--skip-invalid")
    assert (code, envelope["status"], envelope["metrics"]["errors"]) == (3, "partial", 1)
    assert json.loads((out / "errors.jsonl").read_text())["row"] == 4
    assert set(envelope["artifacts"]) == {"pairs.parquet", "train.yaml", "errors.jsonl", "record"}


@pytest.mark.parametrize("split", ["[train=0.5, test=0.5]", "{train: 0.5, test: 0.5}"])
def test_settings_from_a_file(capsys, pairs, tmp_path, split):
    files.put(tmp_path, {"run.yaml": f"source: pairs\npath: {pairs.name}\ncutoff: 0.5\nsplit: {split}\n"})
    code, envelope = call(capsys, "convert", "--config", tmp_path / "run.yaml", "--out", tmp_path / "made")
    assert code == 0, envelope
    assert set(envelope["metrics"]["parts"]) == {"train", "test"}
    assert (tmp_path / "made" / "train.parquet").is_file()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((), "source"),
        (("pairs",), "path"),
        (("pars", "rows.jsonl"), "did you mean 'pairs'"),
        (("pairs", "gone.jsonl"), "gone.jsonl"),
        (("table", "rows.jsonl"), "--scale"),
        (("table", "rows.jsonl", "--columns", "query=grade"), "columns"),
        (("pairs", "rows.jsonl", "--scale", "0", "3"), "--scale"),
        (("pairs", "rows.jsonl", "--split", "train"), "PART=SHARE"),
        (("pairs", "rows.jsonl", "--cutof", "0.5"), "did you mean '--cutoff'"),
        (("lightblue", "rows.jsonl"), "looks like the source pairs"),
        (("e5", "rows.jsonl"), "rows.jsonl"),
        (("trec", "rows.jsonl", "--scale", "0", "3"), "--queries"),
        (("pairs", "rows.jsonl", "--noise", "2"), "noise"),
        (("pairs", "empty.jsonl"), "empty.jsonl"),
        (("pairs", "empty.parquet"), "unreadable Parquet"),
        (("pairs", "empty.csv"), "empty.csv"),
    ],
)
def test_wrong_usage(capsys, pairs, tmp_path, monkeypatch, words, named):
    monkeypatch.chdir(tmp_path)
    files.put(tmp_path, {f"empty.{kind}": "" for kind in ("jsonl", "parquet", "csv")})
    assert named in refused(capsys, "convert", *words)


def test_what_is_written_trains(capsys, pairs, tmp_path, tiny_model_path):
    split = ["--split", "train=0.7", "test=0.3"]
    assert call(capsys, "convert", "pairs", pairs, *split, "--out", tmp_path / "pairs")[0] == 0
    config = tmp_path / "pairs" / "train.yaml"
    config.write_text(config.read_text() + "optimizer: {num_train_epochs: 1, global_batch_size: 4}\nmax_length: 16\n")
    words = ("--config", config, "--model", tiny_model_path, "--out", tmp_path / "run")
    code, envelope = call(capsys, "train", *words)
    assert code == 0, envelope
