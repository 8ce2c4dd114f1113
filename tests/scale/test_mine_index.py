"""`bixse mine` by a model and by an index of it: the same answers."""

from __future__ import annotations

import json

import pytest

from bixse.errors import IncompleteError, InputError
from bixse.preparing.mine import mine
from bixse.preparing.mine_settings import MineConfig
from bixse.scale.index import index_files
from bixse.search.store import EmbeddingStore
from helpers.toy import index_of


@pytest.fixture(autouse=True)
def texts_that_are_not_searched(collection):
    """A document without text in the first part, and a copy in the last one."""
    path = collection / "corpus.jsonl"
    lines = path.read_text().splitlines()
    lines[3], lines[597] = (json.dumps({"_id": f"d{number}", "text": text}) for number, text in ((3, " "), (597, "x")))
    lines[597] = lines[300].replace("d300", "d597")
    path.write_text("\n".join(lines) + "\n")


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


def test_an_index_is_searched_as_its_model(collection, tiny_model_path, tmp_path):
    """Of another cut, too."""
    config = {"collection": collection, "depth": 40, "cache": "none"}
    mine(MineConfig(**config, retrievers=(str(tiny_model_path),)), tmp_path / "model")
    index_of(tiny_model_path, collection, tmp_path / "index", cache="none", shards=3)
    mine(MineConfig(**config, retrievers=(str(tmp_path / "index"),)), tmp_path / "out")
    found, expected = (
        [line.split() for line in path.read_text().splitlines()]
        for path in (tmp_path / "out" / "run.index.trec", tmp_path / "model" / "run.model.trec")
    )
    assert [line[:5] for line in found] == [line[:5] for line in expected]
    assert "d3" not in {line[2] for line in found}


def test_a_shard_that_fails_twice_and_the_same_call_again(
    collection, tiny_model_path, tmp_path, monkeypatch, fail_twice
):
    encode = EmbeddingStore.encode
    monkeypatch.setattr(index_files, "SHARD_ROWS", 200)
    config = MineConfig(collection=collection, retrievers=(str(tiny_model_path),), cache="none")
    with monkeypatch.context() as patched, pytest.raises(IncompleteError, match="shard 2: RuntimeError"):
        tried = fail_twice(patched)
        mine(config, tmp_path / "out")
    assert tried == [200, 200, 198, 198]
    monkeypatch.setattr(
        EmbeddingStore, "encode", lambda store, texts, step=None: tried.append(-1) or encode(store, texts)
    )
    assert mine(config, tmp_path / "out").pairs
    assert tried[4:] == [-1]
