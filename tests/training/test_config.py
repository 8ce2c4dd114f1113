from pathlib import Path

import pytest

from bixse.errors import ConfigError, InputError
from bixse.losses.catalogue import LOSSES
from bixse.training.config import OptimizerConfig, TrainConfig
from bixse.training.setup import training_arguments

UNKNOWN = "got an unknown key; expected a known one"


def yaml_file(folder, text):
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def errors(path, overrides=None):
    with pytest.raises(ConfigError) as caught:
        TrainConfig.load(path, overrides or {})
    head, *lines = str(caught.value).splitlines()
    assert head == f"{path or 'settings'}: {len(lines)} error{'s' if len(lines) != 1 else ''}"
    assert all(": got " in line and "expected " in line and "; fix: " in line for line in lines), lines
    return lines


@pytest.mark.parametrize("text", [None, "", "pairs", "- pairs", "pairs: [", "pairs: a: b", "1: 2"])
def test_a_missing_file_and_a_file_that_is_no_mapping(tmp_path, text):
    path = tmp_path / "run.yaml" if text is None else yaml_file(tmp_path, text)
    with pytest.raises(InputError, match=r"run\.yaml: got "):
        TrainConfig.load(path)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("pair: x", f"  pair: {UNKNOWN}; fix: did you mean 'pairs'?"),
        ("zzzz: 1", f"  zzzz: {UNKNOWN}; fix: known keys: pairs, task_shares,"),
        ("out: runs/mine", f"  out: {UNKNOWN}; fix: give --out on the command line"),
        ("seed: -1", "  seed: got -1; expected greater than or equal to 0"),
        ("precision: half", "  precision: got 'half'; expected 'auto', 'float32' or 'bfloat16'"),
        ("min_relevant_grade: .nan", "  min_relevant_grade: got nan; expected"),
        ("optimizer: 5", "  optimizer: got 5; expected lines of the form"),
        ("merge: false", "  merge: got False; expected lines of the form `key: value`, or null"),
        ("pairs: []", "  pairs: got []; expected a path or at least 1"),
        ("seed: true", "  seed: got True; expected a number"),
        ("optimizer: {learning_rate: false}", "  optimizer.learning_rate: got False; expected a number"),
        ("loss_options: {scale: 5}", "  loss_options: got {'scale': 5}; expected no scale"),
        ("loss: bixes", f"  loss: got 'bixes'; expected one of {', '.join(LOSSES)}; fix: did you mean 'bix"),
    ],
)
def test_an_unknown_key_or_a_wrong_value(tmp_path, text, start):
    (line,) = errors(yaml_file(tmp_path, text if text.startswith("pairs") else f"pairs: p.csv\n{text}\n"))
    assert line.startswith(start), line


def test_all_errors_together(tmp_path):
    lines = errors(yaml_file(tmp_path, "sed: 1\nmax_length: x\noptimizer: {num_train_epochs: 0, warm: 1}\nloss: no\n"))
    keys = [line.split(":")[0].strip() for line in lines]
    assert keys == ["pairs", "max_length", "loss", "optimizer.num_train_epochs", "optimizer.warm", "sed"]
    assert "set 'pairs' in the file or with its flag" in lines[0]


def test_relative_paths_are_taken_from_the_folder_of_the_file(tmp_path):
    (tmp_path / "configs").mkdir()
    path = yaml_file(tmp_path / "configs", "pairs: ../data/p.csv\ndev: /absolute/dev\nmodel: some/model\n")
    config = TrainConfig.load(path)
    assert config.pairs == tmp_path / "configs" / "../data/p.csv"
    assert config.dev == Path("/absolute/dev")
    assert config.model == "some/model"
    assert TrainConfig.load(path, {"pairs": "here.csv"}).pairs == Path("here.csv")


def test_flags_override_the_file_and_leave_the_rest(tmp_path):
    path = yaml_file(tmp_path, "pairs: p.csv\nseed: 7\noptimizer:\n  num_train_epochs: 9\n  global_batch_size: 4\n")
    config = TrainConfig.load(path, {"optimizer.num_train_epochs": 1, "seed": 8, "optimizer.learning_rate": "5e-5"})
    assert (config.seed, config.optimizer.num_train_epochs, config.optimizer.global_batch_size) == (8, 1, 4)
    assert config.optimizer.learning_rate == 5e-5  # a text to YAML 1.1
    assert TrainConfig.load(None, {"pairs": "p.csv", "optimizer.num_train_epochs": 1}).optimizer.num_train_epochs == 1


def test_the_rate_grows_with_the_square_root_of_the_queries_of_a_step_that_there_are(tmp_path):
    assert OptimizerConfig().scaled_learning_rate() == 1e-4
    assert OptimizerConfig(gradient_accumulation_steps=4).scaled_learning_rate() == 2e-4
    optimizer = OptimizerConfig(global_batch_size=16, gradient_accumulation_steps=250)
    assert optimizer.queries_per_step(20) == 20
    assert optimizer.scaled_learning_rate(20) == pytest.approx(1e-4 * (20 / 16) ** 0.5)
    assert optimizer.scaled_learning_rate(10**6) == optimizer.scaled_learning_rate()
    optimizer = OptimizerConfig(global_batch_size=64, bias_lr_multiplier=10)
    arguments = training_arguments(TrainConfig(pairs="p.csv", optimizer=optimizer), tmp_path, None)
    assert (arguments.learning_rate, arguments.bias_lr_multiplier) == (2e-4, 10)


def test_a_batch_that_the_processes_cannot_share(tmp_path, monkeypatch):
    monkeypatch.setattr("bixse.training.setup.world_size", lambda: 3)
    with pytest.raises(InputError) as caught:
        training_arguments(TrainConfig(pairs="p.csv"), tmp_path, None)
    assert (caught.value.where, caught.value.fix) == ("global_batch_size", "set it to 15")


def test_a_tracker_that_is_not_installed_is_refused(tmp_path):
    with pytest.raises(InputError) as caught:
        training_arguments(TrainConfig(pairs="p.csv", report_to=["mlflow"]), tmp_path, None)
    assert (caught.value.where, caught.value.got) == ("report_to", "mlflow")
