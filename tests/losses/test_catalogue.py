import inspect
import math
import re
import textwrap

import pytest
import torch
from torch import nn

import bixse.losses
from bixse.errors import ConfigError
from bixse.losses.catalogue import LOSSES, build_loss, check_loss_options


@pytest.mark.parametrize(
    ("loss", "option", "hint"),
    [
        ("infonce", "positive_fro", "did you mean 'positive_from'?"),
        ("infonce", "bias", "known keys: scale, in_batch_labels"),
        ("bixse", "model", "an unknown key"),
        ("bixse-without-bias", "bias", "loss 'bixse-without-bias' sets it to 0.0"),
        ("lambdarank", "weighting", "choose another loss"),
        ("lamdarank", "scale", "did you mean 'lambdarank'"),
    ],
)
def test_an_unknown_loss_or_option_is_refused(loss, option, hint):
    with pytest.raises(ConfigError, match=re.escape(hint)):
        check_loss_options(loss, {option: 1})


@pytest.mark.parametrize(
    ("loss", "option", "values"),
    [
        ("infonce", "positive_from", ["high", True, 0.0, -0.1, 1.01, math.nan]),
        ("bixse", "learn_scale", ["no", 1]),
        ("bixse", "positive_from", ["x", 0.0, 1.5]),
        ("bixse", "bias", [[1.0], "middle", "", None, True, math.nan, math.inf]),
        ("bixse", "reduction", ["sum"]),
        ("bixse", "products", ["float16"]),
        ("bixse", "in_batch_labels", ["all"]),
        ("soft-infonce", "mini_batch_size", [0, -1, True, 1.5]),
        ("margin-mse", "scale", [0.0, -20.0, math.nan, math.inf]),
        ("margin-mse", "margin", [0.0, -1.0, 2.1, math.nan]),
        ("lambdarank", "top_grade", [0.0, 33, math.nan]),
    ],
)
def test_an_option_of_the_wrong_kind_or_outside_its_range(loss, option, values):
    for value in values:
        with pytest.raises(ConfigError, match=rf"{option}.*: got .*; expected .*; fix: "):
            build_loss(loss, nn.Identity(), **{option: value})


@pytest.mark.parametrize("word", LOSSES)
def test_every_word_builds_what_it_names_and_the_model_card_says_how(word):
    options = {"scale": 7.0, "gradient_cache": True, "mini_batch_size": 5}
    loss = build_loss(word, nn.Identity(), **options)
    assert type(loss) is getattr(bixse.losses, LOSSES[word].name)
    assert loss.get_config_dict().items() >= {**LOSSES[word].fixed, **options}.items()


@pytest.mark.parametrize(
    ("word", "options", "requires", "informative", "not_informative"),
    [
        ("bixse", {}, "relevance above 0", [[0.2]], [[0.0, 0.0]]),
        ("infonce", {"positive_from": 0.6}, "relevance of at least 0.6", [[0.0, 0.6]], [[0.59, 0.0], []]),
        ("margin-mse", {}, "two graded documents", [[0.0, 0.0]], [[1.0]]),
        ("distill-kl", {}, "two graded documents", [[0.0, 0.0]], [[1.0]]),
        ("pairwise-bce", {}, "relevance above 0", [[0.2]], [[0.0, 0.0]]),
    ],
)
def test_what_a_query_must_bring(word, options, requires, informative, not_informative):
    loss = build_loss(word, nn.Identity(), **options)
    assert loss.requires.endswith(requires)
    assert all(loss.is_informative(group) for group in informative)
    assert not any(loss.is_informative(group) for group in not_informative)


@pytest.mark.parametrize("word", ["BiXSELoss", "LambdaLoss"])
def test_the_example_in_the_docstring_trains(word, tmp_path, monkeypatch):
    """sentence-transformers' own trainer, the real encoder, the text a user reads; another loss in its place."""
    text = (inspect.getdoc(bixse.losses.BiXSELoss) or "").partition("trainer::\n\n")[2]
    code = textwrap.dedent(text[: text.index("trainer.train()") + len("trainer.train()")])
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(code.replace("BiXSELoss", word), names)
    assert names["trainer"].state.global_step > 0
    untrained = names["build_encoder"]("demo")
    pairs = zip(untrained.parameters(), names["model"].parameters(), strict=True)
    assert any(not torch.equal(before, after.cpu()) for before, after in pairs)
