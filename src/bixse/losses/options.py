"""The options that every loss takes; each loss adds its own in a subclass."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from bixse.encoders.loading.precision import Setting
from bixse.settings import Settings

InBatchLabels = Literal["known", "paper"]
"""What stands in the entries of other queries' documents: every known grade, or 0 as in the paper."""


class LossOptions(Settings):
    """What a loss is told by keyword: `BiXSELoss(model, scale=20.0)`, or `loss_options` of a configuration."""

    model_config = ConfigDict(strict=True)

    scale: float = Field(default=10.0, gt=0)
    """Logit scale alpha: 1 / temperature. The paper's is 20; 10 was better on dev for every loss (docs/search)."""
    in_batch_labels: InBatchLabels = "known"
    """"known" uses every grade the batch knows, "paper" only a row's own documents (all else 0)."""
    false_negative_margin: float | None = Field(default=None, ge=0, le=2)
    """Leave out entries without a grade whose cosine exceeds that of the query's best relevant document (z of 0.5 or
    more) by more than this, as likely relevant; null leaves out none. InfoNCE has a rule of its own, Qwen3's."""
    mini_batch_size: int = Field(default=32, ge=1)
    """Texts of one pass through the encoder."""
    gradient_cache: bool = False
    """Hold the activations of one pass at a time and compute them again in the backward pass (Gao et al. 2021,
    arXiv:2101.06983): a third more time, and the batch is bound by its embeddings alone. All gradients are the same."""
    products: Setting = "auto"
    """What the factors of the loss's three matrix products are rounded to; logits, sums and entries with a grade are
    float32 all the same. "auto": float32 on the processor, on a GPU the precision of the run."""
