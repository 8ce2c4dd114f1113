import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from bixse.losses import MatryoshkaLoss, build_loss
from helpers.batches import assert_all_close, random_batch


def slates(batch, scale, graded_alone=False):
    """Yield scores, relevance and the documents that take part, per query."""
    known = batch.known_entries()
    for i, (row, z) in enumerate(zip(batch.scores(scale), batch.relevance(), strict=True)):
        yield row, z, [j for j in range(len(row)) if z[j] == z[j] and (not graded_alone or (i, j) in known)]


def mean(terms):
    return sum(terms) / len(terms)


def naive_infonce(batch, scale, positive_from=0.5, false_negative_margin=math.inf, hardness=0.0):
    terms = []

    def weight(score):
        return math.exp(hardness * score.item() / scale)

    for row, z, _ in slates(batch, scale):
        for s, x in zip(row, z, strict=True):
            if x >= positive_from:
                highest = s + scale * false_negative_margin
                negatives = [n for n, y in zip(row, z, strict=True) if y < positive_from and n <= highest]
                terms.append(-torch.log(s.exp() / (s.exp() + sum(weight(n) * n.exp() for n in negatives))))
    return mean(terms)


def naive_soft_infonce(batch, scale):
    terms = []
    for row, z, slate in slates(batch, scale):
        total = sum(z[j] for j in slate)
        partition = sum(row[j].exp() for j in slate)
        if total > 0:
            terms.append(-sum(z[j] / total * torch.log(row[j].exp() / partition) for j in slate))
    return mean(terms)


def naive_margin_mse(batch, scale, margin=1.0):
    return mean([
        ((row[j] - row[k]) - scale * margin * (z[j] - z[k])) ** 2
        for row, z, slate in slates(batch, scale, graded_alone=True)
        for j, k in itertools.combinations(slate, 2)
    ])  # fmt: skip


def naive_distill_kl(batch, scale, temperature=0.1):
    terms = []
    for row, z, slate in slates(batch, scale, graded_alone=True):
        wanted = [math.exp(z[j] / temperature) for j in slate]
        shares = [weight / sum(wanted) for weight in wanted]
        partition = sum(row[j].exp() for j in slate)
        if len(slate) > 1:
            pairs = zip(shares, slate, strict=True)
            terms.append(sum(p * (math.log(p) - torch.log(row[j].exp() / partition)) for p, j in pairs))
    return mean(terms)


def naive_pairwise(batch, scale):
    return mean([
        -torch.log(torch.sigmoid(row[j] - row[k]))
        for row, z, slate in slates(batch, scale)
        for j in slate for k in slate if z[j] > z[k]
    ])  # fmt: skip


def discount(rank):
    return math.log2(1 + rank)


def naive_lambda(weighting):
    """Return the loss of Wang et al. 2018 as written: ranks by sorting, one pair at a time."""

    def loss(batch, scale, top_grade=3.0):
        terms = []
        for row, z, slate in slates(batch, scale):
            if not any(z[j] > 0 for j in slate):
                continue
            order = sorted(slate, key=lambda j, row=row: (-row[j].item(), j))
            rank = {j: number for number, j in enumerate(order, start=1)}
            gains = {j: 2 ** (z[j] * top_grade) - 1 for j in slate}
            best = sorted(gains.values(), reverse=True)
            largest = sum(gain / discount(number) for number, gain in enumerate(best, start=1))
            total = 0.0
            for j, other in itertools.permutations(slate, 2):
                distance = abs(rank[j] - rank[other])
                near = abs(1 / discount(distance) - 1 / discount(distance + 1))
                swap = abs(1 / discount(rank[j]) - 1 / discount(rank[other]))
                share = {"lambdaloss-v2": near, "lambdarank": swap, "ndcg-loss2++": swap + 10 * near}.get(weighting)
                weight = share * abs(gains[j] - gains[other]) * (z[j] > z[other]) if share is not None else 0.0
                weight = gains[j] / discount(rank[j]) if weighting == "lambdaloss-v1" else weight
                total = total + weight / largest * torch.log2(1 + torch.exp(-(row[j] - row[other])))
            terms.append(total)
        return mean(terms)

    return loss


LAMBDA = ["lambdaloss-v1", "lambdaloss-v2", "lambdarank", "ndcg-loss2++"]
MARGINS = itertools.product((0.2, 0.8), (0.0, 0.1, 0.6, 2.0))
CASES = [
    *(("infonce", naive_infonce, {"positive_from": low}) for low in (0.2, 0.5, 0.9)),
    *(("infonce", naive_infonce, {"positive_from": low, "false_negative_margin": most}) for low, most in MARGINS),
    ("infonce", naive_infonce, {"hardness": 9.0}),
    ("infonce", naive_infonce, {"hardness": 5.0, "false_negative_margin": 0.1}),
    ("soft-infonce", naive_soft_infonce, {}),
    *(("margin-mse", naive_margin_mse, {"margin": margin}) for margin in (1.0, 0.4)),
    *(("distill-kl", naive_distill_kl, {"temperature": temperature}) for temperature in (0.1, 1.0)),
    ("pairwise-bce", naive_pairwise, {}),
    *((word, naive_lambda(word), {"top_grade": grade}) for word in LAMBDA for grade in (3.0, 1.0)),
]


def check(batch, word, expected, leaves=None, rtol=1e-9, atol=1e-12, **options):
    """Compare the value, and the gradients at `leaves`, by default the embeddings of the batch."""
    embeddings = batch.queries, batch.documents
    value = build_loss(word, nn.Identity(), **options).compute_loss_from_embeddings(*embeddings, batch.targets)
    torch.testing.assert_close(value, expected.to(value.dtype), rtol=rtol, atol=atol)
    gradients, others = (
        torch.autograd.grad(loss, leaves or embeddings, retain_graph=True, materialize_grads=True)
        for loss in (value, expected)
    )
    assert_all_close(gradients, others, rtol=10 * rtol, atol=atol)
    assert value > 0


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("word", "naive", "options"), CASES)
def test_value_and_gradients_equal_loops_over_the_formula(word, naive, options, seed):
    batch = random_batch(6, 10, known=0.45, seed=seed)
    check(batch, word, naive(batch, 3.0, **options), scale=3.0, **options)


def test_soft_infonce_leaves_out_a_row_without_a_relevant_document():
    batch = random_batch(4, 5, known=0.0).with_entries([(0, 1, 0.5), (1, 2, 0.0), (3, 0, 0.2), (3, 4, 0.9)])
    check(batch, "soft-infonce", naive_soft_infonce(batch, 7.0), scale=7.0)


def test_equal_scores_rank_in_the_order_of_the_columns():
    batch = random_batch(3, 6, known=0.6)
    batch = replace(batch, documents=batch.documents.detach()[:1].expand(6, -1).clone().requires_grad_())
    check(batch, "lambdaloss-v2", naive_lambda("lambdaloss-v2")(batch, 3.0), scale=3.0)


def test_equal_relevance_makes_no_pair():
    batch = random_batch(1, 2, known=0.0).with_entries([(0, 0, 0.5), (0, 1, 0.5)])
    loss = build_loss("pairwise-bce", nn.Identity())
    assert loss.compute_loss_from_embeddings(batch.queries, batch.documents, batch.targets) == 0


@pytest.mark.parametrize(
    "entries", [[(0, 0, 1.0), (0, 1, 0.8), (1, 0, 0.9), (1, 1, 0.7)], [(0, 0, math.nan), (1, 0, 0.9)]]
)
def test_rows_without_a_negative_or_a_positive_give_finite_gradients(entries):
    batch = random_batch(2, 2, known=0.0).with_entries(entries)
    leaves = batch.leaves[:2]
    value = build_loss("infonce", nn.Identity()).compute_loss_from_embeddings(*leaves, batch.targets)
    assert all(bool(x.isfinite().all()) for x in (value, *torch.autograd.grad(value, leaves)))


SINGLE = {"rtol": 2e-6, "atol": 1e-7}
"""Tolerances of what others compute in float32."""


class Scorer(nn.Module):
    """A cross-encoder that gives the next scores it was made with."""

    num_labels = 1
    device = torch.device("cpu")

    def __init__(self, scores):
        super().__init__()
        self.scores = scores
        self.position = 0

    def preprocess(self, pairs, **_):
        return {"rows": torch.arange(self.position, self.position + len(pairs))}

    def forward(self, features):
        self.position += len(features["rows"])
        return {"scores": self.scores[features["rows"]]}


@pytest.fixture
def graded():
    """Two to six graded documents per query over distinct columns, without ties; all other documents are masked."""
    sizes = [2, 6, 3, 4]
    generator = torch.Generator().manual_seed(3)
    entries = []
    for row, size in enumerate(sizes):
        first = sum(sizes[:row])
        relevance = [*torch.rand(size - 1, generator=generator).tolist(), 0.0]
        known = dict(enumerate(relevance, start=first))
        entries += [(row, column, known.get(column, math.nan)) for column in range(sum(sizes))]
    return random_batch(4, sum(sizes), known=0.0).with_entries(entries)


def cross_encoder_loss(kind, batch, scale, **options):
    """Return sentence-transformers' listwise loss of the same scores."""
    graded = ~batch.targets.relevance.isnan()
    rows, columns, relevance = (part[graded] for part in list(vars(batch.targets).values())[:3])
    scores = scale * (batch.queries @ batch.documents.T)[rows, columns]
    counts = torch.bincount(rows).tolist()
    loss = kind(Scorer(scores.float()), **options)
    return loss((["q"] * len(counts), [["d"] * count for count in counts]), list(relevance.split(counts)))


@pytest.mark.parametrize(
    ("word", "scheme"),
    [
        ("lambdaloss-v2", "NDCGLoss2Scheme"),
        ("lambdarank", "LambdaRankScheme"),
        ("ndcg-loss2++", "NDCGLoss2PPScheme"),
        ("pairwise-bce", None),
    ],
)
def test_losses_over_lists_equal_sentence_transformers(graded, word, scheme):
    from sentence_transformers.cross_encoder import losses

    if scheme is None:
        options, theirs = {}, cross_encoder_loss(losses.RankNetLoss, graded, 3.0) * math.log(2)
    else:
        options, weighting = {"top_grade": 1.0}, getattr(losses, scheme)()
        theirs = cross_encoder_loss(losses.LambdaLoss, graded, 3.0, weighting_scheme=weighting, k=None)
        # theirs is a mean over pairs, ours over the 4 queries; NaN is above nothing
        theirs = theirs * sum(high > low for z in graded.relevance() for high in z for low in z) / 4
    check(graded, word, theirs, scale=3.0, **options, **SINGLE)


@pytest.mark.parametrize(
    ("word", "options", "name"),
    [
        ("margin-mse", {"scale": 1.0}, "MarginMSELoss"),
        ("distill-kl", {"scale": 1.0, "temperature": 1.0}, "DistillKLDivLoss"),
        ("infonce", {"scale": 20.0}, "MultipleNegativesRankingLoss"),
    ],
)
def test_losses_on_two_documents_per_query_equal_sentence_transformers(tiny_model, word, options, name):
    from sentence_transformers.sentence_transformer import losses

    batch = random_batch(5, 10, known=0.0)
    z = torch.rand(5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    z = torch.tensor([1.0, 0.0]).expand(5, 2) if word == "infonce" else z
    batch = batch.with_entries([(i, i + 5 * k, z[i, k].item()) for i in range(5) for k in range(2)])
    labels = {"margin-mse": z[:, 0] - z[:, 1], "distill-kl": z}.get(word)
    leaves = batch.leaves[:2]
    batch.queries, batch.documents = (normalize(leaf, dim=1) for leaf in leaves)
    loss = getattr(losses, name)(tiny_model, **({"scale": 20.0} if word == "infonce" else {}))
    theirs = loss.compute_loss_from_embeddings([batch.queries, *batch.documents.split(5)], labels)
    check(batch, word, theirs, leaves, **SINGLE, **options)


def test_infonce_with_several_positives_equals_pytorch_metric_learning():
    from pytorch_metric_learning.losses import NTXentLoss

    label = [0, 1, 2, 3, 0, 1, 0, 7, 8]
    entries = [(i, j, 1.0) for i in range(4) for j in range(9) if label[j] == i]
    batch = random_batch(4, 9, known=0.0).with_entries(entries)
    reference = {"ref_emb": batch.documents, "ref_labels": torch.tensor(label)}
    theirs = NTXentLoss(temperature=0.2)(batch.queries, torch.arange(4), **reference)
    leaves = batch.leaves[:2]
    batch.queries, batch.documents = (normalize(leaf, dim=1) for leaf in leaves)
    check(batch, "infonce", theirs, leaves, **SINGLE, scale=5.0)


def test_matryoshka_equals_the_sum_of_losses_on_cut_embeddings():
    batch = random_batch(6, 10, known=0.45)
    losses = {size: build_loss("distill-kl", nn.Identity(), scale=3.0) for size in (3, 5)}
    value = MatryoshkaLoss(nn.Identity(), losses).compute_loss_from_embeddings(*batch.leaves[:2], batch.targets)
    parts = [
        replace(
            batch,
            queries=normalize(batch.queries[:, :size], dim=1),
            documents=normalize(batch.documents[:, :size], dim=1),
        )
        for size in (3, 5)
    ]
    expected = sum(naive_distill_kl(part, 3.0) for part in parts)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-12)
    assert_all_close(*(torch.autograd.grad(loss, batch.leaves[:2]) for loss in (value, expected)))
