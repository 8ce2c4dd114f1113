import threading

import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

from bixse.encoders import encode
from bixse.encoders.embedding import embed_features
from bixse.encoders.encode import encode_and_count, encode_texts
from bixse.encoders.loading.build import build_encoder

TEXTS = ["copy a file", "sleep in a thread", "move"]
MANY = [" ".join(["copy", "a", "file", "in", "the", "tree"][: 1 + n % 6] * (1 + n // 5)) for n in range(37)]
MANY += ["", "not"]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def gpu_way(request, monkeypatch):
    """The device of an encoder whose texts are tokenised ahead: a GPU, or the CPU that stands in for it."""
    monkeypatch.setattr(encode, "BLOCKS_AHEAD", {request.param: 2})
    monkeypatch.setattr(encode, "TEXTS_PER_BLOCK", {request.param: 5})
    return request.param


def one_by_one(model, texts, prompt=None):
    """Return embeddings of sentence-transformers, which pads nothing in a text alone."""
    return np.stack([model.encode(text, prompt=prompt, normalize_embeddings=True) for text in texts])


@pytest.fixture
def lengths_given(monkeypatch):
    """Lengths of texts in host memory that each block's features hold, or None."""
    lengths = []

    def record(model, features):
        lengths.append(features.get("lengths"))
        return embed_features(model, features)

    monkeypatch.setattr(encode, "embed_features", record)
    return lengths


def threads_ahead():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("bixse-ahead")]


class TestTokenisedAhead:
    @pytest.mark.parametrize("prompt", ["", "find the file "])
    def test_embeddings_and_cut_texts_are_those_of_one_block(self, tiny_model, gpu_way, lengths_given, prompt):
        expected = one_by_one(tiny_model, MANY, prompt)
        whole = [len(tiny_model.tokenizer(prompt + text)["input_ids"]) for text in MANY]
        steps = []
        embeddings, is_cut = encode_and_count(tiny_model.to(gpu_way), MANY, "document", "float32", steps.append, prompt)
        np.testing.assert_allclose(embeddings, expected, atol=2e-6)
        assert is_cut.tolist() == [float(length > 32) for length in whole]
        assert (steps, threads_ahead()) == ([5] * 7 + [4], [])
        assert sorted(np.concatenate(lengths_given).tolist()) == sorted(min(length, 32) for length in whole)

    @pytest.mark.parametrize("kind", ["llama", "qwen3"])
    def test_a_decoder_padded_on_the_left_reads_the_same_texts(self, decoder_path, gpu_way, lengths_given, kind):
        model = build_encoder(decoder_path(kind), device="cpu")
        model.tokenizer.padding_side = "left"
        expected = one_by_one(model, MANY)
        embeddings = encode_texts(model.to(gpu_way), MANY, "document", "float32")
        np.testing.assert_allclose(embeddings, expected, atol=2e-6)
        assert model.tokenizer.padding_side == "left" and all(len(lengths) for lengths in lengths_given)

    @pytest.mark.parametrize("token_type", [0, 1])
    def test_token_types_other_than_0_are_given_to_the_encoder(self, tiny_model, gpu_way, lengths_given, token_type):
        single = f"[CLS]:{token_type} $A:{token_type}"
        template = TemplateProcessing(single=single, special_tokens=[("[CLS]", 2)])
        tiny_model.tokenizer.backend_tokenizer.post_processor = template
        expected = one_by_one(tiny_model, TEXTS)
        embeddings = encode_texts(tiny_model.to(gpu_way), TEXTS, "document", "float32")
        np.testing.assert_allclose(embeddings, expected, atol=2e-6)
        assert (lengths_given[0] is None) == (token_type == 1)

    def test_an_encoder_of_another_kind_is_tokenised_ahead_too(self, student, gpu_way):
        model = build_encoder(student, device=gpu_way)
        expected = model.encode(MANY, normalize_embeddings=True)
        np.testing.assert_allclose(encode_texts(model, MANY, "document", "float32"), expected, atol=1e-6)

    @pytest.mark.parametrize("name", ["preprocess", "forward"])
    def test_an_error_of_either_thread_is_raised_and_leaves_no_thread(self, tiny_model, gpu_way, monkeypatch, name):
        model, calls = tiny_model.to(gpu_way), []
        work = getattr(model, name)

        def broken(*arguments, **named):
            calls.append(name)
            if len(calls) > 4:
                raise OSError("broken")
            return work(*arguments, **named)

        monkeypatch.setattr(model, name, broken)
        with pytest.raises(OSError, match="broken"):
            encode_texts(model, MANY, "document", "float32")
        assert threads_ahead() == []
