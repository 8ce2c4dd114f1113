"""Training on a GPU: a step equals that of the CPU, and a resumed run the uninterrupted one."""

import copy

import pytest
import torch
from test_trainer import After

from bixse.encoders.relevance_model import RelevanceModel
from bixse.encoders.weights import set_dropout
from bixse.losses import BiXSELoss
from bixse.training.loop.trainer import GradedTrainer, GradedTrainingArguments

DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.slow])]
STEPS = {"max_steps": 8, "per_device_train_batch_size": 8, "save_steps": 4, "save_strategy": "steps", "seed": 3}


def trained(path, pairs, folder, device, stop_at=None, **changes):
    """Train for eight steps, or resume if the folder has a checkpoint."""
    model = RelevanceModel(str(path), device=device)
    settings = {**STEPS, "learning_rate": 1e-3, "logging_steps": 1, "report_to": "none", "disable_tqdm": True}
    settings = {**settings, "bf16": True, **changes}
    arguments = GradedTrainingArguments(str(folder), use_cpu=device == "cpu", **settings)
    stop = After(stop_at, lambda control: setattr(control, "should_training_stop", True)) if stop_at else None
    trainer = GradedTrainer(model, arguments, pairs, BiXSELoss(model), callbacks=[stop] if stop else None)
    trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")))
    return trainer


def weights_of(trainer):
    return torch.cat([part.detach().flatten().float().cpu() for part in trainer.loss.parameters()])


@pytest.mark.parametrize("device", DEVICES)
def test_a_resumed_run_equals_the_uninterrupted_one(tiny_model_path, graded_pairs, tmp_path, device):
    whole = trained(tiny_model_path, graded_pairs, tmp_path / "whole", device)
    trained(tiny_model_path, graded_pairs, tmp_path / "cut", device, stop_at=4)
    resumed = trained(tiny_model_path, graded_pairs, tmp_path / "cut", device)
    assert resumed.state.global_step == whole.state.global_step == 8
    assert torch.equal(weights_of(whole), weights_of(resumed))


@pytest.mark.gpu
@pytest.mark.slow
def test_float16_is_scaled_by_the_library(tiny_model_path, graded_pairs, tmp_path):
    start = weights_of(
        trained(tiny_model_path, graded_pairs, tmp_path / "start", "cuda", max_steps=1, learning_rate=0.0)
    )
    moved = [
        weights_of(trained(tiny_model_path, graded_pairs, tmp_path / name, "cuda", bf16=bf16, fp16=not bf16)) - start
        for name, bf16 in (("bf16", True), ("float16", False))
    ]
    # gradients that are clipped while they are scaled vanish behind Adam's eps
    assert float(moved[1].norm() / moved[0].norm()) == pytest.approx(1, rel=0.5)


@pytest.mark.gpu
@pytest.mark.parametrize(("bf16", "tolerance"), [(False, 1e-4), (True, 3e-2)])
def test_a_step_has_the_loss_and_the_gradients_of_the_cpu(tiny_model_path, graded_pairs, tmp_path, bf16, tolerance):
    losses, gradients = [], []
    for device in ("cpu", "cuda"):
        model = RelevanceModel(str(tiny_model_path), device=device)
        set_dropout(model, 0.0)
        arguments = GradedTrainingArguments(
            str(tmp_path), use_cpu=device == "cpu", bf16=bf16 and device == "cuda", report_to="none", seed=3,
            per_device_train_batch_size=8,
        )  # fmt: skip
        trainer = GradedTrainer(model, arguments, graded_pairs, BiXSELoss(model))
        trainer.current_gradient_accumulation_steps = 1  # set by `train` alone
        trainer._tokenise()
        batch = next(iter(trainer.get_train_dataloader()))
        losses.append(float(trainer.training_step(trainer.loss.model, copy.copy(batch))))
        gradients.append(torch.cat([part.grad.flatten().cpu() for part in model.parameters() if part.grad is not None]))
    assert losses[1] == pytest.approx(losses[0], rel=tolerance)
    assert float((gradients[1] - gradients[0]).norm() / gradients[0].norm()) < tolerance
