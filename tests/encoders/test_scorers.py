"""Rerankers, late interaction and sparse encoders: what is refused, and that scores are the plain library's."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SparseEncoder, util
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertForMaskedLM

from bixse.encoders import scorers
from bixse.encoders.encode import encode_texts
from bixse.encoders.head import HEAD_FILE, RelevanceHead
from bixse.encoders.loading.build import build_encoder, build_scorer, load_relevance_model, load_scorer
from bixse.encoders.loading.kinds import kind_of
from bixse.errors import InputError, ModelError, NotFiniteError
from bixse.files.files import HASHES_FILE
from helpers.rerankers import DAMAGES, EMBEDDING_KINDS, damaged, save_reranker
from helpers.toy import BERT_SIZES

QUERIES = ["copy a file", "sort", "how do i read a line"]
DOCUMENTS = ["copy the file", "sleep and wait", "sort the list in the heap", "how do i read a line of text", "copy"]
PAIRS = [(query, document) for query in QUERIES for document in DOCUMENTS]
PLAIN = {"reranker": CrossEncoder, "late-interaction": MultiVectorEncoder, "sparse": SparseEncoder}
ONLY_EMBEDDING = pytest.mark.parametrize("kind", EMBEDDING_KINDS)


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

    @ONLY_EMBEDDING
    @pytest.mark.parametrize("convert", [True, False])
    def test_a_folder_of_another_kind(self, folders, kind, convert):
        for other in folders.keys() - {kind}:
            with pytest.raises(ModelError, match=other):
                build_scorer(kind, folders[other], convert=convert)

    def test_an_encoder_that_is_not_to_be_converted(self, kind, tiny_model_path):
        with pytest.raises(ModelError, match="classifier" if kind == "reranker" else "encoder"):
            build_scorer(kind, tiny_model_path)

    def test_late_interaction_without_token_states(self, student):
        with pytest.raises(ModelError, match="StaticEmbedding"):
            build_scorer("late-interaction", student, convert=True)

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
            build_scorer("reranker", copy)

    def test_a_length_that_the_model_cannot_read_and_any_dimensions(self, folder, kind):
        for length in (3, 65):
            with pytest.raises(ModelError, match=str(length)):
                build_scorer(kind, folder, max_length=length)
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
    by_both = [logits_of(build_scorer("reranker", path)) for path in (older, folders["reranker"])]
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


@ONLY_EMBEDDING
def test_a_new_model_equals_a_loop_over_the_numbers_of_its_encoder(tiny_model_path, kind):
    encoder = build_encoder(tiny_model_path, device="cpu")
    expected = []
    for query, document in PAIRS:
        if kind == "late-interaction":
            tokens = [encoder.encode([text], output_value="token_embeddings")[0].double() for text in (query, document)]
            first, second = (states / states.norm(dim=1, keepdim=True) for states in tokens)
            expected.append(float(np.mean([max(float(a @ b) for b in second) for a in first])))
        else:
            vectors = encode_texts(encoder, [query, document], "query").astype(np.float64)
            both = [np.concatenate([vector, -vector]) for vector in vectors]
            largest = [np.where(values >= np.sort(values)[-8], values, 0.0) for values in both]  # 32 dimensions / 4
            first, second = (values / np.linalg.norm(values) for values in largest)
            expected.append(float(first @ second))
    model = build_scorer(kind, tiny_model_path, convert=True, device="cpu")
    assert logits_of(model) == pytest.approx(expected, abs=1e-5)


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


def test_the_length_is_saved(folder, kind, tmp_path):
    model = build_scorer(kind, folder, max_length=8, device="cpu")
    model.save_pretrained(str(tmp_path / "short"))
    long = [("copy a file", "copy " + "file " * 12 + "sort the list")]
    saved, whole = (logits_of(build_scorer(kind, path, device="cpu"), long) for path in (tmp_path / "short", folder))
    assert saved == logits_of(model, long) != whole
    assert json.loads((tmp_path / "short" / HEAD_FILE).read_text())["logit_scale"] == 2.0


def test_a_bare_decoder_becomes_late_interaction(decoder_path, tmp_path):
    model = build_scorer("late-interaction", decoder_path("qwen3"), convert=True, device="cpu")
    model.save_pretrained(str(tmp_path / "model"))
    assert logits_of(load_scorer(tmp_path / "model", device="cpu")) == pytest.approx(logits_of(model), abs=1e-5)


def test_a_bare_masked_language_model_becomes_splade(tiny_model_path, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_path)
    torch.manual_seed(0)
    BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **BERT_SIZES)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = build_scorer("sparse", tmp_path, convert=True, device="cpu")
    assert model.encode_query(["copy"]).shape == (1, len(tokenizer))
    with pytest.raises(ModelError):
        build_scorer("sparse", tmp_path)


@pytest.mark.parametrize("name", ["demo", "static:demo"])
def test_a_name_of_ours_is_not_asked_of_the_hub(monkeypatch, name):
    asked, load_file_path = [], util.load_file_path

    def record(source, *rest, **kinds):
        asked.append(source)
        return load_file_path(source, *rest, **kinds)

    monkeypatch.setattr(util, "load_file_path", record)
    assert load_scorer(name, device="cpu").get_embedding_dimension()
    assert asked and all(Path(source).is_dir() for source in asked)
