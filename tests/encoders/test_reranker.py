"""The folder of a reranker: what it is found to be, what it refuses, and the scores and probabilities that it gives."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from bixse.encoders.head import HEAD_FILE, RelevanceHead
from bixse.encoders.loading.build import build_encoder, build_scorer, load_relevance_model
from bixse.encoders.loading.kinds import kind_of
from bixse.errors import InputError, ModelError, NotFiniteError
from bixse.files.files import HASHES_FILE
from helpers.rerankers import DAMAGES, damaged, save_reranker

QUERY = "copy a file"
DOCUMENTS = ["copy the file", "sleep and wait", "sort the list in the heap", "how do i read a line of text"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_model_path):
    return save_reranker(tiny_model_path, tmp_path_factory.mktemp("reranker") / "model", RelevanceHead(2.0, -1.0))


class TestUnhappyPaths:
    def test_a_reranker_where_an_encoder_belongs(self, folder):
        with pytest.raises(InputError) as caught:
            build_encoder(folder)
        assert "reranker" in caught.value.got

    def test_an_encoder_where_a_reranker_belongs(self, tiny_model_path):
        with pytest.raises(ModelError) as caught:
            build_scorer("reranker", tiny_model_path)
        assert "classifier" in str(caught.value)

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_a_damaged_folder(self, folder, tmp_path, damage):
        with pytest.raises(ModelError):
            load_relevance_model(damaged(folder, tmp_path / "model", damage, config="config.json"))

    @pytest.mark.parametrize("labels", [0, 3])
    def test_a_classifier_of_no_or_three_labels(self, folder, tmp_path, labels):
        copy = shutil.copytree(folder, tmp_path / "model")
        (copy / HASHES_FILE).unlink()
        tensors = load_file(copy / "model.safetensors")
        for name in ("classifier.weight", "classifier.bias"):
            layer = tensors.pop(name)
            if labels:
                tensors[name] = layer.repeat_interleave(labels, 0)
        save_file(tensors, copy / "model.safetensors", {"format": "pt"})
        with pytest.raises(ModelError):
            build_scorer("reranker", copy)

    @pytest.mark.parametrize("length", [3, 65])
    def test_a_length_that_the_model_cannot_read(self, folder, length):
        with pytest.raises(ModelError, match=str(length)):
            build_scorer("reranker", folder, max_length=length)

    def test_dimensions(self, folder):
        with pytest.raises(ModelError, match="dimensions"):
            load_relevance_model(folder, dimensions=16)

    def test_no_head(self, tiny_model_path, tmp_path):
        folder = save_reranker(tiny_model_path, tmp_path / "model", head=None)
        with pytest.raises(ModelError, match="calibrate"):
            load_relevance_model(folder)
        with pytest.raises(ModelError, match="calibrate"):
            build_scorer("reranker", folder).relevance(QUERY, DOCUMENTS)

    @pytest.mark.parametrize("documents", ["copy the file", [3], [None]])
    def test_documents_that_are_no_list_of_texts(self, folder, documents):
        with pytest.raises(InputError):
            load_relevance_model(folder).relevance(QUERY, documents)

    def test_weights_that_are_not_finite(self, folder):
        model = build_scorer("reranker", folder, device="cpu")
        next(model.parameters()).data.fill_(float("nan"))
        with pytest.raises(NotFiniteError):
            model.logits([QUERY], DOCUMENTS[:1])


def test_the_kind_is_read_from_the_files_alone(folder, tiny_model_path, tmp_path):
    assert [kind_of(source) for source in (folder, tiny_model_path, "owner/name")] == ["reranker", "encoder", "encoder"]
    older = tmp_path / "older"  # as transformers saves it, and CrossEncoder did before sentence-transformers 6
    AutoModelForSequenceClassification.from_pretrained(folder).save_pretrained(older)
    AutoTokenizer.from_pretrained(folder).save_pretrained(older)
    assert kind_of(older) == "reranker"
    assert build_scorer("reranker", older).logits([QUERY] * 4, DOCUMENTS) == pytest.approx(
        build_scorer("reranker", folder).logits([QUERY] * 4, DOCUMENTS)
    )


def test_probabilities_are_the_head_on_the_scores_of_a_plain_cross_encoder(folder):
    plain = CrossEncoder(str(folder), device="cpu")
    raw = plain.predict([(QUERY, document) for document in DOCUMENTS], activation_fn=nn.Identity())
    model = load_relevance_model(folder, device="cpu")
    assert (model.logits([QUERY] * 4, DOCUMENTS) == raw).all()
    assert np.ptp(raw) > 0.01
    expected = 1 / (1 + np.exp(1.0 - 2.0 * raw.astype(float)))
    assert model.relevance(QUERY, DOCUMENTS) == pytest.approx(expected, abs=1e-12)
    assert model.relevance(QUERY, []).shape == (0,)


def test_a_logit_equals_that_of_transformers_on_one_pair(folder):
    tokenizer, model = (kind.from_pretrained(folder) for kind in (AutoTokenizer, AutoModelForSequenceClassification))
    with torch.inference_mode():
        alone = [float(model.eval()(**tokenizer(QUERY, text, return_tensors="pt")).logits[0, 0]) for text in DOCUMENTS]
    assert build_scorer("reranker", folder, device="cpu").logits([QUERY] * 4, DOCUMENTS) == pytest.approx(
        alone, abs=1e-5
    )


def test_equal_pairs_have_equal_logits_in_any_batch(folder):
    model = build_scorer("reranker", folder, device="cpu")
    others = [f"{text} {'file ' * number}" for number in range(12) for text in DOCUMENTS]
    texts = ["copy the file", *others, "copy the file"]
    logits = model.logits([QUERY] * len(texts), texts)
    assert logits[0] == logits[-1] and len(set(logits.tolist())) > 20


def test_progress_counts_the_pairs(folder):
    seen = []
    build_scorer("reranker", folder, device="cpu").logits([QUERY] * 4, DOCUMENTS, seen.append)
    assert sum(seen) == 4


def test_the_length_is_saved(folder, tiny_model_path, tmp_path):
    model = build_scorer("reranker", folder, max_length=8, device="cpu")
    model.save_pretrained(str(tmp_path / "short"))
    long = "copy " + "file " * 30
    expected = build_scorer("reranker", tmp_path / "short", device="cpu").logits([QUERY], [long])
    assert (
        expected
        == model.logits([QUERY], [long])
        != build_scorer("reranker", folder, device="cpu").logits([QUERY], [long])
    )
    assert json.loads((tmp_path / "short" / HEAD_FILE).read_text())["logit_scale"] == 2.0
