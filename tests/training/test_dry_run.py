"""`bixse train --dry-run`: the figures of the run that would be, and nothing left behind."""

from __future__ import annotations

import json
import tempfile

import pytest

from bixse.cli.main import main
from bixse.errors import InputError, OutputExistsError
from bixse.training.dry_run import plan_training
from bixse.training.recipe import train


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """Where temporary folders go: empty again when a dry run has ended."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize(
    "optimizer",
    [{}, {"num_train_epochs": 3, "gradient_accumulation_steps": 2}, {"max_steps": 7}],
    ids=["epochs", "accumulation", "steps"],
)
def test_the_run_then_takes_what_was_said(run_config, training_files, tiny_model_path, tmp_path, scratch, optimizer):
    config = run_config(training_files, tiny_model_path, optimizer=optimizer)
    plan = plan_training(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert list(scratch.iterdir()) == []
    result = train(config, tmp_path / "out", progress=False)
    assert plan.steps == max(entry["step"] for entry in result.history)
    assert plan.evaluations == sum("eval_dev_ndcg@10" in entry for entry in result.history)
    assert (plan.pairs, plan.queries) == (150, 30)
    assert plan.texts > 0
    assert plan.seconds == plan.steps * plan.seconds_per_step + plan.texts * plan.seconds_per_text > 0
    assert 0 < plan.weights_bytes < plan.peak_bytes
    assert plan.free_bytes > 0


def test_the_command_prints_and_writes_nothing(training_files, tiny_model_path, tmp_path, scratch, capsys):
    before = sorted(training_files.rglob("*"))
    words = ["train", "--pairs", training_files / "pairs.jsonl", "--model", tiny_model_path, "--global-batch-size", 8,
             "--dry-run", "--out", tmp_path / "out"]  # fmt: skip
    assert main([str(word) for word in words] + ["--json"]) == 0
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["metrics"]["steps"] == 12
    assert envelope["metrics"]["evaluations"] == 0
    assert envelope["artifacts"] == {}
    assert main([str(word) for word in words]) == 0
    assert "12 steps" in capsys.readouterr().out
    assert sorted(training_files.rglob("*")) == before
    assert not (tmp_path / "out").exists()
    assert list(scratch.iterdir()) == []


def test_what_training_would_refuse_is_refused(run_config, training_files, tiny_model_path, tmp_path, monkeypatch):
    config = run_config(training_files, tiny_model_path)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("mine")
    with pytest.raises(OutputExistsError):
        plan_training(config, tmp_path / "used")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="2 processes"):
        plan_training(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()
