"""Pooling of a bare backbone, against what transformers' own classes compute from the same weights."""

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm, Pooling, Transformer

from bixse.encoders.loading.backbones import pool_backbone
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.relevance_model import RelevanceModel
from bixse.errors import InputError, ModelError
from bixse.losses.bixse import BiXSELoss
from helpers.hub_cache import put_into_hub_cache

TEXTS = ["copy a file", "sort the list of words in the queue", "open"]


def drop_weights(folder, *parts):
    """Remove the weights whose names contain one of `parts` from a saved folder."""
    file = folder / "model.safetensors"
    weights = {name: value for name, value in load_file(file).items() if not any(part in name for part in parts)}
    save_file(weights, file, {"format": "pt"})


def vectors(model):
    return model.encode(TEXTS, convert_to_tensor=True, show_progress_bar=False)


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
            pool_backbone(model, {}, "bert", "mean")
        pool_backbone(model, {}, "bert", None)
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
