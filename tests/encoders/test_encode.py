import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing

from bixse.encoders.embedding import PASS_COST, embed_features, identical_texts, passes_by_length
from bixse.encoders.encode import embeddings_key, encode_texts
from bixse.encoders.loading.build import build_encoder, model_hashes
from bixse.encoders.loading.precision import resolve_precision, use_precision
from bixse.encoders.relevance_model import RelevanceModel
from helpers.batches import padded_left

TEXTS = ["copy a file", "sleep in a thread", "move"]


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
        features = tiny_model.preprocess(OF_ALL_LENGTHS)
        complete = embed_features(tiny_model, features, 3, cached)
        tiny_model.truncate_dim = 5
        for model in (tiny_model, torch.nn.DataParallel(tiny_model)):
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
    @pytest.mark.parametrize("seed", range(4))
    def test_no_other_cut_of_the_sorted_texts_costs_less(self, mini_batch_size, seed):
        lengths = torch.randint(1, 200, (9,), generator=torch.Generator().manual_seed(seed))
        mask = (torch.arange(200) < lengths[:, None]).long()
        order, numbers = passes_by_length(mask, mini_batch_size)
        assert sorted(order.tolist()) == list(range(9))
        ordered = sorted(lengths.tolist())

        def cost(numbers):
            ends = list(itertools.accumulate(numbers))
            return sum(n * ordered[end - 1] + PASS_COST["cpu"] for n, end in zip(numbers, ends, strict=True))

        inner = [combination for k in range(9) for combination in itertools.combinations(range(1, 9), k)]
        cuts = [[b - a for a, b in itertools.pairwise((0, *ends, 9))] for ends in inner]
        assert max(numbers) <= mini_batch_size
        assert cost(numbers) == min(cost(cut) for cut in cuts if max(cut) <= mini_batch_size)


@pytest.mark.parametrize("side", [padded_left, dict])
def test_first_rows_of_texts_are_in_order_of_appearance_whatever_the_padding(tiny_model, side):
    texts = ["sort a list", "copy", "sort a list", "delete", "copy", "copy copy"]
    first, index = identical_texts(side(tiny_model.preprocess(texts)))
    assert (first.tolist(), index.tolist()) == ([0, 1, 3, 5], [0, 1, 0, 2, 1, 3])
    first, index = identical_texts({"input_ids": torch.zeros(0, 3, dtype=torch.long)})
    assert first.tolist() == index.tolist() == []
