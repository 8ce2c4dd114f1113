"""Values and gradients against published implementations."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from bixse.losses.catalogue import build_loss
from helpers.batches import random_batch


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


def value_of(word, batch, **options):
    return build_loss(word, nn.Identity(), **options).compute_loss_from_embeddings(*batch.leaves[:2], batch.targets)


def assert_equal(ours, theirs, leaves):
    torch.testing.assert_close(ours, theirs.to(ours.dtype), rtol=2e-6, atol=1e-7)
    gradients = [torch.autograd.grad(loss, leaves, retain_graph=True) for loss in (ours, theirs)]
    for gradient, other in zip(*gradients, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-5, atol=1e-7)


@pytest.fixture
def slates():
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
    ],
)
def test_lambda_losses_equal_sentence_transformers(slates, word, scheme):
    from sentence_transformers.cross_encoder import losses

    theirs = cross_encoder_loss(losses.LambdaLoss, slates, 3.0, weighting_scheme=getattr(losses, scheme)(), k=None)
    # theirs is a mean over pairs, ours over the 4 queries; NaN is above nothing
    pairs = sum(high > low for z in slates.relevance() for high in z for low in z)
    assert_equal(value_of(word, slates, scale=3.0, top_grade=1.0), theirs * pairs / 4, slates.leaves[:2])


def test_pairwise_bce_equals_sentence_transformers_ranknet(slates):
    from sentence_transformers.cross_encoder.losses import RankNetLoss

    theirs = cross_encoder_loss(RankNetLoss, slates, 3.0) * math.log(2)
    assert_equal(value_of("pairwise-bce", slates, scale=3.0), theirs, slates.leaves[:2])


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
    assert_equal(value_of(word, batch, **options), theirs, leaves)


def test_infonce_with_several_positives_equals_pytorch_metric_learning():
    from pytorch_metric_learning.losses import NTXentLoss

    label = [0, 1, 2, 3, 0, 1, 0, 7, 8]
    entries = [(i, j, 1.0) for i in range(4) for j in range(9) if label[j] == i]
    batch = random_batch(4, 9, known=0.0).with_entries(entries)
    theirs = NTXentLoss(temperature=0.2)(
        batch.queries, torch.arange(4), ref_emb=batch.documents, ref_labels=torch.tensor(label)
    )
    leaves = batch.leaves[:2]
    batch.queries, batch.documents = (normalize(leaf, dim=1) for leaf in leaves)
    assert_equal(value_of("infonce", batch, scale=5.0), theirs, leaves)
