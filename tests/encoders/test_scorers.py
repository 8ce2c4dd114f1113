"""Rerankers, late interaction and sparse encoders: what is refused, and that scores are the plain library's."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SparseEncoder, util
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from bixse.encoders import scorers
from bixse.encoders.head import RelevanceHead
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.loading.kinds import kind_of
from bixse.encoders.loading.load_scorer import load_relevance_model, load_scorer
from bixse.errors import InputError, ModelError, NotFiniteError
from bixse.files.files import HASHES_FILE
from helpers.rerankers import DAMAGES, damaged, save_reranker

QUERIES = ["copy a file", "sort", "how do i read a line"]
DOCUMENTS = ["copy the file", "sleep and wait", "sort the list in the heap", "how do i read a line of text", "copy"]
PAIRS = [(query, document) for query in QUERIES for document in DOCUMENTS]
PLAIN = {"reranker": CrossEncoder, "late-interaction": MultiVectorEncoder, "sparse": SparseEncoder}


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tiny_model_path):
    """Kind -> folder of a model of it."""
    home = tmp_path_factory.mktemp("scorers")
    return {kind: save_reranker(tiny_model_path, home / kind, RelevanceHead(2.0, -1.0), kind=kind) for kind in PLAIN}


@pytest.fixture(params=PLAIN)
def kind(request):
    return request.param


@pytest.fixture
def folder(folders, kind):
    return folders[kind]


def logits_of(model, pairs=PAIRS, progress=None):
    return model.logits([query for query, _ in pairs], [document for _, document in pairs], progress)


class TestUnhappyPaths:
    def test_where_an_encoder_belongs(self, folder, kind):
        with pytest.raises(ModelError, match=f"of the kind {kind}"):
            build_encoder(folder)

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_a_damaged_folder(self, folder, tmp_path, damage):
        with pytest.raises(ModelError):
            load_relevance_model(damaged(folder, tmp_path / "model", damage))

    @pytest.mark.parametrize("labels", [0, 3])
    def test_a_classifier_of_no_or_three_labels(self, folders, tmp_path, labels):
        copy = shutil.copytree(folders["reranker"], tmp_path / "model")
        (copy / HASHES_FILE).unlink()
        tensors = load_file(copy / "model.safetensors")
        for name in ("classifier.weight", "classifier.bias"):
            layer = tensors.pop(name)
            if labels:
                tensors[name] = layer.repeat_interleave(labels, 0)
        save_file(tensors, copy / "model.safetensors", {"format": "pt"})
        with pytest.raises(ModelError):
            load_scorer(copy)

    def test_any_dimensions(self, folder):
        with pytest.raises(ModelError, match="dimensions"):
            load_relevance_model(folder, dimensions=16)

    def test_no_head(self, tiny_model_path, tmp_path, kind):
        folder = save_reranker(tiny_model_path, tmp_path / "model", None, kind=kind)
        for probabilities in (load_relevance_model, lambda path: load_scorer(path).relevance("copy", DOCUMENTS)):
            with pytest.raises(ModelError, match="calibrate"):
                probabilities(folder)

    def test_documents_that_are_no_list_of_texts_and_weights_that_are_not_finite(self, folder):
        model = load_relevance_model(folder, device="cpu")
        for documents in ("copy the file", [3], [None]):
            with pytest.raises(InputError):
                model.relevance("copy", documents)
        next(model.parameters()).data.fill_(float("nan"))
        with pytest.raises(NotFiniteError):
            logits_of(model)


def test_the_kind_is_read_from_the_files_alone(folders, tmp_path):
    assert {kind: kind_of(folder) for kind, folder in folders.items()} == {kind: kind for kind in folders}
    (tmp_path / "config_sentence_transformers.json").write_text("[]")
    assert kind_of(tmp_path) == kind_of("owner/name") == "encoder"
    older = tmp_path / "older"  # as transformers saves it, and CrossEncoder did before sentence-transformers 6
    for part in (AutoModelForSequenceClassification, AutoTokenizer):
        part.from_pretrained(folders["reranker"]).save_pretrained(older)
    assert kind_of(older) == "reranker"
    by_both = [logits_of(load_scorer(path)) for path in (older, folders["reranker"])]
    assert by_both[0] == pytest.approx(by_both[1])


def test_scores_equal_those_of_the_plain_library(folder, kind):
    plain = PLAIN[kind](str(folder), device="cpu")
    if kind == "reranker":
        raw, tolerance = plain.predict(PAIRS, activation_fn=nn.Identity()), 0
    else:
        raw = plain.similarity(plain.encode_query(QUERIES), plain.encode_document(DOCUMENTS)).flatten().numpy()
        tolerance = 1e-5
    model = load_relevance_model(folder, device="cpu")
    assert logits_of(model) == pytest.approx(raw, abs=tolerance, rel=0)
    assert np.ptp(raw) > 0.01
    expected = 1 / (1 + np.exp(1.0 - 2.0 * logits_of(model, PAIRS[:5])))
    assert model.relevance(QUERIES[0], DOCUMENTS) == pytest.approx(expected, abs=1e-12)
    assert model.relevance(QUERIES[0], []).shape == (0,)


def test_each_text_or_pair_is_read_once_and_parts_change_nothing(folder, kind, monkeypatch):
    model, seen, counted = load_scorer(folder, device="cpu"), [], []
    expected, preprocess = logits_of(model), model.preprocess
    monkeypatch.setattr(scorers, "DOCUMENTS_AT_ONCE", 2)
    monkeypatch.setattr(scorers, "PAIRS_AT_ONCE", 3)
    monkeypatch.setattr(model, "preprocess", lambda texts, **kinds: seen.extend(texts) or preprocess(texts, **kinds))
    values = logits_of(model, [*PAIRS, *PAIRS[:4]], counted.append)
    assert values[: len(PAIRS)] == pytest.approx(expected, abs=1e-5)
    assert values[len(PAIRS) :].tolist() == values[:4].tolist()
    assert sorted(seen) == sorted(PAIRS if kind == "reranker" else [*QUERIES, *DOCUMENTS])
    assert sum(counted) == len(PAIRS)


@pytest.mark.parametrize("name", ["demo", "static:demo"])
def test_a_name_of_ours_is_not_asked_of_the_hub(monkeypatch, name):
    asked, load_file_path = [], util.load_file_path

    def record(source, *rest, **kinds):
        asked.append(source)
        return load_file_path(source, *rest, **kinds)

    monkeypatch.setattr(util, "load_file_path", record)
    assert load_scorer(name, device="cpu").get_embedding_dimension()
    assert asked and all(Path(source).is_dir() for source in asked)


def test_rank_is_that_of_a_cross_encoder(folder, kind):
    model = load_relevance_model(folder)
    ranked = model.rank("copy a file", DOCUMENTS, top_k=3, return_documents=True)
    scores = model.relevance("copy a file", DOCUMENTS)
    assert [entry["corpus_id"] for entry in ranked] == np.argsort(-scores, kind="stable")[:3].tolist()
    assert [entry["text"] for entry in ranked] == [DOCUMENTS[entry["corpus_id"]] for entry in ranked]
    if kind != "reranker":  # the library's own rank has another activation
        assert [entry["score"] for entry in ranked] == pytest.approx(sorted(scores, reverse=True)[:3])
