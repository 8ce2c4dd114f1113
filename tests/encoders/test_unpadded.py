"""Texts that are read without padding have the embeddings and gradients that they have with padding."""

import pickle
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling
from sentence_transformers.util import batch_to_device

from bixse.encoders import unpadded
from bixse.encoders.embedding import embed_features, passes_of
from bixse.encoders.encode import embeddings_key
from bixse.encoders.loading.backbones import switch_attention
from bixse.encoders.loading.build import build_encoder
from bixse.encoders.loading.precision import autocast
from bixse.encoders.weights import add_lora, set_dropout
from bixse.losses import BiXSELoss
from encoders.conftest import save
from helpers import attention
from helpers.batches import padded_left
from helpers.toy import BERT_SIZES

TEXTS = [
    "copy a file",
    "move",
    "read the text in the folder of a file and write it in a line or do not sort the list of words in the tree",
    "find a path in the tree",
    "sort the list of words",
    "open",
]


@pytest.fixture
def without_padding(monkeypatch):
    """Make a context in which the CPU reads without padding, by the reference."""

    @contextmanager
    def context():
        with monkeypatch.context() as patch:
            patch.setattr(unpadded, "has_kernel", lambda *_: True)
            patch.setattr(unpadded, "varlen_attn", attention.per_text)
            yield

    return context


@pytest.fixture
def xlm_roberta_path(tokenizer, tmp_path):
    torch.manual_seed(0)
    config = transformers.XLMRobertaConfig(
        vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, type_vocab_size=1, **BERT_SIZES
    )
    return save(transformers.XLMRobertaModel(config), tokenizer, tmp_path / "xlm-roberta")


KINDS = ["bert", "xlm-roberta", "modernbert", "llama", "mistral", "qwen3", "gemma3"]


@pytest.fixture
def encoder(decoder_path, modernbert_path, bert_path, xlm_roberta_path):
    """Make an encoder of a kind, in evaluation mode."""

    def make(kind, device="cpu", **options):
        if kind == "bert":
            path = bert_path()
        elif kind == "xlm-roberta":
            path = xlm_roberta_path
        elif kind == "modernbert":
            path = modernbert_path(local_attention=8)
        else:
            path = decoder_path(kind)
        return build_encoder(path, device=device, **options).eval()

    return make


def embeddings_and_gradients(model, features, **options):
    model.zero_grad()
    embeddings = embed_features(model, features, **options)
    target = torch.linspace(-1, 1, embeddings.numel(), device=embeddings.device).view_as(embeddings)
    (embeddings * target).sum().backward()
    return embeddings.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def verdicts(model):
    """Return the tasks of features that were read without padding, or not, as they had the same embeddings."""
    return passes_of(model, model.device).verdicts


@pytest.fixture
def check_equal(without_padding):
    """Compare reading with padding, the CPU's way, and without."""

    def check(model, features, **options):
        padded = embeddings_and_gradients(model, features, **options)
        with without_padding():
            flat = embeddings_and_gradients(model, features, **options)
        assert list(verdicts(model).values()) == [True]
        torch.testing.assert_close(flat[0], padded[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(flat[1], padded[1], rtol=1e-4, atol=1e-5)

    return check


@pytest.mark.parametrize("kind", KINDS)
def test_embeddings_and_gradients_equal_those_with_padding(encoder, kind, check_equal):
    model = encoder(kind)
    check_equal(model, model.preprocess(TEXTS))


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3", "gemma3"])
def test_a_causal_decoder_stays_causal(encoder, kind, check_equal):
    model = encoder(kind, bidirectional=False)
    check_equal(model, padded_left(model.preprocess(TEXTS)))


def test_the_demo_model(check_equal):
    model = build_encoder("demo", device="cpu")
    check_equal(model, model.preprocess([*TEXTS, " ".join(TEXTS * 3)]))


@pytest.mark.parametrize("mode", ["cls", "mean", "lasttoken", "max", "weightedmean", ("cls", "mean")])
def test_every_pooling_and_the_modules_behind_it(tiny_model, mode, check_equal):
    pooling = Pooling(32, mode)
    behind = [pooling, Dense(pooling.get_embedding_dimension(), 8), Normalize()]
    model = SentenceTransformer(modules=[tiny_model[0], *behind], device="cpu").eval()
    model.truncate_dim = 5
    check_equal(model, model.preprocess(TEXTS))


def test_a_prompt_that_is_not_pooled_is_left_out(tiny_model, check_equal):
    tiny_model[1].include_prompt = False
    # the last text is cut to its prompt
    features = tiny_model.preprocess([*TEXTS, "a"], prompt="find the list of ")
    features["attention_mask"][-1, 5:] = 0
    check_equal(tiny_model, features)


def test_a_prompt_that_other_poolings_leave_out_is_read_with_padding(tiny_model, without_padding):
    tiny_model[1].include_prompt, tiny_model[1].pooling_mode = False, "cls"
    with without_padding():
        embed_features(tiny_model, tiny_model.preprocess(TEXTS, prompt="find "))
        assert not verdicts(tiny_model)
        embed_features(tiny_model, tiny_model.preprocess(TEXTS))
        assert verdicts(tiny_model)


@pytest.mark.parametrize("options", [{"gradient_cache": True}, {"mini_batch_size": 2}])
def test_several_passes(tiny_model, options, check_equal):
    check_equal(tiny_model, tiny_model.preprocess(["", *TEXTS]), **options)


def test_adapters_and_checkpointed_layers(tiny_model, check_equal):
    add_lora(tiny_model, rank=4)
    for name, parameter in tiny_model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    tiny_model[0].auto_model.gradient_checkpointing_enable({"use_reentrant": False})
    tiny_model.train()
    set_dropout(tiny_model, 0.0)
    check_equal(tiny_model, tiny_model.preprocess(TEXTS))


def test_both_routes_of_a_router(router_model, check_equal, without_padding):
    for kind in ("query", "document"):
        features = router_model.preprocess(TEXTS, task=kind)
        padded = embed_features(router_model, features)
        with without_padding():
            torch.testing.assert_close(embed_features(router_model, features), padded, rtol=1e-5, atol=1e-5)
    assert verdicts(router_model) == {"query": True, "document": True}


def test_an_embedding_does_not_depend_on_the_batch(tiny_model, without_padding):
    features = tiny_model.preprocess(TEXTS)
    with without_padding(), torch.no_grad():
        together = embed_features(tiny_model, features)
        for row, text in enumerate(TEXTS):
            alone = embed_features(tiny_model, tiny_model.preprocess([text]))
            torch.testing.assert_close(alone[0], together[row], rtol=0, atol=1e-6)


def test_a_text_without_tokens_has_the_embedding_zero(tiny_model, without_padding):
    features = tiny_model.preprocess(["", *TEXTS])
    features["attention_mask"][0] = 0
    with without_padding():
        embeddings = embed_features(tiny_model, features)
    assert not embeddings[0].any()
    assert embeddings[1:].any(dim=1).all()


def test_a_model_that_attends_across_texts_is_read_with_padding(tiny_model, without_padding, monkeypatch, caplog):
    def across(query, key, value, starts, *rest, **options):
        return reference(query, key, value, starts[[0, -1]], *rest, **options)

    reference = attention.per_text
    monkeypatch.setattr(attention, "per_text", across)
    features = tiny_model.preprocess(TEXTS)
    expected = embed_features(tiny_model, features)
    with without_padding():
        torch.testing.assert_close(embed_features(tiny_model, features), expected)
    assert "passes are padded: embeddings differ by" in caplog.text
    assert tiny_model[0].auto_model.config._attn_implementation == "sdpa"


def test_a_model_that_takes_no_flat_texts_is_read_with_padding(tiny_model, without_padding, monkeypatch, caplog):
    def only_padded(features):
        assert features["attention_mask"].ndim == 2, "of tokens"
        return forward(features)

    forward = tiny_model[0].forward
    monkeypatch.setattr(tiny_model[0], "forward", only_padded)
    with without_padding():
        embed_features(tiny_model, tiny_model.preprocess(TEXTS))
    assert "passes are padded: AssertionError: of tokens" in caplog.text


def test_the_comparison_holds_inside_the_wrapper_of_a_trainer(tiny_model, without_padding, monkeypatch):
    """accelerate computes the encoder's forward in an autocast that none outside can leave."""

    def rounded_otherwise(*arguments, enable_gqa=False, **options):
        attended = reference(*arguments, enable_gqa=enable_gqa, **options)
        return attended + 2**-6 * attended.abs().mean() * torch.randn_like(attended)  # as the kernel of a GPU does

    reference = attention.per_text
    torch.manual_seed(0)
    monkeypatch.setattr(attention, "per_text", rounded_otherwise)
    monkeypatch.setattr(tiny_model, "forward", torch.autocast("cpu", torch.bfloat16)(tiny_model.forward))
    with without_padding(), autocast("cpu", "bfloat16"), torch.no_grad():
        embed_features(tiny_model, tiny_model.preprocess(TEXTS))
    assert verdicts(tiny_model) == {None: True}


def test_the_comparison_leaves_no_rounded_weights_behind(tiny_model, without_padding):
    features = tiny_model.preprocess(TEXTS)
    with without_padding(), autocast("cpu", "bfloat16"):
        passes_of(tiny_model, tiny_model.device).take(tiny_model, features)
        with torch.no_grad():
            for parameter in tiny_model.parameters():
                parameter.mul_(1.5)
        after = embed_features(tiny_model, features)
    with without_padding(), autocast("cpu", "bfloat16"):
        torch.testing.assert_close(after, embed_features(tiny_model, features), rtol=0, atol=0)


def test_other_attention_other_devices_and_float32_are_left_alone(tiny_model, without_padding, monkeypatch):
    features = tiny_model.preprocess(TEXTS)
    assert not unpadded.is_possible(tiny_model, features, torch.device("cpu"))
    monkeypatch.setattr(unpadded, "varlen_attn", print)
    assert not unpadded.has_kernel(tiny_model, torch.device("cuda"))
    assert unpadded.has_kernel(tiny_model.bfloat16(), torch.device("cuda"))
    with without_padding():
        assert unpadded.is_possible(tiny_model, features, torch.device("cpu"))
        tiny_model[0].auto_model.set_attn_implementation("eager")
        assert not unpadded.is_possible(tiny_model, features, torch.device("cpu"))


def test_reading_without_padding_leaves_the_model_as_it_is_saved_encoded_and_keyed(
    tiny_model, without_padding, tmp_path
):
    key, expected = embeddings_key(tiny_model), tiny_model.encode(TEXTS)
    with without_padding():
        embed_features(tiny_model, tiny_model.preprocess(TEXTS))
    assert verdicts(tiny_model) == {None: True}
    np.testing.assert_array_equal(tiny_model.encode(TEXTS), expected)
    assert embeddings_key(tiny_model) == key
    assert unpadded.NAME.encode() not in pickle.dumps(tiny_model)  # as `encode` sends it to processes of other GPUs
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(tiny_model)).encode(TEXTS), expected)
    tiny_model.save_pretrained(str(tmp_path / "model"))
    assert unpadded.NAME not in "".join(path.read_text() for path in (tmp_path / "model").rglob("*.json"))
    switch_attention(tiny_model, None)
    with without_padding():
        np.testing.assert_allclose(
            embed_features(tiny_model, tiny_model.preprocess(TEXTS)).detach(), expected, atol=1e-5
        )


@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("has_option", [True, False])
def test_the_kernel_is_called_as_each_version_of_pytorch_defines_it(monkeypatch, grouped, has_option):
    """The kernel of PyTorch 2.11 takes as many heads of keys as of queries, that of 2.13 also fewer."""
    calls = []

    def kernel(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1)):
        calls.append((query.dtype, key.shape, max_q, window_size))
        assert key.shape[1] == query.shape[1] or has_option
        grouped = key.shape[1] != query.shape[1]
        options = {"scale": scale, "window_size": window_size, "enable_gqa": grouped}
        return attention.per_text(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, **options)

    def with_option(*arguments, enable_gqa=False, **options):
        assert enable_gqa == grouped
        return kernel(*arguments, **options)

    monkeypatch.setattr(unpadded, "varlen_attn", with_option if has_option else kernel)
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, 9, 8) for heads in (4, *([2, 2] if grouped else [4, 4])))
    starts, window = torch.tensor([0, 3, 9], dtype=torch.int32), (2, 0)
    flat = [part[0].transpose(0, 1) for part in (query, key, value)]
    expected = attention.per_text(*flat, starts, starts, 6, 6, scale=0.3, window_size=window, enable_gqa=grouped)
    attended = unpadded._varlen((query, key, value.bfloat16()), starts, 6, 0.3, window)
    torch.testing.assert_close(attended[0].float(), expected, rtol=0.02, atol=0.02)
    assert calls == [(torch.bfloat16, (9, 2 if grouped and has_option else 4, 8), 6, (2, 0))]


@pytest.mark.gpu
@pytest.mark.precision("bfloat16")
class TestOnAGpu:
    @pytest.mark.parametrize("kind", KINDS)
    def test_unpadded_texts_have_the_embeddings_and_gradients_of_sdpa_per_text(self, encoder, kind, bf16_distance):
        model = encoder(kind, device="cuda")
        features = batch_to_device(model.preprocess(TEXTS), model.device)
        with autocast(model.device):
            flat = embeddings_and_gradients(model, features)
            assert verdicts(model) == {None: True}
            one_by_one = embeddings_and_gradients(model, features, mini_batch_size=1)
            verdicts(model)[None] = False
            switch_attention(model, None)
            padded = embeddings_and_gradients(model, features, mini_batch_size=1)
        allowed = bf16_distance(16, 2)
        for other in (one_by_one, padded):
            assert relative_error(flat[0], other[0]) < allowed
            for name, gradient in other[1].items():
                assert relative_error(flat[1][name], gradient) < 4 * allowed, name

    def test_a_step_has_the_loss_and_gradients_of_the_cpu(self, encoder, bf16_distance):
        losses, gradients = [], []
        for device in ("cpu", "cuda"):
            model = encoder("bert", device=device)
            loss = BiXSELoss(model).to(device)
            features = [batch_to_device(model.preprocess(texts), model.device) for texts in (TEXTS, TEXTS[::-1])]
            with autocast(device, "float32" if device == "cpu" else "bfloat16"):
                value = loss(features, torch.linspace(0, 1, len(TEXTS), device=device))
            value.backward()
            losses.append(float(value))
            gradients.append(torch.cat([p.grad.flatten().cpu() for p in loss.parameters() if p.grad is not None]))
        assert losses[1] == pytest.approx(losses[0], rel=bf16_distance(16))
        assert relative_error(gradients[1], gradients[0]) < 4 * bf16_distance(16)


def relative_error(some, other):
    return float((some.float() - other.float()).norm() / other.float().norm().clamp(min=1e-6))
