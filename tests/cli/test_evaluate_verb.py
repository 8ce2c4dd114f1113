import json
from pathlib import Path

import numpy as np
import platformdirs
import pytest

from bixse.cli.main import main
from bixse.data.collection import Collection, save_collection
from bixse.data.corpus import Document
from bixse.data.trec import read_qrels, read_run
from bixse.encoders.head import RelevanceHead
from bixse.errors import InputError
from bixse.files.files import cache_folder
from bixse.index.search import open_index
from bixse.mining.mine import mine_into
from bixse.mining.mine_settings import MineConfig
from helpers.command import call, refused, result_of
from helpers.toy import save_toy

SMALL = Path(__file__).parents[1] / "audit" / "audit_labels"
HUMAN, CAREFUL, BM25, DENSE = (SMALL / name for name in ("human.qrels.txt", "careful.txt", "bm25.run", "dense.run"))


@pytest.fixture
def data(tmp_path):
    for name in ("NFCorpus", "scifact"):
        save_toy(tmp_path / "data" / name)
    return tmp_path / "data"


def test_a_changed_model_is_another_run_but_not_a_changed_head(capsys, collection, model, tmp_path):
    out = tmp_path / "out"
    words = ("evaluate", model, "--collection", collection, "--exclude-self", "--out", out)
    code, first = call(capsys, *words)
    assert (code, first["metrics"]["mrr@10"]) == (0, 1.0)
    assert first["artifacts"] == {"run": str(out / "run.trec"), "record": str(out / "run.json")}
    assert set(read_run(out / "run.trec")) == {"q1", "q2", "q3"}
    RelevanceHead(20.0, -15.0).save(model)  # changes probabilities, not the ranking
    assert call(capsys, *words) == (0, first)
    pooling = model / "1_Pooling" / "config.json"
    pooling.write_text(pooling.read_text().replace('"mean"', '"cls"'))
    assert "model/1_Pooling/config.json" in refused(capsys, *words)
    assert "min_relevant_grade (was 1, now 2)" in refused(capsys, *words, "--min-relevant-grade", "2")


def test_empty_documents_are_searched_and_warned_of(capsys, model, tmp_path):
    words = ["copy", "move", "delete", "open", "read"]
    corpus = {f"d-{word}": Document(word, f"{word} a file") for word in words}
    corpus |= {"empty": Document("", ""), "blank": Document(" ", "")}
    qrels = {"test": {f"q-{word}": {f"d-{word}": 3.0, "empty": 0.0} for word in words}}
    save_collection(Collection("toy", corpus, {f"q-{word}": word for word in words}, qrels), tmp_path / "toy")
    warning = "2 of 7 documents have neither title nor text ('empty'): they stay in the corpus"
    options = ("--collection", tmp_path / "toy")
    for system in (model, "bm25"):
        code, envelope = call(capsys, "evaluate", system, *options)
        assert (code, envelope["warnings"]) == (0, [warning])
        assert 0 < envelope["metrics"]["ndcg@10"] <= 1
    code, envelope = call(capsys, "index", model, *options, "--out", tmp_path / "index")
    assert (code, envelope["warnings"][0]) == (0, warning)
    with open_index(tmp_path / "index") as index:
        hits = index.search("copy", top=12)
        assert {hit.document_id for hit in hits} >= {"empty", "blank"}
        assert np.isfinite([hit.cosine for hit in hits]).all()
    assert call(capsys, "search", model, "copy", *options)[1]["warnings"] == [warning]


def test_queries_that_stand_in_a_relevant_document_are_counted(capsys, tmp_path):
    corpus = {"d1": Document("", "First: how do i copy a file? See cp."), "d2": Document("", "how to move a folder")}
    queries = {"q1": "How do I copy a file?", "q2": "how do i move a folder"}
    save_collection(Collection("toy", corpus, queries, {"test": {"q1": {"d1": 1}, "q2": {"d2": 1}}}), tmp_path / "toy")
    code, envelope = call(capsys, "evaluate", "bm25", "--collection", tmp_path / "toy")
    (warning,) = envelope["warnings"]
    assert code == 0 and warning.startswith("1 of 2 queries")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "got no collection"),
        (["--collection", "NFCorpus", "--data", ".", "--tasks", "x"], "got data, tasks for suite local"),
        (["--suite", "beir", "--data", ".", "--collection", "NFCorpus"], "got collection for suite beir"),
        (["--suite", "beir", "--data", ".", "--exclude-self"], "got exclude_self for suite beir"),
        (["--task", "x", "--collection", "NFCorpus"], "no instructions"),
        (["bm25", "--collection", "NFCorpus"], "the same checkpoint"),
        (["./none", "--collection", "NFCorpus", "--out", "out"], "got no such folder"),
        (["--grades", str(CAREFUL)], "give both"),
        (["--grades", str(CAREFUL), "--human", str(HUMAN), "--max-length", "9"], "embed no text"),
        (["--suite", "beir", "--data", ".", "--rerank-depth", "5"], "got rerank_depth for suite beir"),
    ],
)
def test_settings_that_do_not_fit(capsys, data, monkeypatch, words, message):
    monkeypatch.chdir(data)
    assert message in refused(capsys, "evaluate", "bm25", *words)
    assert not (data / "out").exists()


def test_several_models_on_one_collection(capsys, data, tiny_model_path, tmp_path):
    out = tmp_path / "out"
    words = ("evaluate", tiny_model_path, "bm25", "--collection", data / "NFCorpus", "--out", out)
    code, first = call(capsys, *words)
    artifacts = {"results": str(out / "results.json"), "record": str(out / "run.json")}
    assert (code, first["artifacts"]) == (0, artifacts)
    assert set(first["metrics"]["systems"]) == {str(tiny_model_path), "bm25"}
    (pair,) = first["metrics"]["comparisons"]
    assert (pair["a"], pair["b"]) == (str(tiny_model_path), "bm25")
    assert sorted(path.name for path in (out / "bm25").iterdir()) == ["per_query.json", "run.json", "run.trec"]
    before = (out / "bm25" / "run.json").read_bytes()
    assert call(capsys, *words) == (0, first)
    assert (out / "bm25" / "run.json").read_bytes() == before
    assert main([str(word) for word in words]) == 0
    assert "randomisation test" in capsys.readouterr().out


def test_cut_embeddings_are_compared_and_indexed(capsys, data, tiny_model_path, tmp_path):
    where = ("--collection", data / "NFCorpus")
    words = ("evaluate", tiny_model_path, *where, "--dimensions", 32, 8, 2)
    code, envelope = call(capsys, *words, "--out", tmp_path / "out")
    assert code == 0 and len(envelope["metrics"]["systems"]) == 3
    assert call(capsys, *words, "--out", tmp_path / "out")[1] == envelope
    runs = {path.parent.name.split("-")[-2]: read_run(path) for path in (tmp_path / "out").glob("*/run.trec")}
    assert runs["32"]["q1"]["d2"] != runs["8"]["q1"]["d2"] != runs["2"]["q1"]["d2"]
    assert call(capsys, "index", tiny_model_path, *where, "--dimensions", 8, "--out", tmp_path / "index")[0] == 0
    call(capsys, "evaluate", tmp_path / "index", *where, "--out", tmp_path / "indexed")
    assert read_run(tmp_path / "indexed" / "run.trec")["q1"] == pytest.approx(runs["8"]["q1"], abs=1e-5)
    refused(capsys, "evaluate", "bm25", *where, "--dimensions", 8)
    refused(capsys, *words[:-3], 33)


def test_a_suite_as_text_and_as_json(capsys, data, tiny_model_path, tmp_path):
    words = ("evaluate", tiny_model_path, "bm25", "--suite", "beir", "--data", data, "--tasks", "NFCorpus", "SciFact")
    code, envelope = call(capsys, *words, "--out", tmp_path / "out")
    assert code == 0
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == envelope["metrics"]
    assert envelope["metrics"]["systems"]["bm25"]["means"].keys() == {"mean over tasks"}
    assert main([str(word) for word in words]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("NFCorpus", "SciFact", "mean over tasks", "p (Holm)", "Note: "))


def sampled(path, **more):
    rows = [(q, d, g) for q, grades in read_qrels(HUMAN).items() for d, g in grades.items()][::3]
    lines = [json.dumps({"query_id": q, "document_id": d, "grade": g, **more}) for q, d, g in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_few_labels_refuse_systems_that_search_and_labels_of_other_pairs(tmp_path):
    (other := tmp_path / "other.txt").write_text("q0 0 nowhere 1\nq1 0 nowhere 3\n")
    for system, human, words, message in (
        ("bm25", HUMAN, [], "expected a run file"),
        (BM25, HUMAN, ["--collection", tmp_path], "got collection for --grades"),
        (BM25, other, ["--scale", 0, 3], "graded"),
    ):
        with pytest.raises(InputError, match=message):
            result_of("evaluate", system, "--grades", CAREFUL, "--human", human, *words)


def test_few_labels_off_the_scale_are_left_out(tmp_path):
    labels = sampled(tmp_path / "labels.jsonl")
    labels.write_text(labels.read_text().replace('"grade": 3', '"grade": -1'))
    result = result_of("evaluate", BM25, "--grades", CAREFUL, "--human", labels, "--scale", 0, 3)
    assert result.exit_code == 3 and "impossible labels" in result.text
    assert result.metrics["labelled"] < 60


def test_few_labels_compare_runs(tmp_path):
    labels = sampled(tmp_path / "labels.jsonl", probability=0.33)
    words = ("evaluate", DENSE, BM25, "--grades", CAREFUL, "--human", labels, "--scale", 0, 3)
    words += ("--min-relevant-grade", 2, "--out", tmp_path / "out")
    result = result_of(*words)
    assert (result.exit_code, result.metrics["labelled"], result.metrics["drawn"]) == (0, 60, "pairs")
    contrasts = [(estimate["metric"], estimate["baseline"]) for estimate in result.metrics["estimates"]]
    assert contrasts == [("precision@10", baseline) for baseline in (None, None, str(BM25))]
    assert json.loads((tmp_path / "out" / "few_labels.json").read_text()) == json.loads(json.dumps(result.metrics))
    assert result_of(*words).metrics == result.metrics


def documents(encoded):
    return sum(kind == "document" for kind, _ in encoded)


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_all_verbs_share_one_store_outside_the_collection(capsys, collection, cache_path, tmp_path, model, encoded):
    before = files(collection)
    for _ in range(2):
        call(capsys, "evaluate", model, "--collection", collection)
    call(capsys, "search", model, "copy", "--collection", collection)
    mine_into(MineConfig(collection=collection, split="test", retrievers=(str(model),)), tmp_path / "mined")
    assert documents(encoded) == 4
    assert files(collection) == before
    assert [path.parent for path in cache_path.rglob("*.sqlite")] == [cache_path / "embeddings"]


def test_cache_is_another_folder_or_none(capsys, collection, cache_path, tmp_path, model, encoded, monkeypatch):
    words = ("evaluate", model, "--collection", collection, "--cache")
    before = files(collection)
    for _ in range(2):
        call(capsys, *words, "none")
    monkeypatch.setenv("BIXSE_CACHE_DIR", "none")
    call(capsys, *words[:-1])
    assert documents(encoded) == 3 * 4
    for _ in range(2):
        call(capsys, *words, tmp_path / "other")
    assert documents(encoded) == 4 * 4
    assert len(list((tmp_path / "other").rglob("*.sqlite"))) == 1
    assert (files(collection), cache_path.exists()) == (before, False)


def test_the_default_is_the_users_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("BIXSE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == platformdirs.user_cache_path("bixse", appauthor=False)
    assert cache_folder("~/x") == cache_folder("~/x").expanduser()


def test_doctor_shows_and_clears_the_cache(capsys, collection, cache_path, model, monkeypatch):
    call(capsys, "evaluate", model, "--collection", collection)
    (stored,) = cache_path.rglob("*.sqlite")
    (other := cache_path / "embeddings" / "notes.txt").write_text("not ours")
    assert call(capsys, "doctor")[1]["metrics"]["cache"] == str(cache_path)
    assert stored.exists()
    assert main(["doctor", "--clear-cache"]) == 0
    assert (stored.exists(), other.read_text()) == (False, "not ours")
    monkeypatch.setenv("BIXSE_CACHE_DIR", "none")
    assert call(capsys, "doctor", "--clear-cache")[1]["metrics"]["cache"] == "none"
