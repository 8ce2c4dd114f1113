"""Which tokens count as an option: both spellings where each is one token, none that is only a part of a label."""

import pytest
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from bixse.errors import InputError
from bixse.judging.judges.local_judge import option_token_ids
from helpers.tiny_judges import tiny_tokenizer


def test_a_label_of_several_tokens_is_refused_with_its_tokens():
    with pytest.raises(InputError, match=r"label '10': got the tokens \['1', '0'\].*expected a single token"):
        option_token_ids(tiny_tokenizer(), ["1", "10"])


def test_a_token_that_spells_another_label_is_none_of_this_one():
    """A tokenizer that lowers its text cannot tell YES from yes."""
    inner = Tokenizer(models.WordLevel({"yes": 0, "no": 1, "?": 2}, unk_token="?"))
    inner.normalizer = normalizers.Lowercase()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner)
    with pytest.raises(InputError, match=r"label 'YES': got the tokens \['yes'\]"):
        option_token_ids(tokenizer, ["yes", "YES"])


def test_an_unknown_token_is_no_option():
    inner = Tokenizer(models.WordLevel({"yes": 0, "no": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]")
    with pytest.raises(InputError, match=r"label 'A'"):
        option_token_ids(tokenizer, ["A", "yes"])


def test_both_spellings_count_where_each_is_one_token():
    tokenizer = tiny_tokenizer(spaced="23")
    vocabulary = tokenizer.get_vocab()
    found = option_token_ids(tokenizer, ["1", "2", "3"])
    assert found == tuple(
        tuple(sorted(vocabulary[token] for token in tokens)) for tokens in (["1"], ["2", "Ġ2"], ["3", "Ġ3"])
    )


def test_only_one_spelling_may_be_a_token():
    """Words of some vocabularies have a token with a space alone."""
    vocabulary = {"Ġ": 0, "Y": 1, "e": 2, "s": 3, "Ye": 4, "ĠYe": 5, "ĠYes": 6}
    merges = [("Y", "e"), ("Ġ", "Ye"), ("ĠYe", "s")]
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner)
    assert option_token_ids(tokenizer, ["Yes"]) == ((6,),)


class TestSentencePiece:
    """A label that begins a text has a mark of its own; after a prompt it has none."""

    @pytest.fixture
    def tokenizer(self):
        letters = ["[", "]", "I", "N", "S", "T", "/", "x", "0", "1"]
        vocabulary = {token: i for i, token in enumerate(["<unk>", "▁", *letters, "▁1"])}
        inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[("▁", "1")], unk_token="<unk>"))
        inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        inner.decoder = decoders.Metaspace(prepend_scheme="first")
        return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>")

    def test_the_token_that_follows_a_prompt_counts(self, tokenizer):
        vocabulary, prompt = tokenizer.get_vocab(), "x [/INST]"
        assert tokenizer.convert_ids_to_tokens(tokenizer.encode("0")) == ["▁", "0"]
        ids = tokenizer.encode(prompt, add_special_tokens=False)
        found = option_token_ids(tokenizer, ["0", "1"], prompt, ids)
        assert found == ((vocabulary["0"],), (vocabulary["1"], vocabulary["▁1"]))

    def test_without_a_prompt_it_is_refused(self, tokenizer):
        with pytest.raises(InputError, match=r"label '0': got the tokens \['▁', '0'\]"):
            option_token_ids(tokenizer, ["0", "1"])


def test_a_label_that_merges_with_the_prompt_counts_alone():
    """Where prompt and label together are other tokens, the prompt would not be the one that was read."""
    inner = Tokenizer(models.BPE(vocab={":": 0, "1": 1, ":1": 2, "x": 3}, merges=[(":", "1")]))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner)
    assert option_token_ids(tokenizer, ["1"], "x:", tokenizer.encode("x:")) == ((1,),)
