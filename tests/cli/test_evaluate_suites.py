"""`bixse evaluate` with several models and with suites, unhappy paths first."""

from __future__ import annotations

import json

import pytest

from bixse.cli.main import main
from bixse.data.collection import Collection, Document
from bixse.data.collection_files import save_collection

CORPUS = {
    "d1": Document("copy", "copy a file to a folder"),
    "d2": Document("move", "move a file"),
    "d3": Document("sleep", "wait in a thread"),
}
QUERIES = {"q1": "copy a file", "q2": "sleep in a thread", "q3": "move it"}
QRELS = {"test": {"q1": {"d1": 3, "d2": 1}, "q2": {"d3": 2}, "q3": {"d2": 1}}}


@pytest.fixture
def data(tmp_path):
    save_collection(Collection("toy", CORPUS, QUERIES, QRELS), tmp_path / "data" / "NFCorpus")
    save_collection(Collection("toy", CORPUS, QUERIES, QRELS), tmp_path / "data" / "scifact")
    return tmp_path / "data"


def call(capsys, *words):
    code = main([str(word) for word in words] + ["--json"])
    return code, json.loads(capsys.readouterr().out)


def refused(capsys, *words):
    code, envelope = call(capsys, "evaluate", *words)
    assert code == 2, envelope
    (message,) = envelope["errors"]
    assert "got " in message and "expected " in message and "fix: " in message, message
    return message


def test_arguments_of_another_suite(capsys, data) -> None:
    collection = data / "NFCorpus"
    assert "got no --collection" in refused(capsys, "bm25")
    assert "got --data, --tasks for suite local" in refused(
        capsys, "bm25", "--collection", collection, "--data", data, "--tasks", "x"
    )
    assert "got --collection for suite beir" in refused(
        capsys, "bm25", "--suite", "beir", "--data", data, "--collection", collection
    )
    for option in (
        ("--protocol", "full"),
        ("--split", "dev"),
        ("--min-relevant-grade", "2"),
        ("--exclude-self",),
        ("--missing-documents", "drop"),
    ):
        assert f"got {option[0]} for suite beir" in refused(capsys, "bm25", "--suite", "beir", "--data", data, *option)
    assert "did you mean 'beir'" in refused(capsys, "bm25", "--suite", "bir", "--data", data)
    assert "got no --data" in refused(capsys, "bm25", "--suite", "nanobeir")


def test_bm25_alone_takes_no_task(capsys, data) -> None:
    assert "no instructions" in refused(capsys, "bm25", "--task", "x", "--collection", data / "NFCorpus")


def test_one_model_twice(capsys, data) -> None:
    assert "the same checkpoint" in refused(capsys, "bm25", "bm25", "--collection", data / "NFCorpus")


def test_a_second_model_that_is_none(capsys, data, tmp_path) -> None:
    words = ("bm25", "./none", "--collection", data / "NFCorpus", "--out", tmp_path / "out")
    assert "got no such folder" in refused(capsys, *words)
    assert not (tmp_path / "out").exists()


def test_missing_data_is_one_message(capsys, tmp_path) -> None:
    message = refused(capsys, "bm25", "--suite", "trec-dl", "--data", tmp_path / "none")
    assert message.count("curl -LO https://") == 12
    assert main(["evaluate", "bm25", "--suite", "trec-dl", "--data", str(tmp_path / "none")]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_several_models_on_one_collection(capsys, data, tiny_model_path, tmp_path) -> None:
    out = tmp_path / "out"
    words = ("evaluate", tiny_model_path, "bm25", "--collection", data / "NFCorpus", "--out", out)
    code, first = call(capsys, *words)
    assert code == 0
    assert first["artifacts"] == {"results": str(out / "results.json")}
    assert set(first["metrics"]["systems"]) == {str(tiny_model_path), "bm25"}
    (pair,) = first["metrics"]["comparisons"]
    assert (pair["a"], pair["b"]) == (str(tiny_model_path), "bm25")
    assert sorted(path.name for path in (out / "bm25").iterdir()) == ["per_query.json", "run.json", "run.trec"]
    before = (out / "bm25" / "run.json").read_bytes()
    assert call(capsys, *words) == (0, first)
    assert (out / "bm25" / "run.json").read_bytes() == before
    assert main([str(word) for word in words]) == 0
    text = capsys.readouterr().out
    assert "ndcg@10" in text and "bm25" in text and "randomisation test" in text


def test_a_suite_as_text_and_as_json(capsys, data, tiny_model_path, tmp_path) -> None:
    words = ("evaluate", tiny_model_path, "bm25", "--suite", "beir", "--data", data, "--tasks", "NFCorpus", "SciFact")
    code, envelope = call(capsys, *words, "--out", tmp_path / "out")
    assert code == 0
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == envelope["metrics"]
    assert envelope["metrics"]["systems"]["bm25"]["means"].keys() == {"mean over tasks"}
    assert main([str(word) for word in words]) == 0
    text = capsys.readouterr().out
    for said in ("NFCorpus", "SciFact", "mean over tasks", "p (Holm)", "2 tasks are tested", "Note: "):
        assert said in text


def test_a_suite_from_a_config_file(capsys, data, tmp_path) -> None:
    (tmp_path / "run.yaml").write_text("model: [bm25]\nsuite: beir\ndata: data\ntasks: [NFCorpus]\n")
    code, envelope = call(capsys, "evaluate", "--config", tmp_path / "run.yaml")
    assert code == 0, envelope
    assert list(envelope["metrics"]["systems"]["bm25"]["tasks"]) == ["NFCorpus"]


@pytest.mark.slow
def test_tasks_that_failed_end_with_3(capsys, tmp_path, monkeypatch) -> None:
    pytest.importorskip("mteb")
    from bixse.evaluation.suites import mteb_suite

    monkeypatch.setattr(mteb_suite, "in_hub_cache", lambda task: True)  # and then the data are not there
    words = ("evaluate", "bm25", "--suite", "mteb-eng-v2", "--tasks", "FiQA2018", "--out", tmp_path / "out")
    code, envelope = call(capsys, *words)
    assert (code, envelope["status"]) == (3, "partial")
    assert list(envelope["metrics"]["failures"]) == ["bm25: FiQA2018"]
