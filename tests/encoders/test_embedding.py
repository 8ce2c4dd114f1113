from __future__ import annotations

import itertools

import pytest
import torch

from bixse.encoders.embedding import (
    PASS_COST,
    embed_features,
    identical_texts,
    passes_by_length,
    tokens_without_padding,
)

TEXTS = [
    "copy a file",
    "move",
    "read the text in the folder of a file and write it in a line",
    "find a path in the tree",
    "sort the list of words",
    "open",
    "delete the folder or not",
]


def padded_left(features):
    """The same tokens with the padding moved to the left."""
    mask = features["attention_mask"]
    order = torch.argsort(mask, dim=1, stable=True)
    return {
        name: value.gather(1, order) if isinstance(value, torch.Tensor) and value.shape == mask.shape else value
        for name, value in features.items()
    }


@pytest.fixture(scope="module")
def tiny_decoder():
    """A random decoder with rotary positions and mean pooling, called like a SentenceTransformer."""
    from transformers import Qwen2Config, Qwen2Model

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Qwen2Config(vocab_size=200, num_key_value_heads=2, attn_implementation="eager", **sizes)
    model = Qwen2Model(config).eval()

    def encode(features):
        mask = features["attention_mask"]
        with torch.no_grad():
            states = model(input_ids=features["input_ids"], attention_mask=mask).last_hidden_state
        return {"sentence_embedding": (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)}

    return encode


class TestEmbedFeatures:
    @pytest.mark.parametrize("mini_batch_size", [1, 3, 100])
    @pytest.mark.parametrize("side", [padded_left, dict])
    def test_passes_equal_one_pass_in_a_decoder_padded_on_either_side(
        self, tiny_model, tiny_decoder, mini_batch_size, side
    ):
        features = side(tiny_model.preprocess(TEXTS))
        assert bool(features["attention_mask"][1, 0]) == (side is dict)
        whole = tiny_decoder(features)["sentence_embedding"]
        parts = embed_features(tiny_decoder, features, mini_batch_size)
        torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("mini_batch_size", [1, 3])
    @pytest.mark.parametrize("side", [padded_left, dict])
    def test_a_prompt_is_left_out_of_the_pooling_whatever_padding_is_trimmed(self, tiny_model, mini_batch_size, side):
        from sentence_transformers.sentence_transformer.modules import Pooling

        features = side(tiny_model.preprocess(TEXTS, prompt="find the list of "))
        words, pooling = torch.nn.Embedding(200, 8), Pooling(8, include_prompt=False)

        def encoder(part):
            return pooling({**part, "token_embeddings": words(part["input_ids"])})

        rows = zip(features["input_ids"], features["attention_mask"], strict=True)
        expected = torch.stack([words(tokens[mask.bool()][5:]).mean(0) for tokens, mask in rows])
        torch.testing.assert_close(embed_features(encoder, features, mini_batch_size), expected)

    @pytest.mark.parametrize("cached", [True, False])
    def test_embeddings_are_cut_to_the_dimensions_of_the_model_wrapped_or_not(self, tiny_model, cached):
        features = tiny_model.preprocess(TEXTS)
        whole = embed_features(tiny_model, features, 3, cached)
        tiny_model.truncate_dim = 5
        for model in (tiny_model, torch.nn.DataParallel(tiny_model)):
            torch.testing.assert_close(embed_features(model, features, 3, cached), whole[:, :5])

    def test_gradients_equal_those_of_one_pass(self, tiny_model):
        features = tiny_model.preprocess(TEXTS)
        target = torch.linspace(-1, 1, len(TEXTS) * 32).view(len(TEXTS), 32)
        gradients = []
        for size in (100, 2):
            tiny_model.zero_grad()
            (embed_features(tiny_model, features, size) * target).sum().backward()
            gradients.append([p.grad.clone() for p in tiny_model.parameters() if p.grad is not None])
        for one, many in zip(*gradients, strict=True):
            torch.testing.assert_close(many, one, rtol=1e-4, atol=1e-5)

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


class TestIdenticalTexts:
    def test_no_texts(self):
        first, index = identical_texts({"input_ids": torch.zeros(0, 3, dtype=torch.long)})
        assert first.tolist() == index.tolist() == []

    def test_first_rows_stand_in_order_of_appearance(self, tiny_model):
        texts = ["sort a list", "copy", "sort a list", "delete", "copy", "copy copy"]
        first, index = identical_texts(tiny_model.preprocess(texts))
        assert first.tolist() == [0, 1, 3, 5]
        assert index.tolist() == [0, 1, 0, 2, 1, 3]

    def test_the_side_of_the_padding_does_not_matter(self, tiny_model):
        features = tiny_model.preprocess(TEXTS)
        right, left = (tokens_without_padding(f) for f in (features, padded_left(features)))
        assert torch.equal(right, left)
        assert bool((right == -1).any())
