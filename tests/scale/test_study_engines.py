"""Studies by several ranks: the figures of one process."""

from __future__ import annotations

import csv
import json

import pytest
import yaml

from helpers.command import ended, start

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def study(actions, student, tmp_path_factory):
    """Starts a process of `bixse study`: two losses trained with two seeds, and two arms beside."""
    settings = {
        "data": {"collection": str(actions), "scale": [0, 3], "min_relevant_grade": 2},
        "model": str(student),
        "seeds": [0, 1],
        "train": {"optimizer": {"learning_rate": 1e-2, "num_train_epochs": 1, "global_batch_size": 8}},
        "values": {"losses": ["bixse", "infonce"]},
    }
    file = tmp_path_factory.mktemp("settings") / "study.yaml"
    file.write_text(yaml.safe_dump(settings))

    def study(out, *words, **environment):
        given = ("study", "losses", "--config", file, "--out", out, *words)
        return start(*given, **{"OMP_NUM_THREADS": "1", **environment})

    return study


def figures(out):
    """All results and the table of the arms, times aside."""
    found = {}
    for path in sorted(out.glob("runs/*/*/result.json")):
        found[path.parent.relative_to(out)] = {**json.loads(path.read_text()), "seconds": 0}
    with (out / "summary.csv").open(encoding="utf-8") as file:
        return found, [{**row, "seconds": ""} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def local(study, tmp_path_factory):
    out = tmp_path_factory.mktemp("local") / "study"
    code, found = ended(study(out, "--jobs", "1"))
    assert code == 0, found
    assert found["made"] == 6
    return figures(out)


def test_ranks_do_a_study_together(study, local, tmp_path):
    ranks = [study(tmp_path / "out", "--engine", "ranks", "--jobs", "1", RANK=str(n), WORLD_SIZE="2") for n in (0, 1)]
    found = [ended(process) for process in ranks]
    assert [code for code, _ in found] == [0, 0], found
    assert figures(tmp_path / "out") == local
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "finished"
