"""The losses of a reranker: what a step computes, the head of a loss over lists, and queries of one document."""

import json
import math

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder

from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.data.pydocs import PYDOCS_SCALE, load_pydocs
from bixse.encoders.head import RelevanceHead
from bixse.encoders.loading.build import build_scorer, load_relevance_model
from bixse.errors import InputError
from bixse.training.loop.batches import DrawnGroup
from bixse.training.loop.pair_trainer import PairCollator, pair_loss

ONE_STEP = {"kind": "reranker", "dev": None, "optimizer": {"max_steps": 1}}


@pytest.mark.parametrize("loss", ["lambda", "listnet"])
def test_one_document_per_query_is_refused(train_toy, tmp_path, loss):
    with pytest.raises(InputError, match="two documents"):
        train_toy(kind="reranker", loss=loss, optimizer={"documents_per_query": 1})
    assert not (tmp_path / "out" / "log.jsonl").exists()


def test_some_queries_with_one_document_are_warned_of(train_toy, actions, tmp_path):
    row = {"query_id": "q", "query": "sort", "document_id": "d", "document": "sort a list", "relevance": 1.0}
    (tmp_path / "pairs.jsonl").write_text((actions.parent / "pairs.jsonl").read_text() + json.dumps(row))
    result = train_toy(loss="lambda", pairs=tmp_path / "pairs.jsonl", **ONE_STEP)
    assert any("1 of 31 queries" in warning for warning in result.warnings)


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


@pytest.mark.parametrize("loss", ["lambda", "listnet"])
def test_the_head_of_a_loss_over_lists_is_fitted(train_toy, graded_pairs, loss):
    folder = train_toy(loss=loss, **ONE_STEP).model_path
    head = RelevanceHead.load(folder)
    assert head.calibrated_on
    logits = build_scorer("reranker", folder).logits(graded_pairs.queries, graded_pairs.documents)
    z = graded_pairs.relevance
    assert np.mean((head.probability(logits) - z) ** 2) <= np.mean((z.mean() - z) ** 2) + 1e-3


@pytest.mark.slow
def test_all_minilm_trains_on_the_sample_data(train_toy, tmp_path):
    pairs = GradedPairs.from_collection(load_pydocs(), "train", PYDOCS_SCALE)
    save_graded_pairs(pairs, tmp_path / "pairs.jsonl")
    optimizer = {"max_steps": 12, "global_batch_size": 8, "documents_per_query": 4, "learning_rate": 4e-4}
    settings = {"pairs": tmp_path / "pairs.jsonl", "model": "demo", "dev": None, "max_length": 64}
    result = train_toy(kind="reranker", **settings, optimizer=optimizer)
    losses = [entry["loss"] for entry in result.history if "loss" in entry]
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
    texts = ["Copy data and mode bits of a file.", "Return the sine of x."]
    plain = CrossEncoder(str(result.model_path), device="cpu").predict([("copy a file", text) for text in texts])
    assert load_relevance_model(result.model_path).relevance("copy a file", texts) == pytest.approx(plain, abs=1e-6)
