from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import statistics
from typing import TYPE_CHECKING, Any

import pytest

from bixse.errors import (
    ConfigError,
    InputError,
    InterruptedRunError,
    InvalidFileError,
    OutputExistsError,
)
from bixse.training.config import TrainConfig
from bixse.training.loop.trainer import GradedTrainer
from bixse.training.recipe import train
from bixse.training.sweep import sweep as sweep_module
from bixse.training.sweep.sweep import sweep
from bixse.training.sweep.sweep_config import SweepConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GRID = {"loss": ["bixse", "infonce"], "optimizer.learning_rate": [1e-3, 3e-3]}


@pytest.fixture
def settings(training_files: Path, tiny_model_path: Path) -> Callable[..., SweepConfig]:
    """Makes the configuration of a sweep on the toy collection; keywords replace its settings."""

    def make(base: dict[str, Any] | None = None, **changes: Any) -> SweepConfig:
        shared = {
            "pairs": training_files / "pairs.jsonl",
            "dev": training_files / "collection",
            "model": str(tiny_model_path),
            "max_length": 16,
            "optimizer": {"epochs": 1, "batch_size": 8, "documents_per_query": 3},
        }
        return SweepConfig(**{"base": {**shared, **(base or {})}, "vary": GRID, **changes})

    return make


def table(out: Path) -> list[dict[str, str]]:
    with (out / "sweep.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def written(folder: Path) -> dict[str, int]:
    """When each file below a folder was written."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


class Trained:
    """Stands before `train`: notes the folders, and may raise at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int | None = None, error: BaseException | None = None):
        self.folders: list[str] = []
        self.titles: list[str | None] = []
        self.at = at
        self.error = error
        monkeypatch.setattr(sweep_module, "train", self)

    def __call__(self, config: TrainConfig, out: Path, progress: bool = True, title: str | None = None) -> Any:
        if self.error is not None and len(self.folders) == self.at:
            raise self.error
        self.folders.append(out.name)
        self.titles.append(title)
        return train(config, out, progress, title)


class TestUnhappyPaths:
    def test_nothing_is_trained_or_written_for_a_faulty_cell(self, settings, tmp_path, monkeypatch):
        trained = Trained(monkeypatch)
        for vary in ({"optimizer.learning_rat": [1e-3]}, {"scale": [10.0, -1.0]}):
            with pytest.raises(ConfigError, match=r"did you mean 'optimizer.learning_rate'|in cell scale=-1"):
                sweep(settings(vary=vary), tmp_path / "out", progress=False)
        with pytest.raises(InputError, match="dev: got nothing"):
            sweep(settings({"dev": None}), tmp_path / "out", progress=False)
        assert trained.folders == []
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(("base", "said"), [({"pairs": "none.jsonl"}, "none.jsonl"), ({"dev_split": "x"}, "x.tsv")])
    def test_files_that_are_not_there(self, settings, tmp_path, base, said):
        with pytest.raises(InputError, match=rf"{said}: got no such file"):
            sweep(settings(base), tmp_path / "out", progress=False)
        assert not (tmp_path / "out").exists()

    def test_faulty_pairs_stop_the_sweep_and_leave_no_folder(self, settings, tmp_path):
        path = tmp_path / "pairs.csv"
        path.write_text("query,document,relevance\ncopy,move,3\n")
        with pytest.raises(InvalidFileError, match="row 1, column 'relevance'"):
            sweep(settings({"pairs": path}), tmp_path / "out", progress=False)
        assert not (tmp_path / "out").exists()

    def test_a_diverging_cell_is_recorded_and_the_others_stand(self, settings, tmp_path, monkeypatch):
        config = settings(vary={"optimizer.learning_rate": [1e30, 1e-3]})
        result = sweep(config, tmp_path / "out", progress=False)
        assert [(row.cell, row.status) for row in result.rows] == [(2, "finished"), (1, "failed")]
        (failed,) = result.failed
        assert failed.best is None
        assert "expected a finite number" in failed.reason or "no finite numbers" in failed.reason
        assert result.best.settings == {"optimizer.learning_rate": 1e-3}
        first, second = table(tmp_path / "out")
        assert (first["rank"], first["status"]) == ("1", "finished")
        assert (second["rank"], second["status"], second["dev_ndcg@10"]) == ("", "failed", "")
        assert second["reason"] == failed.reason
        assert not (tmp_path / "out" / "cells" / "learning_rate=1e+30" / "checkpoints").exists()
        trained = Trained(monkeypatch)
        again = sweep(config, tmp_path / "out", progress=False)
        assert (again.reused, again.rows, trained.folders) == (True, result.rows, [])  # it would only diverge again
        shutil.rmtree(tmp_path / "out" / "cells" / "learning_rate=1e+30")
        assert sweep(config, tmp_path / "out", progress=False).rows[1].status == "failed"
        assert trained.folders == ["learning_rate=1e+30"]

    def test_a_batch_too_large_is_refused_and_tried_again(self, settings, tmp_path, monkeypatch):
        from bixse.training import recipe

        check = recipe.check_memory

        def crowded(trainer: GradedTrainer) -> int:
            if trainer.args.train_batch_size > 8:
                raise InputError("training: got a batch of 16; expected less; fix: a smaller one")
            return check(trainer)

        monkeypatch.setattr(recipe, "check_memory", crowded)
        config = settings(vary={"optimizer.batch_size": [16, 8]})
        result = sweep(config, tmp_path / "out", progress=False)
        assert [(row.cell, row.status) for row in result.rows] == [(2, "finished"), (1, "refused")]
        assert result.rows[1].reason == "training: got a batch of 16; expected less; fix: a smaller one"
        monkeypatch.setattr(recipe, "check_memory", check)
        trained = Trained(monkeypatch)
        again = sweep(config, tmp_path / "out", progress=False)
        assert ([row.status for row in again.rows], again.failed) == (["finished", "finished"], [])
        assert trained.folders == ["batch_size=16"]

    def test_a_last_step_that_diverges_shows_on_dev(self, settings, tmp_path, monkeypatch):
        """No loss follows it: the embeddings of the dev queries are the first to be no numbers."""
        step = GradedTrainer.training_step

        def spoiled(self, *given, **named):
            loss = step(self, *given, **named)
            if self.state.global_step == self.state.max_steps - 1:
                next(self.model.parameters()).data.fill_(float("nan"))
            return loss

        monkeypatch.setattr(GradedTrainer, "training_step", spoiled)
        config = settings(vary={"scale": [10]})
        (row,) = sweep(config, tmp_path / "out", progress=False).rows
        assert row.status == "failed"
        assert "got weights that are no finite numbers" in row.reason
        trained = Trained(monkeypatch)
        assert sweep(config, tmp_path / "out", progress=False).rows == [row]
        assert trained.folders == []

    def test_no_memory_on_the_device_is_that_cells_fault(self, settings, tmp_path, monkeypatch):
        class OutOfMemoryError(RuntimeError):
            """As torch names its own."""

        Trained(monkeypatch, at=0, error=OutOfMemoryError("CUDA out of memory"))
        result = sweep(settings(vary={"optimizer.batch_size": [16]}), tmp_path / "out", progress=False)
        assert (result.best, result.best_path, result.rows[0].status) == (None, None, "refused")
        assert "got no more memory" in result.rows[0].reason
        Trained(monkeypatch, at=0, error=ZeroDivisionError())
        with pytest.raises(ZeroDivisionError):
            sweep(settings(vary={"optimizer.batch_size": [16]}), tmp_path / "out", progress=False)

    def test_another_sweeps_folder_is_refused_and_left_as_it_was(self, settings, tmp_path):
        config = settings(vary={"scale": [5, 10]})
        sweep(config, tmp_path / "out", progress=False)
        before = written(tmp_path / "out")
        for changes, said in (
            ({"vary": {"scale": [5, 20]}}, r"changed: sweep.vary.scale"),
            ({"base": {"max_length": 12}, "vary": {"scale": [5, 10]}}, r"changed: max_length \(was 16, now 12\)"),
            ({"vary": {"scale": [5, 10]}, "seeds": [1]}, "changed: sweep.seeds"),
        ):
            with pytest.raises(OutputExistsError, match=said):
                sweep(settings(**changes), tmp_path / "out", progress=False)
        with pytest.raises(OutputExistsError, match="`bixse sweep`, now `bixse train`"):
            train(TrainConfig(**config.base), tmp_path / "out", progress=False)
        assert written(tmp_path / "out") == before

    def test_pairs_that_changed_since_are_refused(self, settings, training_files, tmp_path):
        """Figures on other data would stand in one table."""
        pairs = shutil.copy(training_files / "pairs.jsonl", tmp_path / "pairs.jsonl")
        config = settings({"pairs": pairs}, vary={"scale": [5]})
        sweep(config, tmp_path / "out", progress=False)
        lines = pairs.read_text().splitlines()
        pairs.write_text("\n".join(lines[:-1]) + "\n")
        with pytest.raises(OutputExistsError, match=r"on other inputs \(changed: pairs\)"):
            sweep(config, tmp_path / "out", progress=False)

    def test_pairs_that_changed_within_a_cell_leave_it_as_it_was(self, settings, training_files, tmp_path, monkeypatch):
        pairs = shutil.copy(training_files / "pairs.jsonl", tmp_path / "pairs.jsonl")
        out, config = tmp_path / "out", settings({"pairs": pairs}, vary={"scale": [5]})
        step = GradedTrainer.training_step

        def interrupted(self, *given, **named):
            os.kill(os.getpid(), signal.SIGINT)
            return step(self, *given, **named)

        monkeypatch.setattr(GradedTrainer, "training_step", interrupted)
        with pytest.raises(InterruptedRunError):
            sweep(config, out, progress=False)
        monkeypatch.undo()
        content = pairs.read_bytes()
        pairs.write_bytes(content[: content.rstrip().rindex(b"\n") + 1])
        with pytest.raises(OutputExistsError, match="changed: pairs"):
            sweep(config, out, progress=False)
        pairs.write_bytes(content)
        assert sweep(config, out, progress=False).failed == []

    def test_a_damaged_record(self, settings, tmp_path):
        config = settings(vary={"scale": [5]})
        sweep(config, tmp_path / "out", progress=False)
        path = tmp_path / "out" / "run.json"
        record = json.loads(path.read_text())
        record["results"]["runs"]["scale=5"]["surplus"] = 1
        path.write_text(json.dumps(record))
        with pytest.raises(InputError, match="got a damaged record"):
            sweep(config, tmp_path / "out", progress=False)


def test_a_grid_ends_in_a_ranked_table(settings, tmp_path, monkeypatch):
    out = tmp_path / "out"
    trained = Trained(monkeypatch)
    result = sweep(settings(), out, progress=False)
    assert len(result.rows) == 4
    assert trained.titles[1] == "cell 2 of 4: loss=bixse, learning_rate=0.003"
    figures = [row.best for row in result.rows]
    assert figures == sorted(figures, reverse=True)
    rows = table(out)
    assert [row["rank"] for row in rows] == ["1", "2", "3", "4"]
    assert {(row["loss"], row["optimizer.learning_rate"]) for row in rows} == {
        (loss, rate) for loss in ("bixse", "infonce") for rate in ("0.001", "0.003")
    }
    assert [row["dev_ndcg@10"] for row in rows] == [f"{figure:.4f}" for figure in figures]
    assert {row["status"] for row in rows} == {"finished"}
    assert all(float(row["seconds"]) > 0 and row["dev_ndcg@10_spread"] == "" for row in rows)
    for row in result.rows:  # what stands in the runs' own records
        record = json.loads((out / "cells" / row.label.replace(", ", ",") / "run.json").read_text())
        merged = record["results"]["merge"]
        on_dev = {point["weight"]: point["scores"]["collection"] for point in merged["points"]}
        assert (row.before, row.best) == (on_dev[0.0], on_dev[merged["weight"]])
    best = out / "cells" / result.best.label.replace(", ", ",")
    assert result.model_path == best / "model"
    assert [path.parent for path in out.glob("cells/*/model")] == [best]
    assert json.loads((out / "run.json").read_text())["status"] == "finished"
    assert any("one seed per cell" in warning for warning in result.warnings)

    before = written(out / "cells")
    again = sweep(settings(), out, progress=False)
    assert (again.reused, again.rows, len(trained.folders)) == (True, result.rows, 4)
    assert written(out / "cells") == before


@pytest.mark.slow
def test_the_best_settings_train_the_same_model_again(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = settings().base
    shutil.copytree(base["model"], tmp_path / "base-model")
    shutil.copytree(base["dev"], tmp_path / "toy")
    shutil.copy(base["pairs"], tmp_path / "pairs.jsonl")
    relative = {"pairs": "pairs.jsonl", "dev": "toy", "model": "base-model"}
    result = sweep(settings(relative), tmp_path / "out", progress=False)
    text = result.best_path.read_text()
    assert text.startswith("# The best of 4 cells on dev: ")
    assert "Measure it on test, once." in text
    monkeypatch.chdir("/")
    again = train(TrainConfig.load(result.best_path), tmp_path / "again", progress=False)
    weights = [folder / "model.safetensors" for folder in (again.model_path, result.model_path)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_ctrl_c_between_cells_and_the_rest_later(settings, tmp_path, monkeypatch):
    out = tmp_path / "out"
    Trained(monkeypatch, at=1, error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        sweep(settings(), out, progress=False)
    assert json.loads((out / "run.json").read_text())["status"] == "interrupted"
    assert [row["status"] for row in table(out)] == ["finished", "waiting", "waiting", "waiting"]
    first = out / "cells" / "loss=bixse,learning_rate=0.001"
    before = written(first)
    assert (out / "best.yaml").is_file()
    trained = Trained(monkeypatch)
    result = sweep(settings(keep="best"), out, progress=False)
    assert [folder.partition(",")[0] for folder in trained.folders] == ["loss=bixse", "loss=infonce", "loss=infonce"]
    assert (len(result.rows), result.reused, result.failed) == (4, False, [])
    kept = {name: time for name, time in before.items() if not name.startswith("model")}
    assert {name: time for name, time in written(first).items() if not name.startswith("model")} == kept


@pytest.mark.slow
def test_ctrl_c_within_a_cell_continues_from_its_checkpoint(settings, tmp_path, monkeypatch):
    out, config = tmp_path / "out", settings(vary={"scale": [5, 10]}, keep="all")
    step, steps = GradedTrainer.training_step, []

    def counted(self, *given, **named):
        steps.append(self.state.global_step)
        if len(steps) == 6:  # the second step of the second cell
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, *given, **named)

    monkeypatch.setattr(GradedTrainer, "training_step", counted)
    with pytest.raises(InterruptedRunError, match=r"cell 2 of 2: .*scale=10: got Ctrl-C or SIGTERM after step 2 of 4"):
        sweep(config, out, progress=False)
    assert len(steps) == 6
    assert json.loads((out / "run.json").read_text())["status"] == "interrupted"
    before = written(out / "cells" / "scale=5")
    result = sweep(config, out, progress=False)
    assert len(steps) == 8
    assert written(out / "cells" / "scale=5") == before
    whole = sweep(config, tmp_path / "whole", progress=False)
    assert [(row.label, row.best) for row in whole.rows] == [(row.label, row.best) for row in result.rows]
    for name in ("scale=5", "scale=10"):
        model = f"cells/{name}/model/model.safetensors"
        assert (out / model).read_bytes() == (tmp_path / "whole" / model).read_bytes()


def test_seeds_are_ranked_by_their_mean(settings, tmp_path):
    out, config = tmp_path / "out", settings(vary={"optimizer.learning_rate": [1e-3, 5e-3]}, seeds=[3, 4])
    result = sweep(config, out, progress=False)
    folder = out / "cells" / f"learning_rate={result.best.settings['optimizer.learning_rate']}"
    figures = {}
    for seed in (3, 4):
        results = json.loads((folder / f"seed-{seed}" / "run.json").read_text())["results"]
        on_dev = {e["step"]: e["eval_dev_ndcg@10"] for e in results["history"] if "eval_dev_ndcg@10" in e}
        figures[seed] = on_dev[results["best_step"]]
    assert result.best.best == pytest.approx(statistics.mean(figures.values()))
    assert result.best.spread == pytest.approx(statistics.stdev(figures.values()))
    assert result.best.best >= result.rows[1].best
    assert (result.best.seeds, len(result.best.best_steps)) == ([3, 4], 2)
    assert table(out)[0]["seeds"] == "3 4"
    best_seed = max(figures, key=lambda seed: figures[seed])
    assert result.model_path == folder / f"seed-{best_seed}" / "model"
    assert TrainConfig.load(result.best_path).seed == best_seed
    assert list(out.glob("cells/*/*/model")) == [result.model_path]
    assert result.warnings == []


def test_a_cell_of_which_a_seed_fails_is_not_ranked_by_the_others(settings, tmp_path, monkeypatch):
    step = GradedTrainer.training_step

    def spoiled(self, *given, **named):
        if self.args.seed == 2 and self.args.learning_rate > 2e-3:
            next(self.model.parameters()).data.fill_(float("nan"))
        return step(self, *given, **named)

    monkeypatch.setattr(GradedTrainer, "training_step", spoiled)
    trained = Trained(monkeypatch)
    config = settings(vary={"optimizer.learning_rate": [3e-3, 1e-5]}, seeds=[1, 2, 3])
    result = sweep(config, tmp_path / "out", progress=False)
    assert trained.folders == ["seed-1", "seed-2", "seed-1", "seed-2", "seed-3"]  # the third would be for nothing
    assert [(row.cell, row.status) for row in result.rows] == [(2, "finished"), (1, "failed")]
    assert result.rows[1].best > result.rows[0].best
    assert result.rows[1].reason.startswith("seed 2: training: got ")
    assert result.model_path.parents[1].name == "learning_rate=1e-05"
    assert len(list((tmp_path / "out").glob("cells/*/*/model"))) == 1


@pytest.mark.parametrize(("keep", "models"), [("all", 2), ("none", 0)])
def test_which_models_are_kept(settings, tmp_path, monkeypatch, keep, models):
    config = settings(vary={"scale": [5, 10]}, keep=keep)
    result = sweep(config, tmp_path / "out", progress=False)
    assert len(list((tmp_path / "out").glob("cells/*/model"))) == models
    assert (result.model_path is None) == (keep == "none")
    trained = Trained(monkeypatch)
    assert sweep(config, tmp_path / "out", progress=False).rows == result.rows
    assert trained.folders == []  # without a model `train` itself would begin anew


@pytest.mark.slow
def test_random_cells_can_be_added_later(settings, tmp_path, monkeypatch):
    vary = {"optimizer.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}
    two = sweep(settings(vary=vary, search="random", cells=2), tmp_path / "out", progress=False)
    trained = Trained(monkeypatch)
    three = sweep(settings(vary=vary, search="random", cells=3), tmp_path / "out", progress=False)
    assert len(trained.folders) == 1
    assert {row.cell: row.best for row in two.rows}.items() <= {row.cell: row.best for row in three.rows}.items()
    few = settings(vary={"scale": [5]}, search="random", cells=3)
    assert "3 cells were drawn, 1 of them different" in sweep(few, tmp_path / "few", progress=False).warnings[0]


def test_a_moved_sweep_goes_on(settings, tmp_path):
    config = settings(vary={"scale": [5]})
    sweep(config, tmp_path / "out", progress=False)
    (tmp_path / "out").rename(tmp_path / "moved")
    assert sweep(config, tmp_path / "moved", progress=False).reused
