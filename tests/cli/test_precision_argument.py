"""`--precision`, BIXSE_PRECISION and `precision:`: what is refused, what is recorded, and what is never mixed."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from bixse.cli.main import main
from bixse.data.collection import Collection, Document, save_collection
from bixse.encoders.loading.precision import PRECISION_VARIABLE
from helpers.command import call, refused

BOTH = ("float32", "bfloat16")
CHANGED = "precision (was 'bfloat16', now 'float32')"
CORPUS = {f"d{n}": Document("", f"{verb} the {thing}") for n, (verb, thing) in enumerate(
    (verb, thing) for verb in ("copy", "move", "delete") for thing in ("file", "folder", "path")
)}  # fmt: skip
QUERIES = {f"q{n}": f"how do i {document.text}" for n, document in enumerate(CORPUS.values())}


@pytest.fixture
def collection(tmp_path):
    qrels = {"q" + name[1:]: {name: 1, "d0" if name != "d0" else "d1": 0} for name in CORPUS}
    save_collection(Collection("toy", CORPUS, QUERIES, {"test": qrels, "dev": qrels}), tmp_path / "toy")
    return tmp_path / "toy"


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.jsonl"
    rows = [
        {"query": QUERIES[f"q{n}"], "document": CORPUS[f"d{other}"].text, "relevance": float(n == other)}
        for n in range(8)
        for other in (n, (n + 1) % 9)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def record(folder):
    return json.loads((folder / "run.json").read_text(encoding="utf-8"))


class TestRefused:
    @pytest.mark.parametrize("verb", ["doctor", "mine"])
    def test_a_flag_that_is_no_precision(self, capsys, verb):
        assert "precision: got 'half'" in refused(capsys, verb, "--precision", "half")

    @pytest.mark.parametrize("words", [("convert", "x.jsonl"), ("generate", "--corpus", "x.jsonl", "--server", "x")])
    def test_verbs_that_compute_nothing_have_no_such_flag(self, capsys, words):
        assert "--precision" in call(capsys, *words, "--precision", "float32")[1]["errors"][0]

    def test_a_variable_that_holds_none(self):
        environment = {**os.environ, PRECISION_VARIABLE: "fp16"}
        done = subprocess.run(
            [sys.executable, "-m", "bixse", "doctor"], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert f"{PRECISION_VARIABLE}: got 'fp16'; expected one of auto, float32, bfloat16" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("precision", BOTH)
def test_doctor_says_setting_and_source(capsys, monkeypatch, precision):
    monkeypatch.delenv(PRECISION_VARIABLE)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "auto (the default)" in shown
    assert "auto means " in shown
    assert main(["doctor", "--precision", precision]) == 0
    assert f"{precision} (from --precision)" in capsys.readouterr().out
    monkeypatch.setenv(PRECISION_VARIABLE, precision)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert f"{precision} (from {PRECISION_VARIABLE})" in shown
    assert f"models compute in {precision}" in shown


def test_an_evaluation_says_its_precision_and_is_not_taken_for_another(capsys, collection, tiny_model_path, tmp_path):
    words = ("evaluate", tiny_model_path, "--collection", collection, "--out", tmp_path / "out")
    code, found = call(capsys, *words, "--precision", "bfloat16")
    assert code == 0
    assert found["metrics"]["precision"] == record(tmp_path / "out")["config"]["precision"] == "bfloat16"
    assert main([*map(str, words), "--precision", "bfloat16"]) == 0
    assert "queries, bfloat16)" in capsys.readouterr().out
    assert CHANGED in refused(capsys, *words, "--precision", "float32")


def test_words_have_no_precision(capsys, collection, tmp_path):
    words = ("evaluate", "bm25", "--collection", collection, "--out", tmp_path / "out")
    for precision in BOTH:
        code, found = call(capsys, *words, "--precision", precision)
        assert code == 0
        assert "precision" not in found["metrics"]


class TestTraining:
    @pytest.fixture
    def settings(self, pairs, collection, tiny_model_path, tmp_path):
        path = tmp_path / "run.yaml"
        own = {"pairs": str(pairs), "dev": str(collection), "model": str(tiny_model_path), "precision": "float32"}
        own |= {"allow_shared_queries": True, "merge": None}
        path.write_text(
            yaml.safe_dump({**own, "optimizer": {"max_steps": 1, "global_batch_size": 4}}), encoding="utf-8"
        )
        return path

    def test_the_record_holds_what_was_computed_in(self, capsys, settings, tmp_path):
        """The flag beats the file; a run in another precision is another run."""
        for precision in BOTH:
            code, found = call(capsys, "train", "--config", settings, "--precision", precision, "--out",
                              tmp_path / precision)  # fmt: skip
            assert code == 0, found
            assert found["metrics"]["precision"] == precision
            assert record(tmp_path / precision)["config"]["precision"] == precision
        losses = [record(tmp_path / p)["results"]["history"][1]["loss"] for p in BOTH]
        assert losses[0] != losses[1]
        assert CHANGED in refused(capsys, "train", "--config", settings, "--out", tmp_path / "bfloat16")

    def test_a_launchers_mixed_precision_does_not_decide(self, monkeypatch, capsys, settings, tmp_path):
        call(capsys, "train", "--config", settings, "--out", tmp_path / "plain")
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
        call(capsys, "train", "--config", settings, "--out", tmp_path / "launched")
        histories = [record(tmp_path / name)["results"]["history"] for name in ("plain", "launched")]
        assert histories[0] == histories[1]

    def test_a_sweep_says_it_in_its_table(self, capsys, settings, tmp_path):
        path = tmp_path / "sweep.yaml"
        path.write_text(yaml.safe_dump({"base": str(settings), "vary": {"scale": [10, 20]}}), encoding="utf-8")
        code, found = call(capsys, "sweep", "--config", path, "--precision", "bfloat16", "--out", tmp_path / "sweep")
        assert code == 0, found
        assert [row["precision"] for row in found["metrics"]["rows"]] == ["bfloat16"] * 2
        assert (tmp_path / "sweep" / "sweep.csv").read_text(encoding="utf-8").count("bfloat16") == 2
        assert yaml.safe_load((tmp_path / "sweep" / "best.yaml").read_text(encoding="utf-8"))["precision"] == "bfloat16"
        assert CHANGED in refused(capsys, "sweep", "--config", path, "--out", tmp_path / "sweep")


def test_a_study_says_it_on_its_page_and_in_its_table(capsys, collection, pairs, tiny_model_path, tmp_path):
    path = tmp_path / "study.yaml"
    data = {"pairs": [str(pairs)], "dev": [str(collection)], "test": [str(collection)], "min_relevant_grade": 1}
    train = {"optimizer": {"max_steps": 1, "global_batch_size": 4}, "allow_shared_queries": True}
    values = {"losses": ["bixse"]}
    settings = {"data": data, "model": str(tiny_model_path), "train": train, "values": values, "seeds": [0]}
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    words = ("study", "losses", "--config", path, "--out", tmp_path / "out", "--jobs", "1")
    code, found = call(capsys, *words, "--precision", "bfloat16")
    assert code == 0, found
    assert "Computed in bfloat16." in (tmp_path / "out" / "findings.md").read_text(encoding="utf-8")
    assert "bfloat16" in (tmp_path / "out" / "runs.csv").read_text(encoding="utf-8")
    assert record(tmp_path / "out")["config"]["train"]["precision"] == "bfloat16"
    assert CHANGED in refused(capsys, *words, "--precision", "float32")
