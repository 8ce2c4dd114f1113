"""Options that every loss takes, and their defaults."""

from __future__ import annotations

from typing import Literal, TypedDict

DEFAULT_SCALE = 10.0
"""Logit scale alpha: 1 / temperature. The paper's is 20; 10 was better on dev for every loss (docs/search)."""

InBatchLabels = Literal["known", "paper"]
"""What stands in the entries of other queries' documents: every known grade, or 0 as in the paper."""


class LossOptions(TypedDict, total=False):
    """Options of `GradedLoss`, which every loss takes as keywords."""

    in_batch_labels: InBatchLabels
    """"known" uses every grade the batch knows, "paper" only a row's own documents (all else 0)."""
    mini_batch_size: int
    """Texts of one pass through the encoder, at least 1."""
    gradient_cache: bool
    """Hold the activations of one pass at a time and compute them again in the backward pass."""
