import tempfile

import pytest

from bixse.errors import InputError, OutputExistsError
from bixse.training.dry_run import plan_training
from bixse.training.recipe import train


@pytest.mark.parametrize(
    "optimizer",
    [{}, {"num_train_epochs": 3, "gradient_accumulation_steps": 2}, {"max_steps": 7}],
    ids=["epochs", "accumulation", "steps"],
)
def test_a_dry_run_tells_the_figures_of_the_run_and_leaves_no_file(
    run_config, training_files, tmp_path, monkeypatch, optimizer
):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    before = sorted(training_files.rglob("*"))
    config = run_config(optimizer=optimizer)
    plan = plan_training(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert list(scratch.iterdir()) == []
    assert sorted(training_files.rglob("*")) == before
    result = train(config, tmp_path / "out", progress=False)
    assert plan.steps == max(entry["step"] for entry in result.history)
    assert plan.evaluations == sum("eval_dev_ndcg@10" in entry for entry in result.history)
    assert (plan.pairs, plan.queries) == (150, 30)
    assert plan.texts > 0
    assert plan.seconds == plan.steps * plan.seconds_per_step + plan.texts * plan.seconds_per_text > 0
    assert 0 < plan.weights_bytes < plan.peak_bytes
    assert plan.free_bytes > 0


def test_what_training_would_refuse_is_refused(run_config, tmp_path, monkeypatch):
    config = run_config()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("mine")
    with pytest.raises(OutputExistsError):
        plan_training(config, tmp_path / "used")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="got 2 "):
        plan_training(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()
