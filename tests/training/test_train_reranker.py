"""Training a reranker: what is refused, what a step computes, and that a stopped run ends as one without a stop."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder

from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import load_pairs, save_graded_pairs
from bixse.data.pydocs import PYDOCS_SCALE, load_pydocs
from bixse.encoders.head import RelevanceHead
from bixse.encoders.loading.build import build_scorer, load_relevance_model
from bixse.errors import ConfigError, InputError, ModelError, OutputExistsError
from bixse.training.config import NOT_OF_A_RERANKER, TrainConfig
from bixse.training.dev_evaluation import dev_figures
from bixse.training.dry_run import plan_training
from bixse.training.loop.batches import DrawnGroup
from bixse.training.loop.pair_trainer import PairCollator, pair_loss
from bixse.training.recipe import train

OTHERS = {
    "instructions": "paper", "merge": {"weights": [0.5]}, "bidirectional": True, "pooling": "mean", "frozen_layers": 1,
    "max_distance": 0.1, "lora": {}, "scale": 20.0, "dimensions": [16], "loss_options": {"bias": 0.0},
    "sharding": "full", "regrade": {"judge": "replay:x"}, "bias_lr_multiplier": 1.0,
}  # fmt: skip
"""A value of each setting that a reranker refuses."""
SHORT = {"dev": None, "optimizer": {"num_train_epochs": 1}}
ONE_STEP = {"dev": None, "optimizer": {"max_steps": 1}}


def settings_of(**changes):
    return TrainConfig.load(None, {"pairs": "pairs.jsonl", "kind": "reranker", **changes})


class TestUnhappyPaths:
    @pytest.mark.parametrize("name", NOT_OF_A_RERANKER)
    def test_a_setting_of_encoders_is_refused_with_its_reason(self, name):
        changes = {"optimizer": {name: OTHERS[name]}} if name == "bias_lr_multiplier" else {name: OTHERS[name]}
        with pytest.raises(ConfigError, match=NOT_OF_A_RERANKER[name]):
            settings_of(**changes)

    @pytest.mark.parametrize(
        ("kind", "loss"),
        [("reranker", "bixse"), ("reranker", {"bce": 1.0, "lambda": 1.0}), ("encoder", "bce"), ("encoder", "listnet")],
    )
    def test_a_loss_of_the_other_kind(self, kind, loss):
        with pytest.raises(ConfigError, match="loss"):
            settings_of(kind=kind, loss=loss)

    def test_a_guard_without_dev(self):
        with pytest.raises(ConfigError, match="guard"):
            settings_of(guard="guard")

    @pytest.mark.parametrize("loss", ["lambda", "listnet"])
    def test_one_document_per_query(self, train_toy, tmp_path, loss):
        with pytest.raises(InputError, match="two documents"):
            train_toy(kind="reranker", loss=loss, optimizer={"documents_per_query": 1})
        assert not (tmp_path / "out" / "log.jsonl").exists()

    def test_some_queries_with_one_document_are_warned_of(self, train_toy, graded_pairs, tmp_path):
        columns = zip(graded_pairs.queries, graded_pairs.documents, graded_pairs.relevance, strict=True)
        rows = [{"query": query, "document": document, "relevance": float(z)} for query, document, z in columns]
        rows.append({"query": "sort", "document": "sort a list", "relevance": 1.0})
        save_graded_pairs(GradedPairs.from_rows(rows), tmp_path / "pairs.jsonl")
        result = train_toy(kind="reranker", loss="lambda", pairs=tmp_path / "pairs.jsonl", **ONE_STEP)
        assert any("1 of 31 queries" in warning for warning in result.warnings)

    @pytest.mark.parametrize("change", ["model", "processes", "dry run"])
    def test_what_cannot_be_trained_on(self, train_toy, run_config, tmp_path, monkeypatch, student, change):
        if change == "dry run":
            with pytest.raises(InputError, match="dry-run"):
                plan_training(run_config(kind="reranker"), tmp_path / "out")
            return
        if change == "processes":
            monkeypatch.setattr("bixse.training.scorer_parts.world_size", lambda: 2)
        with pytest.raises(InputError if change == "processes" else ModelError):
            train_toy(kind="reranker", model=student)  # no transformer
        assert not (tmp_path / "out" / "run.json").exists()

    def test_the_folder_of_a_run_of_the_other_kind(self, train_toy):
        train_toy(kind="reranker", **ONE_STEP)
        with pytest.raises(OutputExistsError, match="kind"):
            train_toy(**ONE_STEP)


def test_an_earlier_run_of_an_encoder_has_the_same_identity(run_config):
    assert "kind" not in run_config().identity()
    assert run_config(kind="reranker").identity()["loss"] == "bce"


@pytest.fixture
def model(tiny_model_path):
    torch.manual_seed(0)
    return build_scorer("reranker", tiny_model_path, device="cpu", convert=True).eval()


@pytest.mark.parametrize("word", ["bce", "lambda", "listnet"])
def test_the_loss_of_a_step_equals_a_loop_in_float64(model, graded_pairs, word):
    with torch.no_grad():
        model.model.classifier.weight.normal_(0, 2.0)
    groups = [DrawnGroup(number, graded_pairs.groups().rows(number)[: 3 + number % 3]) for number in range(5)]
    loss = pair_loss(word, model)
    batch = PairCollator(graded_pairs, loss.listwise)(groups)
    value = loss([batch["query"], batch["document"]], batch["label"]).item()
    scores, grades = [], []
    for group in groups:
        texts = graded_pairs.texts("query", group.rows), graded_pairs.texts("document", group.rows)
        scores.append(model.logits(*texts))
        grades.append(graded_pairs.relevance[group.rows].astype(np.float64))
    assert value == pytest.approx(LOOPS[word](scores, grades), rel=1e-5)
    assert float(batch["mean_target"]) == pytest.approx(np.concatenate(grades).mean())


def bce_loop(scores, grades):
    terms = [
        math.log1p(math.exp(s)) - z * s for q, t in zip(scores, grades, strict=True) for s, z in zip(q, t, strict=True)
    ]
    return sum(terms) / len(terms)


def listnet_loop(scores, grades):
    total = 0.0
    for query, relevance in zip(scores, grades, strict=True):
        target, log_sum = np.exp(3 * relevance) / np.exp(3 * relevance).sum(), math.log(np.exp(query).sum())
        total -= sum(p * (s - log_sum) for p, s in zip(target, query, strict=True))
    return total / len(scores)


def lambda_loop(scores, grades):
    """NDCG-Loss2++ of Wang et al. 2018 (doi:10.1145/3269206.3271784): mu = 10, base 2, mean over ordered pairs."""
    total, count = 0.0, 0
    for query, relevance in zip(scores, grades, strict=True):
        order = np.argsort(-query)
        gains = 2 ** (3 * relevance) - 1
        best = sum(g / math.log2(rank + 2) for rank, g in enumerate(sorted(gains, reverse=True)))
        for i, first in enumerate(order):
            for j, second in enumerate(order):
                if relevance[first] > relevance[second]:
                    near = abs(1 / math.log2(abs(i - j) + 1) - 1 / math.log2(abs(i - j) + 2))
                    far = abs(1 / math.log2(i + 2) - 1 / math.log2(j + 2))
                    weight = (10 * near + far) * abs(gains[first] - gains[second]) / best
                    total += weight * math.log2(1 + math.exp(-(query[first] - query[second])))
                    count += 1
    return total / count


LOOPS = {"bce": bce_loop, "listnet": listnet_loop, "lambda": lambda_loop}


def test_a_reranker_learns_and_loads_as_a_plain_cross_encoder(train_toy, actions, tmp_path):
    pairs = actions.parent / "pairs.jsonl"
    settings = {"kind": "reranker", "dev": None, "optimizer": {"max_steps": 12, "learning_rate": 3e-3}}
    result = train_toy(**settings)
    losses = [entry["loss"] for entry in result.history if "loss" in entry]
    assert losses[-1] < losses[0]
    head = RelevanceHead.load(result.model_path)
    assert (head.logit_scale, head.logit_bias, head.slope, head.intercept) == (1.0, 0.0, 1.0, 0.0)
    assert head.prior == pytest.approx(np.mean([entry["mean_target"] for entry in result.history if "loss" in entry]))
    first = load_pairs(pairs)[0]
    raw = CrossEncoder(str(result.model_path), device="cpu").predict([(first.query, first.document)])
    assert load_relevance_model(result.model_path).relevance(first.query, [first.document]) == pytest.approx(raw)
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (record["status"], record["config"]["kind"]) == ("finished", "reranker")
    assert train_toy(**settings).reused


def test_a_stopped_run_ends_with_the_same_weights_and_head(run_config, train_both_ways):
    settings = run_config(kind="reranker", loss="listnet", train_max_length=12, **SHORT)
    train_both_ways(settings, "model/relevance_head.json")


@pytest.mark.slow
def test_dev_chooses_the_checkpoint_and_guard_is_reported(run_config, actions, tmp_path, train_both_ways):
    guard = shutil.copytree(actions, tmp_path / "guard")
    settings = run_config(kind="reranker", guard=guard, guard_split="dev", dev_candidates=4, optimizer={"max_steps": 5})
    result = train_both_ways(settings)
    figures, guard = dev_figures(result.history), dev_figures(result.history, "guard")
    assert set(figures) == set(guard) == {0, 4, 5}
    assert result.best_step == max((4, 5), key=lambda step: (figures[step], -step))
    assert figures == guard  # the same documents and queries


@pytest.mark.parametrize("loss", ["lambda", "listnet"])
def test_the_head_of_a_loss_over_lists_is_fitted(train_toy, graded_pairs, loss):
    folder = train_toy(kind="reranker", loss=loss, **ONE_STEP).model_path
    head = RelevanceHead.load(folder)
    assert head.calibrated_on
    logits = build_scorer("reranker", folder).logits(graded_pairs.queries, graded_pairs.documents)
    z = graded_pairs.relevance
    assert np.mean((head.probability(logits) - z) ** 2) <= np.mean((z.mean() - z) ** 2) + 1e-3


def test_training_goes_on_from_a_reranker(train_toy, tmp_path):
    first = train_toy(kind="reranker", **ONE_STEP).model_path
    second = train_toy(
        "second", kind="reranker", model=first, optimizer={"max_steps": 1, "learning_rate": 1e-12}, dev=None
    )
    texts = ["copy a file"] * 2, ["copy the file", "sort a list"]
    before, after = (build_scorer("reranker", path, device="cpu").logits(*texts) for path in (first, second.model_path))
    assert after == pytest.approx(before, abs=1e-6)


@pytest.mark.slow
def test_all_minilm_trains_on_the_sample_data(tmp_path):
    pairs = GradedPairs.from_collection(load_pydocs(), "train", PYDOCS_SCALE)
    save_graded_pairs(pairs, tmp_path / "pairs.jsonl")
    optimizer = {"max_steps": 12, "global_batch_size": 8, "learning_rate": 4e-4}
    config = settings_of(pairs=tmp_path / "pairs.jsonl", model="demo", max_length=64, optimizer=optimizer)
    result = train(config, tmp_path / "out", progress=False)
    losses = [entry["loss"] for entry in result.history if "loss" in entry]
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
    texts = ["Copy data and mode bits of a file.", "Return the sine of x."]
    plain = CrossEncoder(str(result.model_path), device="cpu").predict([("copy a file", text) for text in texts])
    assert load_relevance_model(result.model_path).relevance("copy a file", texts) == pytest.approx(plain, abs=1e-6)
