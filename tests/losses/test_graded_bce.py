from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cosine_similarity

from bixse.errors import InputError
from bixse.losses.bce import graded_bce
from bixse.losses.products import mean_logits
from bixse.losses.targets import GradedTargets

NO_TARGETS = torch.zeros(0, 3, dtype=torch.float64)


def fused(batch, **options):
    return graded_bce(batch.queries, batch.documents, batch.targets, batch.scale, batch.bias, **options)


def dense(batch, reduction="query"):
    """PyTorch's own loss on the whole matrix."""
    z, weight = batch.targets.dense()
    s = batch.scale * batch.queries @ batch.documents.T + batch.bias
    total = binary_cross_entropy_with_logits(s, z.to(s.dtype), weight=weight.to(s.dtype), reduction="sum")
    return total / (len(z) if reduction == "query" else weight.sum())


def rounded_targets(batch):
    """The same targets in float32 steps, as `dense` gives them."""
    t = batch.targets
    batch.targets = GradedTargets(t.rows, t.columns, t.relevance.float().double(), t.shape)
    return batch


class TestRefused:
    def test_embeddings_of_different_width(self, random_batch):
        batch = random_batch(3, 4)
        with pytest.raises(InputError, match=r"got queries \(3, 4\) and documents \(4, 5\)"):
            graded_bce(batch.queries[:, :4], batch.documents, batch.targets, 1.0, 0.0)

    def test_targets_of_another_batch(self, random_batch):
        batch = random_batch(3, 4)
        with pytest.raises(InputError, match=r"got targets of shape \(3, 4\); expected \(2, 4\)"):
            graded_bce(batch.queries[:2], batch.documents, batch.targets, 1.0, 0.0)


class TestExtremes:
    @pytest.mark.parametrize(
        ("scale", "bias"),
        [(20.0, 200.0), (20.0, -200.0), (1e3, 0.0), (1e3, -500.0), (1e3, 1e3), (-20.0, 5.0), (0.0, 0.0), (60.0, 19.0)],
    )
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_loss_and_gradients_stay_finite_and_right(self, random_batch, naive, scale, bias, dtype):
        batch = random_batch(6, 8, scale=scale, bias=bias)
        expected, gradients = naive(batch)
        own = batch.as_type(dtype)
        loss = fused(own, tile_rows=4, tile_columns=4)
        loss.backward()
        tolerance = {"rtol": 1e-11, "atol": 1e-11} if dtype == torch.float64 else {"rtol": 3e-5, "atol": 3e-3}
        torch.testing.assert_close(loss.double(), torch.tensor(expected, dtype=torch.float64), **tolerance)
        for leaf, gradient in zip(own.leaves, gradients, strict=True):
            assert bool(leaf.grad.isfinite().all())
            torch.testing.assert_close(leaf.grad.double(), gradient, **tolerance)

    def test_softplus_just_above_20_is_not_cut_off_beside_a_large_logit(self):
        q, d = torch.tensor([[1.0]]).double(), torch.tensor([[20.5], [90.0]]).double()
        loss = graded_bce(q, d, GradedTargets.from_entries(*torch.tensor([[0, 1, 1.0]]).T, (1, 2)), 1.0, 0.0)
        assert float(loss) == pytest.approx(20.5 + math.log1p(math.exp(-20.5)), abs=1e-13)

    def test_every_cell_masked_is_zero_with_zero_gradients(self):
        q, d = torch.rand(2, 3, requires_grad=True), torch.rand(2, 3, requires_grad=True)
        table = torch.tensor([[i, j, math.nan] for i in range(2) for j in range(2)])
        for reduction in ("query", "mean"):
            loss = graded_bce(q, d, GradedTargets.from_entries(*table.T, (2, 2)), 20.0, -3.0, reduction)
            gradients = torch.autograd.grad(loss, (q, d))
            assert float(loss) == 0.0
            assert all(float(g.abs().max()) == 0.0 for g in gradients)

    @pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
    def test_a_batch_without_queries_or_documents_is_zero(self, shape):
        q, d = torch.zeros(shape[0], 4, requires_grad=True), torch.zeros(shape[1], 4, requires_grad=True)
        loss = graded_bce(q, d, GradedTargets.from_entries(*NO_TARGETS.T, shape), 20.0, 0.0)
        loss.backward()
        assert float(loss) == 0.0
        assert q.grad.shape == q.shape


class TestEqualsTheFormula:
    @pytest.mark.parametrize(
        ("rows", "columns", "known", "masked"),
        [(4, 4, 0.3, 0.0), (5, 17, 0.5, 0.2), (17, 5, 0.5, 0.5), (1, 9, 0.4, 0.2), (9, 1, 0.4, 0.2), (8, 24, 1.0, 0.1)],
    )
    @pytest.mark.parametrize("reduction", ["query", "mean"])
    def test_loss_and_all_four_gradients_equal_two_python_loops(
        self, random_batch, naive, rows, columns, known, masked, reduction
    ):
        batch = random_batch(rows, columns, known=known, masked=masked)
        expected, gradients = naive(batch, reduction)
        loss = fused(batch, reduction=reduction, tile_rows=4, tile_columns=6)
        loss.backward()
        assert loss.dtype == torch.float64
        assert float(loss) == pytest.approx(expected, rel=1e-12)
        for leaf, gradient in zip(batch.leaves, gradients, strict=True):
            torch.testing.assert_close(leaf.grad, gradient, rtol=1e-11, atol=1e-13)

    @pytest.mark.parametrize("reduction", ["query", "mean"])
    def test_equals_torch_on_the_whole_matrix(self, random_batch, reduction):
        batch = rounded_targets(random_batch(33, 70, dim=16, scale=20.0, bias=-6.0))
        loss = fused(batch, reduction=reduction, tile_rows=16, tile_columns=32)
        whole = dense(batch, reduction)
        torch.testing.assert_close(loss, whole, rtol=1e-13, atol=0)
        own, theirs = (torch.autograd.grad(x, batch.leaves) for x in (loss, whole))
        for ours, other in zip(own, theirs, strict=True):
            torch.testing.assert_close(ours, other, rtol=1e-11, atol=1e-14)

    @pytest.mark.parametrize("bias", [-9.0, 0.0, 25.0, 90.0])
    def test_float32_is_as_close_to_float64_as_torch_is(self, random_batch, bias):
        batch = rounded_targets(random_batch(256, 300, dim=32, known=0.02, scale=20.0, bias=bias))
        exact = torch.autograd.grad(dense(batch), batch.leaves)
        single = batch.as_type(torch.float32)
        assert float(fused(single)) == pytest.approx(float(dense(batch)), rel=1e-6)
        ours = torch.autograd.grad(fused(single), single.leaves)
        for gradient, expected in zip(ours, exact, strict=True):
            error = (gradient.double() - expected).norm() / expected.norm()
            assert float(error) < 2e-5

    def test_gradcheck(self, random_batch):
        batch = random_batch(4, 7, dim=3)

        def loss(*leaves):
            return graded_bce(*leaves[:2], batch.targets, *leaves[2:], tile_rows=3, tile_columns=2)

        assert torch.autograd.gradcheck(loss, batch.leaves, atol=1e-8)

    @pytest.mark.parametrize("tile", [(1, 1), (1, 64), (64, 1), (3, 5), (7, 8), (13, 11), (512, 1024)])
    def test_tile_sizes_do_not_matter(self, random_batch, tile):
        batch = random_batch(13, 22)
        results = []
        for rows, columns in (tile, (13, 22)):
            loss = fused(batch, tile_rows=rows, tile_columns=columns)
            results.append((loss, *torch.autograd.grad(loss, batch.leaves)))
        for own, whole in zip(*results, strict=True):
            torch.testing.assert_close(own, whole, rtol=1e-12, atol=1e-14)


class TestAutograd:
    @pytest.mark.parametrize("factor", [3.0, -0.5, 0.0])
    def test_a_multiplied_loss_multiplies_every_gradient(self, random_batch, factor):
        batch = random_batch(5, 8)
        once = torch.autograd.grad(fused(batch), batch.leaves)
        scaled = torch.autograd.grad(fused(batch) * factor, batch.leaves)
        for single, multiplied in zip(once, scaled, strict=True):
            torch.testing.assert_close(multiplied, single * factor)

    @pytest.mark.parametrize("wanted", range(4))
    def test_one_input_alone_gets_the_same_gradient(self, random_batch, wanted):
        batch = random_batch(5, 8)
        expected = torch.autograd.grad(fused(batch), batch.leaves)[wanted]
        for number, leaf in enumerate(batch.leaves):
            leaf.requires_grad_(number == wanted)
        fused(batch).backward()
        torch.testing.assert_close(batch.leaves[wanted].grad, expected, rtol=1e-13, atol=0)
        assert all(leaf.grad is None for number, leaf in enumerate(batch.leaves) if number != wanted)

    def test_the_gradient_flows_on_through_a_normalisation(self, random_batch):
        batch = rounded_targets(random_batch(5, 8))
        raw = (batch.queries.detach() * 3).requires_grad_()
        gradients = []
        for loss in (fused, dense):
            batch.queries = torch.nn.functional.normalize(raw, dim=1)
            gradients.append(torch.autograd.grad(loss(batch), raw)[0])
        torch.testing.assert_close(*gradients)

    def test_a_second_derivative_is_refused_and_not_silently_wrong(self, random_batch):
        batch = random_batch(3, 4)
        (gradient,) = torch.autograd.grad(fused(batch) ** 2, batch.queries, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiate twice"):
            gradient.sum().backward()


class TestLowPrecision:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_embeddings_keep_the_bias_and_get_gradients_of_their_own_type(self, random_batch, dtype):
        batch = random_batch(16, 20, dim=8, scale=20.0, bias=-6.0)
        low = [x.detach().to(dtype).requires_grad_() for x in (batch.queries, batch.documents)]
        loss = graded_bce(*low, batch.targets, 20.0, -6.0)
        exact = graded_bce(*(x.detach().double() for x in low), batch.targets, 20.0, -6.0)
        assert loss.dtype == torch.float32
        assert float(loss) == pytest.approx(float(exact), rel=1e-6)
        gradients = torch.autograd.grad(loss, low)
        assert all(g.dtype == dtype and bool(g.isfinite().all()) for g in gradients)

    def test_autocast_changes_nothing(self, random_batch):
        batch = random_batch(16, 20, dim=8, scale=20.0, bias=-6.003).as_type(torch.float32)
        plain = (loss := fused(batch), *torch.autograd.grad(loss, batch.leaves))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = (loss := fused(batch), *torch.autograd.grad(loss, batch.leaves))
        for own, expected in zip(inside, plain, strict=True):
            assert own.dtype == torch.float32
            torch.testing.assert_close(own, expected, rtol=0, atol=0)


class TestStatistics:
    def test_equal_the_dense_computation(self, random_batch):
        batch = random_batch(23, 31, known=0.2).as_type(torch.float32)
        z, weight = batch.targets.dense()
        assert not bool(weight.all())
        cosines = cosine_similarity(batch.queries.detach()[:, None], batch.documents.detach()[None], dim=2)
        s = 20.0 * cosines - 5.0
        relevant, others = mean_logits(batch.queries, batch.documents, batch.targets, 20.0, -5.0)
        assert float(relevant) == pytest.approx(float(s[z >= 0.5].mean()), abs=1e-4)
        assert float(others) == pytest.approx(float(s[(z < 0.5) & weight.bool()].mean()), abs=1e-4)

    def test_more_relevant_cells_than_one_block(self, monkeypatch):
        monkeypatch.setattr("bixse.losses.products.NUMBERS_AT_ONCE", 100)
        q = torch.nn.functional.normalize(torch.arange(1.0, 5001.0)[:, None].expand(-1, 2) % 7 - 3.3, dim=1)
        rows = torch.arange(5000)
        targets = GradedTargets(rows, torch.zeros_like(rows), torch.ones(5000), (5000, 1))
        relevant, others = mean_logits(q, q[:1], targets, 2.0, 1.0)
        assert float(relevant) == pytest.approx(float((2.0 * q @ q[0] + 1.0).mean()), abs=1e-4)
        assert math.isnan(float(others))

    def test_no_relevant_cell_is_nan(self, random_batch):
        batch = random_batch(3, 4, known=0.0)
        relevant, others = mean_logits(batch.queries, batch.documents, batch.targets, 20.0, 0.0)
        assert math.isnan(float(relevant))
        assert math.isfinite(float(others))
