import json
from contextlib import nullcontext

import pytest

from bixse.encoders.loading.backbones import switch_attention
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.loading.precision import make_weights_float32
from bixse.errors import TrainingError
from bixse.training.checks import check_learned, embedding_spreads
from bixse.training.loop.trainer import GradedTrainer


def at_rate(rate):
    return {"dev": None, "optimizer": {"learning_rate": rate, "max_steps": 20}}


@pytest.mark.parametrize(("loss", "rate"), [("bixse", 100.0), ("infonce", 0.3), ("lambdaloss-v2", 0.3)])
def test_a_collapsed_encoder_is_not_saved(tmp_path, loss, rate, train_toy):
    for _ in range(2):  # the same command fails again
        with pytest.raises(TrainingError, match="diverged"):
            train_toy(**at_rate(rate), loss=loss)
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "failed"
    assert not (tmp_path / "out" / "model").exists()


FINE = {"query": 0.4, "document": 0.5}


@pytest.mark.parametrize(
    ("before", "after", "losses", "best", "diverged"),
    [
        (FINE, {"query": 0.0, "document": 0.5}, [1.0], True, True),
        (FINE, {"query": 0.5, "document": 9e-4}, [1.0], False, True),
        (FINE, FINE, [1.0, 2.0, 30.0], False, True),
        (FINE, FINE, [1.0, 9.0], False, False),
        (FINE, FINE, [1.0, 30.0], True, False),
        (FINE, FINE, [1.0, *[900.0] * 4, *[0.5] * 30, 900.0, 0.5], False, False),
        (FINE, FINE, [0.0, 5.0], False, False),
        (FINE, FINE, [0.002, *[0.05] * 30], False, False),
        (FINE, FINE, [], False, False),
        ({"query": 0.0, "document": 5e-4}, {"query": 0.0, "document": 1e-4}, [1.0], False, False),
    ],
)
def test_a_collapse_or_an_exploded_loss_has_diverged(before, after, losses, best, diverged):
    with pytest.raises(TrainingError, match="diverged") if diverged else nullcontext():
        check_learned(before, after, losses, best)


@pytest.mark.precision("bfloat16")
def test_spreads_are_float32_after_training_in_bfloat16(tiny_model_path, graded_pairs, monkeypatch, train_toy):
    ended = []
    ours = GradedTrainer.train
    monkeypatch.setattr(
        GradedTrainer, "train", lambda self, **named: (ours(self, **named), ended.append(self.loss.model))
    )
    train_toy(**at_rate(1e-3))
    (model,) = ended
    forward = model.forward
    spreads = embedding_spreads(model, graded_pairs)
    assert model.forward is forward
    fresh = build_encoder(str(tiny_model_path))
    switch_attention(fresh, model[0].auto_model.config._attn_implementation)
    make_weights_float32(fresh)
    fresh.load_state_dict(model.state_dict())
    assert spreads == embedding_spreads(fresh, graded_pairs)
