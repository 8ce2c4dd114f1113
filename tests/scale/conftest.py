from __future__ import annotations

import json

import pytest

from bixse.scale.index import index_files
from bixse.search.store import EmbeddingStore

VERBS = ("copy", "move", "delete", "open", "read", "write", "list", "find")
TEN_VERBS = (*VERBS, "sort", "split")
NOUNS = ("file", "folder", "tree", "disk", "path", "name", "text", "byte", "line", "word")


@pytest.fixture
def collection(tmp_path):
    """598 documents, of which three shards hold 200, 200 and 198, and a query for each verb and noun."""
    texts = [f"{verb} a {noun} of {number}" for number in range(8) for verb in VERBS for noun in NOUNS][:598]
    queries = [f"how do i {verb} the {noun}" for verb in VERBS for noun in NOUNS]
    folder = tmp_path / "collection"
    folder.mkdir()
    for name, letter, found in (("corpus", "d", texts), ("queries", "q", queries)):
        rows = [
            json.dumps({"_id": f"{letter}{number}", "title": "", "text": text}) for number, text in enumerate(found)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture
def fail_twice():
    """Make the shard of 198 documents fail in a monkeypatch, its first two times; gives the sizes that were tried."""

    def patch(patched):
        encode, tried = EmbeddingStore.encode, []

        def fail(store, texts, step=None):
            tried.append(len(texts))
            if len(texts) == 198 and tried.count(198) < 3:
                raise RuntimeError("no more memory")
            return encode(store, texts, step)

        patched.setattr(EmbeddingStore, "encode", fail)
        return tried

    return patch


@pytest.fixture
def documents():
    """Document id -> (title, text): 100 of them, no two alike."""
    return {
        f"d{10 * i + j}": (f"{verb} {noun}", f"how do i {verb} a {noun} in the {NOUNS[i - j]}")
        for i, verb in enumerate(TEN_VERBS)
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
