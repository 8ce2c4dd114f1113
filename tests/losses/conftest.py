from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from bixse.losses.targets import GradedTargets


@dataclass
class Batch:
    """Float64 leaves and the targets of one batch."""

    queries: Tensor
    documents: Tensor
    scale: Tensor
    bias: Tensor
    targets: GradedTargets

    @property
    def leaves(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.queries, self.documents, self.scale, self.bias

    def scores(self, scale: float) -> list[list[Tensor]]:
        """Scalars of the autograd graph: scale times the cosine of each entry."""
        return [list(row) for row in scale * (self.queries @ self.documents.T)]

    def known_entries(self) -> dict[tuple[int, int], float]:
        """(row, column) -> relevance, NaN where masked."""
        rows, columns, relevance = (
            part.tolist() for part in (self.targets.rows, self.targets.columns, self.targets.relevance)
        )
        return dict(zip(zip(rows, columns, strict=True), relevance, strict=True))

    def relevance(self) -> list[list[float]]:
        """Every entry as a Python number: 0 where nothing is known, NaN where masked."""
        known = self.known_entries()
        return [[known.get((i, j), 0.0) for j in range(len(self.documents))] for i in range(len(self.queries))]

    def with_entries(self, entries: list[tuple[int, int, float]]) -> Batch:
        """The same embeddings with these entries known and no others."""
        table = torch.tensor(entries, dtype=torch.float64).reshape(-1, 3)
        targets = GradedTargets.from_entries(*table.T, self.targets.shape)
        return Batch(self.queries, self.documents, self.scale, self.bias, targets)

    def with_documents(self, documents: Tensor) -> Batch:
        """The same targets over other documents."""
        return Batch(self.queries, documents, self.scale, self.bias, self.targets)

    def as_type(self, dtype: torch.dtype) -> Batch:
        return Batch(*(x.detach().to(dtype).requires_grad_() for x in self.leaves), self.targets)


def make_batch(
    rows: int, columns: int, dim: int = 5, known: float = 0.3, masked: float = 0.1, scale=3.0, bias=-0.7, seed=0
) -> Batch:
    """Random unit vectors; a `known` share of the entries is graded, `masked` of these are NaN."""
    generator = torch.Generator().manual_seed(seed)

    def unit(number: int) -> Tensor:
        vectors = torch.randn(number, dim, generator=generator, dtype=torch.float64)
        return torch.nn.functional.normalize(vectors, dim=1).requires_grad_()

    entries = torch.rand(rows, columns, generator=generator) < known
    row, column = entries.nonzero(as_tuple=True)
    relevance = torch.rand(len(row), generator=generator, dtype=torch.float64)
    relevance[torch.rand(len(row), generator=generator) < masked] = math.nan
    table = torch.stack([row.double(), column.double(), relevance], dim=1)
    table = table[torch.randperm(len(table), generator=generator)]
    leaf = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (scale, bias)]
    return Batch(unit(rows), unit(columns), *leaf, GradedTargets.from_entries(*table.T, (rows, columns)))


@pytest.fixture
def random_batch():
    return make_batch


def naive_bce(batch: Batch, reduction: str = "query") -> tuple[float, list[Tensor]]:
    """Loss and its four gradients by two Python loops, entry by entry, from the formula alone."""
    q, d = batch.queries.detach(), batch.documents.detach()
    alpha, beta = batch.scale.item(), batch.bias.item()
    known = {
        (int(i), int(j)): float(z)
        for i, j, z in zip(batch.targets.rows, batch.targets.columns, batch.targets.relevance, strict=True)
    }
    loss, entries, d_alpha, d_beta = 0.0, 0, 0.0, 0.0
    d_q, d_d = torch.zeros_like(q), torch.zeros_like(d)
    for i in range(len(q)):
        for j in range(len(d)):
            z = known.get((i, j), 0.0)
            if math.isnan(z):
                continue
            cosine = math.fsum(x * y for x, y in zip(q[i].tolist(), d[j].tolist(), strict=True))
            s = alpha * cosine + beta
            p = 1 / (1 + math.exp(-s)) if s >= 0 else math.exp(s) / (1 + math.exp(s))
            loss += max(s, 0.0) + math.log1p(math.exp(-abs(s))) - z * s
            d_q[i] += (p - z) * alpha * d[j]
            d_d[j] += (p - z) * alpha * q[i]
            d_alpha += (p - z) * cosine
            d_beta += p - z
            entries += 1
    count = len(q) if reduction == "query" else entries
    d_scale, d_bias = torch.tensor([d_alpha / count, d_beta / count], dtype=torch.float64)
    return loss / count, [d_q / count, d_d / count, d_scale, d_bias]


@pytest.fixture
def naive():
    return naive_bce


@pytest.fixture
def same_as_naive():
    """Value and both gradients of a loss equal those of a scalar computed by loops in float64."""

    def check(loss, batch, expected):
        leaves = (batch.queries, batch.documents)
        value = loss.compute_loss_from_embeddings(*leaves, batch.targets)
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)
        for own, other in zip(
            torch.autograd.grad(value, leaves), torch.autograd.grad(expected, leaves, allow_unused=True), strict=True
        ):
            torch.testing.assert_close(own, torch.zeros_like(own) if other is None else other, rtol=1e-8, atol=1e-12)
        assert value > 0

    return check
