from __future__ import annotations

from pathlib import Path

import pytest

from bixse.errors import ConfigError, InputError
from bixse.lab.lab_config import SweepConfig
from bixse.lab.sweep import plan_arms

BASE = {"pairs": "pairs.jsonl", "dev": "collection"}


def errors(config):
    with pytest.raises(ConfigError) as caught:
        plan_arms(config)
    head, *lines = str(caught.value).splitlines()
    assert head == f"sweep: {len(lines)} error{'s' if len(lines) != 1 else ''}"
    assert all(": got " in line and "expected " in line and "; fix: " in line for line in lines), lines
    return lines


def write(folder, text):
    (folder / "sweep.yaml").write_text(text, encoding="utf-8")
    return folder / "sweep.yaml"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vary": {"optimizer.learning_rat": [1, 2]}}, "did you mean 'optimizer.learning_rate'?"),
        ({"vary": {"los": [1, 2]}}, "did you mean 'loss'?"),
        ({"base": {**BASE, "num_train_epoch": 2}}, "did you mean 'optimizer.num_train_epochs'?"),
        ({"base": {"pairs": "pairs.jsonl"}}, "dev: got nothing; expected a collection folder to rank the arms by"),
        ({"vary": {"dev_split": ["a", "b"]}}, "figures on other queries or documents do not compare"),
        ({"vary": {"seed": [0, 1]}}, "fix: move the list to `seeds`"),
        ({"vary": {"lora": [{"rank": 8}], "lora.rank": [8, 16]}}, "a key within 'lora', which varies too"),
        ({"base": {**BASE, "lora": None}, "vary": {"lora.rank": [8, 16]}}, "write `lora: {}` in `base`"),
        ({"vary": {"scale": list(range(1, 102)), "seed_": list(range(100))}}, "got 10,100 combinations"),
        ({"vary": {"model": ["Demo", "demo"]}}, "got two arms for the folder 'model=demo'"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    (line,) = errors(SweepConfig(**{"base": BASE, "vary": {"scale": [5, 10]}, **settings}))
    assert message in line


def test_errors_of_all_arms_are_named_together_with_the_arms():
    vary = {"loss": ["bixse", "bixs"], "optimizer.global_batch_size": [8, 0], "scale": [10.0, "hot"]}
    lines = errors(SweepConfig(base=BASE, vary=vary))
    assert len(lines) == 3
    (line,) = [line for line in lines if "loss: got 'bixs'" in line]
    assert line.endswith(" (in arm loss=bixs, global_batch_size=8, scale=10 and 3 more)")
    (line,) = errors(SweepConfig(base=BASE, vary={"los": [1, 2]}))
    assert line.endswith(" (in every arm)")
    (line,) = errors(SweepConfig(base=BASE, vary={"loss": ["bixse", "infonce"], "loss_options.bias": [-3.0]}))
    assert line.endswith(" (in arm loss=infonce, bias=-3)"), "an option that one loss does not take"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("vary: {scale: [1]}", "base: got nothing; expected a value"),
        ("base: 3\nvary: {scale: [1]}", "base: got 3; expected settings of `bixse train`"),
        ("base: run.yaml\nvary: {scale: 3}", "vary.scale: got 3; expected "),
        ("base: run.yaml\nvary: {scale: []}", "vary.scale: got []; expected "),
        ("base: run.yaml\nvary: {scale: [1]}\nseeds: [1, 1]", "expected different seeds"),
        ("base: run.yaml\nvary: {scale: {low: 1, high: 2}}", "vary.scale: got {'low': 1, 'high': 2}; expected "),
    ],
)
def test_a_file_that_is_no_sweep(tmp_path, text, message):
    with pytest.raises(ConfigError, match="fix: ") as caught:
        SweepConfig.load(write(tmp_path, text))
    assert message in str(caught.value)


def test_a_base_file_that_is_not_there(tmp_path):
    config = SweepConfig.load(write(tmp_path, "base: run.yaml\nvary: {scale: [1]}"))
    with pytest.raises(InputError, match=r"run\.yaml"):
        plan_arms(config)


def test_a_grid_is_every_combination_in_order():
    vary = {"loss": ["bixse", "infonce"], "optimizer.learning_rate": ["1e-4", 1e-3]}
    arms = plan_arms(SweepConfig(base={**BASE, "optimizer": {"num_train_epochs": 1}}, vary=vary))
    folders = [f"loss={loss},learning_rate={rate}" for loss in ("bixse", "infonce") for rate in ("0.0001", "0.001")]
    assert [arm.folder for arm in arms] == folders
    assert [arm.train["optimizer"]["learning_rate"] for arm in arms] == [1e-4, 1e-3] * 2
    assert {arm.train["optimizer"]["num_train_epochs"] for arm in arms} == {1}


def test_equal_arms_are_one():
    arms = plan_arms(SweepConfig(base=BASE, vary={"scale": [10, 10.0, "1e1", 20]}))
    assert [arm.labels for arm in arms] == [{"scale": 10.0}, {"scale": 20.0}]


def test_a_section_can_vary():
    vary = {"lora": [None, {"rank": 8}], "loss_options": [{}, {"bias": -3.0}]}
    arms = plan_arms(SweepConfig(base={**BASE, "lora": {"alpha": 3}}, vary=vary))
    assert [arm.train["lora"] and arm.train["lora"]["rank"] for arm in arms] == [None, None, 8, 8]
    assert arms[2].train["lora"]["alpha"] is None
    assert arms[3].label == 'lora={"rank": 8}, loss_options={"bias": -3.0}'
    assert all(set(arm.folder) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.,=+-") for arm in arms)
    assert len({arm.folder for arm in arms}) == 4


def test_a_long_name_is_cut_and_stays_distinct():
    models = [f"{'deep/' * 40}{name}" for name in ("a", "b")]
    folders = [arm.folder for arm in plan_arms(SweepConfig(base=BASE, vary={"model": models}))]
    assert len(set(folders)) == 2
    assert all(len(folder) <= 80 and "/" not in folder for folder in folders)


def test_paths_start_at_the_folder_of_their_file(tmp_path):
    text = "base: {pairs: pairs.jsonl, dev: toy}\nvary: {scale: [5], pairs: [a.jsonl, b.jsonl]}"
    arms = plan_arms(SweepConfig.load(write(tmp_path, text)))
    assert [arm.train["pairs"] for arm in arms] == [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    assert {arm.train["dev"] for arm in arms} == {str(tmp_path / "toy")}
    (tmp_path / "inner").mkdir()
    settings = "pairs: pairs.jsonl\ndev: /data/toy\noptimizer: {num_train_epochs: 1}\n"
    (tmp_path / "inner" / "run.yaml").write_text(settings)
    text = "base: inner/run.yaml\nvary: {optimizer.global_batch_size: [4, 8]}"
    arms = plan_arms(SweepConfig.load(write(tmp_path, text)))
    assert {arm.train["pairs"] for arm in arms} == {str(tmp_path / "inner" / "pairs.jsonl")}
    assert {arm.train["dev"] for arm in arms} == {"/data/toy"}
    assert {arm.train["optimizer"]["num_train_epochs"] for arm in arms} == {1}


def test_the_example_of_the_documentation(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "reference" / "sweep.md").read_text(encoding="utf-8")
    grid = text.split("```yaml\n")[1].partition("```")[0]
    config = SweepConfig.load(write(tmp_path, grid))
    assert (len(plan_arms(config)), config.seeds) == (8, (0, 1, 2))
