from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from bixse.errors import InputError
from bixse.losses.infonce import InfoNCELoss, SoftInfoNCELoss
from bixse.losses.targets import GradedTargets

NAN = math.nan
RELEVANCE = [
    [1.0, 0.5, 0.0, 0.0, 0.2],
    [0.0, 0.0, 0.7, NAN, 0.0],
    [0.4, 0.0, 0.0, 0.0, 0.0],
    [0.6, 0.0, 0.0, 0.9, 1.0],
]


def embeddings(rows=4, columns=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [normalize(torch.randn(n, 6, generator=generator), dim=1).requires_grad_() for n in (rows, columns)]


def targets_of(relevance):
    table = [[i, j, z] for i, row in enumerate(relevance) for j, z in enumerate(row) if z != 0]
    return GradedTargets.from_table(torch.tensor(table).reshape(-1, 3), (len(relevance), len(relevance[0])))


def scores(queries, documents, scale):
    return (scale * queries.detach().double() @ documents.detach().double().T).tolist()


class TestRefused:
    @pytest.mark.parametrize("loss", [InfoNCELoss, SoftInfoNCELoss])
    @pytest.mark.parametrize("scale", [0.0, -20.0, NAN])
    def test_scale(self, tiny_model, loss, scale):
        with pytest.raises(InputError, match="expected a number above 0"):
            loss(tiny_model, scale=scale)

    @pytest.mark.parametrize("cutoff", [0.0, -0.1, 1.01, NAN])
    def test_cutoff(self, tiny_model, cutoff):
        with pytest.raises(InputError, match="cutoff"):
            InfoNCELoss(tiny_model, cutoff=cutoff)


@pytest.mark.parametrize("loss", [InfoNCELoss, SoftInfoNCELoss])
@pytest.mark.parametrize("relevance", [[[0.0, 0.0], [0.0, 0.0]], [[NAN, NAN], [0.0, NAN]]])
def test_a_batch_without_a_positive_is_zero_with_zero_gradients(tiny_model, loss, relevance):
    queries, documents = embeddings(2, 2)
    value = loss(tiny_model).compute_loss_from_embeddings(queries, documents, targets_of(relevance))
    value.backward()
    assert value.item() == 0.0
    assert queries.grad.abs().max() == documents.grad.abs().max() == 0.0


@pytest.mark.parametrize("loss", [InfoNCELoss, SoftInfoNCELoss])
@pytest.mark.parametrize("relevance", [[[1.0, 0.8], [0.9, 0.7]], [[NAN, NAN], [0.9, 0.0]], [[0.9, NAN], [NAN, 0.9]]])
def test_rows_without_a_negative_or_all_masked_give_finite_gradients(tiny_model, loss, relevance):
    queries, documents = embeddings(2, 2)
    value = loss(tiny_model).compute_loss_from_embeddings(queries, documents, targets_of(relevance))
    value.backward()
    assert value.isfinite()
    assert bool(queries.grad.isfinite().all() and documents.grad.isfinite().all())


class TestInfoNCE:
    def test_equals_cross_entropy_with_one_positive_a_query(self, tiny_model):
        queries, documents = embeddings(5, 8)
        relevance = [[float(i == j) for j in range(8)] for i in range(5)]
        value = InfoNCELoss(tiny_model).compute_loss_from_embeddings(queries, documents, targets_of(relevance))
        expected = cross_entropy(20.0 * queries @ documents.T, torch.arange(5))
        torch.testing.assert_close(value, expected)
        ours, theirs = (torch.autograd.grad(x, (queries, documents)) for x in (value, expected))
        for own, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-6)

    @pytest.mark.parametrize("cutoff", [0.2, 0.5, 0.7, 1.0])
    def test_equals_two_python_loops_with_several_positives(self, tiny_model, cutoff):
        queries, documents = embeddings()
        value = InfoNCELoss(tiny_model, scale=7.0, cutoff=cutoff).compute_loss_from_embeddings(
            queries, documents, targets_of(RELEVANCE)
        )
        terms = []
        for row, s in zip(RELEVANCE, scores(queries, documents, 7.0), strict=True):
            negatives = math.fsum(math.exp(x) for z, x in zip(row, s, strict=True) if z < cutoff)
            positives = [math.exp(x) for z, x in zip(row, s, strict=True) if z >= cutoff]
            terms += [-math.log(x / (x + negatives)) for x in positives]
        assert value.item() == pytest.approx(sum(terms) / len(terms), rel=1e-5)

    def test_known_positives_of_other_rows_are_no_negatives_unless_paper(self, tiny_model):
        texts = ["how do i copy a file", "sort"], ["copy the file", "move the file"]
        features = [tiny_model.preprocess(column) for column in (texts[0][:1] * 2, texts[1])]
        labels = torch.tensor([1.0, 1.0])
        known = InfoNCELoss(tiny_model)(features, labels)
        paper = InfoNCELoss(tiny_model, in_batch="paper")(features, labels)
        assert known.item() == pytest.approx(0.0, abs=1e-6)
        assert paper.item() > 0.1

    def test_autocast_keeps_the_logits_in_float32(self, tiny_model, monkeypatch):
        queries, documents = (x.detach() for x in embeddings())
        given = iter([documents, queries] * 2)
        monkeypatch.setattr("bixse.losses.base.embed_features", lambda *_: next(given))
        features = [tiny_model.preprocess(["a"] * n) for n in (4, 5)]
        table = targets_of(RELEVANCE).table()
        values = []
        for enabled in (False, True):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                values.append(InfoNCELoss(tiny_model)(features, table).item())
        assert values[0] == values[1]

    def test_a_query_needs_a_positive(self, tiny_model):
        loss = InfoNCELoss(tiny_model, cutoff=0.6)
        assert loss.can_use([0.0, 0.6])
        assert not loss.can_use([0.59, 0.0])
        assert not loss.can_use([])


class TestSoftInfoNCE:
    def test_equals_two_python_loops(self, tiny_model):
        queries, documents = embeddings()
        value = SoftInfoNCELoss(tiny_model, scale=7.0).compute_loss_from_embeddings(
            queries, documents, targets_of(RELEVANCE)
        )
        losses = []
        for row, s in zip(RELEVANCE, scores(queries, documents, 7.0), strict=True):
            counted = [(z, x) for z, x in zip(row, s, strict=True) if not math.isnan(z)]
            partition = math.fsum(math.exp(x) for _, x in counted)
            total = math.fsum(z for z, _ in counted)
            losses.append(-math.fsum(z / total * math.log(math.exp(x) / partition) for z, x in counted))
        assert value.item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)

    def test_a_row_without_a_relevant_document_is_left_out(self, tiny_model):
        queries, documents = embeddings()
        loss = SoftInfoNCELoss(tiny_model)
        whole = loss.compute_loss_from_embeddings(
            queries, documents, targets_of([RELEVANCE[0], [0.0] * 5, RELEVANCE[2], [0.0] * 5])
        )
        part = loss.compute_loss_from_embeddings(queries[[0, 2]], documents, targets_of([RELEVANCE[0], RELEVANCE[2]]))
        torch.testing.assert_close(whole, part)

    def test_equals_infonce_with_one_fully_relevant_document_a_query(self, tiny_model):
        queries, documents = embeddings()
        targets = targets_of([[float(i == j) for j in range(5)] for i in range(4)])
        values = [
            loss(tiny_model).compute_loss_from_embeddings(queries, documents, targets)
            for loss in (InfoNCELoss, SoftInfoNCELoss)
        ]
        torch.testing.assert_close(*values)
