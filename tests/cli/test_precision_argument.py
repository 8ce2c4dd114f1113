"""`--precision`, BIXSE_PRECISION and `precision:`: refused values, recorded values, and runs that are never mixed."""

import json

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


def test_a_flag_or_variable_that_is_no_precision(capsys, monkeypatch):
    for verb in ("doctor", "mine"):
        assert "precision: got 'half'" in refused(capsys, verb, "--precision", "half")
    for words in (("convert", "x.jsonl"), ("generate", "--corpus", "x.jsonl", "--server", "x")):
        assert "--precision" in call(capsys, *words, "--precision", "float32")[1]["errors"][0], "it computes nothing"
    monkeypatch.setenv(PRECISION_VARIABLE, "fp16")
    assert f"{PRECISION_VARIABLE}: got 'fp16'" in refused(capsys, "doctor")


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


def test_bm25_has_no_precision(capsys, collection, tmp_path):
    for precision in BOTH:
        words = ("evaluate", "bm25", "--collection", collection, "--out", tmp_path / "out", "--precision", precision)
        code, envelope = call(capsys, *words)
        assert (code, "precision" in envelope["metrics"]) == (0, False)


@pytest.fixture
def settings(inputs, tmp_path):
    return write(tmp_path / "run.yaml", {**inputs, **TRAIN, "dev_split": "test", "precision": "float32"})


@pytest.fixture
def words_of(inputs, settings, tmp_path):
    """Verb -> its words without --out. A flag beats the precision of the file of training."""
    data = {"pairs": [inputs["pairs"]], "dev": [inputs["dev"]], "test": [inputs["dev"]], "min_relevant_grade": 1}
    study = {"data": data, "model": inputs["model"], "train": TRAIN, "values": {"losses": ["bixse"]}, "seeds": [0]}
    sweep = {"base": str(settings), "vary": {"scale": [10, 20]}}
    return {
        "evaluate": ("evaluate", inputs["model"], "--collection", inputs["dev"]),
        "train": ("train", "--config", settings),
        "sweep": ("sweep", "--config", write(tmp_path / "sweep.yaml", sweep)),
        "study": ("study", "losses", "--config", write(tmp_path / "study.yaml", study), "--jobs", "1"),
    }


@pytest.mark.parametrize(
    ("verb", "files"),
    [
        ("evaluate", {}),
        ("train", {}),
        ("sweep", {"sweep.csv": 2, "best.yaml": 1}),
        ("study", {"findings.md": 2, "runs.csv": 2}),
    ],
)
def test_precision_is_in_results_and_tables_and_another_one_is_another_run(capsys, words_of, tmp_path, verb, files):
    words, out = (*words_of[verb], "--out", tmp_path / "out"), tmp_path / "out"
    assert main([*map(str, words), "--precision", "bfloat16"]) == 0
    assert ("bfloat16" in capsys.readouterr().out) or verb == "study"
    assert {name: (out / name).read_text(encoding="utf-8").count("bfloat16") for name in files} == files
    code, envelope = call(capsys, *words, "--precision", "bfloat16")
    metrics, config = envelope["metrics"], record(out)["config"]
    rows = [] if verb == "study" else metrics.get("rows", [metrics])
    assert code == 0 and all(row["precision"] == "bfloat16" for row in rows)
    assert config.get("train", config)["precision"] == "bfloat16"
    assert CHANGED in refused(capsys, *words, "--precision", "float32")


def test_a_launchers_mixed_precision_does_not_decide(monkeypatch, capsys, settings, tmp_path):
    losses = []
    for name, words in (("plain", ()), ("launched", ()), ("bfloat16", ("--precision", "bfloat16"))):
        if name == "launched":
            monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
        call(capsys, "train", "--config", settings, *words, "--out", tmp_path / name)
        losses.append(record(tmp_path / name)["results"]["history"][1]["loss"])
    assert losses[0] == losses[1] != losses[2]
