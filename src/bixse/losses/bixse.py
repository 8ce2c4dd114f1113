"""The BiXSE loss: binary cross-entropy of graded relevance over every entry of the batch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from bixse.encoders.head import RelevanceHead
from bixse.encoders.processes import all_reduce_sum, world_size
from bixse.losses.base import GradedLoss
from bixse.losses.catalogue import LossOptions
from bixse.losses.tiles.bce import Reduction, graded_bce
from bixse.losses.tiles.products import mean_logits, mean_of_all, mean_target

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.losses.targets import GradedTargets

LARGEST_BIAS = 100.0
"""Search range of "fit": the start lies in [-100, 100] (a scale above 100 may need more: give a number then)."""


class BiXSEOptions(LossOptions):
    """Options of `BiXSELoss`."""

    bias: float | Literal["fit", "prior"] = "fit"
    """Start of the logit bias beta: "fit" makes the mean predicted relevance of the first training batch equal its mean
    target; "prior" is the log-odds of the mean target; or a number."""
    learn_scale: bool = False
    """Learn the scale alpha too."""
    learn_bias: bool = True
    """Learn the bias beta; False keeps its start (with `bias=0.0`: the paper's ablation without bias)."""
    bias_lr_multiplier: float = Field(default=100.0, ge=0)
    """Learning rate of the bias, as a multiple of the rate of the encoder. 0 keeps its start."""
    reduction: Reduction = "query"
    """"query" divides by B (the paper's sum), "mean" by the number of entries."""
    positive_from: float | None = Field(default=None, gt=0, le=1)
    """Lowest relevance that counts as 1; all below counts as 0 (the paper's ablation). None keeps the grades."""

    renamed: ClassVar = LossOptions.renamed | dict.fromkeys(
        ("unlabelled", "unlabelled_weight"), "leave it out; instead, merging with the base model keeps what it knew"
    )


class BiXSELoss(GradedLoss):
    """Pointwise sigmoid loss against graded relevance, every other document of the batch a negative.

    L = -(1/B) sum_ij [ z_ij log sigma(s_ij) + (1 - z_ij) log sigma(-s_ij) ], s_ij = alpha cos(q_i, d_j) + beta (BiXSE
    paper, equation 2). z_ij of an unlabelled entry is 0. alpha is the logit scale, fixed unless `learn_scale`; beta is
    the logit bias. Every trainer moves it at `bias_lr_multiplier` times the encoder's rate, because the parameter is
    `scaled_bias`, beta divided by this number. The loss is computed tile by tile: the B x N matrix is never kept.
    `BiXSEOptions` lists the keywords.

    Example:
        With sentence-transformers' own trainer::

            from datasets import Dataset
            from sentence_transformers import SentenceTransformerTrainer
            from bixse import build_encoder
            from bixse.losses import BiXSELoss

            model = build_encoder("demo")  # or SentenceTransformer("a name or a folder")
            columns = {
                "query": ["copy a file", "sort a list"],
                "document": ["shutil.copy: copy a file", "sorted: a new sorted list"],
                "label": [1.0, 0.7],
            }
            dataset = Dataset.from_dict(columns)
            trainer = SentenceTransformerTrainer(model, train_dataset=dataset, loss=BiXSELoss(model))
            trainer.train()
    """

    options_class = BiXSEOptions
    options: BiXSEOptions
    learned_otherwise = "only what is irrelevant"

    def __init__(self, model: SentenceTransformer, **options: Any) -> None:
        super().__init__(model, **options)
        bias = self.options.bias
        self.logit_scale = nn.Parameter(torch.tensor(self.options.scale), requires_grad=self.options.learn_scale)
        self.multiplier = self.options.bias_lr_multiplier if self.options.learn_bias else 0.0
        """Factor of the learning rate of beta."""
        self.scaled_bias = nn.Parameter(torch.zeros(()), requires_grad=self.multiplier > 0)
        """beta divided by `multiplier`; beta itself if it is not learned."""
        if self.multiplier > 0:
            self.scaled_bias.register_post_accumulate_grad_hook(_average_gradient)
        self.set_bias(0.0 if isinstance(bias, str) else bias)
        self.saved_multiplier: Tensor
        # with the bias, so that a loss with another multiplier reads the same beta
        self.register_buffer("saved_multiplier", torch.tensor(self.multiplier or 1.0))
        self.bias_is_set: Tensor
        # a buffer, so that a resumed run does not fit the bias again; each step reads the attribute, as reading the
        # buffer would make a GPU wait
        self.register_buffer("bias_is_set", torch.tensor(not isinstance(bias, str)))
        self.has_bias = not isinstance(bias, str)
        self.register_load_state_dict_post_hook(_read_bias_is_set)  # type: ignore[no-untyped-call]

    @property
    def logit_bias(self) -> Tensor:
        """beta, with the gradient 1 with respect to `scaled_bias`."""
        if not self.multiplier:
            return self.scaled_bias
        # with the gradient of k * b, SGD would move beta at k squared times the rate, and Adam's eps would count k
        # times less; with the gradient 1, every optimizer does as with a group of k times the rate
        return (self.multiplier * self.scaled_bias).detach() + (self.scaled_bias - self.scaled_bias.detach())

    def trained_head(self, prior: float | None = None) -> RelevanceHead:
        """Return scale and bias as a head; `prior` counts only between 0 and 1."""
        known = prior if prior is not None and 0 < prior < 1 else None
        return RelevanceHead(self.logit_scale.item(), self.logit_bias.item(), trained_prior=known, prior=known)

    @torch.no_grad()
    def set_bias(self, beta: float) -> None:
        """Set beta, outside of training."""
        self.scaled_bias.fill_(beta / (self.multiplier or 1.0))

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        exact = self.scaled_bias.detach().clone()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.scaled_bias.dtype != exact.dtype:  # in half precision a step would be rounded away
            self.scaled_bias.data = exact.to(self.scaled_bias.device)
        return self

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *args: Any) -> None:
        if f"{prefix}logit_bias" in state:  # saved when beta itself was the parameter
            state[f"{prefix}scaled_bias"] = state.pop(f"{prefix}logit_bias") / (self.multiplier or 1.0)
        elif f"{prefix}saved_multiplier" in state:
            ratio = state[f"{prefix}saved_multiplier"].to(self.saved_multiplier) / self.saved_multiplier
            state[f"{prefix}scaled_bias"] = state[f"{prefix}scaled_bias"].to(ratio.device) * ratio
        state[f"{prefix}saved_multiplier"] = self.saved_multiplier
        super()._load_from_state_dict(state, prefix, *args)

    def compute_loss_from_embeddings(self, queries: Tensor, documents: Tensor, targets: GradedTargets) -> Tensor:
        """Return the loss; the first call sets the bias."""
        targets.check_fits("loss", queries, documents)
        if self.options.positive_from is not None:
            targets = targets.binarised(self.options.positive_from)
        bias = self.logit_bias
        if not self.has_bias:
            self.start_bias(queries, documents, targets)
            if self.options.bias == "fit":
                # a fitted bias has gradient 0 except for rounding, which Adam would turn into a full step
                bias = self.logit_bias.detach() + 0.0 * self.scaled_bias
        self._note(targets, mean_logits(queries, documents, targets, self.logit_scale, self.logit_bias))
        reduction, products = self.options.reduction, self.options.products
        return graded_bce(queries, documents, targets, self.logit_scale, bias, reduction, products=products)

    @torch.no_grad()
    def _note(self, targets: GradedTargets, means: tuple[Tensor, Tensor]) -> None:
        """Keep the figures of the batch for the log, and the divisor of its sum."""
        self.statistics = {
            "logit_bias": self.logit_bias.detach().clone(),
            "cosine_at_half": (-self.logit_bias / self.logit_scale).detach(),
            "logit_scale": self.logit_scale.detach().clone(),
            "mean_logit_relevant": means[0],
            "mean_logit_irrelevant": means[1],
            "mean_target": mean_target(targets),
        }
        self.denominator = means[0].new_full((), targets.shape[0], dtype=torch.float32)
        if self.options.reduction == "mean":
            self.denominator = targets.number_counted().float()

    @torch.no_grad()
    def start_bias(self, queries: Tensor, documents: Tensor, targets: GradedTargets) -> None:
        """Set the logit bias by the option `bias` from one batch's (B, D) and (N, D) embeddings."""
        cosines, relevance, weight = targets.sample(queries, documents)
        if self.options.bias == "fit":
            start = fit_bias(cosines, relevance, weight, float(self.logit_scale))
        else:
            start = prior_bias(relevance, weight)
        self.set_bias(start)
        self.bias_is_set.fill_(True)
        self.has_bias = True


def _read_bias_is_set(loss: BiXSELoss, _: object) -> None:
    loss.has_bias = bool(loss.bias_is_set)


def _average_gradient(parameter: nn.Parameter) -> None:
    """Average the gradient over all processes; DistributedDataParallel does so for the encoder alone."""
    if world_size() > 1 and parameter.grad is not None:
        parameter.grad = all_reduce_sum(parameter.grad) / world_size()


def fit_bias(cosines: Tensor, relevance: Tensor, weight: Tensor, scale: float) -> float:
    """Return the bias at which the mean of sigma(scale * cosine + bias) equals the mean relevance, by bisection.

    All tensors are (B, N); weight is 1 for entries that count, 0 for masked entries. Each process passes its own rows,
    and the means are over all processes. The result is within [-100, 100].
    """
    logits = scale * _exact(cosines[weight.bool()])
    wanted = _mean_relevance(relevance, weight)
    low, high = -LARGEST_BIAS, LARGEST_BIAS
    for _ in range(60):  # 200 / 2**60 is below the rounding of float64
        middle = (low + high) / 2
        if mean_of_all(torch.sigmoid(logits + middle)) < wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def prior_bias(relevance: Tensor, weight: Tensor) -> float:
    """Return the log-odds of the mean relevance; this ignores that cosines are not centred at 0."""
    mean = _mean_relevance(relevance, weight)
    return math.log(mean / (1 - mean))


def _mean_relevance(relevance: Tensor, weight: Tensor) -> float:
    """Return the mean over the entries that count, within [1e-6, 1 - 1e-6]; 0.5 if none counts."""
    return min(max(mean_of_all(_exact(relevance[weight.bool()])), 1e-6), 1 - 1e-6)


def _exact(values: Tensor) -> Tensor:
    return values.detach().to(torch.float32 if values.device.type == "mps" else torch.float64)  # MPS has no float64
