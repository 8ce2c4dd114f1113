"""A learning rate that is far too high ends as a failed run, also where every number stays finite."""

from __future__ import annotations

import json

import pytest

from bixse.cli.main import main
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
    """The loss alone does not tell: InfoNCE's is then near the logarithm of the number of documents, as at first."""
    with pytest.raises(TrainingError, match="diverged"):
        train_toy(**at_rate(rate), loss=loss)
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "failed"
    assert not (tmp_path / "out" / "model").exists()


@pytest.mark.parametrize("rate", [1e-5, 1e-2])
def test_rates_that_train_pass(rate, train_toy):
    assert train_toy(**at_rate(rate)).model_path.is_dir()


def test_the_command_says_so_and_says_it_again(training_files, tiny_model_path, tmp_path, capsys):
    words = ["train", "--pairs", training_files / "pairs.jsonl", "--model", tiny_model_path, "--global-batch-size", 8,
             "--max-steps", 12, "--learning-rate", 50, "--out", tmp_path / "out", "--json"]  # fmt: skip
    for _ in range(2):
        assert main([str(word) for word in words]) == TrainingError.exit_code
        (message,) = json.loads(capsys.readouterr().out)["errors"]
        assert "learning_rate" in message


FINE = {"query": 0.4, "document": 0.5}


@pytest.mark.parametrize(
    ("after", "losses", "best"),
    [
        ({"query": 0.0, "document": 0.5}, [1.0], True),
        ({"query": 0.5, "document": 9e-4}, [1.0], False),
        (FINE, [1.0, 2.0, 30.0], False),
    ],
)
def test_what_has_diverged(after, losses, best):
    with pytest.raises(TrainingError, match="diverged"):
        check_learned(FINE, after, losses, best)


@pytest.mark.parametrize(
    ("before", "after", "losses", "best"),
    [
        (FINE, FINE, [1.0, 9.0], False),
        (FINE, FINE, [1.0, 30.0], True),
        (FINE, FINE, [1.0, *[900.0] * 4, *[0.5] * 30, 900.0, 0.5], False),
        (FINE, FINE, [0.0, 5.0], False),
        (FINE, FINE, [0.002, *[0.05] * 30], False),
        (FINE, FINE, [], False),
        ({"query": 0.0, "document": 5e-4}, {"query": 0.0, "document": 1e-4}, [1.0], False),
    ],
)
def test_what_has_not(before, after, losses, best):
    check_learned(before, after, losses, best)


@pytest.mark.precision("bfloat16")
def test_spreads_are_float32_after_training_in_bfloat16(tiny_model_path, graded_pairs, monkeypatch, train_toy):
    """accelerate puts autocast into the model's forward and leaves it there."""
    ended = []
    ours = GradedTrainer.train
    monkeypatch.setattr(
        GradedTrainer, "train", lambda self, **kept: (ours(self, **kept), ended.append(self.loss.model))
    )
    train_toy(**at_rate(1e-3))
    (model,) = ended
    forward = model.forward
    found = embedding_spreads(model, graded_pairs)
    assert model.forward is forward
    fresh = build_encoder(str(tiny_model_path))
    switch_attention(fresh, model[0].auto_model.config._attn_implementation)
    make_weights_float32(fresh)
    fresh.load_state_dict(model.state_dict())
    assert found == embedding_spreads(fresh, graded_pairs)
