import itertools

import pytest
import torch

from bixse.encoders.embedding import PASS_COST, embed_features, identical_texts, passes_by_length
from bixse.encoders.loading.build import build_encoder

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


class TestEmbedFeatures:
    @pytest.mark.parametrize("mini_batch_size", [1, 3, 100])
    @pytest.mark.parametrize("side", [padded_left, dict])
    def test_passes_equal_one_pass_in_a_decoder_padded_on_either_side(self, decoder_path, mini_batch_size, side):
        model = build_encoder(decoder_path("qwen3"), device="cpu")
        features = side(model.preprocess(TEXTS, prompt="find the list of "))  # not pooled
        with torch.no_grad():
            complete = model(dict(features))["sentence_embedding"]
            parts = embed_features(model, features, mini_batch_size)
        torch.testing.assert_close(parts, complete, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("cached", [True, False])
    def test_embeddings_are_cut_to_the_dimensions_of_the_model_wrapped_or_not(self, tiny_model, cached):
        features = tiny_model.preprocess(TEXTS)
        complete = embed_features(tiny_model, features, 3, cached)
        tiny_model.truncate_dim = 5
        for model in (tiny_model, torch.nn.DataParallel(tiny_model)):
            torch.testing.assert_close(embed_features(model, features, 3, cached), complete[:, :5])

    def test_gradients_equal_those_of_one_pass(self, tiny_model):
        features = tiny_model.preprocess(TEXTS)
        target = torch.linspace(-1, 1, len(TEXTS) * 32).view(len(TEXTS), 32)
        gradients = []
        for size in (100, 2):
            tiny_model.zero_grad()
            (embed_features(tiny_model, features, size) * target).sum().backward()
            gradients.append([p.grad.clone() for p in tiny_model.parameters() if p.grad is not None])
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)

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
    @pytest.mark.parametrize("side", [padded_left, dict])
    def test_first_rows_are_in_order_of_appearance_whatever_the_padding(self, tiny_model, side):
        texts = ["sort a list", "copy", "sort a list", "delete", "copy", "copy copy"]
        first, index = identical_texts(side(tiny_model.preprocess(texts)))
        assert first.tolist() == [0, 1, 3, 5]
        assert index.tolist() == [0, 1, 0, 2, 1, 3]

    def test_no_texts(self):
        first, index = identical_texts({"input_ids": torch.zeros(0, 3, dtype=torch.long)})
        assert first.tolist() == index.tolist() == []
