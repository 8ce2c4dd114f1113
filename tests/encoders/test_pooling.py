"""Pooling of a bare backbone, against what transformers' own classes compute from the same weights."""

from __future__ import annotations

import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm, Pooling, Transformer

from bixse.encoders.loading.backbones import pool_backbone
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.relevance_model import RelevanceModel
from bixse.encoders.weights import add_lora, merge_lora
from bixse.errors import InputError, ModelError
from bixse.losses.bixse import BiXSELoss

TEXTS = ["copy a file", "sort the list of words in the queue", "open"]
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}


@pytest.fixture(scope="session")
def tokenizer(tiny_model_path):
    tokenizer = transformers.BertTokenizerFast.from_pretrained(tiny_model_path)
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return tokenizer


@pytest.fixture
def modernbert_path(tokenizer, tmp_path):
    """Make the folder of a random ModernBERT as one of transformers' classes leaves it."""

    def make(kind="ModernBertForMaskedLM", dtype=torch.float32, **changes):
        torch.manual_seed(0)
        special = dict.fromkeys(("bos_token_id", "cls_token_id"), tokenizer.cls_token_id)
        special |= dict.fromkeys(("eos_token_id", "sep_token_id"), tokenizer.sep_token_id)
        config = transformers.ModernBertConfig(vocab_size=len(tokenizer), pad_token_id=0, **special, **SIZES, **changes)
        model = getattr(transformers, kind)(config)
        spread_norms(model)
        return save(model.to(dtype), tokenizer, tmp_path / "modernbert")

    return make


@pytest.fixture
def bert_path(tokenizer, tmp_path):
    """Make the folder of a random BERT or of one of its kin; `ForMaskedLM` leaves no pooler."""

    def make(kind="BertModel", **changes):
        torch.manual_seed(0)
        model_class = getattr(transformers, kind)
        config = model_class.config_class(vocab_size=len(tokenizer), pad_token_id=0, **SIZES, **changes)
        return save(model_class(config), tokenizer, tmp_path / "bert")

    return make


def spread_norms(model):
    """New layer norms are the identity: move them, so that one left out shows."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight.uniform_(0.5, 1.5)
                if module.bias is not None:
                    module.bias.uniform_(-0.5, 0.5)


def save(model, tokenizer, folder):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def change_weights(folder, change):
    """Rewrite the weights of a saved folder: `change` takes and gives a dictionary of tensors."""
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, {"format": "pt"})


def put_into_cache(folder, cache, name):
    """Lay a folder into a cache of the hub."""
    commit = "0" * 40
    shutil.copytree(folder, cache / f"models--{name}" / "snapshots" / commit)
    (cache / f"models--{name}" / "refs").mkdir()
    (cache / f"models--{name}" / "refs" / "main").write_text(commit)
    return cache / f"models--{name}" / "snapshots" / commit


def vectors(model):
    return model.encode(TEXTS, convert_to_tensor=True, show_progress_bar=False)


def before_classifier(folder, tokenizer):
    """What ModernBertForSequenceClassification feeds its classifier, one text at a time."""
    model = transformers.ModernBertForSequenceClassification.from_pretrained(folder, classifier_pooling="cls").eval()
    seen = []
    model.classifier.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    with torch.no_grad():
        for text in TEXTS:
            model(**tokenizer(text, return_tensors="pt"))
    return torch.cat(seen)


def plain_states(folder, tokenizer):
    """The last hidden states of each text on its own."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        return [model(**tokenizer(text, return_tensors="pt")) for text in TEXTS]


def modules_of(model):
    return [type(module) for module in model.children()]


NO_HEADS = [
    ("ModernBertModel", {}, (), r"head\.dense\.weight, head\.norm\.weight"),
    ("ModernBertForMaskedLM", {}, ("head.norm.weight",), r"weights for its head \(head\.norm\.weight\)"),
    ("ModernBertForMaskedLM", {"norm_eps": 1e-3}, (), "norm_eps 0.001; expected norm_eps 1e-05"),
    ("ModernBertForMaskedLM", {"classifier_activation": "gelu_10"}, (), "activation 'gelu_10'; expected gelu, relu"),
    ("BertModel", {}, (), "a backbone of type bert; expected a ModernBERT"),
]
"""Class of a backbone, what is changed in its configuration, the weights it lacks, and what is said."""


class TestRefused:
    @pytest.mark.parametrize(("kind", "changes", "lacking", "message"), NO_HEADS)
    def test_a_head_that_is_none_or_cannot_be_saved(self, modernbert_path, bert_path, kind, changes, lacking, message):
        folder = (modernbert_path if kind.startswith("Modern") else bert_path)(kind, **changes)
        change_weights(folder, lambda weights: {n: tensor for n, tensor in weights.items() if n not in lacking})
        with pytest.raises(ModelError, match=message):
            build_encoder(folder, device="cpu", pooling="cls-head")
        if changes and kind == "ModernBertForMaskedLM":
            with pytest.raises(ModelError, match=message):
                build_encoder(folder, device="cpu")

    def test_a_word_that_is_none(self, tiny_model_path):
        with pytest.raises(InputError, match=r"pooling: got 'clz'; .* did you mean 'cls'\?"):
            build_encoder(tiny_model_path, pooling="clz")

    def test_a_sentence_transformers_model_keeps_its_own(self, tiny_model_path):
        with pytest.raises(ModelError, match="pooling: got 'mean' for the sentence-transformers model"):
            build_encoder(tiny_model_path, device="cpu", pooling="mean")

    def test_a_sentence_transformers_model_in_another_cache_is_no_bare_backbone(
        self, tiny_model_path, tmp_path, monkeypatch
    ):
        """Named without its owner, offline: its modules are found where it is loaded from, and only there."""
        snapshot = put_into_cache(tiny_model_path, tmp_path, "sentence-transformers--tiny")
        (snapshot / "1_Pooling" / "config.json").write_text('{"embedding_dimension": 32, "pooling_mode": "max"}')
        monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(tmp_path))
        assert build_encoder("tiny", device="cpu")[1].pooling_mode == "max"
        with pytest.raises(ModelError, match="pooling: got 'cls' for the sentence-transformers model 'tiny'"):
            build_encoder("tiny", device="cpu", pooling="cls")

    def test_a_sentence_transformers_folder_that_reads_a_pooler_without_weights(self, bert_path, tmp_path):
        """Its Transformer takes `pooler_output` as the embedding, which would be random at every load."""
        text = {"text": {"method": "forward", "method_output_name": "pooler_output"}}
        reads = Transformer(str(bert_path()), modality_config=text, module_output_name="sentence_embedding")
        saved = SentenceTransformer(modules=[reads], device="cpu")
        saved.save_pretrained(str(tmp_path / "saved"))
        torch.testing.assert_close(vectors(build_encoder(tmp_path / "saved", device="cpu")), vectors(saved))
        change_weights(tmp_path / "saved", lambda weights: {n: w for n, w in weights.items() if "pooler" not in n})
        with pytest.raises(ModelError, match="got no weights for 2 of its parameters"):
            build_encoder(tmp_path / "saved", device="cpu")

    def test_a_backbone_that_gives_one_vector_a_text(self, bert_path):
        model = RelevanceModel(str(bert_path()), device="cpu")
        del model[1:]
        model[0].module_output_name = "sentence_embedding"
        with pytest.raises(ModelError, match="got a backbone that gives one vector per text"):
            pool_backbone(model, {}, "bert", "mean")
        pool_backbone(model, {}, "bert", None)
        assert modules_of(model) == [Transformer]


class TestModernBert:
    @pytest.mark.parametrize("pooling", [None, "cls-head"])
    @pytest.mark.parametrize(
        ("kind", "changes"),
        [
            ("ModernBertForMaskedLM", {}),
            (
                "ModernBertForSequenceClassification",
                {"norm_bias": True, "classifier_bias": True, "classifier_activation": "silu"},
            ),
        ],
    )
    def test_the_head_is_the_one_before_the_classifier(self, modernbert_path, tokenizer, kind, changes, pooling):
        folder = modernbert_path(kind, **changes)
        found = vectors(build_encoder(folder, device="cpu", pooling=pooling))
        torch.testing.assert_close(found, before_classifier(folder, tokenizer), rtol=0, atol=1e-5)

    def test_by_its_name_in_another_cache(self, modernbert_path, tokenizer, tmp_path, monkeypatch):
        snapshot = put_into_cache(modernbert_path(), tmp_path / "cache", "owner--modernbert")
        monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(tmp_path / "cache"))
        found = vectors(build_encoder("owner/modernbert", device="cpu"))
        torch.testing.assert_close(found, before_classifier(snapshot, tokenizer), rtol=0, atol=1e-5)

    def test_without_a_head_in_the_checkpoint_the_mean(self, modernbert_path, tokenizer):
        folder = modernbert_path("ModernBertModel")
        expected = torch.cat([given.last_hidden_state.mean(dim=1) for given in plain_states(folder, tokenizer)])
        model = build_encoder(folder, device="cpu")
        assert modules_of(model) == [Transformer, Pooling]
        torch.testing.assert_close(vectors(model), expected, rtol=0, atol=1e-5)


class TestBert:
    @pytest.mark.parametrize("pooling", [None, "mean", "cls"])
    def test_unless_another_one_is_asked_for(self, bert_path, tokenizer, pooling):
        folder = bert_path("BertForMaskedLM")
        states = [given.last_hidden_state for given in plain_states(folder, tokenizer)]
        expected = torch.cat([state[:, 0] if pooling == "cls" else state.mean(dim=1) for state in states])
        model = build_encoder(folder, device="cpu", pooling=pooling)
        torch.testing.assert_close(vectors(model), expected, rtol=0, atol=1e-5)


class TestDecoders:
    def test_a_published_one_is_pooled_by_the_mean(self, decoder_path, tokenizer, tmp_path):
        """Its config.json names a causal language model, for which sentence-transformers takes the last token."""
        config = transformers.AutoConfig.from_pretrained(decoder_path("llama"))
        folder = save(transformers.AutoModelForCausalLM.from_config(config), tokenizer, tmp_path / "llama")
        assert SentenceTransformer(str(folder), device="cpu")[1].pooling_mode == "lasttoken"
        for bidirectional in (None, False):
            assert build_encoder(folder, device="cpu", bidirectional=bidirectional)[1].pooling_mode == "mean"


@pytest.mark.parametrize(("kind", "pooling"), [("modernbert", None), ("bert", "cls")])
class TestWhole:
    """From the backbone to a folder that anyone can load."""

    @pytest.fixture
    def model(self, modernbert_path, bert_path, kind, pooling):
        return build_encoder({"modernbert": modernbert_path, "bert": bert_path}[kind](), device="cpu", pooling=pooling)

    def train_one_step(self, model):
        """One step through the loss; the gradients are left in place."""
        loss = BiXSELoss(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        queries, documents = (model.preprocess(texts) for texts in (TEXTS, [*TEXTS[1:], "read the line"]))
        loss([queries, documents], torch.tensor([1.0, 0.5, 0.0])).backward()
        optimizer.step()

    def test_a_trained_model_gives_the_same_vectors_when_loaded_anywhere(self, model, tmp_path, kind, pooling):
        self.train_one_step(model.train())
        heads = [module for module in model.children() if isinstance(module, (Dense, LayerNorm))]
        assert len(heads) == {"modernbert": 2, "bert": 0}[kind]
        weights = [parameter for head in heads for parameter in head.parameters() if parameter.requires_grad]
        assert all(weight.grad is not None and weight.grad.abs().max() > 0 for weight in weights)
        model.eval().save_pretrained(str(tmp_path / "saved"))
        for again in (SentenceTransformer(str(tmp_path / "saved"), device="cpu"), build_encoder(tmp_path / "saved")):
            assert modules_of(again) == modules_of(model)
            assert torch.equal(vectors(again).cpu(), vectors(model))
        files = {path.suffix for path in (tmp_path / "saved").rglob("*") if path.is_file()}
        assert ".safetensors" in files
        assert not files & {".bin", ".pt", ".pkl", ".pth"}

    def test_low_rank_adapters(self, model, tmp_path, kind, pooling):
        """Beside them the head is trained whole, and is in both folders."""
        before = vectors(model)
        add_lora(model, rank=4)
        torch.testing.assert_close(vectors(model), before)
        trained = {name.split(".")[0] for name, weight in model.named_parameters() if weight.requires_grad}
        assert trained == {"0", *(str(n) for n, kind in enumerate(modules_of(model)) if kind in (Dense, LayerNorm))}
        for _ in range(3):
            self.train_one_step(model.train())
        expected = vectors(model.eval())
        assert (expected - before).abs().max() > 1e-4
        model.save_pretrained(str(tmp_path / "adapter"))
        torch.testing.assert_close(vectors(build_encoder(tmp_path / "adapter", device="cpu")), expected)
        merge_lora(model)
        model.save_pretrained(str(tmp_path / "merged"))
        shutil.rmtree(tmp_path / "adapter")
        merged = SentenceTransformer(str(tmp_path / "merged"), device="cpu")
        torch.testing.assert_close(vectors(merged), expected, rtol=1e-4, atol=1e-5)
