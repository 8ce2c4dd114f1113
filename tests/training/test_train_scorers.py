"""Training rerankers, late interaction and sparse encoders: what is refused, and what a run ends with."""

import json
import shutil

import numpy as np
import pytest
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SparseEncoder

from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import load_pairs, save_graded_pairs
from bixse.data.pydocs import PYDOCS_SCALE, load_pydocs
from bixse.encoders.head import HEAD_FILE, RelevanceHead, log_odds
from bixse.encoders.loading.build import load_relevance_model, load_scorer
from bixse.errors import ConfigError, InputError, ModelError, OutputExistsError
from bixse.training.config import REFUSED, TrainConfig
from bixse.training.dev_evaluation import dev_figures
from bixse.training.dry_run import plan_training
from bixse.training.recipe import train
from helpers.command import call
from helpers.rerankers import EMBEDDING_KINDS, save_reranker

KINDS = ("reranker", *EMBEDDING_KINDS)
OTHERS = {
    "instructions": "paper", "merge": {"weights": [0.5]}, "bidirectional": True, "pooling": "mean",
    "lora": {}, "scale": 20.0, "dimensions": [16], "loss_options": {"bias": 0.0},
    "sharding": "full", "regrade": {"judge": "replay:x"}, "optimizer": {"bias_lr_multiplier": 1.0},
}  # fmt: skip
"""A value of each setting that a kind refuses."""
ONE_STEP = {"dev": None, "optimizer": {"max_steps": 1}}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(params=EMBEDDING_KINDS)
def embedding_kind(request):
    return request.param


class TestUnhappyPaths:
    @pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, refused in REFUSED.items() for name in refused])
    def test_a_setting_without_a_meaning_is_refused_with_its_reason(self, kind, name):
        section = "optimizer" if name == "bias_lr_multiplier" else name
        with pytest.raises(ConfigError, match=REFUSED[kind][name]):
            TrainConfig.load(None, {"pairs": "pairs.jsonl", "kind": kind, section: OTHERS[section]})

    @pytest.mark.parametrize(
        "change",
        [
            {"loss": "bixse-anchor"},
            {"loss": {"bixse": 1.0, "spread-out": 0.1}},
            {"loss_options": {"unlabelled": "base"}},
            {"loss_options": {"gradient_cache": True}},
        ],
    )
    def test_a_loss_that_needs_embeddings(self, train_toy, tmp_path, embedding_kind, change):
        with pytest.raises(InputError):
            train_toy(kind=embedding_kind, **change)
        assert not (tmp_path / "out" / "run.json").exists()

    def test_a_model_that_cannot_become_one_of_the_kind(self, train_toy, tiny_model_path, student, tmp_path, kind):
        model = student if kind == "reranker" else save_reranker(tiny_model_path, tmp_path / "reranker")
        with pytest.raises(ModelError, match="reranker"):
            train_toy(kind=kind, model=model)
        assert not (tmp_path / "out" / "run.json").exists()

    def test_several_processes_and_a_dry_run(self, train_toy, run_config, tmp_path, monkeypatch, kind):
        with pytest.raises(InputError, match="dry-run"):
            plan_training(run_config(kind=kind), tmp_path / "out")
        monkeypatch.setattr("bixse.training.scorer_parts.world_size", lambda: 2)
        with pytest.raises(InputError, match="processes"):
            train_toy(kind=kind)
        assert not (tmp_path / "out" / "run.json").exists()

    def test_the_folder_of_a_run_of_another_kind(self, train_toy):
        train_toy(kind="sparse", **ONE_STEP)
        for other in ("late-interaction", "encoder"):
            with pytest.raises(OutputExistsError, match="kind"):
                train_toy(kind=other, **ONE_STEP)


def plain_score(kind, folder, pair):
    """The score of a pair before the head, by the plain library."""
    if kind == "reranker":
        return log_odds(float(CrossEncoder(str(folder), device="cpu").predict([(pair.query, pair.document)])[0]))
    plain = {"late-interaction": MultiVectorEncoder, "sparse": SparseEncoder}[kind](str(folder), device="cpu")
    return float(plain.similarity(plain.encode_query([pair.query]), plain.encode_document([pair.document])))


def test_a_trained_model_has_a_head_and_loads_in_the_plain_library(train_toy, actions, tmp_path, kind):
    settings = {"kind": kind, "dev": None, "optimizer": {"max_steps": 12, "learning_rate": 3e-3}}
    result = train_toy(**settings)
    entries = [entry for entry in result.history if "loss" in entry]
    assert entries[-1]["loss"] < entries[0]["loss"]
    head, last = RelevanceHead.load(result.model_path), {"logit_scale": 1.0, "logit_bias": 0.0, **entries[-1]}
    change = 0.0 if kind == "reranker" else 0.5  # the last step moves what is learned
    assert (head.logit_scale, head.logit_bias) == pytest.approx((last["logit_scale"], last["logit_bias"]), abs=change)
    assert (head.slope, head.intercept) == (1.0, 0.0)
    assert head.prior == pytest.approx(np.mean([entry["mean_target"] for entry in entries]))
    first = load_pairs(actions.parent / "pairs.jsonl")[0]
    probability = load_relevance_model(result.model_path).relevance(first.query, [first.document])
    assert probability == pytest.approx(head.probability(plain_score(kind, result.model_path, first)), abs=1e-5)
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (record["status"], record["config"]["kind"]) == ("finished", kind)
    assert train_toy(**settings).reused


def test_a_stopped_run_ends_with_the_same_weights_and_head(run_config, train_both_ways):
    settings = {"kind": "reranker", "loss": "listnet", "train_max_length": 12, "dev": None}
    train_both_ways(run_config(**settings, optimizer={"num_train_epochs": 1}), f"model/{HEAD_FILE}")


@pytest.mark.slow
def test_a_stopped_run_ends_equal_and_dev_chooses_the_checkpoint(run_config, actions, tmp_path, train_both_ways, kind):
    guard = shutil.copytree(actions, tmp_path / "guard")
    settings = run_config(kind=kind, guard=guard, guard_split="dev", dev_candidates=4, optimizer={"max_steps": 5})
    result = train_both_ways(settings, f"model/{HEAD_FILE}")
    figures, guard = dev_figures(result.history), dev_figures(result.history, "guard")
    assert set(figures) == {0, 4, 5} and figures == guard  # the same documents and queries
    assert result.best_step == max((4, 5), key=lambda step: (figures[step], -step))


@pytest.fixture(scope="module")
def of_one_step(run_config, tmp_path_factory):
    """Kind -> folder of a model after a step; only a reranker has a head, as infonce trained the others."""
    home, losses = tmp_path_factory.mktemp("of-one-step"), {"reranker": "bce"}
    runs = {kind: run_config(kind=kind, loss=losses.get(kind, "infonce"), **ONE_STEP) for kind in KINDS}
    return {kind: train(settings, home / kind, progress=False).model_path for kind, settings in runs.items()}


def test_training_goes_on_from_a_model_of_the_kind(train_toy, of_one_step, kind):
    optimizer = {"max_steps": 1, "learning_rate": 1e-12}
    folder = train_toy(kind=kind, model=of_one_step[kind], optimizer=optimizer, dev=None).model_path
    texts = ["copy a file"] * 2, ["copy the file", "sort a list"]
    before, after = (load_scorer(path, device="cpu") for path in (of_one_step[kind], folder))
    assert (before.head is None, after.head is None) == (kind != "reranker", False)
    assert after.logits(*texts) == pytest.approx(before.logits(*texts), abs=1e-5)


def test_commands_rerank_and_calibrate(capsys, of_one_step, actions, tmp_path, kind):
    folder = shutil.copytree(of_one_step[kind], tmp_path / "model")
    words = ("--collection", actions, "--split", "dev", "--rerank-depth", "100")
    code, result = call(capsys, "evaluate", "bm25", "--rerank", folder, *words, "--out", tmp_path / "evaluated")
    assert (code, len(result["metrics"]["comparisons"])) == (0, 1)
    call(capsys, "calibrate", folder, "--pairs", actions.parent / "pairs.jsonl", "--anyway")
    assert load_relevance_model(folder).head.calibrated_on


@pytest.mark.slow
def test_all_minilm_trains_on_the_sample_data_by_the_command(capsys, tmp_path, embedding_kind):
    pairs = GradedPairs.from_collection(load_pydocs(), "train", PYDOCS_SCALE)
    save_graded_pairs(pairs, tmp_path / "pairs.jsonl")
    words = ("--pairs", tmp_path / "pairs.jsonl", "--max-length", "64", "--max-steps", "8", "--global-batch-size", "8")
    code, result = call(capsys, "train", "--kind", embedding_kind, *words, "--out", tmp_path / "out")
    losses = [json.loads(line).get("loss") for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    losses = [value for value in losses if value is not None]
    assert code == 0 and np.mean(losses[-3:]) < np.mean(losses[:3])
    texts = ["Copy data and mode bits of a file.", "Return the sine of x."]
    probabilities = load_relevance_model(result["artifacts"]["model"]).relevance("copy a file", texts)
    assert probabilities[0] > probabilities[1]
