"""Every verb with shards: processes and ranks write the bytes of one process, and do only the missing shards."""

import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from bixse.errors import IncompleteError, InputError
from bixse.preparing.mine import mine
from bixse.preparing.mine_settings import MineConfig
from bixse.scale.index import index_files
from bixse.scale.index.index_files import Manifest
from bixse.scale.index.make_index import EncodeShards
from bixse.scale.index.search import load_encoder
from helpers.chat_server import chat_server, planted
from helpers.command import call, ended, refused, start
from helpers.toy import index_of

OUTPUTS = {"grade": "pairs.parquet/*", "index": "files-*/*", "mine": "pairs.parquet"}
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


@pytest.fixture
def server():
    with chat_server() as running:
        yield running


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
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    for flags in (words, words[:-2]):
        assert "--engine ranks" in refused(capsys, *flags, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_ranks_do_not_write_into_a_store(words_of, capsys, tmp_path):
    flags = ("--engine", "ranks", "--out", tmp_path / "index", "--to", f"lancedb:{tmp_path}/lance/documents")
    assert "--to" in refused(capsys, *words_of("index"), *flags)


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
@pytest.mark.parametrize("verb", ["grade", "index"])
def test_two_processes_write_the_bytes_of_one(verb, words_of, tmp_path):
    words, (metric, figures) = words_of(verb), COUNTS[verb]
    code, metrics = ended(start(*words, "--processes", "2", "--out", tmp_path / "two"))
    assert (code, metrics[metric]) == (0, sum(figures)), metrics
    assert ended(start(*words, "--out", tmp_path / "local"))[0] == 0
    assert content(verb, tmp_path / "two") == content(verb, tmp_path / "local") != {}


@pytest.mark.parametrize("verb", ["index", "mine"])
def test_failed_shard_alone_is_done_again(verb, collection, tiny_model_path, tmp_path, monkeypatch, fail_twice):
    monkeypatch.setattr(index_files, "SHARD_ROWS", 200)

    def make(out):
        if verb == "index":
            index_of(tiny_model_path, collection, out, cache="none")
        else:
            mine(MineConfig(collection=collection, retrievers=(str(tiny_model_path),), cache="none"), out)

    make(tmp_path / "local")
    tried = fail_twice()
    with pytest.raises(IncompleteError, match="shard 2: RuntimeError"):
        make(tmp_path / "out")
    make(tmp_path / "out")
    assert tried == [200, 200, 198, 198, 198]
    assert content(verb, tmp_path / "out") == content(verb, tmp_path / "local") != {}
