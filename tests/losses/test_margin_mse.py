from __future__ import annotations

import itertools

import pytest

from bixse.errors import InputError
from bixse.losses.margin_mse import MarginMSELoss


def naive_margin_mse(batch, scale, margin, in_batch_negatives):
    terms = []
    known = batch.known_entries()
    for i, (row, relevance) in enumerate(zip(batch.scores(scale), batch.relevance(), strict=True)):
        for j, k in itertools.combinations(range(len(row)), 2):
            graded = ((i, j) in known) + ((i, k) in known)
            if (
                relevance[j] != relevance[j]
                or relevance[k] != relevance[k]
                or graded < (1 if in_batch_negatives else 2)
            ):
                continue
            terms.append(((row[j] - row[k]) - scale * margin * (relevance[j] - relevance[k])) ** 2)
    return sum(terms) / len(terms)


@pytest.mark.parametrize("in_batch_negatives", [False, True])
@pytest.mark.parametrize("margin", [1.0, 0.4])
@pytest.mark.parametrize("seed", [0, 1])
def test_equals_python_loops(tiny_model, random_batch, same_as_naive, in_batch_negatives, margin, seed):
    batch = random_batch(6, 9, known=0.4, seed=seed)
    loss = MarginMSELoss(tiny_model, scale=3.0, margin=margin, in_batch_negatives=in_batch_negatives)
    same_as_naive(loss, batch, naive_margin_mse(batch, 3.0, margin, in_batch_negatives))


@pytest.mark.parametrize("margin", [0.0, -1.0, 2.1, float("nan")])
def test_a_margin_outside_its_range(tiny_model, margin):
    with pytest.raises(InputError, match="margin"):
        MarginMSELoss(tiny_model, margin=margin)


def test_a_query_needs_two_graded_documents(tiny_model):
    loss = MarginMSELoss(tiny_model)
    assert loss.requires == "two graded documents"
    assert loss.is_informative([0.0, 0.0])
    assert not loss.is_informative([1.0])
    assert MarginMSELoss(tiny_model, in_batch_negatives=True).is_informative([0.0])
