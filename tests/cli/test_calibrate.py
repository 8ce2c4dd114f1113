"""`bixse calibrate --prior --at-precision` and `bixse search --at-precision` on a tiny model, unhappy paths first."""

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from bixse.cli.main import main
from bixse.data.collection import Collection, Document, save_collection
from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.encoders.head import RelevanceHead, Threshold
from bixse.encoders.loading.build import load_relevance_model
from helpers.command import call, refused

WORDS = """copy move delete open read write list file folder tree disk path name text byte line word number sum mean
sort find match search""".split()  # noqa: SIM905
FOUND = Threshold(0.9, 0.62, 0.91, 0.85, 0.95, 0.4, 120, 60, 0.5)


def make_pairs(folder, queries=24, relevance=(1.0, 0.0), noise=0):
    """A word is relevant to itself, and irrelevant to the next ones; one of every `noise` pairs is swapped."""
    rows = [
        {
            "query": query,
            "document": WORDS[(place + step) % len(WORDS)],
            "relevance": relevance[min(step, 1) ^ (noise > 0 and (5 * place + step) % noise == 3)],
        }
        for place, query in enumerate(WORDS[:queries])
        for step in range(5)
    ]
    save_graded_pairs(GradedPairs.from_rows(rows), folder / "pairs.csv")
    return folder / "pairs.csv"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--prior", "0"], "prior: got '0'"),
        (["--at-precision", "0.9", "--at-precision", "0"], "at_precision.1: got '0'"),
    ],
)
def test_arguments_out_of_range(capsys, model, tmp_path, words, said):
    assert said in refused(capsys, "calibrate", model, "--pairs", make_pairs(tmp_path), *words)
    assert not (model / "relevance_head.json").exists()


def test_too_little_to_fit_or_choose_on(capsys, model, tmp_path):
    few = make_pairs(tmp_path, 12)
    words = ("calibrate", model, "--pairs", few)
    assert "got pairs of 12 queries; expected at least 20" in refused(capsys, *words, "--at-precision", "0.9")
    for relevance in ((0.0, 0.0), (1.0, 1.0), (0.4, 0.4)):
        pairs = make_pairs(tmp_path, 24, relevance)
        said = refused(capsys, "calibrate", model, "--pairs", pairs)
        assert f"got relevance {relevance[0]:g} for all" in said
        assert "relevant and irrelevant pairs" in said
    pairs = make_pairs(tmp_path, 24, (0.4, 0.0))
    assert "all irrelevant" in refused(capsys, "calibrate", model, "--pairs", pairs, "--at-precision", "0.9")
    assert not (model / "relevance_head.json").exists()


def test_search_refuses(capsys, model, tmp_path):
    save_collection(Collection("toy", {"d1": Document("", "copy")}, {"q": "copy"}), tmp_path / "toy")
    words = ("search", model, "copy", "--collection", tmp_path / "toy")
    assert "--at-precision: got model" in refused(capsys, *words, "--at-precision", "0.9")
    RelevanceHead(20.0, -10.0).save(model)
    assert "it has none" in refused(capsys, *words, "--at-precision", "0.9")
    RelevanceHead(20.0, -10.0, thresholds=(FOUND,)).save(model)
    said = refused(capsys, *words, "--at-precision", "0.8")
    assert "precision: got 0.8; expected one that the model has a threshold for (0.9)" in said
    assert "--at-precision 0.8" in said
    assert "expected one of the two" in refused(capsys, *words, "--at-precision", "0.9", "--threshold", "0.5")


def test_thresholds_are_saved_and_searched_with(capsys, model, tmp_path):
    code, envelope = call(
        capsys, "calibrate", model, "--pairs", make_pairs(tmp_path), "--at-precision", 0.8, "--at-precision", 0.9, 0.5
    )
    assert code == 0, envelope
    points = envelope["metrics"]["thresholds"]
    assert [point["wanted"] for point in points] == [0.9, 0.8, 0.5]
    head = load_relevance_model(model, device="cpu").head
    assert head is not None
    assert [found.precision for found in head.thresholds] == [
        point["wanted"] for point in points if point["is_reached"]
    ]
    assert head.thresholds  # a word finds itself
    assert head.prior == pytest.approx(0.2)
    assert head.trained_prior is None
    corpus = {word: Document("", word) for word in WORDS}
    save_collection(Collection("toy", corpus, {"q": "copy"}), tmp_path / "toy")
    words = ("search", model, "copy", "--collection", tmp_path / "toy", "--top", "20")
    everything = call(capsys, *words)[1]["metrics"]["results"]
    for found in head.thresholds:
        shown = call(capsys, *words, "--at-precision", found.precision)[1]["metrics"]["results"]
        assert shown == call(capsys, *words, "--threshold", found.probability)[1]["metrics"]["results"]
        assert 1 <= len(shown) < len(everything)
    assert call(capsys, "index", model, "--collection", tmp_path / "toy", "--out", tmp_path / "index")[0] == 0
    again = call(capsys, "search", tmp_path / "index", "copy", "--top", "20", "--at-precision", 0.9)
    assert [row["document_id"] for row in again[1]["metrics"]["results"]][:1] == ["copy"]


def test_a_prior_moves_every_probability_and_is_kept(capsys, model, tmp_path):
    pairs = make_pairs(tmp_path, noise=4)
    assert call(capsys, "calibrate", model, "--pairs", pairs)[0] == 0
    before = load_relevance_model(model, device="cpu")
    assert before.head is not None
    RelevanceHead(20.0, -10.0, trained_prior=0.05, prior=0.05).save(model)
    code, envelope = call(
        capsys, "calibrate", model, "--pairs", pairs, "--prior", 0.01, "--at-precision", 0.9, "--out", tmp_path / "out"
    )
    assert code == 0, envelope
    assert {"before", "as trained, moved to prior 0.01", "refitted", "calibrated"} <= envelope["metrics"].keys()
    figures = envelope["metrics"]
    assert figures["calibrated"]["brier"] < figures["refitted"]["brier"]
    assert figures["calibrated"]["constant"] == pytest.approx(0.01 * 0.99)
    after = load_relevance_model(tmp_path / "out" / "model", device="cpu")
    assert after.head is not None
    assert (after.head.prior, after.head.trained_prior) == (0.01, 0.05)
    texts = WORDS[:6]
    odds = [np.log(p / (1 - p)) for p in (before.relevance("copy", texts), after.relevance("copy", texts))]
    assert (odds[1] < odds[0]).all()
    picture = ElementTree.parse(envelope["artifacts"]["diagram"]).getroot()
    assert picture.tag.endswith("svg")


def test_thresholds_of_probabilities_that_stay_as_they_were(capsys, model, tmp_path, monkeypatch):
    from bixse.calibration import calibrate_head

    monkeypatch.setattr(calibrate_head.HeldOutCheck, "helps", property(lambda check: False))
    head = RelevanceHead(20.0, -15.0)
    head.save(model)
    words = ("calibrate", model, "--pairs", make_pairs(tmp_path), "--at-precision", "0.5")
    code, envelope = call(capsys, *words)
    assert (code, envelope["metrics"]["saved"]) == (0, False)
    kept = RelevanceHead.load(model)
    assert kept is not None
    assert kept.as_trained() == head
    assert len(kept.thresholds) == 1
    head.save(model)
    assert main([str(word) for word in words]) == 0
    assert "thresholds of the probabilities as they were" in capsys.readouterr().out


def test_what_is_no_better_than_a_constant_is_saved_only_on_purpose(capsys, model, tmp_path):
    """Relevance that no cosine tells: the calibrated probabilities are about the base rate, and worse by chance."""
    generator = np.random.default_rng(3)
    rows = [
        {"query": query, "document": WORDS[place], "relevance": float(generator.random() < 0.15)}
        for query in WORDS
        for place in generator.permutation(len(WORDS))[:6]
    ]
    save_graded_pairs(GradedPairs.from_rows(rows), tmp_path / "pairs.csv")
    for out in (None, tmp_path / "out"):
        words = ["calibrate", model, "--pairs", tmp_path / "pairs.csv", *(["--out", out] if out else [])]
        code, envelope = call(capsys, *words, "--at-precision", "0.5")
        figures = envelope["metrics"]["calibrated"]
        assert figures["brier"] >= figures["constant"] and envelope["metrics"]["saved"] is False
        assert code == 1 and "--anyway" in envelope["errors"][0] and not envelope["artifacts"]
        assert not (model / "relevance_head.json").exists() and not (tmp_path / "out").exists()
        share = np.mean([row["relevance"] for row in rows])
        assert "always answering 0.1" in envelope["errors"][0] and 0.1 < share < 0.2
        code, envelope = call(capsys, *words, "--anyway")
        assert code == 0 and envelope["metrics"]["saved"] and "anyway" in envelope["warnings"][0]
        saved = Path(envelope["artifacts"]["model"])
        assert RelevanceHead.load(saved).prior == pytest.approx(share)
        (saved / "relevance_head.json").unlink()


def test_random_documents_are_added_and_counted(capsys, model, tmp_path):
    texts = {f"d{n}": Document("", f"{WORDS[n % 20]} {WORDS[n // 20]}") for n in range(100)}
    save_collection(Collection("toy", texts, {"q": "copy"}, {"test": {"q": {"d0": 1}}}), tmp_path / "toy")
    words = ("calibrate", model, "--pairs", make_pairs(tmp_path, noise=7), "--out", tmp_path / "out")
    more = ("--negatives", 3, "--collection", tmp_path / "toy")
    code, envelope = call(capsys, *words, *more)
    assert code == 0, envelope
    assert envelope["metrics"]["negatives"] == 24 * 3
    assert envelope["metrics"]["reliability"]
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["config"]["negatives"] == 3
    assert record["results"]["negatives"] == 72
    head = json.loads((tmp_path / "out" / "model" / "relevance_head.json").read_text())
    assert "120 pairs of pairs.csv and 72 random documents of toy" in head["calibrated_on"]
    assert head["prior"] < 0.2, "of the pairs alone it is about 0.2"
    code, again = call(capsys, *words, *more)
    assert (code, again["metrics"]) == (0, envelope["metrics"])
    (tmp_path / "toy" / "corpus.jsonl").open("a").write('{"_id": "new", "text": "new"}\n')
    assert "corpus.jsonl" in refused(capsys, *words, *more)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--negatives", "3"], "add collection"),
        (["--collection", "toy"], "add negatives"),
        (["--negatives", "0", "--collection", "toy"], "negatives: got '0'"),
        (["--negatives", "3", "--collection", "none"], "none"),
    ],
)
def test_random_documents_that_cannot_be_added(capsys, model, tmp_path, words, said, monkeypatch):
    save_collection(Collection("toy", {"d1": Document("", "copy")}, {"q": "copy"}), tmp_path / "toy")
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, "calibrate", model, "--pairs", make_pairs(tmp_path), *words)
    assert not (model / "relevance_head.json").exists()


def test_cuts_for_vector_stores(capsys, model, tmp_path):
    out = tmp_path / "out"
    words = ("calibrate", model, "--pairs", make_pairs(tmp_path), "--at-precision", "0.5", "--out", out)
    code, envelope = call(capsys, *words, "--export", "0.3", "0.8")
    assert code == 0
    head = load_relevance_model(out / "model").head
    cuts = json.loads((out / "export" / "cuts.json").read_text())
    assert cuts == envelope["metrics"]["cuts"]
    assert {0.3, 0.8, head.threshold_for(0.5)} == {cut["probability"] for cut in cuts}
    assert all(cut["cosine"] == pytest.approx(head.cosine_at(cut["probability"])) for cut in cuts)
    assert str(out / "model") in (out / "export" / "qdrant.py").read_text()


def test_probabilities_that_no_cut_has(capsys, model, tmp_path):
    said = refused(capsys, "calibrate", model, "--pairs", make_pairs(tmp_path), "--export", "1")
    assert "export" in said
