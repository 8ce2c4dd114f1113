from __future__ import annotations

import inspect
import re
import textwrap

import pytest
import torch

import bixse.losses
from bixse.errors import ConfigError
from bixse.losses.catalogue import LOSSES, build_loss, check_loss_options


@pytest.mark.parametrize(
    ("loss", "option", "hint"),
    [
        ("infonce", "cutof", "did you mean 'cutoff'?"),
        ("infonce", "bias", "expected one of scale, cutoff, in_batch_labels"),
        ("bixse", "model", "for loss 'bixse'"),
        ("bixse", "self", "for loss 'bixse'"),
        ("soft-infonce", "zzz", "choose one of them"),
        ("bixse-without-bias", "bias", "loss 'bixse-without-bias' sets it to 0.0"),
        ("lambdarank", "weighting", "choose another loss"),
    ],
)
def test_an_option_that_cannot_be_given(loss, option, hint):
    with pytest.raises(ConfigError, match=f"loss_options: got '{option}'") as caught:
        check_loss_options(loss, {option: 1})
    assert hint in str(caught.value)


def test_an_unknown_word():
    with pytest.raises(ConfigError, match="did you mean 'lambdarank'"):
        check_loss_options("lamdarank", {})


@pytest.mark.parametrize(
    ("loss", "option", "value", "expected"),
    [
        ("infonce", "cutoff", "high", "a number"),
        ("infonce", "cutoff", True, "a number"),
        ("bixse", "learn_scale", "no", "true or false"),
        ("bixse", "learn_scale", 1, "true or false"),
        ("bixse", "binarise_at", "x", "a number or nothing"),
        ("bixse", "bias", [1.0], "a word or a number"),
        ("bixse", "mini_batch_size", 1.5, "a whole number"),
        ("lambdarank", "k", "ten", "nothing"),
    ],
)
def test_an_option_of_the_wrong_kind(loss, option, value, expected):
    with pytest.raises(ConfigError, match=f"got {re.escape(repr(value))} for '{option}'; expected .*{expected}"):
        check_loss_options(loss, {option: value})


def test_known_options():
    check_loss_options("bixse", {"bias": -3, "binarise_at": None, "scale": 10})
    check_loss_options("bixse", {"bias": "prior", "learn_scale": True, "in_batch_labels": "paper"})
    check_loss_options("ndcg-loss2++", {"mu": 5.0, "k": 10, "gradient_cache": True})


@pytest.mark.parametrize("word", LOSSES)
def test_every_word_builds_what_it_names(tiny_model, word):
    loss = build_loss(word, tiny_model, scale=7.0, gradient_cache=True, mini_batch_size=5)
    entry = LOSSES[word]
    assert type(loss) is getattr(bixse.losses, entry.name)
    settings = loss.get_config_dict()
    assert {name: settings[name] for name in entry.fixed} == dict(entry.fixed)
    assert (settings["scale"], loss.gradient_cache, loss.mini_batch_size) == (7.0, True, 5)
    assert entry.about


@pytest.mark.parametrize("name", sorted({entry.name for entry in LOSSES.values()}))
def test_the_example_in_the_docstring_trains(name, tmp_path, monkeypatch):
    """sentence-transformers' own trainer, the real encoder, the text a user reads."""
    text = (inspect.getdoc(getattr(bixse.losses, name)) or "").partition("trainer::\n\n")[2]
    code = textwrap.dedent(text[: text.index("trainer.train()") + len("trainer.train()")])
    assert name in code
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(code, names)
    assert names["trainer"].state.global_step > 0
    untrained = names["build_encoder"]("demo")
    pairs = zip(untrained.parameters(), names["model"].parameters(), strict=True)
    assert any(not torch.equal(before, after.cpu()) for before, after in pairs)
