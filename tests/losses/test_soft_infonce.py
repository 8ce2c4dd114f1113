from __future__ import annotations

import pytest
import torch

from bixse.losses.infonce import InfoNCELoss
from bixse.losses.soft_infonce import SoftInfoNCELoss


def naive_soft_infonce(batch, scale):
    losses = []
    for row, relevance in zip(batch.scores(scale), batch.relevance(), strict=True):
        counted = [(z, s) for z, s in zip(relevance, row, strict=True) if z == z]
        total = sum(z for z, _ in counted)
        if total == 0:
            continue
        partition = sum(s.exp() for _, s in counted)
        losses.append(-sum(z / total * torch.log(s.exp() / partition) for z, s in counted))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_equals_two_python_loops(tiny_model, random_batch, same_as_naive, seed):
    batch = random_batch(6, 11, known=0.4, seed=seed)
    same_as_naive(SoftInfoNCELoss(tiny_model, scale=7.0), batch, naive_soft_infonce(batch, 7.0))


def test_a_row_without_a_relevant_document_is_left_out(tiny_model, random_batch, same_as_naive):
    batch = random_batch(4, 5, known=0.0).with_entries([(0, 1, 0.5), (1, 2, 0.0), (3, 0, 0.2), (3, 4, 0.9)])
    same_as_naive(SoftInfoNCELoss(tiny_model, scale=7.0), batch, naive_soft_infonce(batch, 7.0))


def test_equals_infonce_with_one_fully_relevant_document_a_query(tiny_model, random_batch):
    batch = random_batch(4, 5, known=0.0).with_entries([(i, i, 1.0) for i in range(4)])
    values = [
        loss(tiny_model).compute_loss_from_embeddings(batch.queries, batch.documents, batch.targets)
        for loss in (InfoNCELoss, SoftInfoNCELoss)
    ]
    torch.testing.assert_close(*values)
