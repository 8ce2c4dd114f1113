"""`bixse evaluate` through every engine: the metrics of one process, of every query."""

from __future__ import annotations

import json

import pytest

from bixse.cli.verbs.evaluate import EvaluateSettings
from bixse.errors import ConfigError, IncompleteError
from bixse.scale.index.index_system import INDEX_FOLDER
from bixse.search.store import EmbeddingStore
from helpers.command import call, ended, refused, result_of, start


@pytest.fixture(autouse=True)
def judgements(collection):
    """Of each query the documents of its noun, and one of another: 80 queries, none of them at the end of its scale."""
    rows = [f"q{q}\td{(q + 80 * n) % 600}\t{1 + n % 3}" for q in range(80) for n in range(4)]
    rows += [f"q{q}\td{(q * 7 + 3) % 80}\t1" for q in range(80) if (q * 7 + 3) % 80 != q]
    (collection / "qrels").mkdir()
    (collection / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(rows) + "\n")


@pytest.fixture
def words(collection, tiny_model_path):
    return ("evaluate", tiny_model_path, "--collection", collection, "--cache", "none")


@pytest.fixture
def local(capsys, words, tmp_path):
    """What one process finds."""
    assert call(capsys, *words, "--out", tmp_path / "local")[0] == 0
    return found(tmp_path / "local")


def found(folder):
    """Metrics, values of every query and their ranking; no index is left."""
    record = json.loads((folder / "run.json").read_text())
    assert record["status"] == "finished"
    assert not (folder / INDEX_FOLDER).exists()
    ranking = [line.split()[:4] for line in (folder / "run.trec").read_text().splitlines()]
    same = {name: record[name] for name in ("fingerprint", "config", "inputs")}
    same |= {name: record["results"][name] for name in ("metrics", "prompts_hash")}
    return same, json.loads((folder / "per_query.json").read_text()), ranking


# --- what is refused


@pytest.mark.parametrize("given", [{"suite": "nanobeir", "data": "d"}, {"grades": "g", "human": "h"}])
@pytest.mark.parametrize("place", [{"engine": "ranks"}, {"shards": 3}])
def test_suites_and_grades_are_not_shared_out(collection, given, place):
    own = {} if "suite" in given else {"collection": collection}
    EvaluateSettings.load(None, {"model": ["demo"], **own, **given})
    with pytest.raises(ConfigError, match=r"collection alone.*fix"):
        EvaluateSettings.load(None, {"model": ["demo"], **own, **given, **place})


def test_machines_need_a_folder_that_they_share(capsys, words):
    assert "--out" in refused(capsys, *words, "--shards", "3")


def test_processes_of_a_launcher_that_would_all_do_the_same(capsys, words, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert "--engine ranks" in refused(capsys, *words, "--shards", "3", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_folder_of_another_run_is_refused_before_anything_is_encoded(capsys, words, local, tmp_path, monkeypatch):
    monkeypatch.setattr(EmbeddingStore, "encode", lambda *_: 1 / 0)
    flags = (*words, "--shards", "3", "--out", tmp_path / "local")
    assert "another run" in refused(capsys, *flags, "--max-length", "4")
    assert call(capsys, *flags)[0] == 0, "what is finished is shown"


def test_a_part_that_fails_twice_and_the_same_call_again(capsys, words, local, tmp_path, monkeypatch, fail_twice):
    tried = fail_twice(monkeypatch)
    flags = (*words, "--shards", "3", "--out", tmp_path / "out")
    with pytest.raises(IncompleteError, match="shard 2: RuntimeError"):
        result_of(*flags)
    assert call(capsys, *flags)[0] == 0
    assert tried == [256, 256, 88, 88, 88]
    assert found(tmp_path / "out") == local


# --- the same result


def test_ranks_evaluate_one_after_the_other(capsys, words, local, tmp_path, monkeypatch):
    flags = (*words, "--engine", "ranks", "--shards", "3", "--out", tmp_path / "out")
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "2")
    waiting = []
    for number in ("1", "1", "0", "1"):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", number)
        code, envelope = call(capsys, *flags)
        assert code == 0
        waiting.append(envelope["metrics"].get("waiting"))
    assert waiting == [2, 2, None, None]
    assert found(tmp_path / "out") == local


@pytest.mark.slow
def test_several_models_and_a_task_of_its_own(capsys, words, tiny_model, collection, tmp_path):
    """A second model, BM25 that encodes nothing, and queries that are documents."""
    next(tiny_model.parameters()).data.mul_(1.5)
    tiny_model.save_pretrained(str(tmp_path / "other"))
    several = ("evaluate", words[1], tmp_path / "other", "bm25", *words[2:], "--exclude-self", "--max-length", "5")
    code, whole = call(capsys, *several, "--out", tmp_path / "whole")
    assert code == 0
    code, parts = call(capsys, *several, "--shards", "3", "--out", tmp_path / "parts")
    assert (code, parts["metrics"]) == (0, whole["metrics"])
    assert not (tmp_path / "parts" / INDEX_FOLDER).exists()


@pytest.mark.slow
def test_ranks_that_end_at_once(words, local, tmp_path):
    flags = (*words, "--engine", "ranks", "--shards", "3", "--out", tmp_path / "out")
    ranks = [start(*flags, RANK=rank, WORLD_SIZE="2") for rank in ("0", "1")]
    assert [ended(process)[0] for process in ranks] == [0, 0]
    assert found(tmp_path / "out") == local
