"""The engine ray: a real cluster of two nodes on this machine, of which one goes in the middle."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from bixse.errors import InputError, StorageError
from bixse.scale.engines import ray_cluster
from bixse.scale.engines.engine_settings import EngineSettings
from bixse.scale.engines.process_engines import LocalEngine
from helpers.shard_jobs import Numbers, Unsendable, said, sums, write_numbers

ray = pytest.importorskip("ray", reason="needs bixse[ray]")
pytestmark = pytest.mark.slow


@pytest.fixture
def engine(cluster):
    def make(**settings):
        return EngineSettings(engine="ray", ray_address=cluster.address, **settings).chosen_engine()

    return make


@pytest.fixture
def folder(tmp_path):
    return write_numbers(tmp_path / "numbers", 12)


def do(engine, job, shards=12):
    """Shard -> what became of it."""
    return {ended.shard: ended for ended in engine.map(job, range(shards))}


def local(folder):
    """What the local engine makes of the same input."""
    other = write_numbers(folder.parent / "local", 12)
    do(LocalEngine(1), Numbers(other))
    return sums(other)


# --- refusals


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9", "127.0.0.1:99999", "nonsense"])
def test_no_cluster_at_the_address(folder, monkeypatch, address):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    engine = EngineSettings(engine="ray", ray_address=address).chosen_engine()
    with pytest.raises(InputError, match="no Ray cluster answers"):
        do(engine, Numbers(folder))
    assert said(folder, "run") == []


@pytest.mark.parametrize("resources", [{"num_gpus": 1}, {"num_cpus": 3}])
def test_a_machine_that_the_cluster_does_not_have(engine, folder, resources):
    with pytest.raises(InputError, match=next(iter(resources))):
        do(engine(**resources), Numbers(folder))


def test_a_job_that_cannot_be_sent(engine):
    with pytest.raises(InputError, match="Unsendable"):
        do(engine(), Unsendable(threading.Lock()))


def test_machines_with_another_version(engine, folder, monkeypatch):
    monkeypatch.setattr(ray_cluster.metadata, "version", lambda name: "99.0")
    with pytest.raises(InputError, match=r"99\.0"):
        do(engine(processes=1), Numbers(folder))


def test_machines_without_bixse(cluster, engine, folder, tmp_path):
    (tmp_path / "bixse.py").write_text("raise ImportError('not installed')")
    environment = {"env_vars": {"PYTHONPATH": str(tmp_path)}}
    ray.init(address=cluster.address, log_to_driver=False, runtime_env=environment)
    try:
        with pytest.raises(InputError, match="no bixse"):
            do(engine(processes=1), Numbers(folder))
        assert ray.is_initialized(), "a connection that was there before stays"
    finally:
        ray.shutdown()


def test_a_folder_that_is_not_shared(engine, folder):
    """One that only this process sees: by its own number of the open folder."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        with pytest.raises(InputError, match="share"):
            do(engine(processes=1), Numbers(Path(f"/proc/self/fd/{opened}")))
    finally:
        os.close(opened)
    assert said(folder, "setup") == []


def test_a_full_disk_ends_all(engine, folder):
    with pytest.raises(StorageError, match="full disk"):
        do(engine(), Numbers(folder, full=(0, 1, 2)))


# --- shards


def test_the_same_as_on_one_machine_with_one_setup_per_process(engine, folder):
    found = do(engine(processes=3), Numbers(folder, seconds=0.1))
    assert {shard: ended.result for shard, ended in found.items()} == {n: 2 * n + 1 for n in range(12)}
    assert sums(folder) == local(folder)
    processes = said(folder, "setup")
    assert 1 <= len(processes) == len(set(processes)) <= 3
    assert all(ended.known for ended in do(engine(), Numbers(folder)).values())
    assert len(said(folder, "run")) == 12


def test_a_killed_process_and_a_shard_that_fails(engine, folder):
    found = do(engine(processes=2), Numbers(folder, dies=(1,), dies_once=(2,), raises=(3,)))
    assert "died" in found.pop(1).error
    assert found.pop(3).error == "RuntimeError: shard 3 is bad"
    assert {shard: ended.result for shard, ended in found.items()} == {n: 2 * n + 1 for n in (0, 2, *range(4, 12))}
    assert [said(folder, "run").count(str(shard)) for shard in range(5)] == [1, 2, 2, 2, 1]
    do(engine(), Numbers(folder))
    assert sums(folder) == local(folder)


def test_nothing_is_lost_with_a_node_that_goes(cluster, engine, folder):
    node = cluster.add_node(num_cpus=2)
    whole = {}
    for ended in engine(processes=6).map(Numbers(folder, seconds=1.0), range(12)):
        if not whole:
            cluster.remove_node(node, allow_graceful=False)
        whole[ended.shard] = ended.result
    assert whole == {n: 2 * n + 1 for n in range(12)}
    assert sums(folder) == local(folder)
    assert not list((folder / "out").glob(".shared-*"))
