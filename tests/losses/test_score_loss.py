"""BiXSE on late interaction and sparse embeddings, against loops over the formula and in the library's trainers."""

import math
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from sentence_transformers import (
    MultiVectorEncoder,
    MultiVectorEncoderTrainer,
    MultiVectorEncoderTrainingArguments,
    SparseEncoder,
    SparseEncoderTrainer,
    SparseEncoderTrainingArguments,
)
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sparse_encoder.losses import SpladeLoss
from sentence_transformers.sparse_encoder.modules import SpladePooling
from sentence_transformers.util import batch_to_device

from bixse.encoders.head import RelevanceHead
from bixse.errors import InputError, ModelError
from bixse.losses import ScoreLoss
from bixse.losses.relevance_head import SaveRelevanceHead, save_relevance_head

QUERIES = ["copy a file", "sort"]
COLUMNS = [["copy a file to a folder", "sort a list"], ["delete", "copy a file to a folder"]]
LABELS = torch.tensor([[1.0, 0.2], [0.7, 0.1]])


@pytest.fixture(params=["late interaction", "sparse"])
def model(request, tiny_model_path):
    if request.param == "sparse":
        torch.manual_seed(0)  # the tiny model has no head for words
        modules = [Transformer(str(tiny_model_path), transformer_task="fill-mask"), SpladePooling()]
        return SparseEncoder(modules=modules, device="cpu").eval()
    return MultiVectorEncoder(str(tiny_model_path), device="cpu").eval()


def features(model):
    texts = [(QUERIES, "query"), *((column, "document") for column in COLUMNS)]
    return [model.preprocess(column, task=task) for column, task in texts]


def expected_loss(model, scale, bias):
    """Three documents: the last is the first again, so that it has a grade for both queries."""
    documents = list(dict.fromkeys(text for column in COLUMNS for text in column))
    known = {(0, 0): 1.0, (0, 2): 0.2, (1, 1): 0.7, (1, 0): 0.1}
    total = 0.0
    for i, query in enumerate(QUERIES):
        for j, document in enumerate(documents):
            score = float(model.similarity(model.encode_query([query]), model.encode_document([document])))
            s = scale * score + bias
            total += math.log1p(math.exp(-abs(s))) + max(s, 0) - known.get((i, j), 0.0) * s
    return total / len(QUERIES)


@pytest.mark.parametrize("bias", [-0.7, 1.5])
def test_the_loss_equals_loops_over_the_scores_of_the_library(model, bias):
    loss = ScoreLoss(model, bias=bias, scale=0.5)
    assert float(loss(features(model), LABELS)) == pytest.approx(expected_loss(model, 0.5, bias), rel=1e-4)


@pytest.mark.gpu
def test_the_loss_on_a_gpu_is_that_of_the_cpu(model):
    values = []
    for device in ("cpu", "cuda"):
        loss = ScoreLoss(model.to(device), bias=-0.7, scale=0.5)
        parts, labels = [batch_to_device(part, device) for part in features(model)], LABELS.to(device)
        values.append([float(loss(parts, labels).detach())])
        if isinstance(model, SparseEncoder):  # as SpladeLoss calls it
            embeddings = [model(dict(part))["sentence_embedding"] for part in parts]
            values[-1].append(float(loss.compute_loss_from_embeddings(embeddings, labels).detach()))
    assert values[1] == pytest.approx(values[0], rel=1e-4)


@pytest.mark.parametrize("kind", ["bixse", "infonce", "distill-kl", "lambdaloss-v2"])
def test_every_kind_of_loss_reads_scores(model, kind):
    assert float(ScoreLoss(model, kind)(features(model), LABELS)) > 0


@pytest.mark.parametrize("options", [{"dimensions": (4,)}, {"gradient_cache": True}])
def test_options_that_are_not_read_are_refused(model, options):
    with pytest.raises(InputError):
        ScoreLoss(model, "bixse", **options)


def test_other_models_and_labels_are_refused(tiny_model, model):
    with pytest.raises(ModelError):
        ScoreLoss(tiny_model)
    with pytest.raises(InputError):
        ScoreLoss(model)(features(model), LABELS[:, :1])
    with pytest.raises(InputError):
        ScoreLoss(model).compute_loss_from_embeddings([torch.ones(2, 4), torch.ones(2, 4)], LABELS)


@pytest.mark.parametrize("inner", [False, True])
def test_a_trained_model_loads_in_the_plain_library_with_its_probabilities(model, tmp_path, inner):
    sparse = isinstance(model, SparseEncoder)
    if inner and not sparse:
        pytest.skip("SpladeLoss is for sparse embeddings")
    loss = ScoreLoss(model, scale=1.0 if sparse else 10.0)
    outer = SpladeLoss(model, loss, document_regularizer_weight=1e-3, query_regularizer_weight=1e-3) if inner else loss
    rows = {"query": QUERIES * 4, "document": COLUMNS[0] * 4, "label": [1.0, 0.6] * 4}
    kinds = (SparseEncoderTrainer, SparseEncoderTrainingArguments) if sparse else (
        MultiVectorEncoderTrainer, MultiVectorEncoderTrainingArguments)  # fmt: skip
    arguments = kinds[1](str(tmp_path / "run"), max_steps=2, report_to="none")
    trainer = kinds[0](
        model, arguments, train_dataset=Dataset.from_dict(rows), loss=outer, callbacks=[SaveRelevanceHead(loss)]
    )
    before = torch.cat([part.detach().flatten().clone() for part in model.parameters()])
    trainer.train()
    assert not torch.equal(before, torch.cat([part.detach().flatten() for part in model.parameters()]))
    model.save_pretrained(str(tmp_path / "model"))
    save_relevance_head(loss, tmp_path / "model")
    plain = type(model)(str(tmp_path / "model"), device="cpu")
    score = plain.similarity(plain.encode_query(QUERIES[0]), plain.encode_document(COLUMNS[0][0]))
    assert float(score) == pytest.approx(
        float(model.similarity(model.encode_query(QUERIES[0]), model.encode_document(COLUMNS[0][0]))), abs=1e-5
    )
    head = RelevanceHead.load(Path(tmp_path / "model"))
    assert 0 < head.probability(float(score)) < 1
