"""The map that standardises the embeddings of a bare backbone: the mean is subtracted, deviations become 1."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import Tensor

Standardise: TypeAlias = Literal["mean", "mean-and-deviation"]
"""The statistics of a map: "mean" subtracts the mean, "mean-and-deviation" divides each dimension by its deviation."""
TEXTS_MEASURED = 1000
"""Training texts whose embeddings give the statistics."""
CONSTANT = 1e-6
"""Share of the largest deviation below which a dimension is constant up to rounding: it is not divided."""


@dataclass(frozen=True)
class Standardised:
    """Figures of the measured embeddings; the cosines are means over pairs of texts."""

    texts: int
    norm_of_mean: float
    cosine_before: float
    cosine_after: float

    def line(self) -> str:
        return (
            f"standardised on {self.texts:,} training texts: norm of the mean {self.norm_of_mean:.3g}, "
            f"mean cosine {self.cosine_before:.3f} before, {self.cosine_after:.3f} after"
        )


def standardise(model: SentenceTransformer, vectors: Tensor, kind: Standardise) -> Standardised:
    """Append the map of (N, D) embeddings to the model that gave them, as a frozen `Dense` of sentence-transformers.

    A text's embedding v becomes (v - mean) / deviation. All cosines of an untrained decoder are near one another,
    which hides what is relevant; afterwards their mean is about 0.
    """
    import torch
    from sentence_transformers.sentence_transformer.modules import Dense

    mean, deviation = vectors.mean(0), vectors.std(0)
    if kind == "mean":
        deviation = torch.ones_like(mean)
    deviation[deviation <= CONSTANT * deviation.max()] = 1.0
    size = len(mean)
    # a complete matrix, though a diagonal one: servers read a Dense, and no module of theirs scales dimensions
    dense = Dense(size, size, True, torch.nn.Identity(), torch.diag(1 / deviation), -mean / deviation)
    after = dense.requires_grad_(False).linear(vectors)
    model.append(dense.to(model.dtype))
    return Standardised(len(vectors), float(mean.norm()), _mean_cosine(vectors), _mean_cosine(after))


def take_map(base: SentenceTransformer, tuned: SentenceTransformer) -> None:
    """Append the map of a tuned model to the bare backbone that it was trained from; without a map nothing changes."""
    from sentence_transformers.sentence_transformer.modules import Dense

    *_, last = tuned
    if len(tuned) != len(base) + 1 or not isinstance(last, Dense):
        return
    if last.linear.weight.count_nonzero() == len(last.linear.weight):  # diagonal, as `standardise` made it
        base.append(copy.deepcopy(last).to(device=base.device, dtype=base.dtype))


def _mean_cosine(vectors: Tensor) -> float:
    """Return the mean cosine of (N, D) vectors over pairs of two rows."""
    from torch.nn.functional import normalize

    number = len(vectors)
    total = float(normalize(vectors, dim=-1).sum(0).square().sum())  # |sum|^2 holds each pair twice, and N ones
    return (total - number) / (number * (number - 1))
