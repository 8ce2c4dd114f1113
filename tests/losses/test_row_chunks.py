"""What holds for every loss: blocks, permutations, duplicates, masks and the cached form change no gradient."""

from __future__ import annotations

import math

import pytest
import torch

from bixse.errors import InputError
from bixse.losses.catalogue import LOSSES, build_loss
from bixse.losses.row_chunks import RowWiseLoss, row_wise_loss
from bixse.losses.targets import GradedTargets

WORDS = [*LOSSES]
ROW_WISE = [word for word in LOSSES if not word.startswith("bixse")]


def options(word):
    return {"bias": -1.3} if word in ("bixse", "bixse-binarised") else {}


def value_and_gradients(loss, queries, documents, targets):
    leaves = [x.detach().clone().requires_grad_() for x in (queries, documents)]
    value = loss.compute_loss_from_embeddings(*leaves, targets)
    return [value.detach(), *torch.autograd.grad(value, leaves)]


def assert_same(left, right, rtol=1e-9):
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=1e-12)


@pytest.fixture
def batch(random_batch):
    return random_batch(9, 14, known=0.35)


@pytest.mark.parametrize("word", WORDS)
class TestEveryLoss:
    def test_permuted_rows_and_columns(self, tiny_model, batch, word):
        loss = build_loss(word, tiny_model, scale=4.0, **options(word))
        rows, columns = torch.randperm(9), torch.randperm(14)
        table = batch.targets
        moved = GradedTargets(
            torch.argsort(rows)[table.rows], torch.argsort(columns)[table.columns], table.relevance, table.shape
        )
        whole = value_and_gradients(loss, batch.queries, batch.documents, table)
        other = value_and_gradients(loss, batch.queries[rows], batch.documents[columns], moved)
        assert_same([other[0], other[1], other[2]], [whole[0], whole[1][rows], whole[2][columns]])

    def test_a_masked_cell_equals_a_document_that_is_not_there(self, tiny_model, batch, word):
        """Removal of a column that is masked for every query."""
        loss = build_loss(word, tiny_model, scale=4.0, **options(word))
        kept = batch.targets.columns < 13
        known = [part[kept] for part in (batch.targets.rows, batch.targets.columns, batch.targets.relevance)]
        masked = [torch.arange(9), torch.full((9,), 13), torch.full((9,), math.nan, dtype=torch.float64)]
        with_mask = GradedTargets(*(torch.cat(pair) for pair in zip(known, masked, strict=True)), (9, 14))
        ours = value_and_gradients(loss, batch.queries, batch.documents, with_mask)
        without = value_and_gradients(loss, batch.queries, batch.documents[:13], GradedTargets(*known, (9, 13)))
        assert_same([ours[0], ours[1], ours[2][:13]], without)
        assert ours[2][13].abs().max() == 0.0

    def test_zero_and_finite_where_nothing_is_graded(self, tiny_model, batch, word):
        loss = build_loss(word, tiny_model, scale=4.0, **options(word))
        nothing = GradedTargets.from_entries(*torch.zeros(0, 3).T, (9, 14))
        value, *gradients = value_and_gradients(loss, batch.queries, batch.documents, nothing)
        assert all(bool(x.isfinite().all()) for x in (value, *gradients))
        if not word.startswith("bixse"):
            assert value == 0.0
            assert all(x.abs().max() == 0.0 for x in gradients)

    def test_finite_where_scores_are_extreme(self, tiny_model, batch, word):
        loss = build_loss(word, tiny_model, scale=2000.0, **options(word))
        as32 = batch.as_type(torch.float32)
        assert all(
            bool(x.isfinite().all()) for x in value_and_gradients(loss, as32.queries, as32.documents, as32.targets)
        )

    def test_a_document_given_twice_is_one_column(self, tiny_model, word):
        loss = build_loss(word, tiny_model, scale=4.0, **options(word))
        queries, first, second = (
            ["copy a file", "sort a list"],
            ["shutil copy", "sorted list"],
            ["move file", "shutil copy"],
        )
        features = [tiny_model.preprocess(column) for column in (queries, first, second)]
        twice = loss(features, torch.tensor([[1.0, 0.4], [0.7, 0.2]]))
        distinct = [tiny_model.preprocess(column) for column in (queries, ["shutil copy", "sorted list", "move file"])]
        table = torch.tensor([[0, 0, 1.0], [0, 2, 0.4], [1, 1, 0.7], [1, 0, 0.2]])
        torch.testing.assert_close(twice, loss(distinct, GradedTargets.from_entries(*table.T, (2, 3)).tensors()))


@pytest.mark.parametrize("word", ROW_WISE)
@pytest.mark.parametrize("entries", [1, 14, 40, 10**6])
def test_the_size_of_a_block_does_not_matter(tiny_model, batch, word, entries):
    loss = build_loss(word, tiny_model, scale=4.0)
    found = []
    for size in (entries, 9 * 14):
        leaves = [x.detach().clone().requires_grad_() for x in (batch.queries, batch.documents)]
        value, _ = row_wise_loss(loss, *leaves, batch.targets, size)
        found.append([value.detach(), *torch.autograd.grad(value, leaves)])
    assert_same(*found)


@pytest.mark.parametrize("word", ROW_WISE)
def test_gradients_are_exact(tiny_model, random_batch, word):
    """Finite differences; the weights of the lambda losses are constants, ranks do not change within a step."""
    loss = build_loss(word, tiny_model, scale=2.0)
    batch = random_batch(4, 5, known=0.6)
    assert torch.autograd.gradcheck(
        lambda q, d: loss.compute_loss_from_embeddings(q, d, batch.targets), (batch.queries, batch.documents)
    )


class TestEngine:
    def test_a_gradient_that_comes_in_is_passed_on(self, tiny_model, batch):
        loss = build_loss("infonce", tiny_model)
        value = loss.compute_loss_from_embeddings(batch.queries, batch.documents, batch.targets)
        once = torch.autograd.grad(value, batch.queries, retain_graph=True)[0]
        torch.testing.assert_close(torch.autograd.grad(value * -2.5, batch.queries)[0], -2.5 * once)

    @pytest.mark.parametrize("alone", [0, 1])
    def test_one_side_frozen(self, tiny_model, batch, alone):
        loss = build_loss("soft-infonce", tiny_model)
        whole = value_and_gradients(loss, batch.queries, batch.documents, batch.targets)
        leaves = [batch.queries.detach(), batch.documents.detach()]
        leaves[alone].requires_grad_()
        value = loss.compute_loss_from_embeddings(*leaves, batch.targets)
        torch.testing.assert_close(torch.autograd.grad(value, leaves[alone])[0], whole[1 + alone])

    @pytest.mark.parametrize("shape", [(3, 14), (9, 13)])
    def test_targets_of_another_batch_are_refused(self, tiny_model, batch, shape):
        loss: RowWiseLoss = build_loss("infonce", tiny_model)
        with pytest.raises(InputError, match=r"expected \(9, 14\)"):
            loss.compute_loss_from_embeddings(
                batch.queries, batch.documents, GradedTargets.from_entries(*torch.zeros(0, 3).T, shape)
            )


@pytest.mark.parametrize("word", WORDS)
def test_queries_on_several_devices_against_all_documents(tiny_model, random_batch, word):
    """Each device scores its own queries against everybody's documents: weighed by their counts they are the whole."""
    batch = random_batch(10, 14, known=0.5)
    loss = build_loss(word, tiny_model, scale=4.0, **options(word))
    whole = value_and_gradients(loss, batch.queries, batch.documents, batch.targets)
    parts, counts = [], []
    for block, known in batch.targets.row_chunks(5):
        parts.append(value_and_gradients(loss, batch.queries[block], batch.documents, known))
        counts.append(count_of(loss, batch.queries[block], batch.documents, known))
    share = torch.tensor(counts, dtype=torch.float64) / sum(counts)
    torch.testing.assert_close(sum(s * part[0] for s, part in zip(share, parts, strict=True)), whole[0])
    documents = sum(s * part[2] for s, part in zip(share, parts, strict=True))
    queries = torch.cat([s * part[1] for s, part in zip(share, parts, strict=True)])
    assert_same([queries, documents], whole[1:], rtol=1e-8)


def count_of(loss, queries, documents, targets):
    """What a loss divides by: queries for BiXSE, the loss's own count for the others."""
    if not isinstance(loss, RowWiseLoss):
        return len(queries)
    return float(loss.chunk_result(loss.options.scale * queries.detach() @ documents.detach().T, targets).denominator)


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_cached_equals_uncached(tiny_model, word, dropout):
    """Encoder, scale and bias; four accumulated, scaled backward passes as a loss scaler makes them."""
    texts = [f"{a} {b}" for a in ("copy", "sort", "open") for b in ("a file", "a list", "a page of the web", "it")]
    queries, documents = texts[:6], texts
    features = [tiny_model.preprocess(column) for column in (queries, documents)]
    table = torch.tensor([[i, j, ((i * 5 + j * 3) % 4) / 3] for i in range(6) for j in (i, i + 2, (i * 7) % 3 + 8)])
    labels = GradedTargets.from_entries(*table.T, (6, 12)).tensors()
    for module in tiny_model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = dropout
    tiny_model.train()
    found = []
    for cached in (False, True):
        learned = {"learn_scale": True} if word.startswith("bixse") else {}
        loss = build_loss(
            word, tiny_model, scale=4.0, mini_batch_size=5, gradient_cache=cached, **options(word), **learned
        )
        loss.zero_grad()
        torch.manual_seed(1)
        for _ in range(4):
            (loss(features, labels) / 4 * 1024).backward()
        found.append({name: p.grad.clone() / 1024 for name, p in loss.named_parameters() if p.grad is not None})
    assert set(found[0]) == set(found[1])
    assert len(found[0]) > (2 if word.startswith("bixse") else 1)
    for name, gradient in found[0].items():
        torch.testing.assert_close(
            found[1][name], gradient, rtol=1e-4, atol=1e-7, msg=lambda text, n=name: f"{n}: {text}"
        )
