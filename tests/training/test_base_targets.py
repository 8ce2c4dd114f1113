import numpy as np
import pytest
import torch

from bixse.encoders.encode import encode_texts
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.platt import fit_platt
from bixse.losses import BiXSELoss
from bixse.training.dry_run import plan_training
from bixse.training.loop.trainer import BASE_FOLDER, GradedTrainer, GradedTrainingArguments
from bixse.training.recipe import train

BASE = {"loss_options": {"unlabelled": "base"}, "max_length": None, "dev": None}


@pytest.fixture
def trainer(graded_pairs, tiny_model_path, tmp_path):
    model = build_encoder(tiny_model_path)
    args = GradedTrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=8, documents_per_query=3, max_steps=2, report_to="none"
    )
    made = GradedTrainer(model, args, graded_pairs, loss=BiXSELoss(model, unlabelled="base", unlabelled_weight=0.5))
    made.add_base_targets()
    return made


def test_a_batch_brings_the_base_models_probability_of_every_entry(trainer):
    cosines, relevance, batches = [], [], []
    for batch, index in zip(trainer.global_batches(), trainer.plan.of_epoch(0), strict=True):
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


def test_a_weight_of_0_gives_the_weights_of_the_paper(train_toy):
    options = {"unlabelled": "base", "unlabelled_weight": 0.0}
    runs = [train_toy(out="zero", **{**BASE, "loss_options": {}}), train_toy(**{**BASE, "loss_options": options})]
    assert len({(run.model_path / "model.safetensors").read_bytes() for run in runs}) == 1


@pytest.mark.parametrize("loss", [{}, {"loss": {"bixse": 1.0, "anchor": 0.5}, "loss_options": {}}], ids=["base", "sum"])
def test_an_interrupted_run_is_bit_equal(run_config, tmp_path, train_both_ways, loss):
    train_both_ways(run_config(**{**BASE, **loss}))
    assert not (tmp_path / "cut" / "checkpoints" / BASE_FOLDER).exists()


def test_each_task_has_a_curve_of_its_own(run_config, tasks_file, tmp_path):
    optimizer = {"global_batch_size": 4, "num_train_epochs": 1}
    settings = run_config(pairs=tasks_file, **BASE, optimizer=optimizer)
    result = train(settings, tmp_path / "out", progress=False)
    assert len({entry["base_scale"] for entry in result.history if "base_scale" in entry}) == 2


def test_gradient_cache_changes_nothing_but_rounding(train_toy):
    options = ({}, {"gradient_cache": True, "mini_batch_size": 4})
    runs = [
        train_toy(out=f"run{n}", **{**BASE, "loss_options": {"unlabelled": "base", **own}}, dropout=0.0)
        for n, own in enumerate(options)
    ]
    losses = [[entry["loss"] for entry in run.history if "loss" in entry] for run in runs]
    np.testing.assert_allclose(losses[0], losses[1], rtol=2e-2)


def test_a_dry_run_embeds_a_sample_alone(run_config, tmp_path):
    zero, base = (plan_training(run_config(**own), tmp_path / "out") for own in ({**BASE, "loss_options": {}}, BASE))
    assert base.texts > zero.texts
    assert not (tmp_path / "out").exists()


def test_the_anchor_is_near_0_before_the_first_step(train_toy):
    """The base model read as many tokens as training does."""
    long = {"dev": None, "max_length": None, "train_max_length": 5, "dropout": 0.0, "merge": None}
    result = train_toy(loss={"bixse": 1.0, "anchor": 1.0}, **long)
    anchors = [entry["loss_anchor"] for entry in result.history if "loss_anchor" in entry]
    assert abs(anchors[0]) < 1e-3 < anchors[-1]


def test_the_other_losses_refuse_it(run_config):
    with pytest.raises(ValueError, match="unlabelled"):
        run_config(loss="infonce", loss_options={"unlabelled": "base"})
