"""`--precision`, BIXSE_PRECISION and `precision:`: refused values, recorded values, and runs that are never mixed."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from bixse.cli.main import main
from bixse.encoders.loading.precision import PRECISION_VARIABLE
from helpers.command import call, refused

BOTH = ("float32", "bfloat16")
CHANGED = "precision (was 'bfloat16', now 'float32')"
TRAIN = {"optimizer": {"max_steps": 1, "global_batch_size": 4}, "merge": None}


@pytest.fixture
def inputs(collection, tiny_model_path, tmp_path):
    """Paths of pairs, of a collection with the same queries, and of the tiny model."""
    texts = ["copy the file", "move the folder", "delete the path", "sort the list", "read the line", "split the text"]
    rows = [
        {"query": f"how do i {query}", "document": document, "relevance": float(query == document)}
        for query, other in zip(texts, texts[1:] + texts[:1], strict=True)
        for document in (query, other)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {"pairs": str(tmp_path / "pairs.jsonl"), "dev": str(collection), "model": str(tiny_model_path)}


def record(folder):
    return json.loads((folder / "run.json").read_text(encoding="utf-8"))


def write(path, settings):
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


def test_a_flag_or_variable_that_is_no_precision(capsys):
    for verb in ("doctor", "mine"):
        assert "precision: got 'half'" in refused(capsys, verb, "--precision", "half")
    for words in (("convert", "x.jsonl"), ("generate", "--corpus", "x.jsonl", "--server", "x")):
        assert "--precision" in call(capsys, *words, "--precision", "float32")[1]["errors"][0], "it computes nothing"
    environment = {**os.environ, PRECISION_VARIABLE: "fp16"}
    command = [sys.executable, "-m", "bixse", "doctor"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"{PRECISION_VARIABLE}: got 'fp16'; expected one of auto, float32, bfloat16" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("precision", BOTH)
def test_doctor_names_setting_and_source(capsys, monkeypatch, precision):
    monkeypatch.delenv(PRECISION_VARIABLE)
    assert call(capsys, "doctor")[1]["metrics"]["precision"] == "auto (the default)"
    shown = call(capsys, "doctor", "--precision", precision)[1]["metrics"]["precision"]
    assert shown == f"{precision} (from --precision)"
    monkeypatch.setenv(PRECISION_VARIABLE, precision)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert f"{precision} (from {PRECISION_VARIABLE})" in shown
    assert f"models compute in {precision}" in shown


def test_an_evaluation_in_another_precision_is_another_run(capsys, collection, tiny_model_path, tmp_path):
    words = ("evaluate", tiny_model_path, "--collection", collection, "--out", tmp_path / "out")
    code, envelope = call(capsys, *words, "--precision", "bfloat16")
    assert code == 0
    assert envelope["metrics"]["precision"] == record(tmp_path / "out")["config"]["precision"] == "bfloat16"
    assert main([*map(str, words), "--precision", "bfloat16"]) == 0
    assert "queries, bfloat16)" in capsys.readouterr().out
    assert CHANGED in refused(capsys, *words, "--precision", "float32")


def test_bm25_has_no_precision(capsys, collection, tmp_path):
    for precision in BOTH:
        words = ("evaluate", "bm25", "--collection", collection, "--out", tmp_path / "out", "--precision", precision)
        code, envelope = call(capsys, *words)
        assert (code, "precision" in envelope["metrics"]) == (0, False)


class TestTraining:
    @pytest.fixture
    def settings(self, inputs, tmp_path):
        return write(tmp_path / "run.yaml", {**inputs, **TRAIN, "dev_split": "test", "precision": "float32"})

    def test_a_flag_beats_the_file_and_another_precision_is_another_run(self, capsys, settings, tmp_path):
        for precision in BOTH:
            words = ("train", "--config", settings, "--precision", precision, "--out", tmp_path / precision)
            code, envelope = call(capsys, *words)
            assert code == 0, envelope
            assert envelope["metrics"]["precision"] == precision
            assert record(tmp_path / precision)["config"]["precision"] == precision
        losses = [record(tmp_path / precision)["results"]["history"][1]["loss"] for precision in BOTH]
        assert losses[0] != losses[1]
        assert CHANGED in refused(capsys, "train", "--config", settings, "--out", tmp_path / "bfloat16")

    def test_a_launchers_mixed_precision_does_not_decide(self, monkeypatch, capsys, settings, tmp_path):
        call(capsys, "train", "--config", settings, "--out", tmp_path / "plain")
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
        call(capsys, "train", "--config", settings, "--out", tmp_path / "launched")
        histories = [record(tmp_path / name)["results"]["history"] for name in ("plain", "launched")]
        assert histories[0] == histories[1]

    def test_a_sweep_has_its_precision_in_table_and_best_settings(self, capsys, settings, tmp_path):
        path = write(tmp_path / "sweep.yaml", {"base": str(settings), "vary": {"scale": [10, 20]}})
        out = tmp_path / "sweep"
        code, envelope = call(capsys, "sweep", "--config", path, "--precision", "bfloat16", "--out", out)
        assert code == 0, envelope
        assert [row["precision"] for row in envelope["metrics"]["rows"]] == ["bfloat16"] * 2
        assert (out / "sweep.csv").read_text(encoding="utf-8").count("bfloat16") == 2
        assert yaml.safe_load((out / "best.yaml").read_text(encoding="utf-8"))["precision"] == "bfloat16"
        assert CHANGED in refused(capsys, "sweep", "--config", path, "--out", out)


def test_a_study_has_its_precision_in_findings_and_table(capsys, inputs, tmp_path):
    data = {"pairs": [inputs["pairs"]], "dev": [inputs["dev"]], "test": [inputs["dev"]], "min_relevant_grade": 1}
    settings = {"data": data, "model": inputs["model"], "train": TRAIN, "values": {"losses": ["bixse"]}, "seeds": [0]}
    path, out = write(tmp_path / "study.yaml", settings), tmp_path / "out"
    words = ("study", "losses", "--config", path, "--out", out, "--jobs", "1")
    code, envelope = call(capsys, *words, "--precision", "bfloat16")
    assert code == 0, envelope
    assert "Computed in bfloat16." in (out / "findings.md").read_text(encoding="utf-8")
    assert "bfloat16" in (out / "runs.csv").read_text(encoding="utf-8")
    assert record(out)["config"]["train"]["precision"] == "bfloat16"
    assert CHANGED in refused(capsys, *words, "--precision", "float32")
