from __future__ import annotations

import pytest
import torch

from bixse.losses.pairwise_bce import PairwiseBCELoss


def naive_pairwise(batch, scale, in_batch_negatives):
    terms = []
    known = batch.known_entries()
    for i, (row, z) in enumerate(zip(batch.scores(scale), batch.relevance(), strict=True)):
        slate = [j for j in range(len(row)) if z[j] == z[j] and (in_batch_negatives or (i, j) in known)]
        terms += [-torch.log(torch.sigmoid(row[j] - row[k])) for j in slate for k in slate if z[j] > z[k]]
    return sum(terms) / len(terms)


@pytest.mark.parametrize("in_batch_negatives", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_equals_python_loops(tiny_model, random_batch, same_as_naive, in_batch_negatives, seed):
    batch = random_batch(6, 9, known=0.5, seed=seed)
    loss = PairwiseBCELoss(tiny_model, scale=3.0, in_batch_negatives=in_batch_negatives)
    same_as_naive(loss, batch, naive_pairwise(batch, 3.0, in_batch_negatives))


def test_equal_relevance_makes_no_pair(tiny_model, random_batch):
    batch = random_batch(1, 2, known=0.0).with_entries([(0, 0, 0.5), (0, 1, 0.5)])
    assert PairwiseBCELoss(tiny_model).compute_loss_from_embeddings(batch.queries, batch.documents, batch.targets) == 0


def test_what_a_query_needs(tiny_model):
    alone = PairwiseBCELoss(tiny_model, in_batch_negatives=False)
    assert alone.requires == "two documents of different relevance"
    assert [alone.is_informative(z) for z in ([1.0], [0.5, 0.5], [0.5, 0.0])] == [False, False, True]
    assert [PairwiseBCELoss(tiny_model).is_informative(z) for z in ([0.2], [0.0, 0.0])] == [True, False]
