"""Training with the base model's probability as target of unlabelled entries."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from bixse.data.graded_pairs import GradedPairs
from bixse.encoders.encode import encode_texts
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.platt import fit_platt
from bixse.errors import InputError
from bixse.losses import BiXSELoss
from bixse.training.dry_run import plan_training
from bixse.training.loop.trainer import BASE_FOLDER, GradedTrainer, GradedTrainingArguments
from bixse.training.recipe import train

BASE = {"loss_options": {"unlabelled": "base"}, "max_length": None, "dev": None}


@pytest.fixture
def trainer(training_files, tiny_model_path, tmp_path):
    """A trainer of one task with the base model's targets, before its first step."""
    pairs = GradedPairs.from_rows(
        json.loads(line) for line in (training_files / "pairs.jsonl").read_text(encoding="utf-8").splitlines()
    )
    model = build_encoder(tiny_model_path)
    args = GradedTrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=8, documents_per_query=3, max_steps=2, report_to="none"
    )
    made = GradedTrainer(model, args, pairs, loss=BiXSELoss(model, unlabelled="base", unlabelled_weight=0.5))
    made.add_base_targets()
    return made


def test_a_batch_brings_the_base_models_probability_of_every_entry(trainer):
    """Against embeddings and a curve that are computed from the texts of the batches here."""
    cosines, relevance, batches = [], [], []
    for batch, index in zip(trainer.whole_batches(), trainer.plan.of_epoch(0), strict=True):
        groups = [trainer.pairs.groups()[number] for _, number in index]
        documents = trainer.model.tokenizer.batch_decode(batch[0][1]["input_ids"], skip_special_tokens=True)
        texts = [[group.query for group in groups], documents]
        q, d = (encode_texts(trainer.model, own, kind) for own, kind in zip(texts, ("query", "document"), strict=True))
        targets = batch[1]
        known = torch.zeros(targets.shape)
        known[targets.rows, targets.columns] = targets.relevance
        cosines.append((q @ d.T).ravel())
        relevance.append(known.numpy().ravel())
        batches.append((q @ d.T, targets))
    scale, bias = fit_platt(np.concatenate(cosines), np.concatenate(relevance))
    for cosine, targets in batches:
        expected = 0.5 / (1 + np.exp(-(scale * cosine + bias)))
        np.testing.assert_allclose(targets.unlabelled.curve.numpy(), [scale, bias, 0.5], rtol=1e-3)
        np.testing.assert_allclose(
            targets.unlabelled.block(slice(None), slice(None)).numpy(), expected, rtol=2e-3, atol=1e-4
        )


def test_the_model_stays_nearer_to_its_base(train_toy, tiny_model_path):
    texts = [f"how do i {word} the file" for word in ("open", "close", "sort", "split", "join", "match")]
    before = encode_texts(build_encoder(tiny_model_path), texts, "document")
    moved = {}
    for name in ("zero", "base"):
        result = train_toy(out=name, **{**BASE, "loss_options": {"unlabelled": name}}, merge=None)
        after = encode_texts(build_encoder(result.model_path), texts, "document")
        moved[name] = float(np.abs(after @ after.T - before @ before.T).mean())
        curve = {(entry["base_scale"], entry["base_bias"]) for entry in result.history if "base_scale" in entry}
        assert len(curve) == (1 if name == "base" else 0)
    assert moved["base"] < moved["zero"]


def test_a_weight_of_0_gives_the_weights_of_the_paper(train_toy):
    options = {"unlabelled": "base", "unlabelled_weight": 0.0}
    runs = [train_toy(out="zero", **{**BASE, "loss_options": {}}), train_toy(**{**BASE, "loss_options": options})]
    assert len({(run.model_path / "model.safetensors").read_bytes() for run in runs}) == 1


def test_an_interrupted_run_is_bit_equal(run_config, training_files, tiny_model_path, tmp_path, train_interrupted):
    settings = run_config(training_files, tiny_model_path, **BASE)
    whole = train(settings, tmp_path / "whole", progress=False)
    train_interrupted(settings, tmp_path / "cut")
    assert len(list((tmp_path / "cut" / "checkpoints" / BASE_FOLDER).glob("*.npy"))) == 2
    resumed = train(settings, tmp_path / "cut", progress=False)
    weights = [(run.model_path / "model.safetensors").read_bytes() for run in (whole, resumed)]
    assert weights[0] == weights[1]
    assert not (tmp_path / "cut" / "checkpoints").exists()


def test_each_task_has_a_curve_of_its_own(run_config, tasks_file, tiny_model_path, tmp_path):
    settings = run_config(
        tasks_file.parent,
        tiny_model_path,
        pairs=tasks_file,
        **BASE,
        optimizer={"global_batch_size": 4, "num_train_epochs": 1},
    )
    result = train(settings, tmp_path / "out", progress=False)
    assert len({entry["base_scale"] for entry in result.history if "base_scale" in entry}) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"loss_options": {"unlabelled": "base", "gradient_cache": True, "mini_batch_size": 4}},
        {"optimizer": {"gradient_accumulation_steps": 2}},
        {
            "loss_options": {"unlabelled": "base", "in_batch_labels": "paper"},
            "optimizer": {"documents_per_query": None},
        },
    ],
)
def test_it_trains_with_everything_that_a_run_has(train_toy, changes):
    result = train_toy(**{**BASE, **changes})
    losses = [entry["loss"] for entry in result.history if "loss" in entry]
    assert losses and all(np.isfinite(losses))


def test_gradient_cache_changes_nothing_but_rounding(train_toy):
    options = ({}, {"gradient_cache": True, "mini_batch_size": 4})
    runs = [
        train_toy(out=f"run{n}", **{**BASE, "loss_options": {"unlabelled": "base", **own}}, dropout=0.0)
        for n, own in enumerate(options)
    ]
    losses = [[entry["loss"] for entry in run.history if "loss" in entry] for run in runs]
    np.testing.assert_allclose(losses[0], losses[1], rtol=2e-2)


def test_a_dry_run_embeds_a_sample_alone(run_config, training_files, tiny_model_path, tmp_path):
    zero, base = (
        plan_training(run_config(training_files, tiny_model_path, **own), tmp_path / "out")
        for own in ({**BASE, "loss_options": {}}, BASE)
    )
    assert base.texts > zero.texts
    assert not (tmp_path / "out").exists()


def test_the_other_losses_refuse_it(run_config, training_files, tiny_model_path):
    with pytest.raises((InputError, ValueError), match="unlabelled"):
        run_config(training_files, tiny_model_path, loss="infonce", loss_options={"unlabelled": "base"})
