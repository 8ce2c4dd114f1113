"""`bixse index` through every engine: the same bytes, and only what is missing is done again."""

from __future__ import annotations

import pytest

from bixse.errors import IncompleteError, InputError
from bixse.scale.index.index_files import Manifest
from bixse.scale.index.make_index import EncodeShards
from bixse.scale.index.search import load_encoder, open_index
from helpers.command import call, ended, refused, start
from helpers.toy import index_of


@pytest.fixture
def words(collection, tiny_model_path):
    return ("index", tiny_model_path, "--collection", collection, "--cache", "none", "--shards", "3", "--json")


@pytest.fixture
def local(capsys, words, tmp_path):
    """The files of the index that the local engine makes."""
    assert call(capsys, *words, "--out", tmp_path / "local")[0] == 0
    return files(tmp_path / "local")


def files(index):
    """Name -> content of texts and embeddings; nothing else is left."""
    (folder,) = index.glob("files-*")
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(found) == {"documents.parquet", *(f"0000{shard}.safetensors" for shard in range(3))}
    return found


def test_a_part_that_fails_twice_and_the_same_call_again(collection, tiny_model, tmp_path, monkeypatch, fail_twice):
    given = {"model": tiny_model, "collection": collection, "shards": 3, "cache": "none"}
    index_of(**given, out=tmp_path / "whole")
    with monkeypatch.context() as patched, pytest.raises(IncompleteError, match="shard 2: RuntimeError"):
        tried = fail_twice(patched)
        index_of(**given, out=tmp_path / "index")
    assert tried == [200, 200, 198, 198]
    assert index_of(**given, out=tmp_path / "index").encoded == 198
    assert files(tmp_path / "index") == files(tmp_path / "whole")


def test_a_model_in_memory_is_not_sent(tiny_model, tmp_path):
    _, identity = load_encoder(tiny_model)
    manifest = Manifest(encoder=identity, corpus="", precision="float32", documents=598, rows=200)
    with pytest.raises(InputError, match="in memory"):
        EncodeShards(tmp_path, manifest, None, "none").setup()


def test_any_number_of_shards_gives_the_same_answers(collection, tiny_model, tmp_path):
    answers = []
    for shards in (1, 2, 4):
        index_of(tiny_model, collection, tmp_path / str(shards), shards=shards, cache="none")
        with open_index(tmp_path / str(shards), tiny_model) as index:
            answers.append({hit.document_id: hit.cosine for hit in index.search("copy a file", top=50)})
    assert answers[1] == pytest.approx(answers[0], abs=1e-6)
    assert answers[2] == pytest.approx(answers[0], abs=1e-6)


@pytest.mark.slow
def test_two_processes_make_the_same_index(words, local, tmp_path):
    code, found = ended(start(*words, "--processes", "2", "--out", tmp_path / "index"))
    assert (code, found["encoded"]) == (0, 598), found
    assert files(tmp_path / "index") == local


def test_ranks_make_the_index_one_after_the_other(capsys, words, local, tmp_path, monkeypatch):
    words = (*words, "--engine", "ranks", "--out", tmp_path / "index")
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "2")
    found = []
    for number in ("1", "1", "0"):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", number)
        code, envelope = call(capsys, *words)
        found.append((code, envelope["metrics"]["encoded"], envelope["metrics"].get("waiting", 0)))
    assert found == [(0, 200, 2), (0, 0, 2), (0, 398, 0)]
    assert files(tmp_path / "index") == local


def test_ranks_do_not_write_into_a_store(capsys, words, tmp_path):
    flags = ("--engine", "ranks", "--out", tmp_path / "index", "--to", f"lancedb:{tmp_path}/lance/documents")
    assert "--to" in refused(capsys, *words[:-1], *flags)


@pytest.mark.slow
def test_ranks_that_end_at_once(words, local, tmp_path):
    words = (*words, "--engine", "ranks", "--out", tmp_path / "index")
    ranks = [start(*words, RANK=rank, WORLD_SIZE="2") for rank in ("0", "1")]
    found = [ended(process) for process in ranks]
    assert [code for code, _ in found] == [0, 0], found
    assert files(tmp_path / "index") == local


def test_processes_of_a_launcher_that_would_all_do_the_same(capsys, words, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    code, envelope = call(capsys, *words, "--out", tmp_path / "index")
    assert (code, "--engine ranks" in envelope["errors"][0]) == (2, True)
    assert not (tmp_path / "index").exists()
