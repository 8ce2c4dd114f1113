"""The catalogue of losses: the name in a config or on the command line, and its class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from pydantic import ConfigDict, Field

from bixse.encoders.loading.precision import Setting
from bixse.errors import ConfigError, did_you_mean
from bixse.settings import Settings

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.losses import GradedLoss


InBatchLabels = Literal["known", "paper"]
"""Targets of other queries' documents: every known grade, or 0 as in the paper."""


class LossOptions(Settings):
    """The keyword options of a loss: `BiXSELoss(model, scale=20.0)`, or `loss_options` of a configuration."""

    model_config = ConfigDict(strict=True)
    renamed: ClassVar = {"false_negative_margin": "leave it out; of all losses, infonce alone has such a margin"}

    scale: float = Field(default=10.0, gt=0)
    """Logit scale alpha: 1 / temperature. The paper has 20; 10 was better on dev for every loss."""
    in_batch_labels: InBatchLabels = "known"
    """Grades that become targets: "known" takes every grade of the batch, "paper" only those of a row's documents."""
    mini_batch_size: int | None = Field(default=None, ge=1)
    """Maximum number of texts per pass through the encoder; null: 32, or on a GPU as many as its memory holds."""
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


LOSSES: dict[str, LossEntry] = {
    "bixse": LossEntry("BiXSELoss"),
    "bixse-without-bias": LossEntry("BiXSELoss", {"bias": 0.0, "learn_bias": False}),
    "bixse-binarised": LossEntry("BiXSELoss", {"positive_from": 0.5}),
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
}


LOSSES_THAT_LEFT = ("anchor", "bixse-anchor", "bixse-base", "cadet", "spread-out", "wasserstein")


def build_loss(word: str, model: SentenceTransformer, dimensions: Sequence[int] = (), **options: Any) -> GradedLoss:
    """Build a loss on the encoder to train: the name of `LOSSES`, and the options of its class.

    With `dimensions` it is summed over these lengths and the complete embedding (`MatryoshkaLoss`).
    """
    check_loss_options(word, options)
    if dimensions:
        from bixse import losses

        shorter = {*dimensions} - {model.get_embedding_dimension()}
        return losses.MatryoshkaLoss(model, build_loss(word, model, **options), [*shorter])
    return _class_of(word)(model, **LOSSES[word].fixed, **options)


def instead_of(loss: object, known: Iterable[str]) -> str:
    """Return the fix for a loss that is not among the known names."""
    if isinstance(loss, str) and loss not in LOSSES_THAT_LEFT:
        return did_you_mean(loss, known)
    return (
        "name one loss, for example bixse; sums of losses, anchor, bixse-base, spread-out, cadet and wasserstein "
        "gained no more and left after 1.0.0rc1 (scripts in docs/studies/unlabelled train with some of them)"
    )


def check_loss_options(word: str, options: Mapping[str, Any]) -> None:
    """Refuse an unknown loss or invalid options, before any model is loaded."""
    if word not in LOSSES:
        raise ConfigError(f"loss: got {word!r}; expected one of {', '.join(LOSSES)}; fix: {instead_of(word, LOSSES)}")
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
