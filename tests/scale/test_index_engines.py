"""`bixse index` through every engine: the same bytes, and only what is missing is done again."""

from __future__ import annotations

import pytest

from bixse.errors import ConfigError, IncompleteError, InputError, ModelError
from bixse.files.files import alone_in
from bixse.scale.index.corpus_shards import EncodeShards
from bixse.scale.index.index_files import read_manifest
from bixse.scale.index.index_settings import IndexSettings
from bixse.scale.index.make_index import BUILD_FOLDER
from bixse.scale.index.search import load_encoder
from helpers.command import call, ended, start
from helpers.indexes import index_of


@pytest.fixture
def words(collection, tiny_model_path):
    return ("index", tiny_model_path, "--collection", collection, "--cache", "none", "--shards", "3", "--json")


@pytest.fixture
def local(capsys, words, tmp_path):
    """The files of the index that the local engine makes."""
    assert call(capsys, *words, "--out", tmp_path / "local")[0] == 0
    return files(tmp_path / "local")


def files(index):
    """Names, which hold the hashes, and sizes."""
    manifest = read_manifest(index)
    assert len(manifest.embeddings) == 3
    return [(file.name, file.size) for file in manifest.files]


def test_devices_of_this_machine_are_none_of_the_cluster_s():
    with pytest.raises(ConfigError, match="ray"):
        IndexSettings.load(None, {"model": "demo", "collection": "c", "engine": "ray", "devices": ["cuda:0"]})


def test_a_part_that_fails_twice_and_the_same_call_again(collection, tiny_model, tmp_path, monkeypatch, fail_twice):
    given = {"model": tiny_model, "collection": collection, "shards": 3, "cache": "none"}
    index_of(**given, out=tmp_path / "whole")
    with monkeypatch.context() as patched, pytest.raises(IncompleteError, match="part 2: RuntimeError"):
        tried = fail_twice(patched)
        index_of(**given, out=tmp_path / "index")
    assert tried == [256, 256, 88, 88]
    assert index_of(**given, out=tmp_path / "index").encoded == 88
    assert files(tmp_path / "index") == files(tmp_path / "whole")


def test_a_machine_that_has_another_model(tiny_model, tiny_model_path, tmp_path):
    """Under the name of the one that the index is of."""
    _, identity = load_encoder(tiny_model)
    given = {"identity": identity, "corpus": "", "rows": 256, "dtype": "float32", "precision": "float32"}
    job = EncodeShards(tmp_path, str(tiny_model_path), cache="none", **given)
    assert job.setup().store.encoded == 0
    next(tiny_model.parameters()).data.add_(1e-3)
    tiny_model.save_pretrained(str(tmp_path / "other"))
    with pytest.raises(ModelError, match="another model"):
        EncodeShards(tmp_path, str(tmp_path / "other"), cache="none", **given).setup()


def test_ranks_make_the_index_one_after_the_other(capsys, words, local, tmp_path, monkeypatch):
    words = (*words, "--engine", "ranks", "--out", tmp_path / "index")
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "2")
    found = []
    for number in ("1", "1", "0"):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", number)
        code, envelope = call(capsys, *words)
        found.append((code, envelope["metrics"]["encoded"], envelope["metrics"].get("waiting", 0)))
    assert found == [(0, 256, 2), (0, 0, 2), (0, 344, 0)]
    assert files(tmp_path / "index") == local
    assert not (tmp_path / "index" / BUILD_FOLDER).exists()


def test_of_ranks_one_writes_into_the_store(capsys, words, tmp_path, monkeypatch):
    """The one that makes the index; where it is ready, the first."""
    pytest.importorskip("lancedb", reason="needs bixse[lancedb]")
    store = f"lancedb:{tmp_path / 'lance'}/documents"
    words = (*words, "--engine", "ranks", "--out", tmp_path / "index", "--to", store)
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "2")
    found = []
    for number in ("0", "1", "1", "0"):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", number)
        code, envelope = call(capsys, *words)
        written = envelope["metrics"].get("store", {}).get("written")
        found.append((code, envelope["metrics"].get("reused"), written))
    assert found == [(0, None, None), (0, False, 600), (0, True, None), (0, True, 0)]
    with alone_in(tmp_path / "index"):  # as a rank that still writes: the others have nothing to wait for
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "1")
        assert call(capsys, *words)[0] == 0


@pytest.mark.slow
def test_ranks_that_end_at_once(words, local, tmp_path):
    words = (*words, "--engine", "ranks", "--out", tmp_path / "index")
    ranks = [start(*words, RANK=rank, WORLD_SIZE="2") for rank in ("0", "1")]
    found = [ended(process) for process in ranks]
    assert [code for code, _ in found] == [0, 0], found
    assert files(tmp_path / "index") == local
    assert not (tmp_path / "index" / BUILD_FOLDER).exists()


def test_processes_of_a_launcher_that_would_all_do_the_same(capsys, words, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    code, envelope = call(capsys, *words, "--out", tmp_path / "index")
    assert (code, "--engine ranks" in envelope["errors"][0]) == (2, True)
    assert not (tmp_path / "index").exists()


@pytest.mark.slow
def test_a_cluster_makes_the_same_index(cluster, words, local, tmp_path):
    """In a process of its own: after Ray and torch have worked in one, what is forked from it may hang."""
    engine = ("--engine", "ray", "--ray-address", cluster.address)
    code, found = ended(start(*words, "--out", tmp_path / "index", *engine))
    assert code == 0, found
    assert found["encoded"] == 600
    assert files(tmp_path / "index") == local


@pytest.mark.slow
def test_a_model_in_memory_is_not_sent(cluster, collection, tiny_model, tmp_path):
    with pytest.raises(InputError, match="in memory"):
        index_of(tiny_model, collection, tmp_path / "index", engine="ray", ray_address=cluster.address)
    assert not (tmp_path / "index").exists()
