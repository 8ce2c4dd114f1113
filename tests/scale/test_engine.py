"""The engine: real processes and ranks, really killed. Ranks know of each other by the markers on disk alone."""

import os
import signal
import subprocess
import sys

import pytest

from bixse.errors import ConfigError, InputError, StorageError
from bixse.machine import cores
from bixse.scale.engine import MARK, Engine, EngineSettings, rank_of
from helpers.shard_jobs import Numbers, Threads, logged, sums, write_numbers

needs_two_cores = pytest.mark.skipif(cores() < 2, reason="needs two cores")
both = pytest.mark.parametrize("processes", [1, pytest.param(2, marks=needs_two_cores)])
RANK = """
import sys
from pathlib import Path
from bixse.scale.engine import EngineSettings
from helpers.shard_jobs import Numbers
job = Numbers(Path(sys.argv[1]), dies=tuple(map(int, sys.argv[2:])))
for ended in EngineSettings(engine="ranks", processes=1).chosen_engine().map(job, range(6)):
    pass
print("complete" if all(map(job.is_complete, range(6))) else "pending")
"""


@pytest.fixture
def folder(tmp_path):
    return write_numbers(tmp_path / "numbers", 6)


@pytest.fixture
def expected(tmp_path):
    """Name -> content of the outputs of one process without failures."""
    folder = write_numbers(tmp_path / "expected", 6)
    list(Engine(1).map(Numbers(folder), range(6)))
    return sums(folder)


def start_rank(folder, *dies, **environment):
    command = [sys.executable, "-c", RANK, str(folder), *map(str, dies)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("processes", [0, -1, 10_000])
def test_more_processes_than_cores_are_refused(processes):
    with pytest.raises(InputError) as error:
        Engine(processes)
    assert error.value.got == str(processes)


@pytest.mark.parametrize(("key", "value"), [("engine", "slurm"), ("shards", 0), ("processes", 0)])
def test_unusable_settings_are_refused(key, value):
    with pytest.raises(ConfigError, match=f"{key}: got {value!r}"):
        EngineSettings.load(None, {key: value})


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
def test_environment_without_a_valid_rank_is_refused(environment):
    with pytest.raises(InputError) as error:
        rank_of(environment)
    assert error.value.where == "engine ranks"


@both
def test_full_disk_ends_all_shards(folder, processes):
    with pytest.raises(StorageError, match="full disk"):
        list(Engine(processes).map(Numbers(folder, full=(0, 1, 2)), range(6)))


@both
def test_second_call_does_the_failed_and_the_missing_shards_alone(folder, expected, processes):
    outcomes = {ended.shard: ended for ended in Engine(processes).map(Numbers(folder, raises=(3, 4)), range(6))}
    assert [outcomes.pop(shard).error for shard in (3, 4)] == [f"RuntimeError: shard {n} is bad" for n in (3, 4)]
    assert {shard: ended.result for shard, ended in outcomes.items()} == {n: 2 * n + 1 for n in (0, 1, 2, 5)}
    assert [logged(folder, "run").count(str(shard)) for shard in range(6)] == [1, 1, 1, 2, 2, 1]
    assert not (folder / "out" / f"3.sum{MARK}").exists()
    (folder / "out" / "5.sum").unlink()
    known = {ended.shard: ended.known for ended in Engine(processes).map(Numbers(folder), range(6))}
    assert known == {0: True, 1: True, 2: True, 3: False, 4: False, 5: False}
    assert sums(folder) == expected


@needs_two_cores
def test_killed_process_loses_its_own_shard_alone(folder):
    job = Numbers(folder, dies=(1,), dies_once=(2,))
    outcomes = {ended.shard: ended for ended in Engine(2).map(job, range(6))}
    assert "died" in outcomes.pop(1).error
    assert {shard: ended.result for shard, ended in outcomes.items()} == {n: 2 * n + 1 for n in (0, 2, 3, 4, 5)}
    assert [logged(folder, "run").count(str(shard)) for shard in range(6)] == [1, 2, 2, 1, 1, 1]


def test_outputs_of_another_job_are_made_again(folder):
    list(Engine(1).map(Numbers(folder), range(3)))
    outcomes = list(Engine(1).map(Numbers(folder, factor=10), range(3)))
    assert [(ended.result, ended.known) for ended in outcomes] == [(10, False), (30, False), (50, False)]


def test_single_process_is_this_process_and_does_shards_on_demand(folder):
    first = next(Engine(1).map(Numbers(folder), range(6)))
    assert (first.shard, first.result, logged(folder, "run")) == (0, 1, ["0"])
    assert logged(folder, "setup") == [str(os.getpid())]


@needs_two_cores
def test_each_process_sets_up_once_and_has_its_share_of_the_cores(folder, monkeypatch):
    monkeypatch.delenv("RAYON_NUM_THREADS", raising=False)
    list(Engine(2).map(Numbers(folder), range(6)))
    assert 1 <= len(logged(folder, "setup")) == len(set(logged(folder, "setup"))) <= 2
    results = [ended.result for ended in Engine(2).map(Threads(), range(3))]
    assert {threads for _, threads in results} == {str(max(1, cores() // 2))}
    assert os.getpid() not in {process for process, _ in results}
    assert "RAYON_NUM_THREADS" not in os.environ


def test_killed_rank_continues_with_the_same_command(folder, expected):
    ranks = [start_rank(folder, 3, RANK=str(rank), WORLD_SIZE="2") for rank in (0, 1)]
    texts = [process.communicate(timeout=60)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, -signal.SIGKILL]
    assert texts == ["pending\n", ""]
    assert sorted(logged(folder, "run")) == ["0", "1", "2", "3", "4"]
    again = start_rank(folder, SLURM_ARRAY_TASK_ID="3", SLURM_ARRAY_TASK_COUNT="2", SLURM_ARRAY_TASK_MIN="2")
    assert again.communicate(timeout=60)[0] == "complete\n"
    assert sorted(logged(folder, "run")) == ["0", "1", "2", "3", "3", "4", "5"]
    assert sums(folder) == expected
