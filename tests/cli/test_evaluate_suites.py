"""`bixse evaluate` with several models and with suites, unhappy paths first."""

import json

import pytest

from bixse.cli.main import main
from bixse.data.collection import Collection, Document, save_collection
from helpers.command import call, refused

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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "got no collection"),
        (["--collection", "NFCorpus", "--data", ".", "--tasks", "x"], "got data, tasks for suite local"),
        (["--suite", "beir", "--data", ".", "--collection", "NFCorpus"], "got collection for suite beir"),
        (["--suite", "beir", "--data", ".", "--split", "dev"], "got split for suite beir"),
        (["--suite", "beir", "--data", ".", "--exclude-self"], "got exclude_self for suite beir"),
        (["--suite", "bir", "--data", "."], "did you mean 'beir'"),
        (["--suite", "nanobeir"], "got no --data"),
        (["--task", "x", "--collection", "NFCorpus"], "no instructions"),
        (["bm25", "--collection", "NFCorpus"], "the same checkpoint"),
    ],
)
def test_settings_that_do_not_fit(capsys, data, monkeypatch, words, said):
    monkeypatch.chdir(data)
    assert said in refused(capsys, "evaluate", "bm25", *words)


def test_a_second_model_that_is_none(capsys, data, tmp_path):
    words = ("bm25", "./none", "--collection", data / "NFCorpus", "--out", tmp_path / "out")
    assert "got no such folder" in refused(capsys, "evaluate", *words)
    assert not (tmp_path / "out").exists()


def test_missing_data_is_one_message(capsys, tmp_path):
    message = refused(capsys, "evaluate", "bm25", "--suite", "trec-dl", "--data", tmp_path / "none")
    assert message.count("curl -LO https://") == 12


def test_several_models_on_one_collection(capsys, data, tiny_model_path, tmp_path):
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


def test_a_suite_as_text_and_as_json(capsys, data, tiny_model_path, tmp_path):
    words = ("evaluate", tiny_model_path, "bm25", "--suite", "beir", "--data", data, "--tasks", "NFCorpus", "SciFact")
    code, envelope = call(capsys, *words, "--out", tmp_path / "out")
    assert code == 0
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == envelope["metrics"]
    assert envelope["metrics"]["systems"]["bm25"]["means"].keys() == {"mean over tasks"}
    assert main([str(word) for word in words]) == 0
    text = capsys.readouterr().out
    for said in ("NFCorpus", "SciFact", "mean over tasks", "p (Holm)", "2 tasks are tested", "Note: "):
        assert said in text


@pytest.mark.slow
def test_tasks_that_failed_end_with_3(capsys, tiny_model_path, tmp_path, monkeypatch):
    pytest.importorskip("mteb")
    from bixse.lab.suites import mteb_suite

    monkeypatch.setattr(mteb_suite, "in_hub_cache", lambda task: True)  # and then the data are not there
    words = ("evaluate", tiny_model_path, "--suite", "mteb-eng-v2", "--tasks", "FiQA2018", "--out", tmp_path / "out")
    code, envelope = call(capsys, *words)
    assert (code, envelope["status"]) == (3, "partial")
    assert list(envelope["metrics"]["failures"]) == [f"{tiny_model_path}: FiQA2018"]
