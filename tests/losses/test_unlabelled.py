"""The base model's probability as target of entries without a grade, against float64 loops over all entries."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from bixse.errors import ConfigError, InputError
from bixse.losses import BiXSELoss
from bixse.losses.bce import graded_bce
from bixse.losses.products import mean_target
from bixse.losses.targets import BaseProbability, GradedTargets

CURVE = (12.9, -6.2)


def with_base(batch, weight=1.0, seed=5):
    """The batch with a base model of three dimensions, its float64 embeddings drawn at random."""
    generator = torch.Generator().manual_seed(seed)
    queries, documents = (
        torch.nn.functional.normalize(torch.randn(number, 3, generator=generator, dtype=torch.float64), dim=1)
        for number in batch.targets.shape
    )
    base = BaseProbability(queries, documents, torch.tensor([*CURVE, weight], dtype=torch.float64))
    batch.targets = replace(batch.targets, unlabelled=base)
    return batch


def probability(targets, i, j):
    """The formula alone, in Python numbers."""
    base = targets.unlabelled
    cosine = math.fsum(x * y for x, y in zip(base.queries[i].tolist(), base.documents[j].tolist(), strict=True))
    scale, bias, weight = base.curve.tolist()
    return weight / (1 + math.exp(-(scale * cosine + bias)))


def listed(batch):
    """The same batch with every entry listed: what is not known has the base model's probability."""
    known = batch.known_entries()
    shape = batch.targets.shape
    entries = [
        (i, j, known.get((i, j), probability(batch.targets, i, j))) for i in range(shape[0]) for j in range(shape[1])
    ]
    return batch.with_entries(entries)


def value_and_gradients(batch, **options):
    loss = graded_bce(*batch.leaves[:2], batch.targets, *batch.leaves[2:], **options)
    return [loss.detach(), *torch.autograd.grad(loss, batch.leaves)]


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Take the tiles that other devices have."""
    monkeypatch.setattr("bixse.losses.bce._on_host", lambda embeddings, rounded: False)


@pytest.mark.parametrize("reduction", ["query", "mean"])
@pytest.mark.parametrize("shape", [(4, 4), (5, 17), (17, 5), (1, 9), (9, 1)])
@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_loss_and_all_four_gradients_equal_two_python_loops(random_batch, naive, shape, reduction, weight):
    """Tiles that are cut anywhere, masked entries and large logits among them."""
    batch = with_base(random_batch(*shape, known=0.3, masked=0.3, scale=9.0, bias=-2.0), weight)
    expected, gradients = naive(listed(batch), reduction)
    loss, *own = value_and_gradients(batch, reduction=reduction, tile_rows=4, tile_columns=3)
    assert float(loss) == pytest.approx(expected, rel=1e-11)
    for gradient, other in zip(own, gradients, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("shape", [(5, 17), (17, 5), (70, 45)])
def test_the_form_of_a_gpu_gives_the_same(random_batch, naive, shape):
    batch = with_base(random_batch(*shape, known=0.2, masked=0.3, scale=9.0, bias=-2.0))
    expected, gradients = naive(listed(batch))
    loss, *own = value_and_gradients(batch, tile_rows=16, tile_columns=10)
    assert float(loss) == pytest.approx(expected, rel=1e-11)
    for gradient, other in zip(own, gradients, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("bias", [-4.0, 90.0])
def test_float32_is_close_to_float64(random_batch, bias):
    """With a bias of 90 the slower form is taken, in which no exponential overflows."""
    batch = with_base(random_batch(130, 150, dim=16, known=0.05, scale=10.0, bias=bias))
    exact = value_and_gradients(listed(batch))
    single = batch.as_type(torch.float32)
    base = batch.targets.unlabelled
    single.targets = replace(batch.targets, unlabelled=BaseProbability(*(part.float() for part in vars(base).values())))
    for own, other in zip(value_and_gradients(single), exact, strict=True):
        assert float((own.double() - other).norm() / other.norm()) < 2e-5


def test_where_the_model_says_what_the_base_model_says_nothing_pulls(random_batch):
    """Unlabelled entries alone: the encoder's own probabilities as targets leave no gradient."""
    batch = random_batch(6, 8, known=0.0, scale=CURVE[0], bias=CURVE[1])
    base = BaseProbability(*(part.detach() for part in batch.leaves[:2]), torch.tensor([*CURVE, 1.0]).double())
    batch.targets = replace(batch.targets, unlabelled=base)
    for gradient in value_and_gradients(batch)[1:]:
        assert float(gradient.abs().max()) < 1e-6


def test_a_weight_of_0_is_the_paper_to_the_last_bit(random_batch):
    batch = random_batch(6, 8, known=0.3, masked=0.2)
    plain = value_and_gradients(batch)
    for own, other in zip(value_and_gradients(with_base(batch, weight=0.0)), plain, strict=True):
        assert torch.equal(own, other)


class TestTargets:
    def test_dense_cut_and_carried_targets_are_the_same(self, random_batch):
        targets = with_base(random_batch(7, 5, known=0.3, masked=0.3)).targets
        z, weight = targets.dense(torch.float64)
        whole, counts = listed(with_base(random_batch(7, 5, known=0.3, masked=0.3))).targets.dense(torch.float64)
        torch.testing.assert_close(z, whole)
        assert torch.equal(weight, counts)
        every, _ = targets.every(2).dense(torch.float64)
        torch.testing.assert_close(every, z[::2])
        for block, part in targets.row_chunks(3):
            torch.testing.assert_close(part.dense(torch.float64)[0], z[block])
        again = GradedTargets.from_tensors(targets.tensors(), targets.shape).to("cpu")
        assert torch.equal(again.dense(torch.float64)[0], z)

    def test_false_negatives_and_cuts_keep_the_base(self, random_batch):
        batch = with_base(random_batch(7, 5, known=0.3, masked=0.0))
        base = batch.targets.unlabelled
        for changed in (
            batch.targets.binarised(0.5),
            batch.targets.without_false_negatives(batch.queries.detach(), batch.documents.detach(), 0.0),
        ):
            assert changed.unlabelled is base

    def test_the_mean_target_is_that_of_all_entries(self, random_batch, monkeypatch):
        batch = with_base(random_batch(12, 9, known=0.3, masked=0.3))
        z, weight = listed(batch).targets.dense(torch.float64)
        expected = float((z * weight).sum() / weight.sum())
        assert float(mean_target(batch.targets)) == pytest.approx(expected, rel=1e-6)
        monkeypatch.setattr("bixse.losses.targets.ENTRIES_SAMPLED", 50)
        assert float(mean_target(batch.targets)) == pytest.approx(expected, rel=0.5)


class TestRefused:
    def test_a_batch_without_the_base_model(self, tiny_model, random_batch):
        loss = BiXSELoss(tiny_model, unlabelled="base")
        batch = random_batch(3, 4)
        tiny_model.train()
        with pytest.raises(InputError, match="unlabelled: got base") as caught:
            loss.compute_loss_from_embeddings(batch.queries, batch.documents, batch.targets)
        assert "GradedTrainer" in str(caught.value)

    @pytest.mark.parametrize(
        "options",
        [{"unlabelled_weight": 1.5}, {"unlabelled": "own"}],
    )
    def test_values_out_of_range(self, tiny_model, options):
        with pytest.raises(ConfigError, match=r"unlabelled|less than"):
            BiXSELoss(tiny_model, **{"unlabelled": "base", **options})
