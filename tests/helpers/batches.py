"""Random batches of embeddings and targets in float64, and the BiXSE loss of one by loops over its formula."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import normalize

from bixse.losses.targets import GradedTargets
from bixse.losses.tiles.bce import graded_bce

QUICK = ("bixse", "infonce", "margin-mse", "lambdaloss-v2")
"""A loss of each shape of computation; what holds for them is slow for the others."""


@dataclass
class Batch:
    queries: torch.Tensor
    documents: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor
    targets: GradedTargets

    @property
    def leaves(self):
        return self.queries, self.documents, self.scale, self.bias

    def scores(self, scale):
        """Return scalars of the autograd graph: scale times the cosine of each entry."""
        return [list(row) for row in scale * (self.queries @ self.documents.T)]

    def known_entries(self):
        rows, columns, relevance = (part.tolist() for part in self.targets.tensors().values())
        return dict(zip(zip(rows, columns, strict=True), relevance, strict=True))

    def relevance(self):
        """Return each entry as a number: NaN if masked, 0 without a grade."""
        known, (rows, columns) = self.known_entries(), self.targets.shape
        return [[known.get((i, j), 0.0) for j in range(columns)] for i in range(rows)]

    def with_entries(self, entries):
        """Return the same embeddings with these entries known and no others."""
        table = torch.tensor(entries, dtype=torch.float64).reshape(-1, 3)
        return replace(self, targets=GradedTargets.from_entries(*table.T, self.targets.shape))

    def as_type(self, dtype):
        return Batch(*(x.detach().to(dtype).requires_grad_() for x in self.leaves), self.targets)

    def rounded_to_bf16(self):
        """Return the batch with embeddings that bf16 holds exactly."""
        rounded = (x.detach().bfloat16().double().requires_grad_() for x in (self.queries, self.documents))
        return Batch(*rounded, self.scale, self.bias, self.targets)


def padded_left(features):
    """Return the same tokens with the padding moved to the left."""
    mask = features["attention_mask"]
    order = torch.argsort(mask, dim=1, stable=True)
    return {
        name: value.gather(1, order) if isinstance(value, torch.Tensor) and value.shape == mask.shape else value
        for name, value in features.items()
    }


def unit_vectors(number, size, generator):
    return normalize(torch.randn(number, size, generator=generator, dtype=torch.float64), dim=1)


def random_batch(rows, columns, dim=5, known=0.3, masked=0.1, scale=3.0, bias=-0.7, seed=0):
    """Return random unit vectors; a `known` share of the entries is graded, `masked` of these are NaN."""
    generator = torch.Generator().manual_seed(seed)
    row, column = (torch.rand(rows, columns, generator=generator) < known).nonzero(as_tuple=True)
    relevance = torch.rand(len(row), generator=generator, dtype=torch.float64)
    relevance[torch.rand(len(row), generator=generator) < masked] = math.nan
    table = torch.stack([row.double(), column.double(), relevance])[:, torch.randperm(len(row), generator=generator)]
    leaves = [unit_vectors(rows, dim, generator), unit_vectors(columns, dim, generator)]
    leaves += [torch.tensor(value, dtype=torch.float64) for value in (scale, bias)]
    return Batch(*(x.requires_grad_() for x in leaves), GradedTargets.from_entries(*table, (rows, columns)))


def value_and_gradients(batch, **options):
    loss = graded_bce(*batch.leaves[:2], batch.targets, *batch.leaves[2:], **options)
    return [loss.detach(), *torch.autograd.grad(loss, batch.leaves)]


def naive_bce(batch, reduction="query"):
    """Return loss and gradients of the formula, entry by entry; autograd differentiates each term."""
    zero = torch.zeros((), dtype=torch.float64)
    terms = []
    for row, relevance in zip(batch.scores(batch.scale), batch.relevance(), strict=True):
        for score, z in zip(row, relevance, strict=True):
            if not math.isnan(z):
                logit = score + batch.bias
                terms.append(torch.logaddexp(logit, zero) - z * logit)
    loss = sum(terms) / (len(batch.queries) if reduction == "query" else len(terms))
    return [loss.detach(), *torch.autograd.grad(loss, batch.leaves)]


def assert_all_close(some, others, **tolerances):
    for left, right in zip(some, others, strict=True):
        torch.testing.assert_close(left.double(), right.double(), **tolerances)


def relative_errors(rounded, exact):
    return [float((a.double() - b.double()).norm() / b.double().norm()) for a, b in zip(rounded, exact, strict=True)]
