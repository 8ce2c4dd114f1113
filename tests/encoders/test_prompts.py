from __future__ import annotations

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from bixse.encoders.encode import encode_texts
from bixse.encoders.prompts import prompt_for

TEXTS = ["copy a file", "sleep in a thread", "move"]
PROMPTS = [
    ({}, None),
    ({"query": "find ", "document": "text "}, None),
    ({"query": "find ", "passage": "text "}, None),
    ({"query": "find ", "corpus": "line "}, None),
    ({"query": "find ", "passage": "text ", "corpus": "line "}, None),
    ({"query": "", "document": "", "passage": "text "}, None),
    ({"any": "sort "}, "any"),
    ({"any": "sort ", "query": ""}, "any"),
    ({"any": "sort ", "passage": "text "}, "any"),
]


@pytest.mark.parametrize(("prompts", "default"), PROMPTS)
def test_texts_are_encoded_as_sentence_transformers_encodes_queries_and_documents(tiny_model, prompts, default):
    tiny_model.prompts, tiny_model.default_prompt_name = prompts, default
    queries = tiny_model.encode_query(TEXTS, normalize_embeddings=True)
    documents = tiny_model.encode_document(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(encode_texts(tiny_model, TEXTS, "query", precision="float32"), queries, atol=1e-6)
    np.testing.assert_allclose(encode_texts(tiny_model, TEXTS, "document", precision="float32"), documents, atol=1e-6)


def test_a_document_prompt_may_be_called_passage_or_corpus(tiny_model):
    tiny_model.prompts = {"query": "find ", "corpus": "line ", "passage": "text "}
    assert (prompt_for(tiny_model, "query"), prompt_for(tiny_model, "document")) == ("find ", "text ")
    del tiny_model.prompts["passage"]
    assert prompt_for(tiny_model, "document") == "line "


def test_an_empty_prompt_is_none_and_keeps_the_default_away(tiny_model):
    tiny_model.prompts, tiny_model.default_prompt_name = {"document": "", "any": "sort "}, "any"
    assert (prompt_for(tiny_model, "query"), prompt_for(tiny_model, "document")) == ("sort ", None)


@pytest.mark.parametrize("prompts", [{"passage": "text "}, {"document": "text "}])
def test_prompts_given_when_the_model_is_loaded(tiny_model_path, prompts):
    model = SentenceTransformer(str(tiny_model_path), prompts=prompts, device="cpu")
    expected = model.encode_document(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(encode_texts(model, TEXTS, "document", precision="float32"), expected, atol=1e-6)


def test_a_router_takes_the_route_of_the_kind(router_model):
    router_model.prompts = {"query": "find ", "document": "text "}
    queries = router_model.encode_query(TEXTS, normalize_embeddings=True)
    documents = router_model.encode_document(TEXTS, normalize_embeddings=True)
    assert np.abs(queries - documents).max() > 0.01
    np.testing.assert_allclose(encode_texts(router_model, TEXTS, "query", precision="float32"), queries, atol=1e-6)
    np.testing.assert_allclose(encode_texts(router_model, TEXTS, "document", precision="float32"), documents, atol=1e-6)
