import numpy as np
import pytest
import torch

from bixse.encoders.encode import encode_texts
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.platt import fit_platt
from bixse.losses import BiXSELoss
from bixse.training.dry_run import plan_training
from bixse.training.loop.trainer import BASE_FOLDER, GradedTrainer, GradedTrainingArguments

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
        probabilities = targets.unlabelled.block(slice(None), slice(None)).numpy()
        np.testing.assert_allclose(probabilities, expected, rtol=2e-3, atol=1e-4)


def test_an_interrupted_run_is_bit_equal(run_config, tmp_path, train_both_ways):
    train_both_ways(run_config(**BASE))
    assert not (tmp_path / "cut" / "checkpoints" / BASE_FOLDER).exists()


def test_each_task_has_a_curve_of_its_own(train_toy, tasks_file):
    optimizer = {"global_batch_size": 4, "num_train_epochs": 1}
    result = train_toy(pairs=tasks_file, **BASE, optimizer=optimizer)
    assert len({entry["base_scale"] for entry in result.history if "base_scale" in entry}) == 2


def test_a_dry_run_embeds_a_sample_alone(run_config, tmp_path):
    zero, base = (plan_training(run_config(**own), tmp_path / "out") for own in ({**BASE, "loss_options": {}}, BASE))
    assert base.texts > zero.texts
    assert not (tmp_path / "out").exists()
