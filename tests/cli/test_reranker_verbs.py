"""The verbs that take a reranker's folder, and those that refuse it."""

import json
import shutil

import pytest

from bixse.data.graded_pairs import Pairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.encoders.head import RelevanceHead
from bixse.encoders.loading.load_scorer import load_relevance_model, load_scorer
from bixse.judging.judge import Question
from bixse.judging.open_judge import JudgeConfig
from bixse.judging.rubrics import load_rubric
from helpers.command import call, refused
from helpers.rerankers import save_reranker


@pytest.fixture(scope="module")
def saved(tmp_path_factory, tiny_model_path):
    return save_reranker(tiny_model_path, tmp_path_factory.mktemp("reranker") / "model")


@pytest.fixture
def reranker(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "reranker")


@pytest.fixture
def pairs(tmp_path):
    """Pairs whose relevance is a steep sigmoid of the logit, so that a calibration helps."""
    rows = [
        {"query": f"{word} a {thing}", "document": text, "relevance": 0.0}
        for word in ("copy", "move", "sort", "read", "write", "join", "split", "wait")
        for thing in ("file", "list")
        for text in (f"{word} the {thing}", "sleep and wait", "sort the list in the heap", f"{thing} of text")
    ]
    return rows


@pytest.mark.parametrize("verb", ["index", "search", "evaluate", "merge", "train", "mine"])
def test_a_verb_of_encoders_refuses_a_reranker(capsys, reranker, collection, tiny_model_path, tmp_path, actions, verb):
    out, pairs = tmp_path / "out", actions.parent / "pairs.jsonl"
    words = {
        "index": ("index", reranker, "--collection", collection, "--out", out),
        "search": ("search", reranker, "copy", "--collection", collection),
        "evaluate": ("evaluate", reranker, "--collection", collection),
        "merge": ("merge", reranker, tiny_model_path, "--weights", "0.5", "0.5", "--out", out),
        "train": ("train", "--model", reranker, "--pairs", pairs, "--out", out),
        "mine": ("mine", "--collection", collection, "--retriever", reranker, "--out", out),
    }[verb]
    message = refused(capsys, *words)
    assert "reranker" in message
    assert not out.exists()


@pytest.mark.parametrize(
    "words",
    [
        ("--rerank-depth", "5", "--collection", "COLLECTION"),
        ("--rerank", "ENCODER", "--collection", "COLLECTION"),
        ("--rerank", "RERANKER", "--suite", "beir", "--data", "x"),
        ("--rerank", "RERANKER", "--grades", "g", "--human", "h"),
        ("--rerank", "RERANKER", "--rerank-depth", "0", "--collection", "COLLECTION"),
    ],
)
def test_wrong_use_of_rerank(capsys, reranker, tiny_model_path, collection, words):
    paths = {"ENCODER": tiny_model_path, "RERANKER": reranker, "COLLECTION": collection}
    assert "rerank" in refused(capsys, "evaluate", "bm25", *(paths.get(word, word) for word in words))


def test_a_table_has_each_first_stage_before_and_after(capsys, reranker, actions, tiny_model_path, tmp_path):
    words = ("evaluate", "bm25", tiny_model_path, "--collection", actions, "--rerank", reranker, "--rerank-depth", "5")
    code, result = call(capsys, *words, "--out", tmp_path / "out")
    assert code == 0
    stored = json.loads((tmp_path / "out" / "results.json").read_text())
    firsts = ["bm25", str(tiny_model_path)]
    labels = firsts + [f"{first}, reranked by {reranker}" for first in firsts]
    assert [label for label in labels if label not in json.dumps(stored)] == []
    assert len(result["metrics"]["comparisons"]) == 6


def test_calibrate_fits_the_head_of_a_reranker(capsys, reranker, pairs, tmp_path):
    model = load_scorer(reranker)
    logits = model.logits([row["query"] for row in pairs], [row["document"] for row in pairs])
    middle = sorted(logits)[len(logits) // 2]
    for row, logit in zip(pairs, logits, strict=True):
        row["relevance"] = float(logit > middle)
    save_graded_pairs(Pairs.from_rows(pairs), tmp_path / "pairs.jsonl")
    words = ("calibrate", reranker, "--pairs", tmp_path / "pairs.jsonl", "--anyway")  # 12 queries tell nothing
    assert "task" in refused(capsys, *words, "--task", "x")
    assert "dimensions" in refused(capsys, *words, "--dimensions", "16")
    code, result = call(capsys, *words)
    assert (code, result["metrics"]["saved"]) == (0, True)
    head = RelevanceHead.load(reranker)
    assert head.slope > 1 and head.calibrated_on
    first = pairs[0]
    probability = load_relevance_model(reranker).relevance(first["query"], [first["document"]])
    assert probability == pytest.approx(head.probability(logits[:1]), abs=1e-6)
    head.as_trained().save(reranker)
    assert call(capsys, *words, "--out", tmp_path / "out")[0] == 0
    copy = load_scorer(tmp_path / "out" / "model")
    assert copy.head.slope == pytest.approx(head.slope)
    assert copy.logits(["copy a file"], ["copy the file"]) == model.logits(["copy a file"], ["copy the file"])


@pytest.mark.precision("float32")
@pytest.mark.parametrize("head", [None, RelevanceHead(1.0, 0.0), RelevanceHead(1.0, 0.0, slope=0.5, intercept=-1.0)])
def test_a_judge_grades_with_the_head_of_the_folder(tiny_model_path, tmp_path, head):
    folder = save_reranker(tiny_model_path, tmp_path / "model", head)
    rubric = load_rubric("trec-dl-0-3")
    judge = JudgeConfig(judge={"name": f"cross-encoder:{folder}"}, rubric=rubric).open()
    (_, answer), *_ = judge.answers([Question("q", "d", "copy a file", "copy the file")])
    logit = load_scorer(folder).logits(["copy a file"], ["copy the file"])
    expected = (head or RelevanceHead(1.0, 0.0)).probability(logit)[0]
    assert answer.grade == pytest.approx(expected, abs=1e-5)
    assert (judge.identity["map"] == "logit") == (head is None or head.slope == 1.0)
    stated = JudgeConfig(judge={"name": f"cross-encoder:{folder}", "score_map": "platt:2,1"}, rubric=rubric).open()
    (_, other), *_ = stated.answers([Question("q", "d", "copy a file", "copy the file")])
    assert other.grade == pytest.approx(RelevanceHead(2.0, 1.0).probability(logit)[0], abs=1e-5)
