"""Prompts read together give the logits of prompts read one by one, in every architecture and with every sharing."""

import random

import pytest
import torch

from bixse.judging.judges.local_model import PromptReader, longest_input
from helpers.tiny_judges import ARCHITECTURES, tiny_model


def some_prompts(vocabulary, shared=20, seed=0):
    """A beginning of all, one of each of four groups, and ends of 1 to 60 tokens, shuffled; two prompts are equal."""
    draw = random.Random(seed)
    tokens = lambda count: [draw.randrange(vocabulary) for _ in range(count)]  # noqa: E731
    head = tokens(shared)
    prompts = []
    for size in (9, 14, 30, 2):
        middle = tokens(size)
        prompts += [head + middle + tokens(draw.choice([1, 3, 8, 25, 60])) for _ in range(5)]
    prompts.append(list(prompts[3]))
    draw.shuffle(prompts)
    return prompts


@torch.inference_mode()
def one_by_one(model, prompts):
    """The plain way: a prompt alone, no padding, no cache, logits of all positions."""
    return torch.cat([model(input_ids=torch.tensor([prompt]), use_cache=False).logits[:, -1] for prompt in prompts])


def read_all(reader, prompts):
    found = {}
    for indices, logits in reader.logits(prompts):
        assert logits is not None
        found.update(zip(indices, logits, strict=True))
    assert sorted(found) == list(range(len(prompts)))
    return torch.stack([found[i] for i in range(len(prompts))])


@pytest.fixture(scope="module", params=list(ARCHITECTURES))
def known(request):
    """A model, prompts and their logits."""
    model = tiny_model(request.param)
    prompts = [prompt[:48] for prompt in some_prompts(300)] if request.param == "phi3" else some_prompts(300)
    return request.param, model, prompts, one_by_one(model, prompts)


def assert_same(found, expected):
    assert found.dtype == torch.float32
    probabilities, wanted = found.softmax(-1), expected.softmax(-1)
    assert (wanted[0] - wanted[1]).abs().max() > 1e-3, "the fixture must tell prompts apart"
    assert (probabilities - wanted).abs().max() < 1e-5
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_with_and_without_sharing_the_logits_are_the_same(known):
    kind, model, prompts, expected = known
    reader = PromptReader(model, tokens_per_batch=200)
    assert reader.shares == (kind not in ("mamba", "bidirectional"))
    assert_same(read_all(reader, prompts), expected)
    reader.shares = False
    assert_same(read_all(reader, prompts), expected)


def test_padding_takes_no_position_beyond_the_table():
    """The longest prompt fills the table, beside shorter ones with longer shared beginnings."""
    head = list(range(3, 23))
    prompts = [[*head, *[30] * 40, 5], [*head, *[30] * 40, 6], [*head, *[31] * 9, *[7] * 50], [*head, *[31] * 9, 8]]
    model = tiny_model("gpt2", n_positions=79)
    assert_same(read_all(PromptReader(model, 10_000), prompts), one_by_one(model, prompts))


def test_prompts_that_share_nothing_and_a_single_one():
    model = tiny_model("qwen2")
    prompts = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15, 16, 17, 18]]
    reader = PromptReader(model, 64)
    assert_same(read_all(reader, prompts), one_by_one(model, prompts))
    assert list(reader.logits([])) == []


def test_shared_tokens_are_computed_once(monkeypatch):
    model, prompts = tiny_model("llama"), some_prompts(300)
    reader, computed, read = PromptReader(model, 100_000), [], PromptReader.read
    monkeypatch.setattr(PromptReader, "read", lambda self, sequences, *rest, **named: computed.append(
        sum(map(len, sequences))) or read(self, sequences, *rest, **named))  # fmt: skip
    read_all(reader, prompts)
    assert sum(computed) == sum(map(len, prompts)) - (len(prompts) - 1) * 20
    assert computed[0] == 20


def test_only_last_positions_reach_the_output_layer():
    model, prompts, seen = tiny_model("gemma2"), some_prompts(300), []
    reader = PromptReader(model, 10_000)
    hook = model.lm_head.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    read_all(reader, prompts)
    hook.remove()
    assert all(shape[1] == 1 for shape in seen)
    assert not model.lm_head._forward_pre_hooks, "the model is left as it was"


def test_a_half_precision_model_shares_as_well():
    model = tiny_model("llama").to(torch.bfloat16)
    reader = PromptReader(model, 200)
    assert reader.shares
    found, expected = read_all(reader, some_prompts(300)), one_by_one(model, some_prompts(300)).float()
    assert (found.softmax(-1) - expected.softmax(-1)).abs().max() < 0.1


def test_a_prompt_that_would_change_the_positions_of_its_batch_is_too_long():
    """Phi-3's positions change for a whole batch as soon as one prompt is longer than 48 tokens."""
    assert longest_input(tiny_model("phi3").config, 10**12) == 48
    assert longest_input(tiny_model("llama").config, 10**12) == 2048


class TestMemory:
    @pytest.fixture
    def small_device(self, monkeypatch):
        """A device that has room for some rows of a pass, and none for prompts of over 80 tokens."""
        read, sizes = PromptReader.read, []

        def limited(self, sequences, *rest, **named):
            if len(sequences) > 3 or max(map(len, sequences)) > 80:
                raise torch.OutOfMemoryError("CUDA out of memory")
            sizes.append(len(sequences))
            return read(self, sequences, *rest, **named)

        monkeypatch.setattr(PromptReader, "read", limited)
        return sizes

    def test_a_batch_that_does_not_fit_is_halved_and_nothing_is_lost(self, small_device):
        model, prompts = tiny_model("llama"), [prompt[:80] for prompt in some_prompts(300)]
        reader = PromptReader(model, 100_000)
        reader.shares = True  # the probe did not fit
        found = read_all(reader, prompts)
        assert max(small_device) > 1
        assert_same(found, one_by_one(model, prompts))

    def test_a_prompt_that_never_fits_is_said_alone(self, small_device):
        prompts = [[7] * 10, [8] * 100, [9] * 12]
        found = list(PromptReader(tiny_model("llama"), 100_000).logits(prompts))
        assert [indices for indices, logits in found if logits is None] == [[1]]
        assert sorted(i for indices, logits in found if logits is not None for i in indices) == [0, 2]
