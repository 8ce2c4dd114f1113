"""The BiXSE loss: binary cross-entropy of graded relevance over every entry of the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack

import torch
from torch import Tensor, nn

from bixse.errors import InputError
from bixse.losses.base import GradedLoss, check_scale
from bixse.losses.bias_start import BiasStart, check_bias_start, fit_bias, prior_bias
from bixse.losses.engines.batch_statistics import mean_logits, mean_target
from bixse.losses.engines.graded_bce import graded_bce
from bixse.losses.options import DEFAULT_SCALE, LossOptions

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from bixse.losses.targets import GradedTargets

ENTRIES_FOR_START = 2**22
"""Entries that `start_bias` looks at, at most: 16 MB of cosines."""


class BiXSELoss(GradedLoss):
    """Pointwise sigmoid loss against graded relevance, every other document of the batch a negative.

    L = -(1/B) sum_ij [ z_ij log sigma(s_ij) + (1 - z_ij) log sigma(-s_ij) ], s_ij = alpha cos(q_i, d_j) + beta
    (BiXSE paper, equation 2). alpha is the logit scale, fixed unless `learn_scale`; beta the logit bias, learned at
    a much higher rate than the encoder (`GradedTrainer` gives it one). Computed tile by tile: the B x N matrix is
    never kept.

    Args:
        model: the encoder that is trained.
        scale: logit scale alpha, above 0.
        bias: start of the logit bias beta: "fit" makes the mean predicted relevance of the first training batch
            equal its mean target; "prior" is the log-odds of the mean target; or a number.
        learn_scale: learn alpha too.
        learn_bias: False keeps beta at its start (with `bias=0.0`: the paper's ablation without bias).
        reduction: "query" divides by B (the paper's sum), "mean" by the number of entries.
        binarise_at: None keeps the grades; a number replaces z by 1[z >= number] (the paper's ablation).
        options: see `GradedLoss`.

    Raises:
        ModelError: the model embeds no texts, as a CrossEncoder.
        InputError: an argument is outside its range.

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

    learned_parameters: ClassVar[tuple[str, ...]] = ("logit_scale", "logit_bias", "bias_is_set")
    learned_otherwise: ClassVar[str] = "only what is irrelevant"

    def __init__(
        self,
        model: SentenceTransformer,
        scale: float = DEFAULT_SCALE,
        bias: BiasStart = "fit",
        learn_scale: bool = False,
        learn_bias: bool = True,
        reduction: Literal["query", "mean"] = "query",
        binarise_at: float | None = None,
        **options: Unpack[LossOptions],
    ) -> None:
        super().__init__(model, **options)
        if reduction not in ("query", "mean"):
            raise InputError(f"reduction: got {reduction!r}; expected 'query' or 'mean'; fix: choose one of them")
        if binarise_at is not None and not 0 < binarise_at <= 1:
            raise InputError(f"binarise_at: got {binarise_at}; expected a relevance in (0, 1]; fix: 0.5 is usual")
        self.bias: BiasStart = check_bias_start(bias)
        self.reduction: Literal["query", "mean"] = reduction
        self.binarise_at = binarise_at
        start = 0.0 if isinstance(bias, str) else float(bias)
        self.logit_scale = nn.Parameter(torch.tensor(float(check_scale(scale))), requires_grad=learn_scale)
        self.logit_bias = nn.Parameter(torch.tensor(start), requires_grad=learn_bias)
        self.bias_is_set: Tensor
        self.register_buffer("bias_is_set", torch.tensor(not isinstance(bias, str)))

    @property
    def positive_threshold(self) -> float | None:
        """The cutoff where relevance is binarised."""
        return self.binarise_at

    def compute_loss_from_embeddings(self, queries: Tensor, documents: Tensor, targets: GradedTargets) -> Tensor:
        """The loss of (B, D) queries and (N, D) documents, both normalised; sets the bias on the first call."""
        if self.binarise_at is not None:
            targets = targets.binarised(self.binarise_at)
        if not bool(self.bias_is_set):
            self.start_bias(queries, documents, targets)
        with torch.no_grad():
            relevant, irrelevant = mean_logits(queries, documents, targets, self.logit_scale, self.logit_bias)
            self.statistics = {
                "logit_bias": self.logit_bias.detach().clone(),
                "logit_scale": self.logit_scale.detach().clone(),
                "mean_logit_relevant": relevant,
                "mean_logit_irrelevant": irrelevant,
                "mean_target": mean_target(queries, documents, targets),
            }
        entries = len(queries) * len(documents) - int(targets.relevance.isnan().sum())
        self.denominator = queries.new_tensor(
            len(queries) if self.reduction == "query" else entries, dtype=torch.float32
        )
        return graded_bce(queries, documents, targets, self.logit_scale, self.logit_bias, self.reduction)

    @torch.no_grad()
    def start_bias(self, queries: Tensor, documents: Tensor, targets: GradedTargets) -> None:
        """Set the logit bias from one batch's (B, D) and (N, D) embeddings, as `bias` says.

        Of a batch of more than 4 million entries a sample of its queries, evenly spaced, is looked at.
        """
        stride = -(-len(queries) * len(documents) // ENTRIES_FOR_START)
        if stride > 1:
            queries, targets = queries[::stride], targets.every(stride)
        relevance, weight = targets.dense()
        if self.bias == "fit":
            start = fit_bias(queries.float() @ documents.float().T, relevance, weight, float(self.logit_scale))
        else:
            start = prior_bias(relevance, weight)
        self.logit_bias.fill_(start)
        self.bias_is_set.fill_(True)

    def get_config_dict(self) -> dict[str, Any]:
        """Settings for the model card."""
        return {
            **super().get_config_dict(),
            "scale": float(self.logit_scale),
            "bias": self.bias,
            "learn_scale": self.logit_scale.requires_grad,
            "learn_bias": self.logit_bias.requires_grad,
            "reduction": self.reduction,
            "binarise_at": self.binarise_at,
        }
