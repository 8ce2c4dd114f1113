"""The catalogue of losses: the name in a config or on the command line, and its class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import ConfigDict, Field

from bixse.encoders.loading.precision import Setting
from bixse.errors import ConfigError, did_you_mean
from bixse.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sentence_transformers import SentenceTransformer

    from bixse.losses import GradedLoss


InBatchLabels = Literal["known", "paper"]
"""Targets of other queries' documents: every known grade, or 0 as in the paper."""


class LossOptions(Settings):
    """The keyword options of a loss: `BiXSELoss(model, scale=20.0)`, or `loss_options` of a configuration."""

    model_config = ConfigDict(strict=True)

    scale: float = Field(default=10.0, gt=0)
    """Logit scale alpha: 1 / temperature. The paper has 20; 10 was better on dev for every loss."""
    in_batch_labels: InBatchLabels = "known"
    """Grades that become targets: "known" takes every grade of the batch, "paper" only those of a row's documents."""
    false_negative_margin: float | None = Field(default=None, ge=0, le=2)
    """Leave out likely false negatives: unlabelled entries whose cosine exceeds that of the query's best relevant
    document (relevance of 0.5 or more) by more than this number. null leaves out none. InfoNCE follows Qwen3's rule."""
    mini_batch_size: int = Field(default=32, ge=1)
    """Maximum number of texts per pass through the encoder."""
    gradient_cache: bool = False
    """Hold the activations of one pass at a time and compute them again in the backward pass (Gao et al. 2021,
    arXiv:2101.06983). Training takes a third more time, and only embeddings limit the batch. Gradients are the same."""
    products: Setting = "auto"
    """Dtype of the factors of the three matrix products. Logits, sums and entries with a grade are always float32.
    "auto": float32 on the CPU, on a GPU the precision of the run."""


class LossEntry(NamedTuple):
    """A class of `bixse.losses` and its fixed options."""

    name: str
    fixed: Mapping[str, Any] = {}
    alone: bool = True
    """It can train without another loss."""


LOSSES: dict[str, LossEntry] = {
    "bixse": LossEntry("BiXSELoss"),
    "bixse-without-bias": LossEntry("BiXSELoss", {"bias": 0.0, "learn_bias": False}),
    "bixse-binarised": LossEntry("BiXSELoss", {"positive_from": 0.5}),
    "bixse-base": LossEntry("BiXSELoss", {"unlabelled": "base"}),
    "infonce": LossEntry("InfoNCELoss"),
    "infonce-masked": LossEntry("InfoNCELoss", {"false_negative_margin": 0.1}),
    "infonce-hard": LossEntry("InfoNCELoss", {"hardness": 9.0}),
    "soft-infonce": LossEntry("SoftInfoNCELoss"),
    "margin-mse": LossEntry("MarginMSELoss"),
    "distill-kl": LossEntry("DistillKLLoss"),
    "pairwise-bce": LossEntry("PairwiseBCELoss"),
    "lambdaloss-v1": LossEntry("LambdaLoss", {"weighting": "ndcg-loss1"}),
    "lambdaloss-v2": LossEntry("LambdaLoss", {"weighting": "ndcg-loss2"}),
    "lambdarank": LossEntry("LambdaLoss", {"weighting": "lambdarank"}),
    "ndcg-loss2++": LossEntry("LambdaLoss", {"weighting": "ndcg-loss2++"}),
    "wasserstein": LossEntry("WassersteinLoss"),
    "bixse-anchor": LossEntry("SumLoss", {"weights": {"bixse": 1.0, "anchor": 1.0}}),
    "cadet": LossEntry("SumLoss", {"weights": {"distill-kl": 1.0, "infonce": 0.1}}),
    "anchor": LossEntry("AnchorLoss", alone=False),
    "spread-out": LossEntry("SpreadOutLoss", alone=False),
}


OF_THE_BATCH = ("in_batch_labels", "mini_batch_size", "gradient_cache")
"""Options that all terms of a sum share, because they read the same batch."""


def build_loss(
    word: str | Mapping[str, float], model: SentenceTransformer, dimensions: Sequence[int] = (), **options: Any
) -> GradedLoss:
    """Build a loss on the encoder to train: the name of `LOSSES`, or names with weights for a `SumLoss`.

    The options of a sum are sections of its terms, such as `infonce={"hardness": 9.0}`, and options of all terms.
    With `dimensions` it becomes a `MatryoshkaLoss` of these lengths and of the complete embedding.
    """
    check_loss_options(word, options)
    if dimensions:
        from bixse import losses

        lengths = {*dimensions, model.get_embedding_dimension() or 0}
        passes = {name: options[name] for name in OF_THE_BATCH if name in options}
        return losses.MatryoshkaLoss(model, {d: build_loss(word, model, **options) for d in lengths}, **passes)
    weights = terms_of(word)
    if weights is None:
        return _class_of(str(word))(model, **LOSSES[str(word)].fixed, **options)
    from bixse import losses

    shared, sections = _split_options(weights, options)
    terms = {term: build_loss(term, model, **section) for term, section in sections.items()}
    return losses.SumLoss(model, terms, weights, **shared)


def terms_of(word: str | Mapping[str, float]) -> Mapping[str, float] | None:
    """Return name -> weight of the terms of a sum, or None for a single loss.

    Example:
        >>> terms_of("cadet")
        {'distill-kl': 1.0, 'infonce': 0.1}
    """
    if not isinstance(word, str):
        return word
    weights: Mapping[str, float] | None = LOSSES[word].fixed.get("weights") if word in LOSSES else None
    return weights


def loss_name(word: str | Mapping[str, float]) -> str:
    """Return the words of the command line for a loss or a sum.

    Example:
        >>> loss_name({"bixse": 1.0, "anchor": 0.1})
        'bixse=1 anchor=0.1'
    """
    return word if isinstance(word, str) else " ".join(f"{name}={weight:g}" for name, weight in word.items())


def _split_options(terms: Mapping[str, float], options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of all terms of a sum, and the options of each term: those of all, and its section."""
    shared = {name: value for name, value in options.items() if name not in terms}
    # a section without a line is null in YAML
    sections = {term: {} if options.get(term) is None else options[term] for term in terms}
    for term, section in sections.items():
        if not isinstance(section, dict) or section.keys() & OF_THE_BATCH:
            raise ConfigError(
                f"loss_options.{term}: got {section}; expected options of this term alone; fix: write them as "
                f"`{term}: {{OPTION: VALUE}}`, and options of the batch ({', '.join(OF_THE_BATCH)}) next to it"
            )
    return shared, {term: {**shared, **section} for term, section in sections.items()}


def check_loss_options(word: str | Mapping[str, float], options: Mapping[str, Any]) -> None:
    """Refuse an unknown loss or invalid options, before any model is loaded."""
    if (weights := terms_of(word)) is not None:
        shared, sections = _split_options(weights, options)
        LossOptions.load(None, shared)
        for term, section in sections.items():
            check_loss_options(term, section)
        return
    word = str(word)
    if word not in LOSSES:
        raise ConfigError(f"loss: got {word!r}; expected one of {', '.join(LOSSES)}; fix: {did_you_mean(word, LOSSES)}")
    fixed = LOSSES[word].fixed
    for name in fixed.keys() & options.keys():
        raise ConfigError(
            f"loss_options: got {name!r}; expected none, since loss {word!r} sets it to {fixed[name]!r}; fix: drop it, "
            "or choose another loss"
        )
    _class_of(word).options_class.load(None, {**fixed, **options})


def _class_of(word: str) -> type[GradedLoss]:
    from bixse import losses

    kind: type[GradedLoss] = getattr(losses, LOSSES[word].name)
    return kind
