import re

import pytest

from bixse.data.graded_pairs import GradedPairs
from bixse.encoders.loading.build import build_encoder
from bixse.errors import InputError
from bixse.losses import build_loss
from bixse.training import checks


def pairs_of(*queries):
    return GradedPairs.from_rows(
        {"query": f"q{i}", "document": f"d{i}{k}", "relevance": z}
        for i, group in enumerate(queries)
        for k, z in enumerate(group)
    )


class TestLengths:
    PAIRS = GradedPairs.from_rows(
        {"query": "copy " * n, "document": "list of words " * n, "relevance": 1.0} for n in (1, 2, 20, 30)
    )

    def test_texts_longer_than_the_encoder_reads_are_counted(self, tiny_model):
        (warning,) = checks.check_lengths(tiny_model, self.PAIRS)
        assert warning.startswith("2 of 4 documents ") and " 32 " in warning
        tiny_model.max_seq_length = 16
        (warning,) = checks.check_lengths(tiny_model, self.PAIRS)
        assert warning.startswith("2 of 4 queries and 2 of 4 documents ") and " 16 " in warning
        tiny_model.max_seq_length = 200
        assert checks.check_lengths(tiny_model, self.PAIRS) == []

    def test_the_prompt_before_a_text_counts(self, tiny_model):
        tiny_model.prompts = {"query": "find a path in the tree of ", "document": ""}
        tiny_model.max_seq_length = 8
        (warning,) = checks.check_lengths(tiny_model, self.PAIRS)
        assert warning.startswith("4 of 4 queries ") and "prompt" in warning

    def test_of_many_texts_a_sample_is_tokenised(self, tiny_model, monkeypatch):
        monkeypatch.setattr(checks, "TEXTS_COUNTED", 10)
        texts = [f"{'list ' * (40 if n % 2 else 12)}{'a' * n}" for n in range(57)]
        pairs = GradedPairs.from_rows({"query": "copy", "document": text, "relevance": 1.0} for text in texts)
        (warning,) = checks.check_lengths(tiny_model, pairs)
        assert re.match(r"\d of 10 sampled documents ", warning)


def test_a_max_length_below_the_models_own_is_a_warning_with_both_numbers(tiny_model_path):
    for length in (None, 32):
        assert checks.check_max_length(build_encoder(tiny_model_path, length)) == []
    (warning,) = checks.check_max_length(build_encoder(tiny_model_path, 16))
    assert all(fact in warning for fact in ("16", "32", "train_max_length: 16"))


class TestPairs:
    @pytest.mark.parametrize(
        ("word", "documents", "lacking"),
        [
            ("infonce", None, "a document with relevance of at least 0.5"),
            ("margin-mse", 2, "two graded documents"),
            ("bixse", None, "a document with relevance above 0"),
            ("pairwise-bce", None, "a document with relevance above 0"),
        ],
    )
    def test_some_queries_teach_nothing(self, tiny_model, word, documents, lacking):
        pairs = pairs_of([1.0, 0.3], [0.0, 0.0], [0.7])
        (warning,) = checks.check_pairs("p.csv", word, build_loss(word, tiny_model), pairs, documents)
        assert warning.startswith(f"1 of 3 queries lack {lacking}")

    @pytest.mark.parametrize(("word", "documents"), [("margin-mse", 1), ("infonce", None), ("bixse-binarised", None)])
    def test_no_query_teaches_anything(self, tiny_model, word, documents):
        pairs = pairs_of([0.4, 0.3], [0.0, 0.2])
        with pytest.raises(InputError, match="got 2 queries"):
            checks.check_pairs("p.csv", word, build_loss(word, tiny_model), pairs, documents)

    def test_all_can_be_used(self, tiny_model):
        assert not checks.check_pairs("p.csv", "bixse", build_loss("bixse", tiny_model), pairs_of([0.2], [1.0]), None)
