from __future__ import annotations

import math

import pytest
import torch

from bixse.errors import InputError
from bixse.losses.lambda_loss import WEIGHTINGS, LambdaLoss


def naive_lambda(batch, scale, weighting, gain="exponential", top=3.0, mu=10.0, k=None, in_batch_negatives=True):
    """Wang et al. 2018 as written: ranks by sorting, one pair at a time."""
    total, queries = torch.zeros((), dtype=torch.float64), 0
    known = batch.known_entries()

    def discount(rank):
        return math.log2(1 + rank)

    def gain_of(z):
        return 2 ** (z * top) - 1 if gain == "exponential" else z * top

    for i, (row, z) in enumerate(zip(batch.scores(scale), batch.relevance(), strict=True)):
        slate = [j for j in range(len(row)) if z[j] == z[j] and (in_batch_negatives or (i, j) in known)]
        if not any(z[j] > 0 for j in slate):
            continue
        queries += 1
        order = sorted(slate, key=lambda j: (-row[j].item(), j))
        rank = {j: place for place, j in enumerate(order, start=1)}
        best = sorted((gain_of(z[j]) for j in slate), reverse=True)[:k]
        largest = sum(g / discount(place) for place, g in enumerate(best, start=1))
        g = {j: gain_of(z[j]) / largest for j in slate}
        for j in slate:
            for other in slate:
                if j == other or (k is not None and rank[j] > k and rank[other] > k):
                    continue
                if weighting == "ndcg-loss1":
                    weight = g[j] / discount(rank[j])
                elif z[j] > z[other]:
                    apart = abs(rank[j] - rank[other])
                    second = abs(1 / discount(apart) - 1 / discount(apart + 1))
                    first = abs(1 / discount(rank[j]) - 1 / discount(rank[other]))
                    share = {"ndcg-loss2": second, "lambdarank": first, "ndcg-loss2++": first + mu * second}[weighting]
                    weight = share * abs(g[j] - g[other])
                else:
                    continue
                total = total + weight * torch.log2(1 + torch.exp(-(row[j] - row[other])))
    return total / max(1, queries)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gain": "linear"},
        {"top_grade": 1.0, "mu": 2.5},
        {"k": 3},
        {"in_batch_negatives": False},
        {"in_batch_negatives": False, "k": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", [0, 1])
def test_equals_python_loops(tiny_model, random_batch, same_as_naive, weighting, options, seed):
    batch = random_batch(6, 9, known=0.5, seed=seed)
    named = {"top": options["top_grade"]} if "top_grade" in options else {}
    rest = {name: value for name, value in options.items() if name != "top_grade"}
    loss = LambdaLoss(tiny_model, scale=3.0, weighting=weighting, **options)
    same_as_naive(loss, batch, naive_lambda(batch, 3.0, weighting, **rest, **named))


def test_equal_scores_rank_in_the_order_of_the_columns(tiny_model, random_batch, same_as_naive):
    batch = random_batch(3, 6, known=0.6)
    same = batch.documents.detach()[:1].expand(6, -1).clone().requires_grad_()
    batch = batch.with_documents(same)
    same_as_naive(LambdaLoss(tiny_model, scale=3.0), batch, naive_lambda(batch, 3.0, "ndcg-loss2"))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("weighting", "ndcg"),
        ("gain", "log"),
        ("top_grade", 0.0),
        ("top_grade", math.nan),
        ("mu", -1.0),
        ("mu", math.inf),
        ("k", 0),
        ("k", 2.5),
        ("k", True),
    ],
)
def test_an_argument_outside_its_range(tiny_model, option, value):
    with pytest.raises(InputError, match=f"{option}: got .*; expected .*; fix: "):
        LambdaLoss(tiny_model, **{option: value})
