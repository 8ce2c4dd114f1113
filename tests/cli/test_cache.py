"""The cache of document embeddings: outside the input, in a chosen folder or none, shown and cleared."""

import platformdirs
import pytest

from bixse.cli.main import main
from bixse.data.collection import Collection, save_collection
from bixse.encoders import encode
from bixse.files.files import cache_folder
from bixse.preparing.mine import mine
from bixse.preparing.mine_settings import MineConfig
from helpers.command import call
from helpers.toy import CORPUS, QUERIES


@pytest.fixture
def collection(tmp_path):
    qrels = {"q2": {"d3": 1}}
    save_collection(Collection("toy", CORPUS, QUERIES, {"test": qrels, "train": qrels}), tmp_path / "toy")
    return tmp_path / "toy"


@pytest.fixture
def encoded(monkeypatch):
    """The kind of the texts of each call that encodes."""
    kinds, plain = [], encode.encode_here

    def record(model, texts, kind, *rest):
        kinds.append(kind)
        return plain(model, texts, kind, *rest)

    monkeypatch.setattr(encode, "encode_here", record)
    return kinds


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_all_verbs_share_one_store_outside_the_collection(
    capsys, collection, cache_path, tmp_path, tiny_model_path, encoded
):
    before = files(collection)
    for _ in range(2):
        call(capsys, "evaluate", tiny_model_path, "--collection", collection)
    call(capsys, "search", tiny_model_path, "copy", "--collection", collection)
    mine(MineConfig(collection=collection, split="train", retrievers=(str(tiny_model_path),)), tmp_path / "mined")
    assert encoded.count("document") == 1
    assert files(collection) == before
    assert [path.parent for path in cache_path.rglob("*.sqlite")] == [cache_path / "embeddings"]


def test_cache_is_another_folder_or_none(
    capsys, collection, cache_path, tmp_path, tiny_model_path, encoded, monkeypatch
):
    words = ("evaluate", tiny_model_path, "--collection", collection, "--cache")
    before = files(collection)
    for _ in range(2):
        call(capsys, *words, "none")
    monkeypatch.setenv("BIXSE_CACHE_DIR", "none")
    call(capsys, *words[:-1])
    assert encoded.count("document") == 3
    for _ in range(2):
        call(capsys, *words, tmp_path / "other")
    assert encoded.count("document") == 4
    assert len(list((tmp_path / "other").rglob("*.sqlite"))) == 1
    assert (files(collection), cache_path.exists()) == (before, False)


def test_the_default_is_the_users_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("BIXSE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == platformdirs.user_cache_path("bixse", appauthor=False)
    assert cache_folder("~/x") == cache_folder("~/x").expanduser()


def test_doctor_shows_and_clears_the_cache(capsys, collection, cache_path, tiny_model_path, monkeypatch):
    call(capsys, "evaluate", tiny_model_path, "--collection", collection)
    (stored,) = cache_path.rglob("*.sqlite")
    (other := cache_path / "embeddings" / "notes.txt").write_text("not ours")
    assert call(capsys, "doctor")[1]["metrics"]["cache"] == str(cache_path)
    assert stored.exists()
    assert main(["doctor", "--clear-cache"]) == 0
    assert (stored.exists(), other.read_text()) == (False, "not ours")
    monkeypatch.setenv("BIXSE_CACHE_DIR", "none")
    assert call(capsys, "doctor", "--clear-cache")[1]["metrics"]["cache"] == "none"
