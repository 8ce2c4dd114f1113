"""Collections with empty documents."""

import numpy as np
import pytest

from bixse.data.collection import Collection, Document, save_collection
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
