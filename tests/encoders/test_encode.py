import itertools
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sentence_transformers.util import batch_to_device
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig

from bixse.encoders import embedding
from bixse.encoders.embedding import (
    PASS_COST,
    bytes_per_token,
    embed_features,
    passes_by_length,
    passes_of,
    retry_with_smaller_passes,
)
from bixse.encoders.encode import embeddings_key, encode_texts
from bixse.encoders.loading.build import build_encoder, model_hashes
from bixse.encoders.loading.precision import resolve_precision, use_precision
from bixse.encoders.relevance_model import RelevanceModel
from bixse.losses.base import identical_texts
from helpers.batches import padded_left

TEXTS = ["copy a file", "sleep in a thread", "move"]


class Wrapper(torch.nn.Module):
    """Keeps an encoder as its `module`, as distributed wrappers do."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, features):
        return self.module(features)


def check_as_sentence_transformers_encodes(model):
    for kind, by_library in (("query", model.encode_query), ("document", model.encode_document)):
        ours = encode_texts(model, TEXTS, kind, precision="float32")
        np.testing.assert_allclose(ours, by_library(TEXTS, normalize_embeddings=True), atol=1e-6)


@pytest.mark.parametrize(
    "prompts",
    [
        {},
        {"query": "find ", "document": "text "},
        {"query": "find ", "passage": "text ", "corpus": "line "},
        {"query": "", "document": "", "passage": "text "},
        {"any": "sort "},
        {"any": "sort ", "query": ""},
        {"any": "sort ", "passage": "text "},
    ],
    ids=str,
)
def test_prompts_are_those_of_sentence_transformers(tiny_model, prompts):
    tiny_model.prompts, tiny_model.default_prompt_name = prompts, "any" if "any" in prompts else None
    check_as_sentence_transformers_encodes(tiny_model)


def test_a_router_takes_the_route_of_the_kind(router_model):
    router_model.prompts = {"query": "find ", "document": "text "}
    check_as_sentence_transformers_encodes(router_model)
    queries, documents = (encode_texts(router_model, TEXTS, kind, prompt="") for kind in ("query", "document"))
    assert np.abs(queries - documents).max() > 0.01


def test_truncated_embeddings_of_a_saved_model_have_length_1(tiny_model, tmp_path):
    first = tiny_model.encode_document(TEXTS)[:, :8]
    tiny_model.truncate_dim = 8
    tiny_model.save_pretrained(str(tmp_path / "model"))
    model = RelevanceModel(str(tmp_path / "model"), device="cpu")
    expected = first / np.linalg.norm(first, axis=1, keepdims=True)
    np.testing.assert_allclose(encode_texts(model, TEXTS, "document", precision="float32"), expected, atol=1e-6)


@pytest.mark.parametrize("texts", [["", *TEXTS, ""], ["", ""]])
def test_a_text_without_any_token_has_the_embedding_zero(tiny_model, texts):
    tiny_model.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    steps = []
    embeddings = encode_texts(tiny_model, texts, "document", progress=steps.append)
    assert sum(steps) == len(texts)
    assert not embeddings[[0, -1]].any()
    trained = embed_features(tiny_model, tiny_model.preprocess(texts))
    trained.sum().backward()
    np.testing.assert_allclose(torch.nn.functional.normalize(trained).detach(), embeddings, atol=1e-6)
    if len(texts) > 2:
        np.testing.assert_allclose(np.linalg.norm(embeddings[1:-1], axis=1), 1.0, atol=1e-5)
        np.testing.assert_allclose(embeddings[1:-1], encode_texts(tiny_model, TEXTS, "document"), atol=1e-6)


def test_a_repeated_text_is_encoded_once(tiny_model, encoded):
    steps = []
    embeddings = encode_texts(tiny_model, [TEXTS[0], TEXTS[1], TEXTS[0]], "query", progress=steps.append)
    assert encoded == [("query", text) for text in TEXTS[:2]]
    assert sum(steps) == 3
    np.testing.assert_array_equal(embeddings[0], embeddings[2])
    assert encode_texts(tiny_model, [], "query").shape == (0, 32)


def test_files_of_a_folder_without_a_model_are_not_hashed(tiny_model_path, tmp_path):
    assert "model/model.safetensors" in model_hashes(tiny_model_path)
    (tmp_path / "large.txt").write_text("of no model")
    assert model_hashes(tmp_path) == {}


def test_the_key_sees_everything_embeddings_depend_on(tiny_model):
    keys = [embeddings_key(tiny_model)]
    tiny_model.preprocess(["copy a file"], max_length=7)
    tiny_model.prompts = {**tiny_model.prompts, "query": "find "}
    assert embeddings_key(tiny_model) == keys[0], "texts were read, and queries have another prompt"
    with use_precision("bfloat16" if resolve_precision(device="cpu") == "float32" else "float32"):
        keys.append(embeddings_key(tiny_model))
    for target, name, value in (
        (tiny_model, "max_seq_length", 16),
        (tiny_model, "default_prompt_name", "any"),
        (tiny_model, "prompts", {"document": "passage: "}),
        (tiny_model, "prompts", {"passage": "text: "}),
        (tiny_model, "prompts", {"any": "line: "}),
        (tiny_model, "truncate_dim", 8),
        (tiny_model[1], "include_prompt", False),
        (tiny_model.tokenizer, "truncation_side", "left"),
        (tiny_model[1], "pooling_mode", "cls"),
        (tiny_model[0].auto_model.config, "is_decoder", True),
    ):
        setattr(target, name, value)
        if name != "default_prompt_name":
            keys.append(embeddings_key(tiny_model))
    next(tiny_model.parameters()).data[0, 0] += 1e-3
    keys.append(embeddings_key(tiny_model))
    keys.append(embeddings_key(tiny_model.bfloat16()))
    assert len(set(keys)) == len(keys)


def test_the_key_sees_the_tokenizer(tiny_model, tmp_path):
    tiny_model.save_pretrained(str(tmp_path))
    assert embeddings_key(RelevanceModel(str(tmp_path), device="cpu")) == embeddings_key(tiny_model)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    words = content["model"]["vocab"]
    words["copy"], words["move"] = words["move"], words["copy"]
    path.write_text(json.dumps(content), encoding="utf-8")
    assert embeddings_key(RelevanceModel(str(tmp_path), device="cpu")) != embeddings_key(tiny_model)


def test_the_key_sees_the_vocabulary_of_a_tokenizer_without_a_backend(tiny_model, monkeypatch):
    keys = set()
    for words in ({"copy": 0, "move": 1}, {"move": 0, "copy": 1}):
        tokenizer = SimpleNamespace(get_vocab=lambda words=words: words, model_max_length=32)
        monkeypatch.setattr(type(tiny_model[0]), "tokenizer", tokenizer)
        keys.add(embeddings_key(tiny_model))
    assert len(keys) == 2


def test_the_key_sees_behind_a_router(router_model):
    router, document = router_model[0], router_model[0].sub_modules["document"]
    keys = [embeddings_key(router_model)]
    for target, name, value in (
        (document[1], "pooling_mode", "cls"),
        (document[0], "max_seq_length", 16),
        (router, "route_mappings", {("query", "text"): "query", ("document", None): "query"}),
    ):
        setattr(target, name, value)
        keys.append(embeddings_key(router_model))
    assert len(set(keys)) == 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_quantised_model_has_a_key_of_its_own(tiny_model):
    plain = embeddings_key(tiny_model)
    quantised = [torch.ao.quantization.quantize_dynamic(tiny_model, {torch.nn.Linear}) for _ in range(2)]
    keys = [embeddings_key(model) for model in quantised]
    assert keys[0] == keys[1] != plain
    assert encode_texts(quantised[0], ["copy the file"], "document", "float32").shape == (1, 32)


OF_ALL_LENGTHS = [
    "copy a file",
    "move",
    "read the text in the folder of a file and write it in a line",
    "find a path in the tree",
    "sort the list of words",
    "open",
    "delete the folder or not",
]


class TestEmbedFeatures:
    @pytest.mark.parametrize("mini_batch_size", [1, 3, 100])
    @pytest.mark.parametrize("side", [padded_left, dict])
    def test_passes_equal_one_pass_in_a_decoder_padded_on_either_side(self, decoder_path, mini_batch_size, side):
        model = build_encoder(decoder_path("qwen3"), device="cpu")
        features = side(model.preprocess(OF_ALL_LENGTHS, prompt="find the list of "))  # not pooled
        target = torch.linspace(-1, 1, len(OF_ALL_LENGTHS) * 32).view(len(OF_ALL_LENGTHS), 32)
        results = []
        for embeddings in (
            model(dict(features))["sentence_embedding"],
            embed_features(model, features, mini_batch_size),
        ):
            model.zero_grad()
            (embeddings * target).sum().backward()
            results.append((embeddings, [p.grad.clone() for p in model.parameters() if p.grad is not None]))
        torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(results[1][1], results[0][1], rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("cached", [True, False])
    def test_embeddings_are_cut_to_the_dimensions_of_the_model_wrapped_or_not(self, tiny_model, cached):
        features = batch_to_device(tiny_model.preprocess(OF_ALL_LENGTHS), tiny_model.device)
        complete = embed_features(tiny_model, features, 3, cached)
        tiny_model.truncate_dim = 5
        for model in (tiny_model, Wrapper(tiny_model)):
            torch.testing.assert_close(embed_features(model, features, 3, cached), complete[:, :5])

    def test_a_pass_reads_no_padding_and_every_row_once(self):
        mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]])
        features = {"input_ids": torch.arange(20).view(5, 4), "attention_mask": mask, "row": torch.arange(5), "x": "y"}
        seen = []

        def encoder(part):
            seen.append((part["input_ids"].shape, part["row"].tolist(), part["x"]))
            return {"sentence_embedding": part["row"][:, None].float()}

        embeddings = embed_features(encoder, features, 2)
        assert seen == [((2, 1), [1, 3], "y"), ((1, 2), [2], "y"), ((2, 4), [4, 0], "y")]
        assert embeddings[:, 0].tolist() == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize("mini_batch_size", [1, 2, 5, 9])
    @pytest.mark.parametrize("budget", [math.inf, 300])
    @pytest.mark.parametrize("seed", range(4))
    def test_no_other_cut_of_the_sorted_texts_costs_less(self, mini_batch_size, budget, seed):
        lengths = np.sort(np.random.default_rng(seed).integers(1, 200, 9))
        ordered = lengths.tolist()
        numbers = passes_by_length(lengths, mini_batch_size, budget)

        def cost(numbers):
            ends = list(itertools.accumulate(numbers))
            return sum(n * ordered[end - 1] + PASS_COST["cpu"] for n, end in zip(numbers, ends, strict=True))

        inner = [combination for k in range(9) for combination in itertools.combinations(range(1, 9), k)]
        cuts = [[b - a for a, b in itertools.pairwise((0, *ends, 9))] for ends in inner]

        def fits(numbers):
            ends = list(itertools.accumulate(numbers))
            return max(numbers) <= mini_batch_size and all(
                n == 1 or n * ordered[end - 1] <= budget for n, end in zip(numbers, ends, strict=True)
            )

        assert fits(numbers)
        assert cost(numbers) == min(cost(cut) for cut in cuts if fits(cut))

    @pytest.mark.parametrize("seed", range(4))
    def test_passes_without_padding_are_full(self, seed):
        lengths = np.sort(np.random.default_rng(seed).integers(1, 200, 50))
        numbers = passes_by_length(lengths, 7, 500, cost=None)
        passes = np.split(lengths, np.cumsum(numbers)[:-1])
        assert sum(numbers) == 50
        for part, after in itertools.pairwise(passes):
            assert len(part) == 7 or part.sum() + after[0] > 500
            assert len(part) == 1 or (len(part) <= 7 and part.sum() <= 500)
        assert passes_by_length(lengths, 50, cost=None) == [50]
        assert passes_by_length(lengths[:0], cost=None) == passes_by_length(lengths[:0]) == []

    @pytest.mark.parametrize("padded", [True, False])
    def test_many_texts_are_cut_into_full_passes(self, padded, monkeypatch):
        monkeypatch.setattr(embedding, "TEXTS_CUT_EXACTLY", 40)
        lengths = np.arange(1, 101)
        assert passes_by_length(lengths, cost=64 if padded else None) == [32, 32, 32, 4]
        numbers = passes_by_length(lengths, 100, 400, cost=64 if padded else None)
        ends = np.cumsum(numbers)
        tokens = [n * end if padded else lengths[end - n : end].sum() for n, end in zip(numbers, ends, strict=True)]
        assert sum(numbers) == 100
        assert 300 < max(tokens) <= 400

    def test_lengths_on_the_host_spare_the_device_every_question(self, tiny_model, monkeypatch):
        features = tiny_model.preprocess([*OF_ALL_LENGTHS, "copy the file"])
        lengths = features["attention_mask"].sum(dim=1).numpy()
        seen = []

        def encoder(part):
            seen.append(part)
            return {"sentence_embedding": part["input_ids"][:, :1].float()}

        expected = embed_features(encoder, features, 3)
        of_mask, seen = seen, []
        with monkeypatch.context() as patch:
            for name in ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__"):
                patch.setattr(torch.Tensor, name, lambda *_, name=name: pytest.fail(f"{name} asks the device"))
            embeddings = embed_features(encoder, {**features, "lengths": lengths}, 3)
        assert torch.equal(embeddings, expected)
        for part, other in zip(seen, of_mask, strict=True):
            assert part.keys() == other.keys()
            assert all(torch.equal(part[name], other[name]) for name in ("input_ids", "attention_mask"))


def with_memory_for(tokens, model, sizes):
    """Let passes of more tokens fail, and note the size of each."""
    forward = model[0].forward

    def limited(features):
        sizes.append(features["input_ids"].numel())
        if sizes[-1] > tokens:
            raise torch.OutOfMemoryError("of the GPU")
        return forward(features)

    model[0].forward = limited


class TestMemoryThatDoesNotSuffice:
    @pytest.fixture(autouse=True)
    def any_budget(self, monkeypatch):
        monkeypatch.setattr(embedding, "TOKENS_PER_PASS", (4, 2**18))

    def test_without_gradients_smaller_passes_give_the_same(self, tiny_model, caplog):
        expected, sizes = encode_texts(tiny_model, OF_ALL_LENGTHS, "document"), []
        with_memory_for(30, tiny_model, sizes)
        np.testing.assert_allclose(encode_texts(tiny_model, OF_ALL_LENGTHS, "document"), expected, atol=1e-6)
        assert max(sizes) > 30
        assert "does not fit" in caplog.text
        sizes.clear()
        encode_texts(tiny_model, OF_ALL_LENGTHS, "document")
        assert max(sizes) <= 30, "the smaller budget stays"

    def test_a_step_begins_again_with_its_random_state_and_no_gradients(self, tiny_model):
        """The same passes from the start give the same gradients, as dropout draws the same numbers."""
        features, results = tiny_model.preprocess(OF_ALL_LENGTHS), []
        tiny_model.train()

        def step():
            embed_features(tiny_model, features).square().sum().backward()
            return torch.rand(())

        for limited in (True, False):
            torch.manual_seed(7)
            tiny_model.zero_grad()
            if limited:
                with_memory_for(30, tiny_model, sizes := [])
            drawn = retry_with_smaller_passes(tiny_model, step, tiny_model.parameters())
            results.append([drawn, *(p.grad.clone() for p in tiny_model.parameters() if p.grad is not None)])
            vars(tiny_model[0]).pop("forward", None)
        assert max(sizes) > 30 >= sizes[-1]
        torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)

    def test_gradients_that_were_there_are_not_lost(self, tiny_model):
        def step():
            return embed_features(tiny_model, tiny_model.preprocess(OF_ALL_LENGTHS))

        embed_features(tiny_model, tiny_model.preprocess(["copy"])).sum().backward()
        before = [p.grad.clone() for p in tiny_model.parameters() if p.grad is not None]
        with_memory_for(30, tiny_model, [])
        with pytest.raises(torch.OutOfMemoryError):
            retry_with_smaller_passes(tiny_model, step, tiny_model.parameters())
        assert all(map(torch.equal, before, [p.grad for p in tiny_model.parameters() if p.grad is not None]))

    @pytest.mark.parametrize("gradients", [True, False])
    def test_what_never_fits_is_refused(self, tiny_model, gradients):
        def step():
            return embed_features(tiny_model, tiny_model.preprocess(["copy a file"] * 9))

        with_memory_for(0, tiny_model, sizes := [])
        with pytest.raises(torch.OutOfMemoryError), torch.set_grad_enabled(gradients):
            retry_with_smaller_passes(tiny_model, step, tiny_model.parameters())
        assert 1 < len(sizes) < 9


@pytest.mark.parametrize("trained", [True, False])
def test_the_budget_of_a_gpu_comes_from_its_free_memory(tiny_model, monkeypatch, caplog, trained):
    free, held, used = 10**8, 3 * 10**7, 10**7
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 10**9))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: held)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: used)
    tiny_model.requires_grad_(trained)
    weights = sum(p.numel() for p in tiny_model.parameters())
    config = tiny_model[0].auto_model.config
    passes = passes_of(tiny_model, torch.device("cuda"))
    for gradients in (True, False):
        memory = 0.7 * (free + held - used - 12 * weights * trained * gradients)
        assert passes.budget[gradients] == int(memory / bytes_per_token(config, gradients))
    assert caplog.text.count("with gradients") == 1
    assert passes_of(tiny_model, torch.device("cuda")) is passes
    with torch.no_grad():
        passes.budget[False] = 99
        assert passes.cut(np.array([10, 20, 30, 40]), None, padded=False) == [3, 1]
        assert passes.cut(np.array([10, 20, 30, 40]), 1, padded=False) == [1, 1, 1, 1]


def test_a_token_takes_at_least_what_a_layer_is_known_to_keep():
    """BERT-base keeps 34 bytes per hidden number and layer in half precision (Korthikanti et al. 2022, no scores)."""
    config = BertConfig()
    assert bytes_per_token(config, True) > 34 * config.hidden_size * config.num_hidden_layers
    assert bytes_per_token(config, True) > 4 * bytes_per_token(config, False)


@pytest.mark.parametrize("side", [padded_left, dict])
def test_first_rows_of_texts_are_in_order_of_appearance_whatever_the_padding(tiny_model, side):
    texts = ["sort a list", "copy", "sort a list", "delete", "copy", "copy copy"]
    first, index = identical_texts(side(tiny_model.preprocess(texts)))
    assert (first.tolist(), index.tolist()) == ([0, 1, 3, 5], [0, 1, 0, 2, 1, 3])
    first, index = identical_texts({"input_ids": torch.zeros(0, 3, dtype=torch.long)})
    assert first.tolist() == index.tolist() == []
