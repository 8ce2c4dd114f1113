import random
from dataclasses import replace

import numpy as np
import pytest

from bixse.encoders.encode import encode_texts
from bixse.errors import InputError
from bixse.search import block_search, tasks
from bixse.search.block_search import search_blocks
from bixse.search.exact import exact_search, to_run
from bixse.search.store import EmbeddingStore
from bixse.search.tasks import QuerySet, Task

WORDS = "copy move open read file folder line list sort wait thread queue clock name the a of".split()  # noqa: SIM905
QUERIES = {"q1": "copy a file", "q2": "wait in a thread", "d3": "sort a list"}


def texts(count):
    """Return documents of a few words; every third text is repeated, so that there are ties."""
    draw = random.Random(0)
    made = [" ".join(draw.choices(WORDS, k=3)) for _ in range(count)]
    return {f"d{number}": made[number - 1] if number % 3 == 0 else made[number] for number in range(count)}


def task(documents, exclude_self=False, **sets):
    queries = QuerySet("test", QUERIES, {}, **sets)
    return Task("toy", lambda: iter(documents.items()), len(documents), (queries,), exclude_self)


def search(model, wanted, depth, partial=None, cache="none"):
    run = {}
    for name, block in search_blocks(EmbeddingStore(model, cache), wanted, depth, partial):
        assert name == "test" and not run.keys() & block.keys()
        run |= block
    return run


def same(run, expected):
    assert run.keys() == expected.keys()
    for query in run:
        assert list(run[query].values()) == pytest.approx(list(expected[query].values()), abs=1e-6)


def at_once(model, documents, depth):
    queries = encode_texts(model, list(QUERIES.values()), "query")
    embedded = encode_texts(model, list(documents.values()), "document")
    return to_run(list(QUERIES), list(documents), *exact_search(queries, embedded, depth))


@pytest.fixture(autouse=True)
def save_each_block(monkeypatch):
    monkeypatch.setattr(block_search, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(block_search, "DOCUMENTS_PER_BLOCK", 7)
    monkeypatch.setattr(tasks, "QUERIES_PER_BLOCK", 2)


def test_blocks_make_no_difference(tiny_model, tmp_path):
    documents = texts(50)
    whole = search(tiny_model, task(documents), 10)
    same(whole, at_once(tiny_model, documents, 10))
    for _ in range(2):  # embeddings are stored, then read
        assert search(tiny_model, task(documents), 10, cache=tmp_path) == whole
    stored = EmbeddingStore(tiny_model, tmp_path)
    list(search_blocks(stored, task({**documents, "d49": "another text"}), 10))
    assert stored.encoded == 1


def test_documents_that_are_left_out(tiny_model):
    documents = texts(40)
    left_out = frozenset(list(documents)[5:25])
    others = {name: text for name, text in documents.items() if name not in left_out}
    run = search(tiny_model, task(documents, left_out=left_out), 15)
    same(run, at_once(tiny_model, others, 15))
    assert not any(left_out & hits.keys() for hits in run.values())


def test_the_corpus_is_read_twice_however_many_query_sets_there_are(tiny_model):
    documents, reads = texts(40), []

    def read():
        reads.append(1)
        return iter(documents.items())

    first, *rest = QUERIES
    left_out = frozenset(list(documents)[5:25])
    sets = (
        QuerySet("first", {first: QUERIES[first]}, {}, left_out),
        QuerySet("rest", {query: QUERIES[query] for query in rest}, {}),
    )
    both = Task("toy", read, len(documents), sets)
    runs = {name: run for name, run in search_blocks(EmbeddingStore(tiny_model, "none"), both, 15) if first in run}
    assert len(reads) == 2  # texts, then ids
    same(runs["first"], {first: search(tiny_model, task(documents, left_out=left_out), 15)[first]})


def test_a_query_that_is_a_document_keeps_the_depth(tiny_model):
    documents = {**texts(20), "d3": QUERIES["d3"]}
    assert "d3" in search(tiny_model, task(documents), 5)["d3"]
    run = search(tiny_model, task(documents, exclude_self=True), 5)
    assert "d3" not in run["d3"]
    assert {len(hits) for hits in run.values()} == {5}


def test_candidates_alone_are_scored(tiny_model):
    documents = texts(30)
    candidates = {"q1": ["d1", "d29", "d13"], "q2": ["d2", "elsewhere"]}
    run = search(tiny_model, task(documents, candidates=candidates), 100)
    expected = at_once(tiny_model, documents, 30)
    assert run["q1"] == pytest.approx({name: expected["q1"][name] for name in candidates["q1"]}, abs=1e-6)
    assert list(run["q2"]) == ["d2"]
    assert run["d3"] == {}


def test_a_killed_search_goes_on_with_the_same_result(tiny_model, tmp_path, encoded):
    documents = texts(50)
    whole = search(tiny_model, task(documents), 10)

    def broken():
        yield from list(documents.items())[:30]
        raise KeyboardInterrupt

    killed = replace(task(documents), documents=broken)
    partial = tmp_path / "best.npz"
    with pytest.raises(KeyboardInterrupt):
        search(tiny_model, killed, 10, partial)
    assert np.load(partial)["done"] == 28
    encoded.clear()
    assert search(tiny_model, task(documents), 10, partial) == whole
    assert {text for kind, text in encoded if kind == "document"} == set(list(documents.values())[28:])


@pytest.mark.parametrize("content", ["", "{", "{}", '{"done": 7, "sets": []}', '{"done": 7, "sets": [{"keys": []}]}'])
def test_a_damaged_file_is_refused(tiny_model, tmp_path, content):
    (tmp_path / "best.npz").write_text(content)
    with pytest.raises(InputError, match="delete the file"):
        search(tiny_model, task(texts(20)), 10, tmp_path / "best.npz")
