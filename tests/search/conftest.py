from __future__ import annotations

import json

import pytest

from bixse.scale.index import index_files

NOUNS = ("file", "folder", "tree", "disk", "path", "name", "text", "byte", "line", "word")
VERBS = ("copy", "move", "delete", "open", "read", "write", "list", "find", "sort", "split")


@pytest.fixture
def documents():
    """Document id -> (title, text): 100 of them, no two alike."""
    return {
        f"d{10 * i + j}": (f"{verb} {noun}", f"how do i {verb} a {noun} in the {NOUNS[i - j]}")
        for i, verb in enumerate(VERBS)
        for j, noun in enumerate(NOUNS)
    }


@pytest.fixture
def write_corpus(tmp_path):
    """Writes documents as the collection that it returns."""

    def write(found):
        rows = ({"_id": name, "title": title, "text": text} for name, (title, text) in found.items())
        folder = tmp_path / "corpus"
        folder.mkdir(exist_ok=True)
        (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return folder

    return write


@pytest.fixture
def corpus(write_corpus, documents):
    return write_corpus(documents)


@pytest.fixture
def small_shards(monkeypatch):
    """Several files of embeddings and groups of texts also in a small index."""
    monkeypatch.setattr(index_files, "GROUP_ROWS", 8)
    monkeypatch.setattr(index_files, "SHARD_ROWS", 32)
