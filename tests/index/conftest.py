import json

import pytest

from bixse.index import index_files

VERBS = ("copy", "move", "delete", "open", "read", "write", "list", "find")
TEN_VERBS = (*VERBS, "sort", "split")
NOUNS = ("file", "folder", "tree", "disk", "path", "name", "text", "byte", "line", "word")


def write_texts(path, texts):
    """Write id -> (title, text) as a corpus or as queries."""
    path.parent.mkdir(exist_ok=True)
    rows = ({"_id": name, "title": title, "text": text} for name, (title, text) in texts.items())
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def collection(tmp_path):
    """598 documents, of which three shards hold 200, 200 and 198, and a query for each verb and noun."""
    texts = [f"{verb} a {noun} of {number}" for number in range(8) for verb in VERBS for noun in NOUNS][:598]
    queries = [f"how do i {verb} the {noun}" for verb in VERBS for noun in NOUNS]
    for name, letter, rows in (("corpus", "d", texts), ("queries", "q", queries)):
        write_texts(
            tmp_path / "collection" / f"{name}.jsonl", {f"{letter}{n}": ("", text) for n, text in enumerate(rows)}
        )
    return tmp_path / "collection"


@pytest.fixture
def documents():
    """Document id -> (title, text): 100 different documents."""
    return {
        f"d{10 * i + j}": (f"{verb} {noun}", f"how do i {verb} a {noun} in the {NOUNS[i - j]}")
        for i, verb in enumerate(TEN_VERBS)
        for j, noun in enumerate(NOUNS)
    }


@pytest.fixture
def write_corpus(tmp_path):

    def write(texts):
        write_texts(tmp_path / "corpus" / "corpus.jsonl", texts)
        return tmp_path / "corpus"

    return write


@pytest.fixture
def corpus(write_corpus, documents):
    return write_corpus(documents)


@pytest.fixture
def small_shards(monkeypatch):
    """Several files of embeddings and groups of texts also in a small index."""
    monkeypatch.setattr(index_files, "GROUP_ROWS", 8)
    monkeypatch.setattr(index_files, "SHARD_ROWS", 32)
