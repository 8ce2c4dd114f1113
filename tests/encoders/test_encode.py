import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

from bixse.encoders import encode
from bixse.encoders.encode import encode_texts
from bixse.encoders.relevance_model import RelevanceModel

TEXTS = ["copy a file", "sleep in a thread", "move"]


def check_as_sentence_transformers_encodes(model):
    for kind, by_library in (("query", model.encode_query), ("document", model.encode_document)):
        ours = encode_texts(model, TEXTS, kind, precision="float32")
        np.testing.assert_allclose(ours, by_library(TEXTS, normalize_embeddings=True), atol=1e-6)


@pytest.mark.parametrize(
    ("prompts", "default"),
    [
        ({}, None),
        ({"query": "find ", "document": "text "}, None),
        ({"query": "find ", "passage": "text "}, None),
        ({"query": "find ", "passage": "text ", "corpus": "line "}, None),
        ({"query": "", "document": "", "passage": "text "}, None),
        ({"any": "sort "}, "any"),
        ({"any": "sort ", "query": ""}, "any"),
        ({"any": "sort ", "passage": "text "}, "any"),
    ],
)
def test_prompts_are_those_of_sentence_transformers(tiny_model, prompts, default):
    tiny_model.prompts, tiny_model.default_prompt_name = prompts, default
    check_as_sentence_transformers_encodes(tiny_model)


def test_a_router_takes_the_route_of_the_kind(router_model):
    router_model.prompts = {"query": "find ", "document": "text "}
    check_as_sentence_transformers_encodes(router_model)
    queries, documents = (encode_texts(router_model, TEXTS, kind, prompt="") for kind in ("query", "document"))
    assert np.abs(queries - documents).max() > 0.01


def test_truncated_embeddings_of_a_saved_model_have_length_1(tiny_model, tmp_path):
    first = tiny_model.encode_document(TEXTS)[:, :8]
    tiny_model.truncate_dim = 8
    tiny_model.save_pretrained(str(tmp_path / "model"))
    model = RelevanceModel(str(tmp_path / "model"), device="cpu")
    expected = first / np.linalg.norm(first, axis=1, keepdims=True)
    np.testing.assert_allclose(encode_texts(model, TEXTS, "document", precision="float32"), expected, atol=1e-6)


@pytest.mark.parametrize("texts", [["", *TEXTS, ""], ["", ""]])
def test_a_text_without_any_token_has_the_embedding_zero(tiny_model, texts):
    tiny_model.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    steps = []
    embeddings = encode_texts(tiny_model, texts, "document", progress=steps.append)
    assert sum(steps) == len(texts)
    assert not embeddings[[0, -1]].any()
    if len(texts) > 2:
        np.testing.assert_allclose(np.linalg.norm(embeddings[1:-1], axis=1), 1.0, atol=1e-5)
        np.testing.assert_allclose(embeddings[1:-1], encode_texts(tiny_model, TEXTS, "document"), atol=1e-6)


def test_a_repeated_text_is_encoded_once(tiny_model, monkeypatch):
    calls, steps = [], []
    here = encode.encode_here
    monkeypatch.setattr(
        encode, "encode_here", lambda model, texts, *rest: (calls.append(texts), here(model, texts, *rest))[1]
    )
    embeddings = encode_texts(tiny_model, [TEXTS[0], TEXTS[1], TEXTS[0]], "query", progress=steps.append)
    assert calls == [TEXTS[:2]]
    assert sum(steps) == 3
    np.testing.assert_array_equal(embeddings[0], embeddings[2])
    assert encode_texts(tiny_model, [], "query").shape == (0, 32)
