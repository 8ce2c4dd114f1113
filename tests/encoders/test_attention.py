import shutil

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer
from transformers import BertTokenizerFast

from bixse.encoders.encode import encode_texts
from bixse.encoders.loading import backbones
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.weights import add_lora, has_lora, merge_lora
from bixse.errors import InputError, ModelError


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3", "gemma3"])
class TestDecoders:
    def test_a_bare_decoder_sees_the_whole_text_also_in_plain_sentence_transformers(self, decoder_path, tmp_path, kind):
        assert not backbones.sees_whole_text(SentenceTransformer(str(decoder_path(kind)), device="cpu")[0])
        assert not backbones.sees_whole_text(build_encoder(decoder_path(kind), device="cpu", bidirectional=False)[0])
        model = build_encoder(decoder_path(kind), 32, device="cpu")
        assert backbones.sees_whole_text(model[0])
        model.save_pretrained(str(tmp_path))
        texts = ["copy a file", "sort the list of words"]
        expected = torch.tensor(encode_texts(model, texts, "query"))
        for again in (SentenceTransformer(str(tmp_path), device="cpu"), build_encoder(tmp_path, device="cpu")):
            assert backbones.sees_whole_text(again[0])
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
    assert not backbones.sees_whole_text(build_encoder(tmp_path, device="cpu")[0])
    assert backbones.sees_whole_text(build_encoder(tmp_path, device="cpu", bidirectional=True)[0])


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
        backbones.check_attention(SentenceTransformer(str(tmp_path), device="cpu"), "llama")
    with pytest.raises(ModelError, match="got a llama decoder"):
        build_encoder(decoder_path("llama"), device="cpu")


def test_padding_that_counts_is_refused(decoder_path, monkeypatch):
    model = build_encoder(decoder_path("llama"), device="cpu")
    forward = model[0].forward

    def without_mask(features, **named):
        return forward({**features, "attention_mask": torch.ones_like(features["attention_mask"])}, **named)

    monkeypatch.setattr(model[0], "forward", without_mask)
    with pytest.raises(ModelError, match="right"):
        backbones.check_padding(model, "llama")


def test_the_parts_of_a_model_are_its_modules_also_behind_a_router(tiny_model, router_model):
    assert [type(part).__name__ for part in backbones.parts_of(tiny_model)] == ["Transformer", "Pooling"]
    assert backbones.input_parts(tiny_model) == [tiny_model[0]]
    names = [type(part).__name__ for part in backbones.parts_of(router_model)]
    assert names == ["Router", "Transformer", "Pooling", "Transformer", "Pooling"]
    routes = router_model[0].sub_modules
    assert backbones.input_parts(router_model) == [routes["query"][0], routes["document"][0]]


TEXTS = ["copy a file", "sort the list of words", "open"]


def vectors(model):
    return torch.tensor(encode_texts(model, TEXTS, "query"))


@pytest.fixture(params=["llama", "bert", "modernbert"])
def adapted(request, decoder_path, tiny_model_path, modernbert_path):
    """An encoder whose adapters, and the head of ModernBERT after the pooling, were moved away from their start."""
    path = {"bert": lambda: tiny_model_path, "modernbert": modernbert_path}.get(request.param)
    model = build_encoder(path() if path else decoder_path(request.param), device="cpu")
    before = vectors(model)
    add_lora(model, rank=4)
    torch.testing.assert_close(vectors(model), before)  # adapters begin at 0
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    heads = {name.split(".")[0] for name in trained if "lora_" not in name}
    assert heads == ({"2", "3"} if request.param == "modernbert" else set())
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in trained.items():
            if "lora_A" not in name:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    assert (vectors(model) - before).abs().max() > 0.01
    return model


def test_an_adapter_folder_comes_back_with_the_same_vectors(adapted, tmp_path):
    adapted.save_pretrained(str(tmp_path))
    assert (tmp_path / "adapter_model.safetensors").is_file()
    assert not (tmp_path / "model.safetensors").exists()
    again = build_encoder(tmp_path, device="cpu")
    assert has_lora(again)
    torch.testing.assert_close(vectors(again), vectors(adapted))
    assert backbones.sees_whole_text(again[0])


def test_plain_sentence_transformers_does_not_load_a_decoders_adapters_causal_without_a_word(adapted, tmp_path):
    adapted.save_pretrained(str(tmp_path))
    if not isinstance(adapted[0], backbones.BidirectionalTransformer):
        assert (SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS) == adapted.encode(TEXTS)).all()
        return
    with pytest.raises(Exception, match="trust_remote_code"):
        SentenceTransformer(str(tmp_path), device="cpu")
    trusted = SentenceTransformer(str(tmp_path), device="cpu", trust_remote_code=True)
    torch.testing.assert_close(torch.tensor(trusted.encode(TEXTS)), torch.tensor(adapted.encode(TEXTS)))


@pytest.mark.precision("float32")
def test_a_merged_export_loads_anywhere_with_the_same_vectors(adapted, tmp_path):
    expected = vectors(adapted)
    merge_lora(adapted)
    assert not has_lora(adapted)
    assert type(adapted[0]) is Transformer
    torch.testing.assert_close(vectors(adapted), expected, rtol=1e-4, atol=1e-5)
    adapted.save_pretrained(str(tmp_path))
    assert not list(tmp_path.glob("adapter*"))
    for again in (SentenceTransformer(str(tmp_path), device="cpu"), build_encoder(tmp_path, device="cpu")):
        assert backbones.sees_whole_text(again[0])
        torch.testing.assert_close(vectors(again), expected, rtol=1e-4, atol=1e-5)
    assert not any("lora" in name for name, _ in again.named_parameters())


def test_adapters_of_the_chosen_layers_are_trained_alone(decoder_path):
    model = build_encoder(decoder_path("llama"), device="cpu")
    add_lora(model, rank=2, alpha=8, dropout=0.1, targets=["q_proj", "v_proj"])
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert all("lora_" in name for name in trained)
    assert {name.split(".")[-4] for name in trained if "lora_A" in name} == {"q_proj", "v_proj"}
    with pytest.raises(ModelError, match="a model that has adapters"):
        add_lora(model)


def test_what_has_no_such_layers_or_adapters_is_refused(decoder_path, student):
    static, model = (build_encoder(path, device="cpu") for path in (student, decoder_path("llama")))
    with pytest.raises(ModelError, match="a model without adapters"):
        merge_lora(model)
    with pytest.raises(InputError, match="names of layers"):
        add_lora(model, targets=["nothing"])
    with pytest.raises(ModelError, match="without a transformer"):
        add_lora(static)
    assert all(parameter.requires_grad for parameter in static.parameters())
