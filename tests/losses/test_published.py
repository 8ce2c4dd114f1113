"""Values and gradients against published implementations."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from bixse.losses.bce import graded_bce
from bixse.losses.catalogue import build_loss
from bixse.losses.targets import GradedTargets


class Scorer(nn.Module):
    """Stands for a cross-encoder: gives the next scores it was made with."""

    num_labels = 1
    device = torch.device("cpu")

    def __init__(self, scores):
        super().__init__()
        self.scores = scores
        self.place = 0

    def preprocess(self, pairs, **_):
        return {"rows": torch.arange(self.place, self.place + len(pairs))}

    def forward(self, features):
        self.place += len(features["rows"])
        return {"scores": self.scores[features["rows"]]}


@pytest.fixture
def slates(random_batch):
    """Ragged slates of 2 to 6 graded documents over distinct columns, without ties."""
    sizes = [2, 6, 3, 4]
    batch = random_batch(4, sum(sizes), known=0.0)
    generator = torch.Generator().manual_seed(3)
    entries, column = [], 0
    for row, size in enumerate(sizes):
        relevance = torch.rand(size, generator=generator).tolist()
        relevance[-1] = 0.0
        entries += [(row, column + place, z) for place, z in enumerate(relevance)]
        column += size
    return batch.with_entries(entries)


def without_others(slates):
    """The targets with all documents of other queries masked: a cross-encoder's loss has none of them."""
    known = slates.known_entries()
    rows, columns = (range(number) for number in slates.targets.shape)
    masked = [(i, j, math.nan) for i in rows for j in columns if (i, j) not in known]
    return slates.with_entries([*((i, j, z) for (i, j), z in known.items()), *masked]).targets


def cross_encoder_loss(kind, batch, scale, **options):
    """sentence-transformers' listwise loss of the same scores."""
    scores = scale * (batch.queries @ batch.documents.T)[batch.targets.rows, batch.targets.columns]
    counts = torch.bincount(batch.targets.rows).tolist()
    labels = list(batch.targets.relevance.split(counts))
    loss = kind(Scorer(scores.float()), **options)
    return loss((["q"] * len(counts), [["d"] * count for count in counts]), labels)


@pytest.mark.parametrize(
    ("word", "scheme"),
    [
        ("lambdaloss-v1", "NDCGLoss1Scheme"),
        ("lambdaloss-v2", "NDCGLoss2Scheme"),
        ("lambdarank", "LambdaRankScheme"),
        ("ndcg-loss2++", "NDCGLoss2PPScheme"),
    ],
)
def test_lambda_losses_equal_sentence_transformers(tiny_model, slates, word, scheme):
    """Theirs is a mean over pairs, ours over queries; theirs counts a document's pair with itself in v1."""
    from sentence_transformers.cross_encoder import losses

    loss = build_loss(word, tiny_model, scale=3.0, top_grade=1.0)
    ours = loss.compute_loss_from_embeddings(slates.queries, slates.documents, without_others(slates))
    theirs = cross_encoder_loss(losses.LambdaLoss, slates, 3.0, weighting_scheme=getattr(losses, scheme)(), k=None)
    known, pairs, own = slates.known_entries(), 0, 0.0
    for i, (row, z) in enumerate(zip(slates.scores(3.0), slates.relevance(), strict=True)):
        slate = [j for j in range(len(z)) if (i, j) in known]
        rank = {j: place for place, j in enumerate(sorted(slate, key=lambda j, r=row: -r[j].item()), start=1)}
        gains = sorted((2 ** z[j] - 1 for j in slate), reverse=True)
        largest = sum(g / math.log2(1 + place) for place, g in enumerate(gains, start=1))
        pairs += sum(word == "lambdaloss-v1" or z[j] > z[other] for j in slate for other in slate)
        own += sum((2 ** z[j] - 1) / largest / math.log2(1 + rank[j]) for j in slate)
    expected = theirs * pairs / 4 - (own / 4 if word == "lambdaloss-v1" else 0.0)
    assert_equal(ours, expected, (slates.queries, slates.documents))


def test_pairwise_bce_equals_sentence_transformers_ranknet(tiny_model, slates):
    from sentence_transformers.cross_encoder.losses import RankNetLoss

    loss = build_loss("pairwise-bce", tiny_model, scale=3.0)
    ours = loss.compute_loss_from_embeddings(slates.queries, slates.documents, without_others(slates))
    theirs = cross_encoder_loss(RankNetLoss, slates, 3.0) * math.log(2)
    assert_equal(ours, theirs, (slates.queries, slates.documents))


def test_margin_mse_equals_sentence_transformers(tiny_model, random_batch):
    from sentence_transformers.sentence_transformer.losses import MarginMSELoss

    batch = random_batch(5, 10, known=0.0)
    z = torch.rand(5, 2, generator=torch.Generator().manual_seed(1)).tolist()
    batch = batch.with_entries([(i, i + 5 * k, z[i][k]) for i in range(5) for k in range(2)])
    ours = build_loss("margin-mse", tiny_model, scale=1.0).compute_loss_from_embeddings(
        batch.queries, batch.documents, batch.targets
    )
    embedded = [batch.queries, batch.documents[:5], batch.documents[5:]]
    margin = torch.tensor([first - second for first, second in z], dtype=torch.float64)
    theirs = MarginMSELoss(tiny_model).compute_loss_from_embeddings(embedded, margin)
    assert_equal(ours, theirs, (batch.queries, batch.documents))


def test_distill_kl_equals_sentence_transformers(tiny_model, random_batch):
    from sentence_transformers.sentence_transformer.losses import DistillKLDivLoss

    batch = random_batch(5, 10, known=0.0)
    z = torch.rand(5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    batch = batch.with_entries([(i, i + 5 * k, z[i, k].item()) for i in range(5) for k in range(2)])
    ours = build_loss("distill-kl", tiny_model, scale=1.0, temperature=1.0).compute_loss_from_embeddings(
        batch.queries, batch.documents, batch.targets
    )
    embedded = [batch.queries, batch.documents[:5], batch.documents[5:]]
    theirs = DistillKLDivLoss(tiny_model, temperature=1.0).compute_loss_from_embeddings(embedded, z)
    assert_equal(ours, theirs, (batch.queries, batch.documents))


def test_infonce_equals_pytorch_metric_learning(tiny_model, random_batch):
    """Several positives per query: their NTXentLoss takes each against the negatives alone, as ours does."""
    from pytorch_metric_learning.losses import NTXentLoss

    batch = random_batch(4, 9, known=0.0)
    label = [0, 1, 2, 3, 0, 1, 0, 7, 8]
    batch = batch.with_entries([(i, j, 1.0) for i in range(4) for j in range(9) if label[j] == i])
    ours = build_loss("infonce", tiny_model, scale=5.0).compute_loss_from_embeddings(
        normalize(batch.queries, dim=1), normalize(batch.documents, dim=1), batch.targets
    )
    theirs = NTXentLoss(temperature=0.2)(
        batch.queries, torch.arange(4), ref_emb=batch.documents, ref_labels=torch.tensor(label)
    )
    assert_equal(ours, theirs, (batch.queries, batch.documents))


def test_infonce_equals_sentence_transformers_with_hard_negatives(tiny_model, random_batch):
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    batch = random_batch(5, 10, known=0.0).with_entries([(i, i, 1.0) for i in range(5)])
    ours = build_loss("infonce", tiny_model, scale=20.0).compute_loss_from_embeddings(
        normalize(batch.queries, dim=1), normalize(batch.documents, dim=1), batch.targets
    )
    theirs = MultipleNegativesRankingLoss(tiny_model, scale=20.0).compute_loss_from_embeddings(
        [batch.queries, batch.documents[:5], batch.documents[5:]], None
    )
    assert_equal(ours, theirs, (batch.queries, batch.documents))


def test_bixse_of_an_identity_equals_the_siglip_model_of_transformers(random_batch):
    from transformers import SiglipConfig, SiglipModel

    tower = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = SiglipModel(
        SiglipConfig(
            text_config={**tower, "vocab_size": 40, "projection_size": 16},
            vision_config={**tower, "image_size": 8, "patch_size": 4},
        )
    )
    out = model(input_ids=torch.randint(0, 40, (6, 5)), pixel_values=torch.randn(6, 3, 8, 8), return_loss=True)
    diagonal = torch.arange(6)
    targets = GradedTargets(diagonal, diagonal, torch.ones(6), (6, 6))
    ours = graded_bce(out.text_embeds, out.image_embeds, targets, model.logit_scale.exp(), model.logit_bias)
    assert_equal(ours, out.loss, (out.text_embeds, out.image_embeds, model.logit_bias))


def assert_equal(ours, theirs, leaves):
    torch.testing.assert_close(ours, theirs.to(ours.dtype), rtol=2e-6, atol=1e-7)
    for a, b in zip(
        torch.autograd.grad(ours, leaves, retain_graph=True),
        torch.autograd.grad(theirs, leaves, retain_graph=True),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
