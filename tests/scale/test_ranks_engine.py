"""The engine ranks: real processes that know of each other by the marks on disk alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from bixse.errors import InputError
from bixse.scale.engine import Engine, rank_of
from helpers.shard_jobs import Numbers, said, sums, write_numbers

SCRIPT = """
import sys
from pathlib import Path
from bixse.scale.engine import EngineSettings
from helpers.shard_jobs import Numbers
job = Numbers(Path(sys.argv[1]), dies=tuple(map(int, sys.argv[2:])))
for ended in EngineSettings(engine="ranks", processes=1).chosen_engine().map(job, range(7)):
    pass
print("whole" if all(map(job.is_complete, range(7))) else "waits")
"""


@pytest.fixture
def folder(tmp_path):
    return write_numbers(tmp_path / "numbers", 7)


def start(folder, *dies, **environment):
    command = [sys.executable, "-c", SCRIPT, str(folder), *map(str, dies)]
    path = os.pathsep.join(sys.path)
    return subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path, **environment}, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "-1", "WORLD_SIZE": "2"},
        {"RANK": "one", "WORLD_SIZE": "2"},
        {"SLURM_ARRAY_TASK_ID": "9", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "3"},
        {"SLURM_ARRAY_TASK_ID": "6", "SLURM_ARRAY_TASK_MIN": "2", "SLURM_ARRAY_TASK_COUNT": "3"},
    ],
)
def test_an_environment_without_a_rank_that_can_be(environment):
    with pytest.raises(InputError, match=r"got .*expected .*; fix: "):
        rank_of(environment)


def test_tasks_of_an_array_count_from_its_first_one():
    array = {"SLURM_ARRAY_TASK_MIN": "2", "SLURM_ARRAY_TASK_COUNT": "3"}
    assert [rank_of({**array, "SLURM_ARRAY_TASK_ID": task}) for task in "234"] == [(0, 3), (1, 3), (2, 3)]


def test_a_rank_that_is_killed_and_the_same_command_again(folder):
    ranks = [start(folder, 3, RANK=str(rank), WORLD_SIZE="2") for rank in (0, 1)]
    texts = [process.communicate(timeout=60)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, -signal.SIGKILL]
    assert texts == ["waits\n", ""]
    assert sorted(said(folder, "run")) == ["0", "1", "2", "3", "4", "6"]
    again = start(folder, SLURM_ARRAY_TASK_ID="1", SLURM_ARRAY_TASK_COUNT="2")
    assert again.communicate(timeout=60)[0] == "whole\n", "the last one sees that everything is there"
    assert sorted(said(folder, "run")) == ["0", "1", "2", "3", "3", "4", "5", "6"]
    whole = write_numbers(folder.parent / "local", 7)
    list(Engine(1).map(Numbers(whole), range(7)))
    assert sums(folder) == sums(whole)
