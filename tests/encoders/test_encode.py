from __future__ import annotations

import numpy as np
import pytest

from bixse.encoders.encode import encode_texts
from bixse.encoders.relevance_model import RelevanceModel

TEXTS = ["copy a file", "sleep in a thread", "move"]


def test_a_model_saved_with_truncated_embeddings_gives_the_first_dimensions_at_length_one(tiny_model, tmp_path):
    whole = tiny_model.encode_document(TEXTS)
    tiny_model.truncate_dim = 8
    tiny_model.save_pretrained(str(tmp_path / "model"))
    model = RelevanceModel(str(tmp_path / "model"), device="cpu")
    expected = whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True)
    np.testing.assert_allclose(encode_texts(model, TEXTS, "document", precision="float32"), expected, atol=1e-6)


@pytest.mark.parametrize("texts", [["", *TEXTS, ""], ["", ""]])
def test_a_text_without_any_token_has_the_embedding_zero(tiny_model, texts):
    from tokenizers.processors import TemplateProcessing

    tiny_model.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    done = []
    found = encode_texts(tiny_model, texts, "document", progress=done.append)
    assert sum(done) == len(texts)
    assert not found[[0, -1]].any()
    if len(texts) > 2:
        np.testing.assert_allclose(np.linalg.norm(found[1:-1], axis=1), 1.0, atol=1e-5)
        np.testing.assert_allclose(found[1:-1], encode_texts(tiny_model, TEXTS, "document"), atol=1e-6)


def test_a_repeated_text_is_encoded_once(tiny_model, monkeypatch):
    from bixse.encoders import encode

    given = []
    here = encode.encode_here
    monkeypatch.setattr(
        encode, "encode_here", lambda model, texts, *rest: (given.extend(texts), here(model, texts, *rest))[1]
    )
    done = []
    found = encode_texts(tiny_model, [TEXTS[0], TEXTS[1], TEXTS[0]], "query", progress=done.append)
    assert given == TEXTS[:2]
    assert sum(done) == 3
    np.testing.assert_array_equal(found[0], found[2])
    assert encode_texts(tiny_model, [], "query").shape == (0, 32)
