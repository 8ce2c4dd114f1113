"""Looking tokens up among those of the batch changes no gradient, and nothing of the model."""

from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch
import torch.nn.utils.parametrize
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import Pooling

from bixse.encoders import embedding
from bixse.encoders.embedding import embed_features
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.loading.precision import autocast
from bixse.encoders.weights import add_lora
from bixse.losses import BiXSELoss
from bixse.losses.base import tokens_of_batch
from encoders.conftest import save
from helpers.toy import BERT_SIZES

TEXTS = ["copy a file", "move", "sort the list of words by time and date", "", "find a path in the tree", "open"]


@pytest.fixture(params=["bert", "modernbert", "gemma3", "llama"])
def model(request, bert_path, modernbert_path, decoder_path):
    if request.param in ("gemma3", "llama"):
        return build_encoder(decoder_path(request.param), device="cpu").train()
    return build_encoder((bert_path if request.param == "bert" else modernbert_path)(), device="cpu").train()


def gradients(model, columns, precision, context):
    model.zero_grad()
    torch.manual_seed(0)
    with autocast(torch.device("cpu"), precision), context:
        parts = [embed_features(model, features, 2) for features in columns]
    sum((part.float() * torch.linspace(-1, 1, part.numel()).view_as(part)).sum() for part in parts).backward()
    return {name: part.grad.to_dense() for name, part in model.named_parameters() if part.grad is not None}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_gradients_are_equal_to_the_last_bit(model, precision):
    columns = [model.preprocess(TEXTS), model.preprocess([*TEXTS[::-1], "delete a folder"])]
    before = dict(model.named_parameters())
    expected = gradients(model, columns, precision, nullcontext())
    got = gradients(model, columns, precision, tokens_of_batch(model, columns))
    assert list(got) == list(expected)
    assert all(torch.equal(got[name], expected[name]) for name in expected)
    after = dict(model.named_parameters())
    assert list(after) == list(before) and all(after[name] is before[name] for name in before)


def test_a_pass_has_no_gradient_of_the_whole_table(tiny_model):
    columns = [tiny_model.preprocess(TEXTS)]
    table = tiny_model[0].auto_model.get_input_embeddings()
    weight, padding = table.weight, table.padding_idx
    with pytest.raises(ZeroDivisionError), tokens_of_batch(tiny_model, columns):
        assert len(table.weight) == len(columns[0]["input_ids"].unique()) < len(weight)
        raise ZeroDivisionError
    assert (table.weight, table.padding_idx, len(table._forward_pre_hooks)) == (weight, padding, 0)
    with torch.no_grad(), tokens_of_batch(tiny_model, columns):
        assert table.weight is weight
    add_lora(tiny_model, 2)
    with tokens_of_batch(tiny_model, columns):
        assert table.weight is weight, "a table that is not trained has no gradient"


def test_routes_have_tables_of_their_own(router_model):
    columns = [router_model.preprocess(TEXTS, task=task) for task in ("query", "document")]
    expected = gradients(router_model, columns, "float32", nullcontext())
    got = gradients(router_model, columns, "float32", tokens_of_batch(router_model, columns))
    assert got.keys() == expected.keys() and all(torch.equal(got[name], expected[name]) for name in expected)


@pytest.mark.parametrize(("cached", "used"), [(False, True), (True, False)])
def test_a_loss_uses_it_unless_passes_are_computed_again(tiny_model, monkeypatch, cached, used):
    sizes = []
    table, embed = tiny_model[0].auto_model.get_input_embeddings(), embedding.embed_pass
    monkeypatch.setattr(embedding, "embed_pass", lambda *args: (sizes.append(len(table.weight)), embed(*args))[1])
    loss = BiXSELoss(tiny_model, gradient_cache=cached, mini_batch_size=2)
    columns = [tiny_model.preprocess(TEXTS[:3]), tiny_model.preprocess(TEXTS[:3])]
    loss(columns, torch.tensor([1.0, 0.5, 0.0])).backward()
    assert all((size < len(table.weight)) == used for size in sizes) and sizes


@pytest.fixture
def xlm_roberta(tokenizer, tmp_path):
    torch.manual_seed(0)
    config = transformers.XLMRobertaConfig(vocab_size=len(tokenizer), pad_token_id=1, type_vocab_size=1, **BERT_SIZES)
    return build_encoder(save(transformers.XLMRobertaModel(config), tokenizer, tmp_path / "xlm"), device="cpu").train()


def check_equal(model, columns):
    expected = gradients(model, columns, "float32", nullcontext())
    got = gradients(model, columns, "float32", tokens_of_batch(model, columns))
    assert list(got) == list(expected) and all(torch.equal(got[name], expected[name]) for name in expected)


@pytest.mark.parametrize("texts", [["open", "move", "sort"], ["open", "move a file"]])
def test_the_row_of_padding_has_no_gradient_with_or_without_padding(tiny_model, xlm_roberta, texts):
    for model in (tiny_model, xlm_roberta):
        check_equal(model.train(), [model.preprocess(texts)])


def test_routes_have_vocabularies_of_their_own_or_share_a_transformer(tiny_model):
    small, large = tiny_model[0], build_encoder("demo", device="cpu")[0]
    for query, document in ((small, large), (small, small)):
        routes = [[part, Pooling(part.get_embedding_dimension())] for part in (query, document)]
        model = SentenceTransformer(modules=[Router.for_query_document(*routes)], device="cpu").train()
        columns = [model.preprocess(TEXTS, task=task) for task in ("query", "document")]
        for features, task in zip(columns, ("query", "document"), strict=True):
            features["task"] = task
        check_equal(model, columns)


def test_other_ids_than_those_of_the_batch_bring_the_whole_table_back(tiny_model):
    table = tiny_model[0].auto_model.get_input_embeddings()
    hook = table.register_forward_pre_hook(lambda _, given: ((given[0] + 1) % len(table.weight),))
    check_equal(tiny_model, [tiny_model.preprocess(TEXTS)])
    hook.remove()
    columns = [tiny_model.preprocess(["open"])]
    with tokens_of_batch(tiny_model, columns):
        every = torch.arange(table.num_embeddings)
        assert torch.equal(table(input=every), table.weight[every])


@pytest.mark.parametrize("change", ["parametrised", "sparse", "unnamed"])
def test_tables_of_another_kind_are_read_as_they_are(tiny_model, monkeypatch, change):
    backbone = tiny_model[0].auto_model
    table = backbone.get_input_embeddings()
    if change == "parametrised":
        torch.nn.utils.parametrize.register_parametrization(table, "weight", torch.nn.Identity())
    elif change == "sparse":
        table.sparse = True
    else:
        monkeypatch.setattr(backbone, "get_input_embeddings", Mock(side_effect=NotImplementedError))
    check_equal(tiny_model, [tiny_model.preprocess(TEXTS)])
