import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm, Pooling, Transformer

from bixse.encoders.encode import encode_texts
from bixse.encoders.loading import backbones
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.loading.precision import rounding
from bixse.encoders.relevance_model import RelevanceModel
from bixse.encoders.weights import add_lora, has_lora, merge_lora
from bixse.errors import InputError, ModelError
from bixse.losses.bixse import BiXSELoss
from helpers.hub_cache import put_into_hub_cache

TEXTS = ["copy a file", "sort the list of words in the queue", "open"]


def vectors(model):
    return model.encode(TEXTS, convert_to_tensor=True, show_progress_bar=False)


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
    tokenizer = transformers.BertTokenizerFast.from_pretrained(tmp_path / "chat")
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


@pytest.fixture
def matmul():
    """The settings of products on a GPU, as they were after the test."""
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    yield settings
    settings.fp32_precision = before


@pytest.mark.parametrize(("setting", "allowed"), [("ieee", 0.001), ("tf32", 0.05), ("bfloat16", 0.05)])
def test_the_check_of_padding_allows_for_the_precision(decoder_path, monkeypatch, matmul, setting, allowed):
    model = build_encoder(decoder_path("llama"), device="cpu")
    if setting != "bfloat16":
        matmul.fp32_precision = setting
    dtype = torch.bfloat16 if setting == "bfloat16" else torch.float32
    differences = iter([0.9 * allowed, 0.9 * allowed, 0.9 * allowed, 1.1 * allowed])

    def embedding(_, texts):
        return torch.tensor([next(differences) if len(texts) > 1 else 0.0], dtype=dtype)

    monkeypatch.setattr(backbones, "_unit_embedding", embedding)
    backbones.check_padding(model, "llama")
    seen = {"ieee": "computes in float32;", "tf32": "TF32 allowed", "bfloat16": "computes in bfloat16"}[setting]
    with pytest.raises(ModelError, match=rf"padded on the left.* within {allowed:g}, .*{seen}"):
        backbones.check_padding(model, "llama")


@pytest.mark.parametrize("allowed", [True, False])
def test_every_way_to_allow_tf32_is_seen(matmul, allowed):
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    assert (rounding(torch.float32) != "float32") == allowed
    matmul.allow_tf32 = not allowed
    assert (rounding(torch.float32) == "float32") == allowed
    matmul.fp32_precision = "tf32" if allowed else "ieee"
    assert (rounding(torch.float32) != "float32") == allowed
    assert rounding(torch.float16) == "float16"


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


def test_adapters_come_back_and_plain_sentence_transformers_loads_none_causal_without_a_word(adapted, tmp_path):
    adapted.save_pretrained(str(tmp_path))
    assert (tmp_path / "adapter_model.safetensors").is_file()
    assert not (tmp_path / "model.safetensors").exists()
    again = build_encoder(tmp_path, device="cpu")
    assert has_lora(again)
    torch.testing.assert_close(vectors(again), vectors(adapted))
    assert backbones.sees_whole_text(again[0])
    if not isinstance(adapted[0], backbones.BidirectionalTransformer):
        assert torch.equal(vectors(SentenceTransformer(str(tmp_path), device="cpu")), vectors(adapted))
        return
    with pytest.raises(Exception, match="trust_remote_code"):
        SentenceTransformer(str(tmp_path), device="cpu")
    trusted = SentenceTransformer(str(tmp_path), device="cpu", trust_remote_code=True)
    torch.testing.assert_close(vectors(trusted), vectors(adapted))


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


def drop_weights(folder, *parts):
    file = folder / "model.safetensors"
    weights = {name: value for name, value in load_file(file).items() if not any(part in name for part in parts)}
    save_file(weights, file, {"format": "pt"})


def before_classifier(folder, tokenizer):
    """Return the inputs of the classifier of ModernBertForSequenceClassification, one text at a time."""
    model = transformers.ModernBertForSequenceClassification.from_pretrained(folder, classifier_pooling="cls").eval()
    inputs = []
    model.classifier.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    with torch.no_grad():
        for text in TEXTS:
            model(**tokenizer(text, return_tensors="pt"))
    return torch.cat(inputs)


def pooled_states(folder, tokenizer, pooling=None):
    """Return the first or the mean of the last hidden states of each text, one text at a time."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        states = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state for text in TEXTS]
    return torch.cat([state[:, 0] if pooling == "cls" else state.mean(dim=1) for state in states])


def modules_of(model):
    return [type(module) for module in model.children()]


class TestRefused:
    @pytest.mark.parametrize(
        ("kind", "changes", "missing", "got"),
        [
            ("ModernBertModel", {}, (), r"head\.dense\.weight, head\.norm\.weight"),
            ("ModernBertForMaskedLM", {}, ("head.norm.weight",), r"head\.norm\.weight"),
            ("ModernBertForMaskedLM", {"norm_eps": 1e-3}, (), "norm_eps 0.001"),
            ("ModernBertForMaskedLM", {"classifier_activation": "gelu_10"}, (), "activation 'gelu_10'"),
            ("BertModel", {}, (), "type bert"),
        ],
    )
    def test_a_head_that_is_missing_or_cannot_be_saved(self, modernbert_path, bert_path, kind, changes, missing, got):
        folder = (modernbert_path if kind.startswith("Modern") else bert_path)(kind, **changes)
        drop_weights(folder, *missing)
        for pooling in ("cls-head", None) if changes else ("cls-head",):
            with pytest.raises(ModelError, match=got):
                build_encoder(folder, device="cpu", pooling=pooling)

    @pytest.mark.parametrize(("pooling", "error"), [("clz", InputError), ("mean", ModelError)])
    def test_an_unknown_pooling_or_any_for_a_sentence_transformers_model(self, tiny_model_path, pooling, error):
        with pytest.raises(error, match=f"pooling: got '{pooling}'"):
            build_encoder(tiny_model_path, device="cpu", pooling=pooling)

    def test_a_sentence_transformers_model_in_another_cache_is_no_bare_backbone(
        self, tiny_model_path, tmp_path, monkeypatch
    ):
        snapshot = put_into_hub_cache(tiny_model_path, tmp_path, "sentence-transformers--tiny")
        (snapshot / "1_Pooling" / "config.json").write_text('{"embedding_dimension": 32, "pooling_mode": "max"}')
        monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(tmp_path))
        assert build_encoder("tiny", device="cpu")[1].pooling_mode == "max"
        with pytest.raises(ModelError, match="sentence-transformers model 'tiny'"):
            build_encoder("tiny", device="cpu", pooling="cls")

    def test_a_sentence_transformers_folder_that_reads_a_pooler_without_weights(self, bert_path, tmp_path):
        # its Transformer takes `pooler_output` as the embedding, which would be random at every load
        text = {"text": {"method": "forward", "method_output_name": "pooler_output"}}
        reads = Transformer(str(bert_path()), modality_config=text, module_output_name="sentence_embedding")
        saved = SentenceTransformer(modules=[reads], device="cpu")
        saved.save_pretrained(str(tmp_path / "saved"))
        torch.testing.assert_close(vectors(build_encoder(tmp_path / "saved", device="cpu")), vectors(saved))
        drop_weights(tmp_path / "saved", "pooler")
        with pytest.raises(ModelError, match="no weights for 2"):
            build_encoder(tmp_path / "saved", device="cpu")

    def test_a_backbone_that_gives_one_vector_per_text(self, bert_path):
        model = RelevanceModel(str(bert_path()), device="cpu")
        del model[1:]
        model[0].module_output_name = "sentence_embedding"
        with pytest.raises(ModelError, match="one vector per text"):
            backbones.pool_backbone(model, {}, "bert", "mean")
        backbones.pool_backbone(model, {}, "bert", None)
        assert modules_of(model) == [Transformer]


SPECIAL = {"norm_bias": True, "classifier_bias": True, "classifier_activation": "silu"}


@pytest.mark.parametrize("pooling", [None, "cls-head"])
@pytest.mark.parametrize(
    ("kind", "changes"), [("ModernBertForMaskedLM", {}), ("ModernBertForSequenceClassification", SPECIAL)]
)
def test_the_head_of_a_modernbert_is_the_head_before_the_classifier(modernbert_path, tokenizer, kind, changes, pooling):
    folder = modernbert_path(kind, **changes)
    embeddings = vectors(build_encoder(folder, device="cpu", pooling=pooling))
    torch.testing.assert_close(embeddings, before_classifier(folder, tokenizer), rtol=0, atol=1e-5)


def test_a_modernbert_by_its_name_in_another_cache_has_its_head(modernbert_path, tokenizer, tmp_path, monkeypatch):
    snapshot = put_into_hub_cache(modernbert_path(), tmp_path / "cache", "owner--modernbert")
    monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(tmp_path / "cache"))
    embeddings = vectors(build_encoder("owner/modernbert", device="cpu"))
    torch.testing.assert_close(embeddings, before_classifier(snapshot, tokenizer), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "pooling"),
    [("ModernBertModel", None), *(("BertForMaskedLM", pooling) for pooling in (None, "mean", "cls"))],
)
def test_a_backbone_without_a_head_is_pooled_as_chosen_or_by_the_mean(
    modernbert_path, bert_path, tokenizer, kind, pooling
):
    folder = (bert_path if kind.startswith("Bert") else modernbert_path)(kind)
    model = build_encoder(folder, device="cpu", pooling=pooling)
    assert modules_of(model) == [Transformer, Pooling]
    torch.testing.assert_close(vectors(model), pooled_states(folder, tokenizer, pooling), rtol=0, atol=1e-5)


def test_a_published_decoder_is_pooled_by_the_mean(decoder_path, tokenizer, tmp_path):
    # its config.json names a causal language model, for which sentence-transformers takes the last token
    config = transformers.AutoConfig.from_pretrained(decoder_path("llama"))
    folder = tmp_path / "llama"
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert SentenceTransformer(str(folder), device="cpu")[1].pooling_mode == "lasttoken"
    for bidirectional in (None, False):
        assert build_encoder(folder, device="cpu", bidirectional=bidirectional)[1].pooling_mode == "mean"


@pytest.mark.parametrize(("kind", "pooling", "heads"), [("modernbert", None, 2), ("bert", "cls", 0)])
def test_a_trained_model_gives_the_same_vectors_when_loaded_anywhere(
    modernbert_path, bert_path, tmp_path, kind, pooling, heads
):
    folder = {"modernbert": modernbert_path, "bert": bert_path}[kind]()
    model = build_encoder(folder, device="cpu", pooling=pooling).train()
    parts = [module for module in model.children() if isinstance(module, (Dense, LayerNorm))]
    assert len(parts) == heads
    features = [model.preprocess(texts) for texts in (TEXTS, [*TEXTS[1:], "read the line"])]
    BiXSELoss(model)(features, torch.tensor([1.0, 0.5, 0.0])).backward()
    torch.optim.SGD(model.parameters(), lr=1e-2).step()
    weights = [parameter for part in parts for parameter in part.parameters() if parameter.requires_grad]
    assert all(weight.grad is not None and weight.grad.abs().max() > 0 for weight in weights)
    model.eval().save_pretrained(str(tmp_path / "saved"))
    for again in (SentenceTransformer(str(tmp_path / "saved"), device="cpu"), build_encoder(tmp_path / "saved")):
        assert modules_of(again) == modules_of(model)
        assert torch.equal(vectors(again).cpu(), vectors(model))
    files = {path.suffix for path in (tmp_path / "saved").rglob("*") if path.is_file()}
    assert ".safetensors" in files
    assert not files & {".bin", ".pt", ".pkl", ".pth"}
