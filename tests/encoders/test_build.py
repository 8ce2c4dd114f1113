from __future__ import annotations

import json
import shutil

import pytest
import torch
from torch import nn

from bixse.encoders.loading.build import build_encoder, set_dropout, use_attention_to_train_with
from bixse.encoders.loading.precision import use_precision
from bixse.errors import ModelError


@pytest.fixture
def roberta_path(tiny_model_path, tmp_path):
    """A RoBERTa with 20 positions, of which padding takes two, and a tokenizer of ours without a limit."""
    from transformers import AutoTokenizer, RobertaConfig, RobertaModel

    tokenizer = AutoTokenizer.from_pretrained(str(tiny_model_path))
    tokenizer.model_max_length = 10**6
    tokenizer.save_pretrained(tmp_path / "roberta")
    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=20,
        pad_token_id=1,
    )
    RobertaModel(config).save_pretrained(tmp_path / "roberta")
    return tmp_path / "roberta"


class TestPositionsOfRoberta:
    def test_twenty_positions_hold_eighteen_tokens(self, roberta_path):
        with pytest.raises(ModelError, match="got 19; expected 4 to 18 tokens"):
            build_encoder(roberta_path, 19, device="cpu")
        model = build_encoder(roberta_path, 18, device="cpu")
        assert model.encode("copy " * 50).shape == (32,)

    def test_a_text_of_any_length_is_read_when_no_length_is_asked_for(self, roberta_path):
        model = build_encoder(roberta_path, device="cpu")
        assert model.max_seq_length == 18
        assert model.encode("copy " * 50).shape == (32,)

    def test_a_bert_has_a_token_for_each_position(self, tiny_model_path, tmp_path):
        shutil.copytree(tiny_model_path, tmp_path / "bert")
        assert build_encoder(tmp_path / "bert", 64, device="cpu").max_seq_length == 64
        with pytest.raises(ModelError, match="got 65; expected 4 to 64 tokens"):
            build_encoder(tmp_path / "bert", 65, device="cpu")


class TestFilesThatDoNotBelongTogether:
    @pytest.fixture
    def folder(self, tiny_model_path, tmp_path):
        shutil.copytree(tiny_model_path, tmp_path / "model")
        return tmp_path / "model"

    def change(self, path, **settings):
        path.write_text(json.dumps({**json.loads(path.read_bytes()), **settings}))

    def test_a_pooling_of_other_dimensions(self, folder, capsys):
        self.change(folder / "1_Pooling" / "config.json", embedding_dimension=16)
        with pytest.raises(ModelError, match=r"of 32 dimensions.*say 16.*1_Pooling/config\.json"):
            build_encoder(folder, device="cpu")


class TestDropout:
    def test_every_layer_of_a_bert(self, tiny_model):
        set_dropout(tiny_model, 0.3)
        assert {module.p for module in tiny_model.modules() if isinstance(module, nn.Dropout)} == {0.3}

    @pytest.mark.parametrize("attention", ["eager", "sdpa"])
    @pytest.mark.parametrize("before", [0.0, 0.1])
    def test_attention_that_keeps_its_probability_as_a_number(self, attention, before):
        from transformers import ModernBertConfig, ModernBertModel

        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        special = {"pad_token_id": 0, "bos_token_id": 1, "cls_token_id": 1, "eos_token_id": 2, "sep_token_id": 2}
        dropout = dict.fromkeys(("attention_dropout", "embedding_dropout", "mlp_dropout"), before)
        config = ModernBertConfig(vocab_size=50, attn_implementation=attention, **sizes, **special, **dropout)
        model = ModernBertModel(config).train()
        tokens = torch.arange(1, 21)[None]

        def varies():
            return not torch.equal(model(tokens).last_hidden_state, model(tokens).last_hidden_state)

        for probability in (0.0, 0.5, 0.0):
            set_dropout(model, probability)
            assert varies() == (probability > 0)
        assert config.attention_dropout == before, "dropout of a training run is not saved with the model"


@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU it is transformers' choice")
@pytest.mark.parametrize(
    ("precision", "longest", "kind"),
    [("bfloat16", 128, "eager"), ("bfloat16", 129, "sdpa"), ("bfloat16", None, "sdpa"), ("float32", 64, "sdpa")],
)
def test_attention_to_train_with(tiny_model_path, precision, longest, kind):
    model = build_encoder(tiny_model_path, device="cpu")
    with use_precision(precision):
        use_attention_to_train_with(model, longest)
    assert model[0].auto_model.config._attn_implementation == kind
