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
