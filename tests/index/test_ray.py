"""The engine of Ray: refusals, one machine, and a cluster of two nodes on this machine."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import psutil
import pytest

from bixse import ray_engine
from bixse.engine import Engine, EngineSettings
from bixse.errors import InputError
from helpers.command import refused
from helpers.shard_jobs import Numbers, Threads, logged, needs_ray, sums, write_numbers


@pytest.fixture
def folder(tmp_path):
    return write_numbers(tmp_path / "numbers", 12)


@pytest.fixture(scope="module")
def cluster():
    """Two nodes with two cores each; workers import what this process imports."""
    module = pytest.importorskip("ray.cluster_utils", reason="needs bixse[ray]")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        nodes = module.Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        try:
            nodes.add_node(num_cpus=2)
            yield nodes
        finally:
            nodes.shutdown()


@pytest.fixture
def engine(cluster):
    return lambda processes=4: EngineSettings(
        engine="ray", address=cluster.address, processes=processes
    ).chosen_engine()


def results(engine, job):
    return {ended.shard: ended.result for ended in engine.map(job, range(12))}


EXPECTED = {n: 2 * n + 1 for n in range(12)}


def test_address_without_ray_is_refused(capsys, tmp_path):
    words = ("index", "demo", "--collection", tmp_path, "--out", tmp_path / "out", "--address", "auto")
    assert "address" in refused(capsys, *words)


@pytest.mark.skipif(needs_ray.args[0] is False, reason="Ray is installed")
def test_missing_package_is_named(capsys, tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d1", "text": "copy a file"}\n')
    words = ("index", "demo", "--collection", tmp_path, "--out", tmp_path / "out", "--engine", "ray")
    assert "bixse[ray]" in refused(capsys, *words)


@needs_ray
@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "127.0.0.1:9", "127.0.0.1:99999", "nonsense", "auto"])
def test_address_without_a_cluster_is_refused(folder, address, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # else auto tries for minutes to find a cluster that was killed
    with pytest.raises(InputError) as error:
        results(EngineSettings(engine="ray", address=address).chosen_engine(), Numbers(folder))
    assert error.value.where == "address"
    assert logged(folder, "run") == []


SCRIPT = """
import os, sys, time
from pathlib import Path
import psutil
from bixse.ray_engine import RayEngine
from helpers.shard_jobs import Numbers
print("ready", flush=True)
for ended in RayEngine(2).map(Numbers(Path(sys.argv[1]), seconds=float(sys.argv[2])), range(2)):
    print(ended.result)
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    ports = {c.laddr for p in processes for c in p.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    print(sorted({port.ip.removeprefix("::ffff:") for port in ports}))
"""


def started(folder, seconds):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SCRIPT, str(folder), str(seconds)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)


def left():
    """Return the processes of Ray on this machine."""
    commands = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            commands += [name for name in ("raylet", "gcs_server", "ray::") if name in " ".join(process.cmdline()[:1])]
    return commands


@needs_ray
def test_ray_on_one_machine_listens_to_this_machine_alone(folder):
    process = started(folder, 0)
    assert process.communicate(timeout=200)[0].splitlines()[2::2] == ["['127.0.0.1']"] * 2
    assert (process.returncode, left()) == (0, [])


@needs_ray
def test_ctrl_c_interrupts_the_shards_and_ends_ray(folder):
    process = started(folder, 100)
    limit = time.monotonic() + 200
    while len(logged(folder, "run")) < 2 and time.monotonic() < limit:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    process.communicate(timeout=100)
    assert process.returncode == -signal.SIGINT
    assert sorted(logged(folder, "interrupted")) == ["0", "1"]
    assert left() == []


@needs_ray
@pytest.mark.slow
class TestCluster:
    def test_two_nodes_write_the_bytes_of_one_process(self, engine, cluster, folder, tmp_path):
        local = write_numbers(tmp_path / "local", 12)
        results(Engine(), Numbers(local))
        assert results(engine(), Numbers(folder, seconds=1.0)) == EXPECTED
        assert sums(folder) == sums(local)
        assert len(logged(folder, "setup")) > 2  # a node has room for two
        assert not list(tmp_path.rglob(".shared-*"))
        assert all(node.any_processes_alive() for node in cluster.list_all_nodes())

    def test_cores_of_a_node_are_divided_among_its_processes(self, engine):
        threads = [ended.result[1] for ended in engine(2).map(Threads(), range(4))]
        assert threads == ["2"] * 4

    def test_another_version_is_refused(self, engine, folder, monkeypatch):
        monkeypatch.setattr(ray_engine.metadata, "version", lambda name: "99.0")
        with pytest.raises(InputError, match=r"99\.0"):
            results(engine(), Numbers(folder))
        assert logged(folder, "run") == []

    def test_folder_that_is_not_shared_is_refused(self, engine, folder):
        opened = os.open(folder, os.O_RDONLY)  # a path that only this process sees
        try:
            with pytest.raises(InputError, match="share"):
                results(engine(), Numbers(Path(f"/proc/self/fd/{opened}")))
        finally:
            os.close(opened)
        assert logged(folder, "run") == []

    def test_machine_without_bixse_is_refused(self, cluster, engine, folder, tmp_path):
        import ray

        (tmp_path / "bixse.py").write_text("raise ImportError('not installed')")
        environment = {"env_vars": {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}}
        ray.init(cluster.address, log_to_driver=False, runtime_env=environment)
        try:
            with pytest.raises(InputError, match=r"bixse\[ray\]"):
                results(engine(), Numbers(folder))
            assert ray.is_initialized()
        finally:
            ray.shutdown()

    def test_job_of_a_module_that_a_machine_lacks_is_refused(self, engine, folder, tmp_path, monkeypatch):
        (tmp_path / "only_here.py").write_text("from helpers.shard_jobs import Numbers\nclass Here(Numbers): pass\n")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(InputError, match="only_here"):
            results(engine(), import_module("only_here").Here(folder))

    def test_lost_node_loses_no_shard(self, cluster, engine, folder):
        node, outcomes = cluster.add_node(num_cpus=2), {}
        for ended in engine(6).map(Numbers(folder, seconds=1.0), range(12)):
            if not outcomes:
                cluster.remove_node(node, allow_graceful=False)
            outcomes[ended.shard] = ended.result
        assert outcomes == EXPECTED
