"""The engine on one machine: real processes, really killed."""

from __future__ import annotations

import os

import pytest

from bixse.errors import InputError, StorageError
from bixse.machine import cores
from bixse.scale.engine import MARK, Engine
from helpers.shard_jobs import Numbers, Threads, said, sums, write_numbers

needs_two_cores = pytest.mark.skipif(cores() < 2, reason="needs two cores")
both = pytest.mark.parametrize("processes", [1, pytest.param(2, marks=needs_two_cores)])


@pytest.fixture
def folder(tmp_path):
    return write_numbers(tmp_path / "numbers", 6)


@pytest.mark.parametrize("processes", [0, -1, 10_000])
def test_processes_that_no_machine_has(processes):
    with pytest.raises(InputError, match=f"got {processes}"):
        Engine(processes)


@both
def test_a_full_disk_ends_all(folder, processes):
    with pytest.raises(StorageError, match="full disk"):
        list(Engine(processes).map(Numbers(folder, full=(0, 1, 2)), range(6)))


@both
def test_a_shard_that_fails_twice_is_told_and_the_others_go_on(folder, processes):
    found = {ended.shard: ended for ended in Engine(processes).map(Numbers(folder, raises=(1,)), range(6))}
    assert found.pop(1).error == "RuntimeError: shard 1 is bad"
    assert {shard: ended.result for shard, ended in found.items()} == {n: 2 * n + 1 for n in (0, 2, 3, 4, 5)}
    assert said(folder, "run").count("1") == 2
    assert not (folder / "out" / f"1.sum{MARK}").exists()


@needs_two_cores
def test_a_process_that_is_killed_takes_its_own_shard_alone(folder):
    job = Numbers(folder, dies=(1,), dies_once=(2,))
    found = {ended.shard: ended for ended in Engine(2).map(job, range(6))}
    assert "died" in found.pop(1).error
    assert {shard: ended.result for shard, ended in found.items()} == {n: 2 * n + 1 for n in (0, 2, 3, 4, 5)}
    assert [said(folder, "run").count(str(shard)) for shard in range(6)] == [1, 2, 2, 1, 1, 1]


@both
def test_a_second_call_does_what_is_missing(folder, processes):
    whole, folder = folder, write_numbers(folder.parent / "again", 6)
    list(Engine(1).map(Numbers(whole), range(6)))
    list(Engine(processes).map(Numbers(folder, raises=(3, 4)), range(6)))
    (folder / "out" / "5.sum").unlink()
    (folder / "log").unlink()
    found = {ended.shard: ended.known for ended in Engine(processes).map(Numbers(folder), range(6))}
    assert found == {0: True, 1: True, 2: True, 3: False, 4: False, 5: False}
    assert sorted(said(folder, "run")) == ["3", "4", "5"]
    assert sums(folder) == sums(whole)


def test_outputs_of_another_job_are_made_anew(folder):
    list(Engine(1).map(Numbers(folder), range(3)))
    ended = list(Engine(1).map(Numbers(folder, factor=10), range(3)))
    assert [(one.result, one.known) for one in ended] == [(10, False), (30, False), (50, False)]


def test_one_process_is_this_one_and_takes_shards_one_by_one(folder):
    first = next(Engine(1).map(Numbers(folder), range(6)))
    assert (first.shard, first.result, said(folder, "run")) == (0, 1, ["0"])
    assert said(folder, "setup") == [str(os.getpid())]


@needs_two_cores
def test_each_process_sets_up_once_and_has_its_share_of_the_cores(folder, monkeypatch):
    monkeypatch.delenv("RAYON_NUM_THREADS", raising=False)
    list(Engine(2).map(Numbers(folder), range(6)))
    assert 1 <= len(said(folder, "setup")) == len(set(said(folder, "setup"))) <= 2
    found = [ended.result for ended in Engine(2).map(Threads(), range(3))]
    assert {threads for _, threads in found} == {str(max(1, cores() // 2))}
    assert os.getpid() not in {process for process, _ in found}
    assert "RAYON_NUM_THREADS" not in os.environ
