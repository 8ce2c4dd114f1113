"""`bixse mine` through every engine: the same bytes, from a model and from an index of it."""

from __future__ import annotations

import json

import pytest

from bixse.errors import IncompleteError, InputError
from bixse.preparing.mine import WORK, mine
from bixse.preparing.mine_settings import MineConfig
from bixse.search.store import EmbeddingStore
from helpers.command import call, ended, start
from helpers.indexes import index_of


@pytest.fixture(autouse=True)
def texts_that_are_not_searched(collection):
    """A document without text in the first part, and a copy in the last one."""
    path = collection / "corpus.jsonl"
    lines = path.read_text().splitlines()
    lines[3], lines[599] = (json.dumps({"_id": f"d{number}", "text": text}) for number, text in ((3, " "), (599, "x")))
    lines[599] = lines[300].replace("d300", "d599")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def words(collection, tiny_model_path):
    settings = ("--collection", collection, "--depth", "40", "--cache", "none", "--shards", "3", "--json")
    return ("mine", *settings, "--retriever", "bm25", tiny_model_path)


@pytest.fixture
def local(capsys, words, tmp_path):
    """The files that one process makes."""
    assert call(capsys, *words, "--out", tmp_path / "local")[0] == 0
    return files(tmp_path / "local")


def files(folder):
    """Names and contents of pairs and runs; nothing else is left."""
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert json.loads(found.pop("run.json"))["status"] == "finished"
    assert set(found) == {"pairs.parquet", "run.bm25.trec", "run.model.trec"}
    return found


def test_an_index_of_another_corpus_or_length(collection, tiny_model_path, tmp_path):
    index_of(tiny_model_path, collection, tmp_path / "index", cache="none")
    config = {"collection": collection, "retrievers": (str(tmp_path / "index"),)}
    with pytest.raises(InputError, match="max_length"):
        mine(MineConfig(**config, max_length=8), tmp_path / "out")
    with (collection / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "more", "text": "copy a file"}\n')
    with pytest.raises(InputError, match="another corpus"):
        mine(MineConfig(**config), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_parts_are_searched_as_the_whole_is(collection, tiny_model_path, tmp_path):
    config = {"collection": collection, "retrievers": (str(tiny_model_path),), "depth": 40, "cache": "none"}
    mine(MineConfig(**config), tmp_path / "whole")
    mine(MineConfig(**config, shards=3), tmp_path / "parts")
    whole, parts = (
        [line.split() for line in (tmp_path / name / "run.model.trec").read_text().splitlines()]
        for name in ("whole", "parts")
    )
    assert [float(line[4]) for line in parts] == pytest.approx([float(line[4]) for line in whole], abs=1e-6)
    assert len(whole) == 80 * 40


def test_an_index_is_searched_as_its_model(collection, tiny_model_path, tmp_path):
    """Of another cut, too."""
    config = {"collection": collection, "depth": 40, "cache": "none"}
    mine(MineConfig(**config, shards=3, retrievers=(str(tiny_model_path),)), tmp_path / "model")
    index_of(tiny_model_path, collection, tmp_path / "index", cache="none", shards=3)
    mine(MineConfig(**config, retrievers=(str(tmp_path / "index"),)), tmp_path / "out")
    found, expected = (
        [line.split() for line in path.read_text().splitlines()]
        for path in (tmp_path / "out" / "run.index.trec", tmp_path / "model" / "run.model.trec")
    )
    assert [line[:5] for line in found] == [line[:5] for line in expected]
    assert "d3" not in {line[2] for line in found}


def test_a_part_that_fails_twice_and_the_same_call_again(
    collection, tiny_model_path, tmp_path, monkeypatch, fail_twice
):
    encode = EmbeddingStore.encode
    config = MineConfig(collection=collection, retrievers=(str(tiny_model_path),), shards=3, cache="none")
    with monkeypatch.context() as patched, pytest.raises(IncompleteError, match="shard 2: RuntimeError"):
        tried = fail_twice(patched)
        mine(config, tmp_path / "out")
    assert tried == [255, 256, 88, 88]
    monkeypatch.setattr(
        EmbeddingStore, "encode", lambda store, texts, step=None: tried.append(-1) or encode(store, texts)
    )
    assert mine(config, tmp_path / "out").pairs
    assert tried[4:] == [-1]


def test_ranks_mine_one_after_the_other(capsys, words, local, tmp_path, monkeypatch):
    words = (*words, "--engine", "ranks", "--out", tmp_path / "out")
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "2")
    found = []
    for number in ("1", "1", "0", "1"):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", number)
        code, envelope = call(capsys, *words)
        found.append((code, envelope["metrics"].get("waiting", 0), envelope["metrics"].get("pairs")))
    assert found == [(0, 2, None), (0, 2, None), (0, 0, 640), (0, 0, 640)]
    assert files(tmp_path / "out") == local
    assert not (tmp_path / "out" / WORK).exists()


@pytest.mark.slow
def test_ranks_that_end_at_once(words, local, tmp_path):
    words = (*words, "--engine", "ranks", "--out", tmp_path / "out")
    ranks = [start(*words, RANK=rank, WORLD_SIZE="2") for rank in ("0", "1")]
    found = [ended(process) for process in ranks]
    assert [code for code, _ in found] == [0, 0], found
    assert files(tmp_path / "out") == local
