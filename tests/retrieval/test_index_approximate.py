"""Approximate indexes: recall measured, files checked, never fewer documents than there are."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from bixse.errors import InputError
from bixse.retrieval.index.approximate import ann_settings
from bixse.retrieval.index.make_index import make_index
from bixse.retrieval.index.search import open_index

pytestmark = [pytest.mark.usefixtures("small_shards"), pytest.mark.precision("float32")]
needs_faiss = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="needs bixse[faiss]")
ALL = [("hnsw", "efSearch=500"), ("IVF8,Flat", "nprobe=8"), ("ivf", "nprobe=2")]
"""Each looks at every document."""


def test_a_missing_library_is_said_before_any_work(tiny_model, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"bixse\[faiss\]"):
        make_index(tiny_model, corpus, tmp_path / "index", "hnsw")
    assert not (tmp_path / "index").exists()


@needs_faiss
@pytest.mark.parametrize(
    ("index_type", "parameters", "said"),
    [("hsnw", None, "did you mean 'hnsw'"), ("hnsw", "efSearch", "hnsw"), ("IVF200,Flat", None, "IVF200")],
)
def test_what_faiss_does_not_know_is_said_before_any_work(tiny_model, corpus, tmp_path, index_type, parameters, said):
    with pytest.raises(InputError, match=said):
        make_index(tiny_model, corpus, tmp_path / "index", index_type, parameters)
    assert not (tmp_path / "index").exists()


@needs_faiss
def test_settings_that_are_left_out():
    assert ann_settings("exact", None, 100) is None
    assert ann_settings("hnsw", "efSearch=64", 9).model_dump() == {
        "factory": "HNSW32", "parameters": "efConstruction=200,efSearch=64",
    }  # fmt: skip
    assert ann_settings("ivf", None, 100_000).model_dump() == {"factory": "IVF1265,Flat", "parameters": "nprobe=317"}


@needs_faiss
@pytest.mark.parametrize(("index_type", "parameters"), ALL)
def test_all_that_exact_search_finds(tiny_model, corpus, tmp_path, index_type, parameters):
    report = make_index(tiny_model, corpus, tmp_path / "index", index_type, parameters)
    assert (report.manifest.recall.at_10, report.manifest.recall.at_100, report.warnings) == (1.0, 1.0, ())
    with open_index(tmp_path / "index", tiny_model) as index:
        found = [index.search(["copy a file", "sort"], top=top) for top in (1, 10, 1000)]
    with open_index(tmp_path / "index", tiny_model, exact=True) as index:
        for hits, top in zip(found, (1, 10, 1000), strict=True):
            for one, other in zip(hits, index.search(["copy a file", "sort"], top=top), strict=True):
                assert [hit.cosine for hit in one] == pytest.approx([hit.cosine for hit in other], abs=1e-6)


@needs_faiss
def test_few_candidates_are_said_and_filled_up(tiny_model, corpus, tmp_path):
    report = make_index(tiny_model, corpus, tmp_path / "index", "IVF5,Flat", "nprobe=1", recall_target=1.0)
    assert report.manifest.recall.queries == 100
    assert report.manifest.recall.at_10 < 1
    assert "nprobe=1" in report.warnings[0]
    with open_index(tmp_path / "index", tiny_model) as index:
        assert len({hit.document_id for hit in index.search("sort", top=100)}) == 100


@needs_faiss
def test_another_type_takes_the_place_of_an_index_without_encoding(tiny_model, corpus, tmp_path, monkeypatch):
    make_index(tiny_model, corpus, tmp_path / "index")
    assert make_index(tiny_model, corpus, tmp_path / "index", "hnsw").encoded == 0
    assert len(list((tmp_path / "index").glob("faiss-*"))) == 1
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(InputError, match=r"bixse\[faiss\]"):
        open_index(tmp_path / "index", tiny_model)
    with open_index(tmp_path / "index", tiny_model, exact=True) as index:
        assert len(index.search("copy")) == 10


@needs_faiss
def test_a_byte_that_changed(tiny_model, corpus, tmp_path):
    make_index(tiny_model, corpus, tmp_path / "index", "hnsw")
    (path,) = (tmp_path / "index").glob("faiss-*")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=path.name):
        open_index(tmp_path / "index", tiny_model)
