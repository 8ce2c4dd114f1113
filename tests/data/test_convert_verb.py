"""`bixse convert` as a user meets it, up to training and evaluating on what it wrote."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest
import source_files as files

from bixse.cli.main import main
from bixse.data.sources.formats import SOURCES

if TYPE_CHECKING:
    from pathlib import Path


def call(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, dict[str, Any]]:
    code = main([*map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *words: Any) -> str:
    code, envelope = call(capsys, *words)
    assert code == 2, envelope
    (message,) = envelope["errors"]
    assert "got " in message and "fix: " in message
    return str(message)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    verbs, things = ["copy", "move", "open", "sort", "join", "split"], ["file", "folder", "path", "line"]
    rows = [
        {"query": f"how do i {verb} the {thing}", "document": f"{other} a {thing}", "relevance": float(verb == other)}
        for verb in verbs
        for thing in things
        for other in (verb, verbs[0] if verb != verbs[0] else verbs[1])
    ]
    return files.put(tmp_path, {"rows.jsonl": files.lines(rows)}) / "rows.jsonl"


def test_the_sources_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", "--list"]) == 0
    said = capsys.readouterr().out
    for name, kind in SOURCES.items():
        assert f"\n{name}\n" in f"\n{said}"
        assert kind.reader.licence in said and kind.reader.citation in said
    code, envelope = call(capsys, "convert", "--list")
    assert (code, set(envelope["metrics"]["sources"])) == (0, set(SOURCES))


def test_text_of_a_conversion(capsys: pytest.CaptureFixture[str], pairs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["convert", "pairs", str(pairs), "--noise", "0.5", "--size", "30", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "48 judgements read, 48 of them with a grade" in said
    assert "noise (probability 0.5, seed 0): 48 rows; queries 24" in said
    assert "sample (size 30, seed 0): 48 rows to 30; strata 2" in said
    assert "pairs: 30 pairs of" in said and "relevance 0.9 to 1.0 | #" in said
    assert f"next: bixse train --config {out / 'train.yaml'}" in said
    assert main(["convert", "pairs", str(pairs), "--noise", "0.5", "--size", "30", "--out", str(out)]) == 0
    assert "finished before" in capsys.readouterr().err


def test_a_dry_run_and_faults_end_with_3(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    content = files.E5["hotpot_qa"] + b"{broken\n"
    path = files.put(tmp_path, {"nq.jsonl": content}) / "nq.jsonl"
    assert main(["convert", "e5", str(path), "--dry-run", "--out", str(tmp_path / "out")]) == 3
    said = capsys.readouterr().out
    assert "nq.jsonl: 1 error\n  row 4: got '{broken" in said and "nothing was written" in said
    assert not (tmp_path / "out").exists()
    assert "--skip-faulty" in refused(capsys, "convert", "e5", path, "--out", tmp_path / "out")
    assert "row 1, column 'relevance'" in refused(capsys, "convert", "pairs", path, "--dry-run")
    code, envelope = call(capsys, "convert", "e5", path, "--out", tmp_path / "out", "--skip-faulty")
    assert (code, envelope["status"], envelope["metrics"]["faults"]) == (3, "partial", 1)
    assert json.loads((tmp_path / "out" / "faults.jsonl").read_text())["row"] == 4
    assert set(envelope["artifacts"]) == {"pairs.parquet", "train.yaml", "faults.jsonl", "record"}


def test_arguments_from_a_file(capsys: pytest.CaptureFixture[str], pairs: Path, tmp_path: Path) -> None:
    files.put(
        tmp_path,
        {"run.yaml": "source: pairs\npath: rows.jsonl\ncutoff: 0.5\nsplit: [train=0.5, test=0.5]\nout: made\n"},
    )
    code, envelope = call(capsys, "convert", "--config", tmp_path / "run.yaml")
    assert code == 0, envelope
    assert pairs.is_file()
    assert set(envelope["metrics"]["parts"]) == {"train", "test"}
    assert (tmp_path / "made" / "train.parquet").is_file()


@pytest.mark.parametrize(
    ("source", "path", "said"),
    [
        ("lightblue", "hub:nobody/nothing", "hub:nobody/nothing: got a data set that is not on this machine"),
        ("ir_datasets", "nfcorpus/train", "convert ir_datasets nfcorpus/train --download"),
    ],
)
def test_names_of_data_sets_in_a_file_are_no_paths(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    path: str,
    said: str,
) -> None:
    monkeypatch.setitem(sys.modules, "ir_datasets", object())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    files.put(tmp_path, {"run.yaml": f"source: {source}\npath: {path}\n"})
    assert said in refused(capsys, "convert", "--config", tmp_path / "run.yaml")
    assert said in refused(capsys, "convert", source, path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "got no source"),
        (("pairs",), "got no path"),
        (("pars", "rows.jsonl"), "did you mean 'pairs'"),
        (("pairs", "gone.jsonl"), "gone.jsonl: got no such file"),
        (("table", "rows.jsonl"), "got no scale"),
        (("pairs", "rows.jsonl", "--scale", "0", "3"), "source pairs: got --scale"),
        (("pairs", "rows.jsonl", "--split", "train"), "expected PART=SHARE"),
        (("pairs", "rows.jsonl", "--split", "a=0.5", "a=0.5"), "expected PART=SHARE"),
        (("pairs", "rows.jsonl", "--cutof", "0.5"), "did you mean '--cutoff'"),
        (("lightblue", "rows.jsonl"), "--skip-faulty; the first file looks like the source pairs"),
        (("e5", "rows.jsonl"), "expected files of E5's data"),
        (("trec", "rows.jsonl", "--scale", "0", "3"), "got no --queries and no --corpus"),
        (("table", "rows.jsonl", "--scale", "3", "0"), "expected the maximum above the minimum"),
        (("pairs", "rows.jsonl", "--noise", "2"), "probability of label noise: got 2.0"),
        (("pairs", "empty.jsonl"), "and no pair with a grade"),
        (("pairs", "empty.parquet"), "got unreadable Parquet"),
        (("pairs", "empty.csv"), "and no pair with a grade"),
    ],
)
def test_wrong_usage(
    capsys: pytest.CaptureFixture[str],
    pairs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    files.put(tmp_path, {f"empty.{kind}": "" for kind in ("jsonl", "parquet", "csv")})
    assert said in refused(capsys, "convert", *words)


def test_what_is_written_trains_and_evaluates(
    capsys: pytest.CaptureFixture[str], pairs: Path, tmp_path: Path, tiny_model_path: Path
) -> None:
    split = ["--split", "train=0.7", "test=0.3"]
    assert call(capsys, "convert", "pairs", pairs, *split, "--out", tmp_path / "pairs")[0] == 0
    config = tmp_path / "pairs" / "train.yaml"
    config.write_text(config.read_text() + "optimizer: {epochs: 1, batch_size: 4}\nmax_length: 16\n")
    words = ("--config", config, "--model", tiny_model_path, "--out", tmp_path / "run")
    code, envelope = call(capsys, "train", *words)
    assert code == 0, envelope
    collection = tmp_path / "collection"
    assert call(capsys, "convert", "pairs", pairs, *split, "--as", "collection", "--out", collection)[0] == 0
    for model in (tmp_path / "run" / "model", "bm25"):
        words = ("--collection", collection, "--split", "test", "--out", tmp_path / f"of {str(model)[-5:]}")
        code, envelope = call(capsys, "evaluate", model, *words)
        assert code == 0, envelope
