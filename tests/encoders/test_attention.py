import shutil

import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import BertTokenizerFast

from bixse.encoders.encode import encode_texts
from bixse.encoders.loading.backbones import check_attention, check_padding, input_parts, parts_of, sees_whole_text
from bixse.encoders.loading.build import build_encoder
from bixse.errors import ModelError


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3", "gemma3"])
class TestDecoders:
    def test_a_bare_decoder_sees_the_whole_text_also_in_plain_sentence_transformers(self, decoder_path, tmp_path, kind):
        assert not sees_whole_text(SentenceTransformer(str(decoder_path(kind)), device="cpu")[0])
        assert not sees_whole_text(build_encoder(decoder_path(kind), device="cpu", bidirectional=False)[0])
        model = build_encoder(decoder_path(kind), 32, device="cpu")
        assert sees_whole_text(model[0])
        model.save_pretrained(str(tmp_path))
        texts = ["copy a file", "sort the list of words"]
        expected = torch.tensor(encode_texts(model, texts, "query"))
        for again in (SentenceTransformer(str(tmp_path), device="cpu"), build_encoder(tmp_path, device="cpu")):
            assert sees_whole_text(again[0])
            torch.testing.assert_close(torch.tensor(encode_texts(again, texts, "query")), expected)

    def test_the_instruction_is_not_pooled(self, decoder_path, kind):
        model = build_encoder(decoder_path(kind), device="cpu")
        features = model.preprocess(["copy a file"], prompt="find the text: ")
        states = model[0](dict(features))["token_embeddings"][0, int(features["prompt_length"]) :]
        torch.testing.assert_close(model(features)["sentence_embedding"][0], states.mean(dim=0))


@pytest.mark.parametrize("bidirectional", [None, False])
def test_texts_are_not_put_into_a_chat_template(decoder_path, tmp_path, bidirectional):
    shutil.copytree(decoder_path("llama"), tmp_path / "chat")
    tokenizer = BertTokenizerFast.from_pretrained(tmp_path / "chat")
    tokenizer.chat_template = "how do i find the file {% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(tmp_path / "chat")
    stock = SentenceTransformer(str(tmp_path / "chat"), device="cpu")
    assert stock.preprocess(["copy a file"])["input_ids"].shape[1] > 6
    model = build_encoder(tmp_path / "chat", device="cpu", bidirectional=bidirectional)
    model.save_pretrained(str(tmp_path / "saved"))
    for encoder in (model, SentenceTransformer(str(tmp_path / "saved"), device="cpu")):
        words = encoder.tokenizer.convert_ids_to_tokens(encoder.preprocess(["copy a file"])["input_ids"][0])
        assert [word for word in words if not word.startswith("[")] == ["copy", "a", "file"]


def test_a_sentence_transformers_decoder_stays_as_it_was_trained(decoder_path, tmp_path):
    SentenceTransformer(str(decoder_path("qwen3")), device="cpu").save_pretrained(str(tmp_path))
    assert not sees_whole_text(build_encoder(tmp_path, device="cpu")[0])
    assert sees_whole_text(build_encoder(tmp_path, device="cpu", bidirectional=True)[0])


def always_causal(config, inputs_embeds, attention_mask, **_):
    length = inputs_embeds.shape[1]
    lower = torch.ones(length, length, dtype=torch.bool).tril()
    return (lower & attention_mask[:, None, None, :].bool()).expand(len(inputs_embeds), 1, -1, -1)


def test_a_switch_that_does_nothing_is_refused(decoder_path, monkeypatch, tmp_path):
    model = build_encoder(decoder_path("llama"), device="cpu")
    model.save_pretrained(str(tmp_path))
    monkeypatch.setattr("transformers.models.llama.modeling_llama.create_causal_mask", always_causal)
    with pytest.raises(ModelError, match="is_causal: false"):
        build_encoder(tmp_path, device="cpu")
    with pytest.raises(ModelError, match="is_causal: false"):
        check_attention(SentenceTransformer(str(tmp_path), device="cpu"), "llama")
    with pytest.raises(ModelError, match="got a llama decoder"):
        build_encoder(decoder_path("llama"), device="cpu")


def test_padding_that_counts_is_refused(decoder_path, monkeypatch):
    model = build_encoder(decoder_path("llama"), device="cpu")
    forward = model[0].forward

    def without_mask(features, **named):
        return forward({**features, "attention_mask": torch.ones_like(features["attention_mask"])}, **named)

    monkeypatch.setattr(model[0], "forward", without_mask)
    with pytest.raises(ModelError, match="right"):
        check_padding(model, "llama")


def test_the_parts_of_a_model_are_its_modules_also_behind_a_router(tiny_model, router_model):
    assert [type(part).__name__ for part in parts_of(tiny_model)] == ["Transformer", "Pooling"]
    assert input_parts(tiny_model) == [tiny_model[0]]
    names = [type(part).__name__ for part in parts_of(router_model)]
    assert names == ["Router", "Transformer", "Pooling", "Transformer", "Pooling"]
    routes = router_model[0].sub_modules
    assert input_parts(router_model) == [routes["query"][0], routes["document"][0]]
