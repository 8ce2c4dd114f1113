"""The cache of document embeddings: outside of the input, in a folder of one's choice or nowhere, shown and cleared."""

import json

import platformdirs
import pytest

from bixse.cli.main import main
from bixse.data.collection import Collection, Document, save_collection
from bixse.encoders import encode
from bixse.errors import InputError
from bixse.files.files import cache_folder
from bixse.preparing.mine import mine
from bixse.preparing.mine_settings import MineConfig


@pytest.fixture
def collection(tmp_path):
    corpus = {"d1": Document("", "copy a file"), "d2": Document("", "move a file"), "d3": Document("", "sleep")}
    qrels = {"test": {"q1": {"d1": 1}}, "train": {"q1": {"d1": 1}}}
    save_collection(Collection("toy", corpus, {"q1": "copy"}, qrels), tmp_path / "toy")
    return tmp_path / "toy"


@pytest.fixture
def encoded(monkeypatch):
    """What was encoded, a word a call."""
    kinds = []
    plain = encode.encode_here

    def record(model, texts, kind, *rest):
        kinds.append(kind)
        return plain(model, texts, kind, *rest)

    monkeypatch.setattr(encode, "encode_here", record)
    return kinds


def call(capsys, *words):
    assert main([*map(str, words), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    return found


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_nothing_is_written_into_the_collection_and_all_verbs_share_one_store(
    capsys, collection, cache_path, tmp_path, tiny_model_path,
    encoded,
):  # fmt: skip
    before = files(collection)
    call(capsys, "evaluate", tiny_model_path, "--collection", collection)
    assert encoded == ["query", "document"]
    call(capsys, "evaluate", tiny_model_path, "--collection", collection)
    call(capsys, "search", tiny_model_path, "copy", "--collection", collection)
    mine(MineConfig(collection=collection, split="train", retrievers=(str(tiny_model_path),)), tmp_path / "mined")
    assert encoded.count("document") == 1
    assert files(collection) == before
    assert [path.parent for path in cache_path.rglob("*.sqlite")] == [cache_path / "embeddings"]


def test_another_folder_or_none(
    capsys, collection, cache_path, tmp_path, tiny_model_path,
    encoded, monkeypatch,
):  # fmt: skip
    words = ("evaluate", tiny_model_path, "--collection", collection, "--cache")
    before = files(collection)
    for _ in range(2):
        call(capsys, *words, "none")
    monkeypatch.setenv("BIXSE_CACHE_DIR", "none")
    call(capsys, *words[:-1])
    assert encoded.count("document") == 3
    assert (files(collection), cache_path.exists()) == (before, False)
    call(capsys, *words, tmp_path / "own")
    call(capsys, *words, tmp_path / "own")
    assert encoded.count("document") == 4
    assert len(list((tmp_path / "own").rglob("*.sqlite"))) == 1
    assert not cache_path.exists()


def test_the_default_is_the_users_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("BIXSE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == platformdirs.user_cache_path("bixse", appauthor=False)
    assert cache_folder("~/x") == cache_folder("~/x").expanduser()  # type: ignore[union-attr]


def test_the_doctor_shows_and_clears_it(
    capsys, collection, cache_path, tiny_model_path,
    monkeypatch,
):  # fmt: skip
    call(capsys, "evaluate", tiny_model_path, "--collection", collection)
    (stored,) = cache_path.rglob("*.sqlite")
    other = cache_path / "embeddings" / "notes.txt"
    other.write_text("not ours")
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert str(cache_path) in shown
    assert stored.exists()
    assert main(["doctor", "--clear-cache"]) == 0
    assert not stored.exists()
    assert other.read_text() == "not ours"
    monkeypatch.setenv("BIXSE_CACHE_DIR", "none")
    capsys.readouterr()
    assert call(capsys, "doctor", "--clear-cache")["metrics"]["cache"] == "none"


def test_a_suite_has_no_such_cache(tiny_model_path, tmp_path):
    words = ["evaluate", str(tiny_model_path), "--suite", "beir", "--data", str(tmp_path), "--cache", "none"]
    assert main(words) == InputError.exit_code
