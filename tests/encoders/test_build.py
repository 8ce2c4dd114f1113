import json
import shutil

import pytest
import torch
from torch import nn
from transformers import AutoModel, AutoTokenizer, RobertaConfig, RobertaModel

from bixse.encoders.loading.build import build_encoder, set_dropout, use_attention_to_train_with
from bixse.encoders.loading.precision import use_precision
from bixse.errors import ModelError


@pytest.fixture
def roberta_path(tiny_model_path, tmp_path):
    """A RoBERTa with 20 positions, of which padding takes two, and a tokenizer of ours without a limit."""
    tokenizer = AutoTokenizer.from_pretrained(str(tiny_model_path))
    tokenizer.model_max_length = 10**6
    tokenizer.save_pretrained(tmp_path / "roberta")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = RobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=20, pad_token_id=1, **sizes)
    RobertaModel(config).save_pretrained(tmp_path / "roberta")
    return tmp_path / "roberta"


@pytest.mark.parametrize(("fixture", "limit"), [("roberta_path", 18), ("tiny_model_path", 64)])
def test_a_model_takes_as_many_tokens_as_it_has_positions(request, fixture, limit):
    path = request.getfixturevalue(fixture)
    with pytest.raises(ModelError, match=f"got {limit + 1}; expected 4 to {limit} tokens"):
        build_encoder(path, limit + 1, device="cpu")
    for length in (limit, None):
        assert build_encoder(path, length, device="cpu").encode("copy " * 100).shape == (32,)


def test_a_pooling_of_other_dimensions_is_refused(tiny_model_path, tmp_path):
    shutil.copytree(tiny_model_path, tmp_path / "model")
    path = tmp_path / "model" / "1_Pooling" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "embedding_dimension": 16}))
    with pytest.raises(ModelError, match="of 32 dimensions") as caught:
        build_encoder(tmp_path / "model", device="cpu")
    assert "1_Pooling/config.json" in caught.value.fix


class TestDropout:
    def test_every_layer_of_a_bert(self, tiny_model):
        set_dropout(tiny_model, 0.3)
        assert {module.p for module in tiny_model.modules() if isinstance(module, nn.Dropout)} == {0.3}

    @pytest.mark.parametrize("attention", ["eager", "sdpa"])
    @pytest.mark.parametrize("before", [0.0, 0.1])
    def test_attention_that_keeps_its_probability_as_a_number(self, modernbert_path, attention, before):
        dropout = dict.fromkeys(("attention_dropout", "embedding_dropout", "mlp_dropout"), before)
        folder = modernbert_path("ModernBertModel", **dropout)
        model = AutoModel.from_pretrained(folder, attn_implementation=attention).train()
        tokens = torch.arange(5, 25)[None]

        def varies():
            return not torch.equal(model(tokens).last_hidden_state, model(tokens).last_hidden_state)

        for probability in (0.0, 0.5, 0.0):
            set_dropout(model, probability)
            assert varies() == (probability > 0)
        assert model.config.attention_dropout == before, "dropout of a training run is not saved with the model"


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
