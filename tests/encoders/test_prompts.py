from __future__ import annotations

import numpy as np
import pytest

from bixse.encoders.encode import encode_texts

TEXTS = ["copy a file", "sleep in a thread", "move"]
PROMPTS = [
    ({}, None),
    ({"query": "find ", "document": "text "}, None),
    ({"query": "find ", "passage": "text "}, None),
    ({"query": "find ", "passage": "text ", "corpus": "line "}, None),
    ({"query": "", "document": "", "passage": "text "}, None),
    ({"any": "sort "}, "any"),
    ({"any": "sort ", "query": ""}, "any"),
    ({"any": "sort ", "passage": "text "}, "any"),
]


def check_as_sentence_transformers_encodes(model):
    """Returns embeddings of queries and documents."""
    queries = model.encode_query(TEXTS, normalize_embeddings=True)
    documents = model.encode_document(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(encode_texts(model, TEXTS, "query", precision="float32"), queries, atol=1e-6)
    np.testing.assert_allclose(encode_texts(model, TEXTS, "document", precision="float32"), documents, atol=1e-6)
    return queries, documents


@pytest.mark.parametrize(("prompts", "default"), PROMPTS)
def test_the_prompts_of_queries_and_documents(tiny_model, prompts, default):
    tiny_model.prompts, tiny_model.default_prompt_name = prompts, default
    check_as_sentence_transformers_encodes(tiny_model)


def test_a_router_takes_the_route_of_the_kind(router_model):
    router_model.prompts = {"query": "find ", "document": "text "}
    queries, documents = check_as_sentence_transformers_encodes(router_model)
    assert np.abs(queries - documents).max() > 0.01
