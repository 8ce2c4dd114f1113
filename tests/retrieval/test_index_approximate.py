"""The approximate kinds: recall measured, deleted documents honoured, files checked. FAISS is needed for most."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from word_encoder import WordEncoder, documents, embed, expected, write_documents

from bixse.errors import InputError, OutputExistsError
from bixse.retrieval import approximate, index_build
from bixse.retrieval.index import open_index
from bixse.retrieval.index_build import make_index
from bixse.retrieval.index_changes import add_documents, delete_documents, rewrite_index
from bixse.retrieval.index_files import read_manifest
from bixse.retrieval.index_kind import KindSettings
from bixse.retrieval.index_manifest import Knobs

needs_faiss = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="needs bixse[faiss]")
KINDS = [KindSettings("hnsw", Knobs(ef_search=500)), KindSettings("ivf", Knobs(lists=8, nprobe=8))]
"""Both look at every document."""
FEW = [KindSettings("hnsw", Knobs(ef_search=1)), KindSettings("ivf", Knobs(lists=8, nprobe=1))]
"""Both look at few."""


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(index_build, "LARGEST_SHARD", 100)


@pytest.fixture
def corpus(tmp_path):
    write_documents(tmp_path / "corpus" / "corpus.jsonl", documents(0, 300))
    return tmp_path / "corpus"


@pytest.fixture
def make(corpus, tmp_path):
    def made(kind):
        return make_index(WordEncoder(), corpus, tmp_path / "index", kind)

    return made


# --- without FAISS


def test_a_missing_library_is_said_before_any_work(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    encoder = WordEncoder()
    with pytest.raises(InputError, match=r"needs FAISS.*fix: pip install 'bixse\[faiss\]'"):
        make_index(encoder, corpus, tmp_path / "index", KindSettings("hnsw"))
    assert encoder.encoded == []
    assert not (tmp_path / "index").exists()


@needs_faiss
def test_an_index_with_a_graph_is_searched_exactly_without_the_library(make, tmp_path, monkeypatch):
    make(KindSettings("hnsw"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="needs FAISS"):
        open_index(tmp_path / "index", WordEncoder())
    with open_index(tmp_path / "index", WordEncoder(), exact=True) as index:
        best = expected(documents(0, 300), "text", 9)
        assert [hit.document_id for hit in index.search("text", top=9)] == [name for name, _ in best]


def test_unknown_kinds_and_settings(corpus, tmp_path):
    with pytest.raises(InputError, match="did you mean 'hnsw'"):
        make_index(WordEncoder(), corpus, tmp_path / "index", KindSettings("hnws"))
    for wrong in ({"target": 1.5}, {"target": float("nan")}, {"sample": 0}):
        with pytest.raises(InputError, match="--recall-"):
            KindSettings(**wrong)


# --- with it


@needs_faiss
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_all_that_exact_search_finds(make, tmp_path, kind):
    change = make(kind)
    assert (change.manifest.recall.at_10, change.manifest.recall.at_100) == (1.0, 1.0)
    with open_index(tmp_path / "index", WordEncoder()) as index:
        for query in ("group3 text", "member7", "version"):
            for top in (1, 10, 300, 1000):
                hits = index.search(query, top=top)
                best = expected(documents(0, 300), query, top)
                assert [hit.document_id for hit in hits] == [name for name, _ in best]
                assert [hit.cosine for hit in hits] == pytest.approx([cosine for _, cosine in best], abs=1e-6)
        many = index.search(["group3 text", "version"], top=3)
        assert [[hit.document_id for hit in hits] for hits in many] == [
            [name for name, _ in expected(documents(0, 300), query, 3)] for query in ("group3 text", "version")
        ]


@needs_faiss
@pytest.mark.parametrize("kind", FEW, ids=lambda kind: kind.kind)
def test_deleted_documents_leave_no_gap(make, tmp_path, kind):
    """Whole neighbourhoods are deleted, so that candidates or lists of a query hold nothing else."""
    make(kind)
    near = [name for name, _ in expected(documents(0, 300), "group3 text", 280)]
    delete_documents(tmp_path / "index", near)
    left = {name: document for name, document in documents(0, 300).items() if name not in near}
    with open_index(tmp_path / "index", WordEncoder()) as index:
        for top in (1, 10, 20, 50):
            hits = [hit.document_id for hit in index.search("group3 text", top=top)]
            assert len(hits) == min(top, 20)
            assert set(hits) <= set(left)
        assert hits == [name for name, _ in expected(left, "group3 text", 50)]


@needs_faiss
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_later_documents_are_found_and_taken_in_by_compaction(make, tmp_path, kind):
    make(kind)
    graph = read_manifest(tmp_path / "index").graph
    new = {**documents(10, 20, "two"), **documents(300, 390)}
    change = add_documents(tmp_path / "index", write_documents(tmp_path / "add.jsonl", new), WordEncoder())
    assert change.manifest.graph == graph, "the graph is not built again"
    assert f"100 of 400 documents were added after the {kind.kind} graph" in " ".join(change.warnings)
    now = {**documents(0, 300), **new}
    for compacted in (False, True):
        if compacted:
            change = rewrite_index(tmp_path / "index", compact=True, model=WordEncoder())
            assert (change.manifest.rows, change.manifest.graph.rows, change.warnings) == (390, 390, ())
        with open_index(tmp_path / "index", WordEncoder()) as index:
            for query in ("member305 text", "member15 version two", "text"):
                hits = index.search(query, top=400)
                assert {hit.document_id: pytest.approx(hit.cosine, abs=1e-6) for hit in hits} == dict(
                    expected(now, query, 400)
                )


@needs_faiss
def test_recall_is_what_is_measured(make, corpus, tmp_path):
    """Against sets counted by hand, where one of eight lists is searched."""
    queries = [f"group{number} member{number}" for number in range(40)]
    (tmp_path / "queries.txt").write_text("\n".join(queries))
    kind = KindSettings("ivf", Knobs(lists=8, nprobe=1), queries=tmp_path / "queries.txt", sample=1000)
    change = make(kind)
    recall = change.manifest.recall
    assert (recall.queries, recall.source) == (40, "queries of queries.txt")
    shares = {10: [], 100: []}
    with open_index(tmp_path / "index", WordEncoder()) as index:
        for query in queries:
            for depth, found in shares.items():
                best = {name for name, _ in expected(documents(0, 300), query, depth)}
                found.append(len(best & {hit.document_id for hit in index.search(query, top=depth)}) / depth)
    assert (recall.at_10, recall.at_100) == pytest.approx((np.mean(shares[10]), np.mean(shares[100])), abs=1e-9)
    assert recall.at_100 < 0.95
    (warning,) = change.warnings
    assert f"got {recall.at_10:.3f} at 10 and {recall.at_100:.3f} at 100; expected 0.95 of both" in warning
    assert "--nprobe above 1" in warning


@needs_faiss
def test_settings_of_searching_need_no_new_graph(make, tmp_path):
    before = make(KindSettings("ivf", Knobs(lists=8, nprobe=1))).manifest
    after = rewrite_index(
        tmp_path / "index", kind=KindSettings("ivf", Knobs(lists=8, nprobe=8)), model=WordEncoder()
    ).manifest
    assert after.graph.file == before.graph.file
    assert (before.recall.at_100 < 0.95, after.recall.at_100) == (True, 1.0)
    assert rewrite_index(tmp_path / "index", kind=KindSettings("exact")).manifest.graph is None
    assert not list((tmp_path / "index").glob("graph-*"))


@needs_faiss
def test_the_draw_of_queries_depends_on_the_seed_alone(corpus, tmp_path):
    drawn = []
    for number, seed in enumerate((0, 0, 1)):
        encoder = WordEncoder()
        texts = []
        encode = encoder.encode
        encoder.encode = lambda some, kind, progress=None, texts=texts, encode=encode: (
            texts.extend(some if kind == "query" else []),
            encode(some, kind, progress),
        )[1]
        make_index(encoder, corpus, tmp_path / str(number), KindSettings("hnsw", sample=20, seed=seed))
        drawn.append(texts)
    assert drawn[0] == drawn[1] != drawn[2]
    assert set(drawn[0]) <= {title for title, _ in documents(0, 300).values()}


@needs_faiss
def test_documents_without_titles_lend_their_first_words(tmp_path):
    found = {name: ("", text) for name, (_, text) in documents(0, 50).items()}
    write_documents(tmp_path / "corpus" / "corpus.jsonl", found)
    manifest = make_index(WordEncoder(), tmp_path / "corpus", tmp_path / "index", KindSettings("hnsw")).manifest
    assert manifest.recall.source == "titles or first words of documents"
    assert manifest.recall.queries == 50


@needs_faiss
def test_copies_of_a_text_count_as_found(tmp_path):
    """Which of many equal documents is found says nothing about an index."""
    write_documents(tmp_path / "corpus" / "corpus.jsonl", {f"d{n}": ("", "the same text") for n in range(500)})
    manifest = make_index(WordEncoder(), tmp_path / "corpus", tmp_path / "index", KindSettings("hnsw")).manifest
    assert (manifest.recall.at_10, manifest.recall.at_100) == (1.0, 1.0)


@needs_faiss
@pytest.mark.parametrize("place", [10, -10])
def test_a_damaged_graph(make, tmp_path, place):
    make(KindSettings("hnsw"))
    (path,) = (tmp_path / "index").glob("graph-*")
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="got a damaged file"):
        open_index(tmp_path / "index", WordEncoder())
    with open_index(tmp_path / "index", WordEncoder(), exact=True) as index:
        assert len(index.search("text")) == 10


@needs_faiss
def test_another_kind_of_a_made_index(make, tmp_path):
    make(KindSettings("exact"))
    with pytest.raises(OutputExistsError, match="--kind hnsw"):
        make(KindSettings("hnsw"))


@needs_faiss
def test_more_lists_than_documents(make):
    with pytest.raises(InputError, match="--lists: got 301 for 300 documents"):
        make(KindSettings("ivf", Knobs(lists=301)))


@needs_faiss
def test_one_document(tmp_path):
    write_documents(tmp_path / "corpus" / "corpus.jsonl", documents(0, 1))
    for kind in ("hnsw", "ivf"):
        make_index(WordEncoder(), tmp_path / "corpus", tmp_path / kind, KindSettings(kind))
        with open_index(tmp_path / kind, WordEncoder()) as index:
            assert [hit.document_id for hit in index.search("text", top=5)] == ["d0"]


@needs_faiss
def test_half_precision_is_searched_as_it_is_stored(corpus, tmp_path):
    make_index(WordEncoder(), corpus, tmp_path / "index", KindSettings("hnsw"), dtype="float16")
    with open_index(tmp_path / "index", WordEncoder()) as index:
        graph = [(hit.document_id, hit.cosine) for hit in index.search("text", top=300)]
    with open_index(tmp_path / "index", WordEncoder(), exact=True) as index:
        exact = [(hit.document_id, hit.cosine) for hit in index.search("text", top=300)]
    assert dict(graph) == pytest.approx(dict(exact), abs=1e-6)
    assert approximate.SAME_SCORE == 1e-6
    assert embed("text").dtype == np.float32
