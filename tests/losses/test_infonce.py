from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from bixse.errors import InputError
from bixse.losses.infonce import InfoNCELoss


def naive_infonce(batch, scale, cutoff):
    """Two loops over the formula; autograd gives the gradients."""
    terms = []
    for row, z in zip(batch.scores(scale), batch.relevance(), strict=True):
        negatives = [s for s, x in zip(row, z, strict=True) if x < cutoff]
        terms += [
            -torch.log(s.exp() / (s.exp() + sum(n.exp() for n in negatives)))
            for s, x in zip(row, z, strict=True)
            if x >= cutoff
        ]
    return sum(terms) / len(terms)


@pytest.mark.parametrize("cutoff", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("seed", [0, 1])
def test_equals_two_python_loops(tiny_model, random_batch, same_as_naive, cutoff, seed):
    batch = random_batch(6, 11, known=0.4, seed=seed)
    same_as_naive(InfoNCELoss(tiny_model, scale=7.0, cutoff=cutoff), batch, naive_infonce(batch, 7.0, cutoff))


def test_equals_cross_entropy_with_one_positive_a_query(tiny_model, random_batch, same_as_naive):
    batch = random_batch(5, 8, known=0.0).with_entries([(i, i, 1.0) for i in range(5)])
    expected = cross_entropy(20.0 * batch.queries @ batch.documents.T, torch.arange(5))
    same_as_naive(InfoNCELoss(tiny_model, scale=20.0), batch, expected)


@pytest.mark.parametrize("cutoff", [0.0, -0.1, 1.01, math.nan])
def test_a_cutoff_outside_its_range(tiny_model, cutoff):
    with pytest.raises(InputError, match="cutoff"):
        InfoNCELoss(tiny_model, cutoff=cutoff)


@pytest.mark.parametrize(
    "entries", [[(0, 0, 1.0), (0, 1, 0.8), (1, 0, 0.9), (1, 1, 0.7)], [(0, 0, math.nan), (1, 0, 0.9)]]
)
def test_rows_without_a_negative_or_without_a_positive_give_finite_gradients(tiny_model, random_batch, entries):
    batch = random_batch(2, 2, known=0.0).with_entries(entries)
    value = InfoNCELoss(tiny_model).compute_loss_from_embeddings(batch.queries, batch.documents, batch.targets)
    gradients = torch.autograd.grad(value, (batch.queries, batch.documents))
    assert value.isfinite()
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


def test_known_positives_of_other_rows_are_no_negatives_unless_paper(tiny_model):
    features = [tiny_model.preprocess(column) for column in (["copy a file"] * 2, ["copy the file", "move the file"])]
    labels = torch.tensor([1.0, 1.0])
    assert InfoNCELoss(tiny_model, scale=20.0)(features, labels).item() == pytest.approx(0.0, abs=1e-6)
    assert InfoNCELoss(tiny_model, scale=20.0, in_batch_labels="paper")(features, labels).item() > 0.1


def test_autocast_keeps_the_logits_in_float32(tiny_model, random_batch, monkeypatch):
    batch = random_batch(4, 5).as_type(torch.float32)
    given = iter([batch.documents.detach(), batch.queries.detach()] * 2)
    monkeypatch.setattr("bixse.losses.base.embed_features", lambda *_: next(given))
    features = [tiny_model.preprocess(["a"] * n) for n in (4, 5)]
    values = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            values.append(InfoNCELoss(tiny_model, cutoff=0.1)(features, batch.targets.tensors()).item())
    assert values[0] == values[1] > 0


def test_a_query_needs_a_positive(tiny_model):
    loss = InfoNCELoss(tiny_model, cutoff=0.6)
    assert loss.is_informative([0.0, 0.6])
    assert not loss.is_informative([0.59, 0.0])
    assert not loss.is_informative([])
    assert loss.requires == "a document with relevance of at least 0.6"
