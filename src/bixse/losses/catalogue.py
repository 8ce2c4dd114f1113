"""The catalogue of losses: the word in a config or on the command line, and what it builds."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from bixse.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sentence_transformers import SentenceTransformer

    from bixse.losses.base import GradedLoss


class LossEntry(NamedTuple):
    """A class of this room and the arguments its word fixes."""

    module: str
    """Module of `bixse.losses`."""
    name: str
    """Class in it."""
    fixed: Mapping[str, Any] = {}
    """Arguments that make the word what it is."""
    about: str = ""
    """One line for a list of losses."""


LOSSES: dict[str, LossEntry] = {
    "bixse": LossEntry("bixse", "BiXSELoss", about="every entry with its own relevance"),
    "bixse-without-bias": LossEntry(
        "bixse", "BiXSELoss", {"bias": 0.0, "learn_bias": False}, "the paper's ablation: logit bias 0, not learned"
    ),
    "bixse-binarised": LossEntry(
        "bixse", "BiXSELoss", {"binarise_at": 0.5}, "the paper's ablation: relevance cut to 0 or 1 at 0.5"
    ),
    "infonce": LossEntry("infonce", "InfoNCELoss", about="each positive with the query's negatives"),
    "soft-infonce": LossEntry(
        "soft_infonce", "SoftInfoNCELoss", about="a query's softmax with its normalised relevance"
    ),
    "margin-mse": LossEntry("margin_mse", "MarginMSELoss", about="differences of scores with differences of relevance"),
    "pairwise-bce": LossEntry("pairwise_bce", "PairwiseBCELoss", about="the order of every two documents (RankNet)"),
    "lambdaloss-v1": LossEntry("lambda_loss", "LambdaLoss", {"weighting": "ndcg-loss1"}, "LambdaLoss, NDCG-Loss1"),
    "lambdaloss-v2": LossEntry("lambda_loss", "LambdaLoss", {"weighting": "ndcg-loss2"}, "LambdaLoss, NDCG-Loss2"),
    "lambdarank": LossEntry("lambda_loss", "LambdaLoss", {"weighting": "lambdarank"}, "LambdaRank"),
    "ndcg-loss2++": LossEntry("lambda_loss", "LambdaLoss", {"weighting": "ndcg-loss2++"}, "LambdaLoss, NDCG-Loss2++"),
}
"""The catalogue: word in a config or on the command line -> what it builds."""


def build_loss(word: str, model: SentenceTransformer, **options: Any) -> GradedLoss:
    """The loss of a catalogue word on a model.

    Args:
        word: a key of `LOSSES`.
        model: the encoder that is trained.
        options: arguments of the class; those the word fixes cannot be given.

    Raises:
        ConfigError: an unknown word, an option the class does not take, or one that the word fixes.
        InputError: an option outside its range.
    """
    check_loss_options(word, options)
    entry = LOSSES[word]
    loss: GradedLoss = _class_of(word)(model, **entry.fixed, **options)
    return loss


def check_loss_options(word: str, options: Mapping[str, Any]) -> None:
    """Refuse an option the loss does not take, before anything is loaded.

    Raises:
        ConfigError: names the option, the ones there are and the closest.
    """
    if word not in LOSSES:
        raise ConfigError(f"loss: got {word!r}; expected one of {', '.join(LOSSES)}; fix: {did_you_mean(word, LOSSES)}")
    fixed = LOSSES[word].fixed
    defaults = _defaults(_class_of(word))
    known = [name for name in defaults if name not in fixed]
    for name, value in options.items():
        if name in fixed:
            raise ConfigError(
                f"loss_options: got {name!r}; expected it left out, loss {word!r} sets it to {fixed[name]!r}; "
                "fix: drop it, or choose another loss"
            )
        if name not in known:
            raise ConfigError(
                f"loss_options: got {name!r}; expected one of {', '.join(known)} for loss {word!r}; "
                f"fix: {did_you_mean(name, known)}"
            )
        expected = _kind_of(defaults[name])
        if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
            words = " or ".join(_KINDS[kind] for kind in expected if kind is not int or float not in expected)
            raise ConfigError(
                f"loss_options: got {value!r} for {name!r}; expected {words}; fix: correct it, or leave it out for "
                f"{defaults[name]!r}"
            )


def _defaults(kind: type[GradedLoss]) -> dict[str, Any]:
    """Options of a loss and their defaults: its own first, then those it hands on to its bases."""
    found: dict[str, Any] = {}
    for part in kind.__mro__:
        if "__init__" in vars(part) and hasattr(part, "is_informative"):
            for name, parameter in inspect.signature(part).parameters.items():
                if parameter.default is not parameter.empty:
                    found.setdefault(name, parameter.default)
    return found


_KINDS = {bool: "true or false", float: "a number", int: "a whole number", str: "a word", type(None): "nothing"}


def _kind_of(default: Any) -> tuple[type, ...]:
    """What an option may be, from its default; the class itself checks words and ranges."""
    if isinstance(default, bool):
        return (bool,)
    if isinstance(default, str):
        return (str, float, int)  # the start of the bias is a word or a number
    if isinstance(default, int):
        return (int,)
    return (float, int) if default is not None else (float, int, type(None))


def _class_of(word: str) -> type[GradedLoss]:
    entry = LOSSES[word]
    kind: type[GradedLoss] = getattr(import_module(f"bixse.losses.{entry.module}"), entry.name)
    return kind
