from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bixse.training.sweep.sweep_config import Range, SweepConfig, load_sweep
from bixse.training.sweep.sweep_plan import plan_cells, setting

from bixse.errors import ConfigError, InputError

BASE = {"pairs": "pairs.jsonl", "dev": "collection"}


def faults(config: SweepConfig) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        plan_cells(config)
    head, *lines = str(caught.value).splitlines()
    assert head == f"sweep: {len(lines)} fault{'s' if len(lines) != 1 else ''}"
    assert all(": got " in line and "expected " in line and "; fix: " in line for line in lines), lines
    return lines


def write(folder: Path, text: str) -> Path:
    (folder / "sweep.yaml").write_text(text, encoding="utf-8")
    return folder / "sweep.yaml"


class TestUnhappyPaths:
    @pytest.mark.parametrize(
        ("key", "hint"),
        [
            ("optimizer.learning_rat", "did you mean 'optimizer.learning_rate'?"),
            ("learning_rate", "did you mean 'optimizer.learning_rate'?"),
            ("los", "did you mean 'loss'?"),
            ("devv", "did you mean 'dev'?"),
        ],
    )
    def test_an_unknown_key_says_the_closest(self, key: str, hint: str) -> None:
        (line,) = faults(SweepConfig(base=BASE, vary={key: [1, 2]}))
        assert line.startswith(f"  {key}: got an unknown key")
        assert hint in line
        assert line.endswith(" (in every cell)")

    def test_all_faults_of_all_cells_are_named_together(self) -> None:
        vary = {"loss": ["bixse", "bixs"], "optimizer.batch_size": [8, 0], "scale": [10.0, "hot"]}
        lines = faults(SweepConfig(base=BASE, vary=vary))
        assert len(lines) == 3
        of_a_cell = [line for line in lines if "loss: got 'bixs'" in line]
        assert of_a_cell[0].endswith(" (in cell loss=bixs, batch_size=8, scale=10 and 3 more)")

    def test_a_fault_of_the_base_is_said_once(self) -> None:
        (line,) = faults(SweepConfig(base={**BASE, "epochs": 2}, vary={"scale": [5, 10, 20]}))
        assert "did you mean 'optimizer.epochs'?" in line

    def test_without_dev_there_is_nothing_to_rank_by(self) -> None:
        (line,) = faults(SweepConfig(base={"pairs": "pairs.jsonl"}, vary={"scale": [5, 10]}))
        assert line.startswith("  dev: got nothing; expected a collection folder to rank the cells by")

    @pytest.mark.parametrize("key", ["dev", "dev_split", "dev_candidates"])
    def test_the_measure_may_not_vary(self, key: str) -> None:
        lines = faults(SweepConfig(base=BASE, vary={key: ["a", "b"]}))
        assert "figures on other queries or documents do not compare" in lines[0]

    def test_the_training_seed_is_no_setting_to_choose(self) -> None:
        (line,) = faults(SweepConfig(base=BASE, vary={"seed": [0, 1]}))
        assert "fix: move the list to `seeds`" in line

    def test_a_section_and_a_key_in_it(self) -> None:
        lines = faults(SweepConfig(base=BASE, vary={"lora": [{"rank": 8}], "lora.rank": [8, 16]}))
        assert "a key within 'lora', which varies too" in lines[0]

    def test_a_key_in_a_section_that_base_sets_to_null(self) -> None:
        """Without the check every cell would be the same run."""
        (line,) = faults(SweepConfig(base={**BASE, "lora": None}, vary={"lora.rank": [8, 16]}))
        assert "lora.rank: got no section 'lora'" in line
        assert "write `lora: {}` in `base`" in line

    def test_an_option_that_one_loss_does_not_take(self) -> None:
        (line,) = faults(SweepConfig(base=BASE, vary={"loss": ["bixse", "infonce"], "loss_options.bias": [-3.0]}))
        assert "got 'bias'; expected one of" in line
        assert line.endswith(" (in cell loss=infonce, bias=-3)")

    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({"search": "random"}, "cells: got nothing; expected a number for random search"),
            ({"cells": 5}, "cells: got 5; expected none for a grid"),
            ({"vary": {"scale": {"low": 1, "high": 2}}}, "vary.scale: got a range; expected a list in a grid"),
            ({"seeds": [1, 1]}, "seeds: got one twice"),
            ({"vary": {"scale": list(range(1, 102)), "seed_": list(range(100))}}, "got 10,100 combinations"),
            ({"vary": {"loss_options.bias": ["3", 3]}}, "got two cells for the folder 'bias=3'"),
        ],
    )
    def test_what_cannot_be_searched(self, settings: dict[str, Any], said: str) -> None:
        (line,) = faults(SweepConfig(**{"base": BASE, "vary": {"scale": [5, 10]}, **settings}))
        assert said in line

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("vary: {scale: [1]}", "base: got nothing; expected a value"),
            ("base: 3\nvary: {scale: [1]}", "base: got 3; expected settings of `bixse train`"),
            ("base: run.yaml", "vary: got nothing"),
            ("base: run.yaml\nvary: {}", "vary: got {}"),
            ("base: run.yaml\nvary: {scale: 3}", "vary.scale: got 3; expected a list of values, or a range"),
            ("base: run.yaml\nvary: {scale: []}", "vary.scale: got []; expected a list of values"),
            ("base: run.yaml\nvary: {scale: {low: 1, hihg: 2}}", "did you mean 'high'?"),
            ("base: run.yaml\nvary: {scale: {low: 2, high: 1}}", "expected numbers low < high"),
            ("base: run.yaml\nvary: {scale: {low: 1}}", "expected numbers low < high"),
            ("base: run.yaml\nvary: {scale: {low: 0, high: 1, log: true}}", "expected low above 0"),
            ("base: run.yaml\nvary: {scale: {low: 0.5, high: 3, whole: true}}", "expected whole numbers"),
            ("base: run.yaml\nvary: {scale: {low: 1, high: 3, log: maybe}}", "log and whole true or false"),
            ("base: run.yaml\nvary: {scale: [1]}\nserch: random", "did you mean 'search'?"),
            ("base: run.yaml\nvary: {scale: [1]}\nkeep: some", "keep: got 'some'"),
            ("base: run.yaml\nvary: {scale: [1]}\nseeds: [-1]", "seeds.0: got -1"),
            ("base: run.yaml\nvary: {scale: [1]}\nseeds: []", "seeds: got []"),
        ],
    )
    def test_a_file_that_is_no_sweep(self, tmp_path: Path, text: str, said: str) -> None:
        with pytest.raises(ConfigError) as caught:
            load_sweep(write(tmp_path, text))
        assert said in str(caught.value)
        assert "fix: " in str(caught.value)

    def test_a_base_file_that_is_not_there(self, tmp_path: Path) -> None:
        config = load_sweep(write(tmp_path, "base: run.yaml\nvary: {scale: [1]}"))
        with pytest.raises(InputError, match=r"run\.yaml: got 'No such file or directory'"):
            plan_cells(config)


def test_a_grid_is_every_combination_in_order() -> None:
    vary = {"loss": ["bixse", "infonce"], "optimizer.learning_rate": ["1e-4", 1e-3]}
    cells = plan_cells(SweepConfig(base={**BASE, "optimizer": {"epochs": 1}}, vary=vary))
    assert [cell.label for cell in cells] == [
        "loss=bixse, learning_rate=0.0001",
        "loss=bixse, learning_rate=0.001",
        "loss=infonce, learning_rate=0.0001",
        "loss=infonce, learning_rate=0.001",
    ]
    assert [cell.number for cell in cells] == [1, 2, 3, 4]
    assert [cell.configs[0].optimizer.learning_rate for cell in cells] == [1e-4, 1e-3] * 2
    assert {cell.configs[0].optimizer.epochs for cell in cells} == {1}
    assert cells[0].folder == "loss=bixse,learning_rate=0.0001"


def test_equal_cells_are_one() -> None:
    cells = plan_cells(SweepConfig(base=BASE, vary={"scale": [10, 10.0, "1e1", 20]}))
    assert [(cell.number, cell.settings) for cell in cells] == [(1, {"scale": 10.0}), (2, {"scale": 20.0})]


def test_sections_vary_as_a_whole() -> None:
    vary = {"lora": [None, {"rank": 8}], "loss_options": [{}, {"bias": -3.0}]}
    cells = plan_cells(SweepConfig(base=BASE, vary=vary))
    ranks = [config.lora.rank if config.lora is not None else None for cell in cells for config in cell.configs]
    assert ranks == [None, None, 8, 8]
    assert cells[3].label == 'lora={"rank": 8}, loss_options={"bias": -3.0}'
    assert all(set(cell.folder) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.,=+-") for cell in cells)
    assert len({cell.folder for cell in cells}) == 4


def test_a_long_name_is_cut_and_stays_distinct() -> None:
    models = [f"{'deep/' * 40}{name}" for name in ("a", "b")]
    folders = [cell.folder for cell in plan_cells(SweepConfig(base=BASE, vary={"model": models}))]
    assert len(set(folders)) == 2
    assert all(len(folder) <= 80 and "/" not in folder for folder in folders)


def test_seeds_are_runs_of_one_cell() -> None:
    cells = plan_cells(SweepConfig(base={**BASE, "seed": 7}, vary={"scale": [5, 10]}, seeds=[1, 2]))
    assert [[config.seed for config in cell.configs] for cell in cells] == [[1, 2], [1, 2]]
    (cell,) = plan_cells(SweepConfig(base={**BASE, "seed": 7}, vary={"scale": [5]}))
    assert [config.seed for config in cell.configs] == [7]


VARY = {
    "optimizer.learning_rate": {"low": "1e-5", "high": "1e-3", "log": True},
    "optimizer.batch_size": {"low": 4, "high": 64, "log": True, "whole": True},
    "scale": {"low": 5, "high": 20},
    "loss": ["bixse", "infonce"],
}


class TestRandom:
    def cells(self, **changes: Any) -> list[dict[str, Any]]:
        settings = {"base": BASE, "vary": VARY, "search": "random", "cells": 20, **changes}
        return [cell.settings for cell in plan_cells(SweepConfig(**settings))]

    def test_a_draw_is_a_function_of_seed_and_number_alone(self) -> None:
        twenty = self.cells()
        assert self.cells(cells=30)[:20] == twenty
        assert self.cells() == twenty
        assert self.cells(seed=1)[:3] != twenty[:3]
        fewer = self.cells(vary={key: values for key, values in VARY.items() if key != "scale"})
        assert [cell["loss"] for cell in fewer] == [cell["loss"] for cell in twenty]

    def test_draws_lie_in_their_ranges(self) -> None:
        cells = self.cells(cells=300)
        rates = [cell["optimizer.learning_rate"] for cell in cells]
        assert all(1e-5 <= rate <= 1e-3 for rate in rates)
        assert sum(rate < 1e-4 for rate in rates) / len(rates) == pytest.approx(0.5, abs=0.1)
        batches = [cell["optimizer.batch_size"] for cell in cells]
        assert all(isinstance(size, int) and 4 <= size <= 64 for size in batches)
        assert sum(size < 16 for size in batches) / len(batches) == pytest.approx(0.5, abs=0.1)
        assert all(5 <= cell["scale"] <= 20 for cell in cells)
        assert {cell["loss"] for cell in cells} == {"bixse", "infonce"}

    def test_whole_numbers_reach_both_ends(self) -> None:
        for log in (False, True):
            drawn = [Range(1, 3, log=log, whole=True).draw(share / 100) for share in range(100)]
            assert set(drawn) == {1, 2, 3}

    def test_a_narrow_range_is_not_left_by_rounding(self) -> None:
        assert 1.00001 <= Range(1.00001, 1.00002).draw(0.1) <= 1.00002

    def test_equal_draws_are_one_cell(self) -> None:
        assert len(self.cells(vary={"loss": ["bixse", "infonce"]})) == 2


class TestFiles:
    def test_paths_are_taken_from_the_files_folder(self, tmp_path: Path) -> None:
        text = "base: {pairs: pairs.jsonl, dev: toy}\nvary: {scale: [5], pairs: [a.jsonl, b.jsonl]}"
        cells = plan_cells(load_sweep(write(tmp_path, text)))
        assert [cell.configs[0].pairs for cell in cells] == [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
        assert {cell.configs[0].dev for cell in cells} == {tmp_path / "toy"}

    def test_a_base_file_has_a_folder_of_its_own(self, tmp_path: Path) -> None:
        (tmp_path / "inner").mkdir()
        (tmp_path / "inner" / "run.yaml").write_text("pairs: pairs.jsonl\ndev: /data/toy\noptimizer: {epochs: 1}\n")
        text = "base: inner/run.yaml\nvary: {optimizer.batch_size: [4, 8]}"
        cells = plan_cells(load_sweep(write(tmp_path, text)))
        assert {cell.configs[0].pairs for cell in cells} == {tmp_path / "inner" / "pairs.jsonl"}
        assert {cell.configs[0].dev for cell in cells} == {Path("/data/toy")}
        assert [setting(cell.configs[0], "optimizer.batch_size") for cell in cells] == [4, 8]
        assert {setting(cell.configs[0], "optimizer.epochs") for cell in cells} == {1}


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    grid, random_search = [part.partition("```")[0] for part in text.partition("## Sweep")[2].split("```yaml\n")[1:]]
    cells = plan_cells(load_sweep(write(tmp_path, grid)))
    assert len(cells) == 8
    assert [config.seed for config in cells[0].configs] == [0, 1, 2]
    shared = grid[: grid.index("vary:")]
    assert len(plan_cells(load_sweep(write(tmp_path, shared + random_search)))) == 20
