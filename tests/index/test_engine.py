import csv
import json
import os
import signal
import subprocess
import sys
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from bixse.engine import Engine, EngineSettings, rank_of
from bixse.errors import ConfigError, IncompleteError, InputError, StorageError
from bixse.index import index_files
from bixse.index.index_files import Manifest
from bixse.index.make_index import EncodeShards
from bixse.index.search import load_encoder
from bixse.machine import cores
from bixse.ray_engine import RayEngine
from bixse.search.store import EmbeddingStore
from helpers.chat_server import planted
from helpers.command import call, ended, refused, start
from helpers.shard_jobs import Numbers, Threads, logged, needs_ray, sums, write_numbers
from helpers.toy import index_of

needs_two_cores = pytest.mark.skipif(cores() < 2, reason="needs two cores")
several = [
    pytest.param(partial(Engine, 2), marks=needs_two_cores, id="processes"),
    pytest.param(partial(RayEngine, 2), marks=[needs_two_cores, needs_ray], id="ray"),
]
engines = pytest.mark.parametrize("engine", [pytest.param(Engine, id="here"), *several])
RANK = """
import sys
from pathlib import Path
from bixse.engine import EngineSettings
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


@pytest.mark.parametrize("kind", [Engine, RayEngine])
@pytest.mark.parametrize("processes", [0, -1, 10_000])
def test_more_processes_than_cores_are_refused(processes, kind):
    with pytest.raises(InputError) as error:
        kind(processes)
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


@engines
def test_full_disk_ends_all_shards(folder, engine):
    with pytest.raises(StorageError, match="full disk"):
        list(engine().map(Numbers(folder, full=(0, 1, 2)), range(6)))


@engines
def test_second_call_does_the_failed_and_the_missing_shards_alone(folder, expected, engine):
    outcomes = {ended.shard: ended for ended in engine().map(Numbers(folder, raises=(3, 4)), range(6))}
    assert [outcomes.pop(shard).error for shard in (3, 4)] == [f"RuntimeError: shard {n} is bad" for n in (3, 4)]
    assert {shard: ended.result for shard, ended in outcomes.items()} == {n: 2 * n + 1 for n in (0, 1, 2, 5)}
    assert [logged(folder, "run").count(str(shard)) for shard in range(6)] == [1, 1, 1, 2, 2, 1]
    (folder / "out" / "5.sum").unlink()
    known = {ended.shard: ended.known for ended in engine().map(Numbers(folder), range(6))}
    assert known == {0: True, 1: True, 2: True, 3: False, 4: False, 5: False}
    assert sums(folder) == expected


@pytest.mark.parametrize("engine", several)
def test_killed_process_loses_its_own_shard_alone(folder, engine):
    job = Numbers(folder, dies=(1,), dies_once=(2,))
    outcomes = {ended.shard: ended for ended in engine().map(job, range(6))}
    assert "died" in outcomes.pop(1).error
    assert {shard: ended.result for shard, ended in outcomes.items()} == {n: 2 * n + 1 for n in (0, 2, 3, 4, 5)}
    assert [logged(folder, "run").count(str(shard)) for shard in range(6)] == [1, 2, 2, 1, 1, 1]


def test_single_process_is_this_process_and_does_shards_on_demand(folder):
    first = next(Engine(1).map(Numbers(folder), range(6)))
    assert (first.shard, first.result, logged(folder, "run")) == (0, 1, ["0"])
    assert logged(folder, "setup") == [str(os.getpid())]


@pytest.mark.parametrize("engine", several)
def test_each_process_sets_up_once_and_has_its_share_of_the_cores(folder, engine, monkeypatch):
    monkeypatch.delenv("RAYON_NUM_THREADS", raising=False)
    list(engine().map(Numbers(folder), range(6)))
    assert 1 <= len(logged(folder, "setup")) == len(set(logged(folder, "setup"))) <= 2
    results = [ended.result for ended in engine().map(Threads(), range(3))]
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


OUTPUTS = {"grade": "pairs.parquet/*", "index": "files-*/*"}
COUNTS = {"grade": ("asked", [40, 0, 80]), "index": ("encoded", [200, 0, 398])}
"""Metric of new work, and its figures for rank 1, the same again, and rank 0 of 2, with three shards."""


@pytest.fixture
def words_of(request, collection, tiny_model_path, tmp_path):
    """The command line of a verb without `--out`."""

    def grade():
        server = request.getfixturevalue("server")
        documents = [planted(f"p{n}", [0.1, 0.2, 0.3, 0.3], ["500"] if n % 10 == 0 else [], "") for n in range(120)]
        rows = pa.table({"query": [f"query {n // 4}" for n in range(120)], "document": documents})
        pq.write_table(rows, tmp_path / "pairs.parquet", row_group_size=50)
        return ("grade", "--pairs", tmp_path / "pairs.parquet", "--judge", server.scenario(), "--shards", "3")

    def index():
        return ("index", tiny_model_path, "--collection", collection, "--cache", "none", "--shards", "3")

    def study():
        settings = {
            "data": {"collection": str(request.getfixturevalue("actions")), "scale": [0, 3], "min_relevant_grade": 2},
            "model": str(request.getfixturevalue("student")),
            "seeds": [0, 1],
            "train": {"optimizer": {"learning_rate": 1e-2, "num_train_epochs": 1, "global_batch_size": 8}},
            "values": {"losses": ["bixse", "infonce"]},
        }
        (tmp_path / "study.yaml").write_text(yaml.safe_dump(settings))
        return ("study", "losses", "--config", tmp_path / "study.yaml", "--jobs", "1")

    return lambda verb: {"grade": grade, "index": index, "study": study}[verb]()


def content(verb, out):
    """Name -> content of what a verb wrote, times aside."""
    if verb != "study":
        return {path.name: path.read_bytes() for path in out.glob(OUTPUTS[verb])}
    results = {path.parent.name: json.loads(path.read_text()) for path in out.glob("runs/*/*/result.json")}
    with (out / "summary.csv").open(encoding="utf-8") as file:
        arms = list(csv.DictReader(file))
    return [{**row, "seconds": ""} for row in (*results.values(), *arms)]


@pytest.mark.parametrize("verb", ["grade", "index"])
def test_processes_of_a_launcher_without_ranks_are_refused(verb, words_of, capsys, tmp_path, monkeypatch):
    words = words_of(verb)
    if verb == "index":  # ranks do not write into a store
        store = ("--engine", "ranks", "--to", f"lancedb:{tmp_path}/lance/documents")
        assert "--to" in refused(capsys, *words, *store, "--out", tmp_path / "out")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    for flags in (words, words[:-2]):
        assert "--engine ranks" in refused(capsys, *flags, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_model_in_memory_is_not_sent_to_other_processes(tiny_model, tmp_path):
    _, identity = load_encoder(tiny_model)
    manifest = Manifest(encoder=identity, corpus="", precision="float32", documents=598, rows=200)
    with pytest.raises(InputError, match="in memory"):
        EncodeShards(tmp_path, manifest, None, "none").setup()


@pytest.mark.parametrize("verb", ["grade", "index"])
def test_ranks_one_after_the_other_write_the_bytes_of_one_process(verb, words_of, capsys, tmp_path, monkeypatch):
    words, (metric, figures) = words_of(verb), COUNTS[verb]
    assert call(capsys, *words, "--out", tmp_path / "local")[0] == 0
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "2")
    counts = []
    for number in ("1", "1", "0"):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", number)
        code, envelope = call(capsys, *words, "--engine", "ranks", "--out", tmp_path / "out")
        assert code == 0
        counts.append((envelope["metrics"][metric], envelope["metrics"].get("waiting") or 0))
    assert counts == list(zip(figures, [2, 2, 0], strict=True))
    assert content(verb, tmp_path / "out") == content(verb, tmp_path / "local") != {}


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["index", "study"])
def test_ranks_at_once_write_the_results_of_one_process(verb, words_of, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = words_of(verb)
    code, metrics = ended(start(*words, "--out", tmp_path / "local"))
    assert code == 0, metrics
    ranked = (*words, "--engine", "ranks", "--out", tmp_path / "out")
    outcomes = [ended(process) for process in [start(*ranked, RANK=rank, WORLD_SIZE="2") for rank in ("0", "1")]]
    assert [code for code, _ in outcomes] == [0, 0], outcomes
    assert content(verb, tmp_path / "out") == content(verb, tmp_path / "local")
    assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=needs_ray)])
@pytest.mark.parametrize("verb", ["grade", "index"])
def test_two_processes_write_the_bytes_of_one(verb, engine, words_of, tmp_path):
    words, (metric, figures) = words_of(verb), COUNTS[verb]
    code, metrics = ended(start(*words, "--engine", engine, "--processes", "2", "--out", tmp_path / "two"))
    assert (code, metrics[metric]) == (0, sum(figures)), metrics
    assert ended(start(*words, "--out", tmp_path / "local"))[0] == 0
    assert content(verb, tmp_path / "two") == content(verb, tmp_path / "local") != {}


def test_failed_shard_alone_is_done_again(collection, tiny_model_path, tmp_path, monkeypatch):
    monkeypatch.setattr(index_files, "SHARD_ROWS", 200)

    def make(out):
        index_of(tiny_model_path, collection, out, cache="none")

    make(tmp_path / "local")
    encode, tried = EmbeddingStore.encode, []

    def fail_twice(store, texts, step=None):
        tried.append(len(texts))
        if tried.count(198) in (1, 2) and len(texts) == 198:
            raise RuntimeError("no more memory")
        return encode(store, texts, step)

    monkeypatch.setattr(EmbeddingStore, "encode", fail_twice)
    with pytest.raises(IncompleteError, match="shard 2: RuntimeError"):
        make(tmp_path / "out")
    make(tmp_path / "out")
    assert tried == [200, 200, 198, 198, 198]
    assert content("index", tmp_path / "out") == content("index", tmp_path / "local") != {}
