"""--processes and --devices, embeddings kept part by part, and collections with empty documents."""

import numpy as np
import pytest

from bixse.data.collection import Collection, Document, save_collection
from bixse.encoders.encode import EncodePool
from bixse.scale.index.search import open_index
from helpers.command import call

WORDS = "copy move delete open read write list file folder tree".split()  # noqa: SIM905


@pytest.fixture
def collection(tmp_path):
    """A document a word, two without any text of which one is judged."""
    corpus = {f"d-{word}": Document(word, f"{word} a file") for word in WORDS}
    corpus |= {"empty": Document("", ""), "blank": Document(" ", "")}
    qrels = {"test": {f"q-{word}": {f"d-{word}": 3.0, "empty": 0.0} for word in WORDS}}
    data = Collection("toy", corpus, {f"q-{word}": word for word in WORDS}, qrels)
    save_collection(data, tmp_path / "toy")
    return tmp_path / "toy"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--processes", "0"], "processes: got '0'"),
        (["--processes", "2", "--devices", "cpu"], "expected at most one of them"),
        (["--devices", "cpu", "cuda:97"], "device: got 'cuda:97'; expected one of cpu"),
    ],
)
@pytest.mark.parametrize("verb", ["evaluate", "index", "search"])
def test_devices_that_cannot_be(capsys, model, collection, tmp_path, verb, flags, said):
    own = {"evaluate": [], "index": ["--out", tmp_path / "index"], "search": ["copy"]}[verb]
    code, envelope = call(capsys, verb, model, *own, "--collection", collection, *flags)
    assert (code, said in envelope["errors"][0]) == (2, True), envelope
    assert not (tmp_path / "index").exists()


def test_an_index_is_searched_in_one_process(capsys, model, collection, tmp_path):
    assert call(capsys, "index", model, "--collection", collection, "--out", tmp_path / "index")[0] == 0
    code, envelope = call(capsys, "search", tmp_path / "index", "copy", "--processes", "2")
    assert (code, "--processes" in envelope["errors"][0]) == (2, True)


@pytest.mark.slow
def test_two_processes_evaluate_as_one(capsys, model, collection, tmp_path, monkeypatch):
    monkeypatch.setattr("bixse.encoders.encode.FEWEST_TEXTS_SHARED", 4)
    shared = []
    encode = EncodePool.encode
    monkeypatch.setattr(
        EncodePool, "encode", lambda pool, texts, *rest: (shared.append(len(texts)), encode(pool, texts, *rest))[1]
    )
    words = ("--collection", collection, "--processes", "2")
    code, two = call(capsys, "evaluate", model, *words)
    assert code == 0, two
    assert sum(shared) == 11 + 10  # documents (two are the same empty text) and queries
    assert call(capsys, "evaluate", model, "--cache", "none", *words[:2])[1]["metrics"] == two["metrics"]
    assert sum(shared) == 21


def test_processes_that_slow_each_other_down_are_said(capsys, model, collection, monkeypatch):
    monkeypatch.setattr("bixse.encoders.encode.cores", lambda: 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    code, envelope = call(capsys, "evaluate", model, "--collection", collection, "--processes", "2")
    assert code == 0
    assert "2 processes of 2 threads on 2 cores" in envelope["warnings"][0]


def test_empty_documents_are_searched_and_said(capsys, model, collection, tmp_path):
    said = "2 of 12 documents have neither title nor text ('empty'): they are kept as they are"
    for system in (model, "bm25"):
        code, envelope = call(capsys, "evaluate", system, "--collection", collection)
        assert (code, envelope["warnings"]) == (0, [said])
        assert 0 < envelope["metrics"]["ndcg@10"] <= 1
    folder = tmp_path / "index"
    code, envelope = call(capsys, "index", model, "--collection", collection, "--out", folder)
    assert (code, envelope["warnings"][0]) == (0, said)
    with open_index(folder) as index:
        hits = index.search("copy", top=12)
        assert {hit.document_id for hit in hits} >= {"empty", "blank"}
        assert np.isfinite([hit.cosine for hit in hits]).all()
    assert call(capsys, "search", model, "copy", "--collection", collection)[1]["warnings"] == [said]
