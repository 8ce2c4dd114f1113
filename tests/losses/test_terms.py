"""The losses over rows against Python loops over their formulas, in float64; autograd gives the loops' gradients."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from bixse.losses import DistillKLLoss, InfoNCELoss, LambdaLoss, MarginMSELoss, PairwiseBCELoss, SoftInfoNCELoss

MODEL = nn.Identity()


def naive_infonce(batch, scale, positive_from=0.5, margin=math.inf):
    terms = []
    for row, z in zip(batch.scores(scale), batch.relevance(), strict=True):
        for s, x in zip(row, z, strict=True):
            if x >= positive_from:
                negatives = [n for n, y in zip(row, z, strict=True) if y < positive_from and n <= s + scale * margin]
                terms.append(-torch.log(s.exp() / (s.exp() + sum(n.exp() for n in negatives))))
    return sum(terms) / len(terms)


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


def naive_margin_mse(batch, scale, margin):
    terms = []
    known = batch.known_entries()
    for i, (row, z) in enumerate(zip(batch.scores(scale), batch.relevance(), strict=True)):
        for j, k in itertools.combinations(range(len(row)), 2):
            if not math.isnan(z[j] + z[k]) and {(i, j), (i, k)} <= known.keys():
                terms.append(((row[j] - row[k]) - scale * margin * (z[j] - z[k])) ** 2)
    return sum(terms) / len(terms)


def naive_distill_kl(batch, scale, temperature):
    total, queries = torch.zeros((), dtype=torch.float64), 0
    for row, z, slate in slates(batch, scale, graded_alone=True):
        if len(slate) < 2:
            continue
        queries += 1
        wanted = [math.exp(z[j] / temperature) for j in slate]
        partition = sum(row[j].exp() for j in slate)
        for weight, j in zip(wanted, slate, strict=True):
            p = weight / sum(wanted)
            total = total + p * (math.log(p) - torch.log(row[j].exp() / partition))
    return total / queries


def slates(batch, scale, graded_alone=False):
    """Scores and relevance of each query with the documents that take part."""
    known = batch.known_entries()
    for i, (row, z) in enumerate(zip(batch.scores(scale), batch.relevance(), strict=True)):
        yield row, z, [j for j in range(len(row)) if z[j] == z[j] and (not graded_alone or (i, j) in known)]


def naive_pairwise(batch, scale):
    terms = []
    for row, z, slate in slates(batch, scale):
        terms += [-torch.log(torch.sigmoid(row[j] - row[k])) for j in slate for k in slate if z[j] > z[k]]
    return sum(terms) / len(terms)


def naive_lambda(batch, scale, weighting, top_grade=3.0):
    """Wang et al. 2018 as written: ranks by sorting, one pair at a time."""
    total, queries = torch.zeros((), dtype=torch.float64), 0

    def discount(rank):
        return math.log2(1 + rank)

    def gain_of(z):
        return 2 ** (z * top_grade) - 1

    for row, z, slate in slates(batch, scale):
        if not any(z[j] > 0 for j in slate):
            continue
        queries += 1
        order = sorted(slate, key=lambda j, row=row: (-row[j].item(), j))
        rank = {j: place for place, j in enumerate(order, start=1)}
        best = sorted((gain_of(z[j]) for j in slate), reverse=True)
        largest = sum(g / discount(place) for place, g in enumerate(best, start=1))
        g = {j: gain_of(z[j]) / largest for j in slate}
        for j, other in itertools.permutations(slate, 2):
            if weighting == "ndcg-loss1":
                weight = g[j] / discount(rank[j])
            elif z[j] > z[other]:
                apart = abs(rank[j] - rank[other])
                second = abs(1 / discount(apart) - 1 / discount(apart + 1))
                first = abs(1 / discount(rank[j]) - 1 / discount(rank[other]))
                share = {"ndcg-loss2": second, "lambdarank": first, "ndcg-loss2++": first + 10 * second}[weighting]
                weight = share * abs(g[j] - g[other])
            else:
                continue
            total = total + weight * torch.log2(1 + torch.exp(-(row[j] - row[other])))
    return total / max(1, queries)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("positive_from", [0.2, 0.5, 0.9])
def test_infonce(random_batch, same_as_naive, positive_from, seed):
    batch = random_batch(6, 11, known=0.4, seed=seed)
    same_as_naive(
        InfoNCELoss(MODEL, scale=7.0, positive_from=positive_from), batch, naive_infonce(batch, 7.0, positive_from)
    )


@pytest.mark.parametrize("margin", [0.0, 0.1, 0.6, 2.0])
@pytest.mark.parametrize("positive_from", [0.2, 0.8])
def test_infonce_without_likely_false_negatives(random_batch, same_as_naive, positive_from, margin):
    batch = random_batch(6, 11, known=0.4, seed=2)
    expected = naive_infonce(batch, 7.0, positive_from, margin)
    same_as_naive(
        InfoNCELoss(MODEL, scale=7.0, positive_from=positive_from, false_negative_margin=margin), batch, expected
    )


def test_a_margin_of_2_leaves_out_nothing_and_one_of_0_something(random_batch):
    batch = random_batch(6, 11, known=0.4, seed=2)

    def value(**options):
        loss = InfoNCELoss(MODEL, scale=7.0, **options)
        return loss.compute_loss_from_embeddings(batch.queries, batch.documents, batch.targets).item()

    assert value() == pytest.approx(value(false_negative_margin=2.0), rel=1e-12)
    assert value(false_negative_margin=0.0) < 0.9 * value()


@pytest.mark.parametrize("kind", [InfoNCELoss, SoftInfoNCELoss])
def test_the_softmax_losses_are_cross_entropy_with_one_positive_a_query(random_batch, same_as_naive, kind):
    batch = random_batch(5, 8, known=0.0).with_entries([(i, i, 1.0) for i in range(5)])
    expected = cross_entropy(20.0 * batch.queries @ batch.documents.T, torch.arange(5))
    same_as_naive(kind(MODEL, scale=20.0), batch, expected)


@pytest.mark.parametrize(
    "entries", [[(0, 0, 1.0), (0, 1, 0.8), (1, 0, 0.9), (1, 1, 0.7)], [(0, 0, math.nan), (1, 0, 0.9)]]
)
def test_rows_without_a_negative_or_without_a_positive_give_finite_gradients(random_batch, entries):
    batch = random_batch(2, 2, known=0.0).with_entries(entries)
    value = InfoNCELoss(MODEL).compute_loss_from_embeddings(batch.queries, batch.documents, batch.targets)
    assert value.isfinite()
    assert all(
        bool(gradient.isfinite().all()) for gradient in torch.autograd.grad(value, (batch.queries, batch.documents))
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_soft_infonce(random_batch, same_as_naive, seed):
    batch = random_batch(6, 11, known=0.4, seed=seed)
    same_as_naive(SoftInfoNCELoss(MODEL, scale=7.0), batch, naive_soft_infonce(batch, 7.0))


def test_soft_infonce_leaves_out_a_row_without_a_relevant_document(random_batch, same_as_naive):
    batch = random_batch(4, 5, known=0.0).with_entries([(0, 1, 0.5), (1, 2, 0.0), (3, 0, 0.2), (3, 4, 0.9)])
    same_as_naive(SoftInfoNCELoss(MODEL, scale=7.0), batch, naive_soft_infonce(batch, 7.0))


@pytest.mark.parametrize("margin", [1.0, 0.4])
def test_margin_mse(random_batch, same_as_naive, margin):
    batch = random_batch(6, 9, known=0.4)
    same_as_naive(MarginMSELoss(MODEL, scale=3.0, margin=margin), batch, naive_margin_mse(batch, 3.0, margin))


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_distill_kl(random_batch, same_as_naive, temperature):
    batch = random_batch(6, 9, known=0.4)
    expected = naive_distill_kl(batch, 3.0, temperature)
    same_as_naive(DistillKLLoss(MODEL, scale=3.0, temperature=temperature), batch, expected)


@pytest.mark.parametrize("seed", [0, 1])
def test_pairwise_bce(random_batch, same_as_naive, seed):
    batch = random_batch(6, 9, known=0.5, seed=seed)
    same_as_naive(PairwiseBCELoss(MODEL, scale=3.0), batch, naive_pairwise(batch, 3.0))


def test_equal_relevance_makes_no_pair(random_batch):
    batch = random_batch(1, 2, known=0.0).with_entries([(0, 0, 0.5), (0, 1, 0.5)])
    assert PairwiseBCELoss(MODEL).compute_loss_from_embeddings(batch.queries, batch.documents, batch.targets) == 0


@pytest.mark.parametrize("weighting", ["ndcg-loss1", "ndcg-loss2", "lambdarank", "ndcg-loss2++"])
@pytest.mark.parametrize(
    "options",
    [{}, {"top_grade": 1.0}],
    ids=str,
)
def test_lambda_loss(random_batch, same_as_naive, weighting, options):
    batch = random_batch(6, 9, known=0.5)
    loss = LambdaLoss(MODEL, scale=3.0, weighting=weighting, **options)
    same_as_naive(loss, batch, naive_lambda(batch, 3.0, weighting, **options))


def test_equal_scores_rank_in_the_order_of_the_columns(random_batch, same_as_naive):
    batch = random_batch(3, 6, known=0.6)
    batch = batch.with_documents(batch.documents.detach()[:1].expand(6, -1).clone().requires_grad_())
    same_as_naive(LambdaLoss(MODEL, scale=3.0), batch, naive_lambda(batch, 3.0, "ndcg-loss2"))
