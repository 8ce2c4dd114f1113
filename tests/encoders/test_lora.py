from __future__ import annotations

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer

from bixse.encoders.encode import encode_texts
from bixse.encoders.loading.backbones import BidirectionalTransformer, sees_whole_text
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.weights import add_lora, has_lora, merge_lora
from bixse.errors import InputError, ModelError

TEXTS = ["copy a file", "sort the list of words", "open"]


def vectors(model):
    return torch.tensor(encode_texts(model, TEXTS, "query"))


@pytest.fixture(params=["llama", "bert"])
def adapted(request, decoder_path, tiny_model_path):
    """An encoder whose adapters were moved away from 0."""
    path = tiny_model_path if request.param == "bert" else decoder_path(request.param)
    model = build_encoder(path, device="cpu")
    before = vectors(model)
    add_lora(model, rank=4)
    torch.testing.assert_close(vectors(model), before)  # adapters begin at 0
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    assert (vectors(model) - before).abs().max() > 0.01
    return model


def test_only_adapters_are_trained(decoder_path):
    model = build_encoder(decoder_path("llama"), device="cpu")
    add_lora(model, rank=4)
    number = sum(own.numel() for own in model.parameters() if own.requires_grad)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    assert number == sum(p.numel() for p in trained.values())


def test_an_adapter_folder_comes_back_with_the_same_vectors(adapted, tmp_path):
    adapted.save_pretrained(str(tmp_path))
    assert (tmp_path / "adapter_model.safetensors").is_file()
    assert not (tmp_path / "model.safetensors").exists()
    again = build_encoder(tmp_path, device="cpu")
    assert has_lora(again)
    torch.testing.assert_close(vectors(again), vectors(adapted))
    assert sees_whole_text(again[0])


def test_plain_sentence_transformers_does_not_load_a_decoders_adapters_causal_without_a_word(adapted, tmp_path):
    adapted.save_pretrained(str(tmp_path))
    if not isinstance(adapted[0], BidirectionalTransformer):
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
        assert sees_whole_text(again[0])
        torch.testing.assert_close(vectors(again), expected, rtol=1e-4, atol=1e-5)
    assert not any("lora" in name for name, _ in again.named_parameters())


def test_the_layers_that_get_adapters(decoder_path):
    model = build_encoder(decoder_path("llama"), device="cpu")
    add_lora(model, rank=2, alpha=8, dropout=0.1, targets=["q_proj", "v_proj"])
    adapted = {name.split(".")[-4] for name, _ in model.named_parameters() if "lora_A" in name}
    assert adapted == {"q_proj", "v_proj"}


def test_layers_that_the_encoder_lacks(decoder_path):
    with pytest.raises(InputError, match="names of layers"):
        add_lora(build_encoder(decoder_path("llama"), device="cpu"), targets=["nothing"])


def test_adapters_upon_adapters_and_merging_none(decoder_path):
    model = build_encoder(decoder_path("llama"), device="cpu")
    with pytest.raises(ModelError, match="got a model without adapters"):
        merge_lora(model)
    add_lora(model)
    with pytest.raises(ModelError, match="got a model that has adapters"):
        add_lora(model)


def test_static_embeddings_have_no_layers_for_adapters(student):
    model = build_encoder(student, device="cpu")
    with pytest.raises(ModelError, match=r"lora: .*without a transformer.*fix:"):
        add_lora(model)
    assert all(parameter.requires_grad for parameter in model.parameters())
