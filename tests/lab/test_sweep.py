import csv
import json
import os
import shutil
import signal
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from bixse.errors import ConfigError, InputError, InterruptedRunError, InvalidFileError, OutputExistsError
from bixse.lab.lab_config import SweepConfig
from bixse.lab.sweep import SweepRow, plan_arms, sweep, undecided_of
from bixse.training.config import TrainConfig
from bixse.training.loop.trainer import GradedTrainer
from bixse.training.train import train_into
from helpers.row_files import yaml_file

BASE = {"pairs": "pairs.jsonl", "dev": "collection"}
GRID = {"loss": ["bixse", "infonce"], "optimizer.learning_rate": [1e-3, 3e-3]}


def errors_of(config):
    with pytest.raises(ConfigError) as caught:
        plan_arms(config)
    head, *lines = str(caught.value).splitlines()
    assert head == f"sweep: {len(lines)} error{'s' if len(lines) != 1 else ''}"
    assert all(": got " in line and "expected " in line and "; fix: " in line for line in lines), lines
    return lines


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vary": {"optimizer.learning_rat": [1, 2]}}, "did you mean 'optimizer.learning_rate'?"),
        ({"vary": {"los": [1, 2]}}, "did you mean 'loss'?"),
        ({"base": {**BASE, "num_train_epoch": 2}}, "did you mean 'optimizer.num_train_epochs'?"),
        ({"base": {"pairs": "pairs.jsonl"}}, "dev: got nothing; expected a collection folder to rank the arms by"),
        ({"base": {**BASE, "merge": None, "evaluations_per_epoch": 0}}, "no figure on dev to rank the arms by"),
        ({"vary": {"dev_split": ["a", "b"]}}, "figures on other queries or documents do not compare"),
        ({"vary": {"seed": [0, 1]}}, "fix: move the list to `seeds`"),
        ({"vary": {"lora": [{"rank": 8}], "lora.rank": [8, 16]}}, "a key within 'lora', which varies too"),
        ({"base": {**BASE, "lora": None}, "vary": {"lora.rank": [8, 16]}}, "lora: got null together with lora.rank"),
        ({"vary": {"scale": list(range(1, 102)), "seed_": list(range(100))}}, "got 10,100 combinations"),
        ({"vary": {"model": ["Demo", "demo"]}}, "got two arms for the folder 'model=demo'"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    (line,) = errors_of(SweepConfig(**{"base": BASE, "vary": {"scale": [5, 10]}, **settings}))
    assert message in line


def test_errors_of_all_arms_are_named_together_with_the_arms():
    vary = {"loss": ["bixse", "bixs"], "optimizer.global_batch_size": [8, 0], "scale": [10.0, "hot"]}
    lines = errors_of(SweepConfig(base=BASE, vary=vary))
    assert len(lines) == 3
    (line,) = [line for line in lines if "loss: got 'bixs'" in line]
    assert line.endswith(" (in arm loss=bixs, global_batch_size=8, scale=10 and 3 more)")
    (line,) = errors_of(SweepConfig(base=BASE, vary={"los": [1, 2]}))
    assert line.endswith(" (in every arm)")
    (line,) = errors_of(SweepConfig(base=BASE, vary={"loss": ["bixse", "infonce"], "loss_options.bias": [-3.0]}))
    assert line.endswith(" (in arm loss=infonce, bias=-3)"), "an option that one loss does not take"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: none.yaml\nvary: {scale: [1]}", "none.yaml"),
        ("vary: {scale: [1]}", "base: got nothing; expected a value"),
        ("base: 3\nvary: {scale: [1]}", "base: got 3; expected settings of `bixse train`"),
        ("base: run.yaml\nvary: {scale: 3}", "vary.scale: got 3; expected "),
        ("base: run.yaml\nvary: {scale: []}", "vary.scale: got []; expected "),
        ("base: run.yaml\nvary: {scale: [1]}\nseeds: [1, 1]", "expected different seeds"),
        ("base: run.yaml\nvary: {scale: {low: 1, high: 2}}", "vary.scale: got {'low': 1, 'high': 2}; expected "),
    ],
)
def test_a_file_that_is_no_sweep(tmp_path, text, message):
    with pytest.raises(InputError) as caught:
        plan_arms(SweepConfig.load(yaml_file(tmp_path, text)))
    assert message in str(caught.value) and "fix: " in str(caught.value)


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


def ranked_row(arm, best, spread=None, seeds=(0,)):
    return SweepRow(arm=arm, settings={}, label=f"arm {arm}", seeds=list(seeds), precision="", status="finished",
                    before=0.1, best=best, spread=spread, best_steps=[], seconds=1.0, reason="", warnings=[],
                    best_run="", best_seed=0)  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "queries", "reason"),
    [
        ([ranked_row(1, 0.5)], 5, ""),
        ([ranked_row(1, 0.5), ranked_row(2, 0.4)], 50, "one seed per arm"),
        ([ranked_row(1, 0.5), ranked_row(2, 0.4)], 12, "12 dev queries; at least 40"),
        ([ranked_row(3, 0.5), ranked_row(1, 0.5 - 1e-16), ranked_row(2, 0.4)], 50, "arms 3, 1 are equal on dev"),
        ([ranked_row(1, 0.5, 0.02, (0, 1)), ranked_row(2, 0.49, 0.02, (0, 1))], 50, "within one standard error"),
        ([ranked_row(1, 0.5, 0.001, (0, 1)), ranked_row(2, 0.49, 0.001, (0, 1))], 50, ""),
    ],
)
def test_dev_has_not_chosen_among_few_queries_ties_and_near_seeds(rows, queries, reason):
    found = undecided_of(rows, queries)
    assert reason in found and bool(found) == bool(reason)


def test_a_long_name_is_cut_and_stays_distinct():
    models = [f"{'deep/' * 40}{name}" for name in ("a", "b")]
    folders = [arm.folder for arm in plan_arms(SweepConfig(base=BASE, vary={"model": models}))]
    assert len(set(folders)) == 2
    assert all(len(folder) <= 80 and "/" not in folder for folder in folders)


def test_paths_start_at_the_folder_of_their_file(tmp_path):
    text = "base: {pairs: pairs.jsonl, dev: toy}\nvary: {scale: [5], pairs: [a.jsonl, b.jsonl]}"
    arms = plan_arms(SweepConfig.load(yaml_file(tmp_path, text)))
    assert [arm.train["pairs"] for arm in arms] == [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    assert {arm.train["dev"] for arm in arms} == {str(tmp_path / "toy")}
    (tmp_path / "inner").mkdir()
    settings = "pairs: pairs.jsonl\ndev: /data/toy\noptimizer: {num_train_epochs: 1}\n"
    (tmp_path / "inner" / "run.yaml").write_text(settings)
    text = "base: inner/run.yaml\nvary: {optimizer.global_batch_size: [4, 8]}"
    arms = plan_arms(SweepConfig.load(yaml_file(tmp_path, text)))
    assert {arm.train["pairs"] for arm in arms} == {str(tmp_path / "inner" / "pairs.jsonl")}
    assert {arm.train["dev"] for arm in arms} == {"/data/toy"}
    assert {arm.train["optimizer"]["num_train_epochs"] for arm in arms} == {1}


def test_the_example_of_the_documentation(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "reference" / "sweep.md").read_text(encoding="utf-8")
    grid = text.split("```yaml\n")[1].partition("```")[0]
    config = SweepConfig.load(yaml_file(tmp_path, grid))
    assert (len(plan_arms(config)), config.seeds) == (8, (0, 1, 2))


@pytest.fixture
def settings(actions, student):
    """Makes the configuration of a sweep; keywords replace its settings."""

    def make(base=None, **changes):
        shared = {
            "pairs": actions.parent / "pairs.jsonl",
            "dev": actions,
            "model": str(student),
            "optimizer": {"num_train_epochs": 1, "global_batch_size": 8, "documents_per_query": 3},
            "merge": {"weights": [0.5, 1.0]},
        }
        return SweepConfig(**{"base": {**shared, **(base or {})}, "vary": GRID, **changes})

    return make


def table(out):
    with (out / "sweep.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def written(folder):
    """When each file below a folder was written."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def at_step(monkeypatch):
    """Has a function called with the trainer before each step; gives the steps that were made."""

    def watch(act=lambda trainer, steps: None):
        step, steps = GradedTrainer.training_step, []

        def counted(self, *given, **named):
            steps.append(self.state.global_step)
            act(self, steps)
            return step(self, *given, **named)

        monkeypatch.setattr(GradedTrainer, "training_step", counted)
        return steps

    return watch


class TestUnhappyPaths:
    def test_nothing_is_trained_or_written_for_settings_that_cannot_be_used(self, settings, tmp_path, at_step):
        steps, out = at_step(), tmp_path / "out"
        (tmp_path / "pairs.csv").write_text("query,document,relevance\ncopy,move,3\n")
        for base, vary, error in (
            ({}, {"scale": [10.0, -1.0]}, ConfigError),
            ({"pairs": "none.jsonl"}, GRID, InputError),
            ({"dev_split": "x"}, GRID, InputError),
            ({"pairs": tmp_path / "pairs.csv"}, GRID, InvalidFileError),
        ):
            with pytest.raises(error):
                sweep(settings(base, vary=vary), out, progress=False)
            assert not out.exists()
        assert steps == []

    def test_a_diverged_arm_is_final_and_not_ranked(self, settings, tiny_model_path, tmp_path, at_step):
        base = {"model": str(tiny_model_path), "max_length": 16}
        out, config = tmp_path / "out", settings(base, vary={"optimizer.learning_rate": [1e30, 1e-3]})
        result = sweep(config, out, progress=False)
        assert [(row.arm, row.status) for row in result.rows] == [(2, "finished"), (1, "diverged")]
        assert result.rows[1].best is None
        assert [(row["rank"], row["status"]) for row in table(out)] == [("1", "finished"), ("", "diverged")]
        assert table(out)[1]["reason"] == result.rows[1].reason
        assert not list(out.glob("runs/*/*/train/checkpoints"))
        steps = at_step()
        again = sweep(config, out, progress=False)
        assert (again.reused, again.rows, steps) == (True, result.rows, [])

    @pytest.mark.slow
    def test_an_arm_with_a_failed_seed_is_not_ranked(self, settings, tmp_path, at_step):
        seen = []

        def spoil(trainer, steps):
            seen.append((trainer.args.learning_rate > 1.5e-3, trainer.args.seed))
            if seen[-1] == (True, 2):
                next(trainer.model.parameters()).data.fill_(float("nan"))

        at_step(spoil)
        config = settings(vary={"optimizer.learning_rate": [3e-3, 1e-5]}, seeds=(1, 2, 3))
        result = sweep(config, tmp_path / "out", progress=False)
        assert list(dict.fromkeys(seen)) == [(True, 1), (True, 2), (False, 1), (False, 2), (False, 3)]
        assert [(row.arm, row.status) for row in result.rows] == [(2, "finished"), (1, "diverged")]
        assert result.rows[1].reason.startswith("seed 2: training: got ")
        assert list((tmp_path / "out").glob("runs/*/*/train/model")) == [result.model_path]

    def test_another_sweep_or_other_inputs_are_refused(self, settings, actions, tmp_path):
        out, pairs = tmp_path / "out", shutil.copy(actions.parent / "pairs.jsonl", tmp_path / "pairs.jsonl")
        config = settings({"pairs": pairs}, vary={"scale": [5]})
        sweep(config, out, progress=False)
        before = written(out / "runs")
        for changes, message in (
            ({"vary": {"scale": [20]}}, "sweep.vary.scale"),
            ({"base": {**config.base, "max_length": 12}}, "max_length"),
            ({"seeds": (1,)}, "sweep.seeds"),
        ):
            with pytest.raises(OutputExistsError, match=message):
                sweep(config.model_copy(update=changes), out, progress=False)
        pairs.write_text("".join(pairs.read_text().splitlines(keepends=True)[:-1]))
        with pytest.raises(OutputExistsError, match="pairs"):
            sweep(config, out, progress=False)
        assert written(out / "runs") == before


def test_a_grid_ends_in_a_ranked_table(settings, tmp_path, at_step):
    out = tmp_path / "out"
    result = sweep(settings(), out, progress=False)
    figures = [row.best for row in result.rows]
    assert figures == sorted(figures, reverse=True)
    rows = table(out)
    assert [row["rank"] for row in rows] == ["1", "2", "3", "4"]
    assert {(row["loss"], row["optimizer.learning_rate"]) for row in rows} == {
        (loss, rate) for loss in ("bixse", "infonce") for rate in ("0.001", "0.003")
    }
    assert [row["dev_ndcg@10"] for row in rows] == [f"{figure:.4f}" for figure in figures]
    assert all(float(row["seconds"]) > 0 and row["dev_ndcg@10_spread"] == "" for row in rows)
    for row in result.rows:  # what stands in the records of the trainings
        record = json.loads((out / "runs" / row.best_run / "train" / "run.json").read_text())
        merged = record["results"]["merge"]
        on_dev = {point["weight"]: point["scores"]["actions"] for point in merged["points"]}
        assert (row.before, row.best) == (on_dev[0.0], on_dev[merged["weight"]])
    assert result.model_path == out / "runs" / result.best.best_run / "train" / "model"
    assert list(out.glob("runs/*/*/train/model")) == [result.model_path]
    assert any("cannot tell which arm is best" in warning for warning in result.warnings)
    before, steps = written(out / "runs"), at_step()
    out.rename(tmp_path / "moved")
    again = sweep(settings(), tmp_path / "moved", progress=False)
    assert (again.reused, again.rows, steps, written(tmp_path / "moved" / "runs")) == (True, result.rows, [], before)


@pytest.mark.slow
def test_the_best_settings_train_the_same_model_again(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = settings().base
    shutil.copytree(base["model"], tmp_path / "base-model")
    shutil.copytree(base["dev"], tmp_path / "actions")
    shutil.copy(base["pairs"], tmp_path / "pairs.jsonl")
    relative = {"pairs": "pairs.jsonl", "dev": "actions", "model": "base-model"}
    result = sweep(settings(relative, vary={"scale": [5]}), tmp_path / "out", progress=False)
    monkeypatch.chdir("/")
    again = train_into(TrainConfig.load(result.best_path), tmp_path / "again", progress=False)
    weights = [next(folder.rglob("model.safetensors")) for folder in (again.model_path, result.model_path)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.slow
def test_ctrl_c_within_a_run_continues_from_its_checkpoint(settings, tmp_path, at_step):
    out, whole, config = tmp_path / "out", tmp_path / "whole", settings(vary={"scale": [5, 10]})

    def stop(trainer, steps):
        if len(steps) == 6:  # the second step of the second arm
            os.kill(os.getpid(), signal.SIGINT)

    steps = at_step(stop)
    with pytest.raises(InterruptedRunError, match="after 1 of 2 runs"):
        sweep(config, out, progress=False)
    assert json.loads((out / "run.json").read_text())["status"] == "interrupted"
    assert [row["status"] for row in table(out)] == ["finished", "waiting"]
    assert (out / "best.yaml").is_file()
    result = sweep(config, out, progress=False)
    assert len(steps) == 8
    uninterrupted = sweep(config, whole, progress=False)
    assert [(row.label, row.best) for row in uninterrupted.rows] == [(row.label, row.best) for row in result.rows]
    (model,) = (path.relative_to(out) for path in out.rglob("model.safetensors"))
    assert (out / model).read_bytes() == (whole / model).read_bytes()


@pytest.mark.slow
def test_seeds_are_ranked_by_their_mean(settings, tmp_path):
    out, config = tmp_path / "out", settings(vary={"optimizer.learning_rate": [1e-3, 5e-3]}, seeds=(3, 4))
    result = sweep(config, out, progress=False)
    folder = out / "runs" / f"learning_rate={result.best.settings['optimizer.learning_rate']}"
    figures = {}
    for seed in (3, 4):
        merged = json.loads((folder / f"seed-{seed}" / "train" / "run.json").read_text())["results"]["merge"]
        figures[seed] = {point["weight"]: point["scores"]["actions"] for point in merged["points"]}[merged["weight"]]
    assert result.best.best == pytest.approx(statistics.mean(figures.values()))
    assert result.best.spread == pytest.approx(statistics.stdev(figures.values()))
    assert result.best.best >= result.rows[1].best
    assert table(out)[0]["seeds"] == "3 4"
    assert [warning for warning in result.warnings if "at least 40" not in warning] == []
    best_seed = max(figures, key=lambda seed: figures[seed])
    assert TrainConfig.load(result.best_path).seed == best_seed
    assert list(out.rglob("model")) == [folder / f"seed-{best_seed}" / "train" / "model"]


@pytest.mark.slow
def test_two_ranks_leave_the_table_and_the_model_of_one_process(settings, tmp_path, monkeypatch):
    alone = sweep(settings(seeds=(1, 2)), tmp_path / "alone", progress=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, waiting in (("1", 4), ("0", 0)):
        monkeypatch.setenv("RANK", rank)
        result = sweep(settings(seeds=(1, 2), engine="ranks"), tmp_path / "out", progress=False)
        assert result.waiting == waiting
    assert [replace(row, seconds=0) for row in result.rows] == [replace(row, seconds=0) for row in alone.rows]
    assert list((tmp_path / "out").glob("runs/*/*/train/model")) == [result.model_path]
    files = [each.model_path / "model.safetensors" for each in (result, alone)]
    assert files[0].read_bytes() == files[1].read_bytes()
