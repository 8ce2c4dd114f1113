from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from bixse.errors import InputError
from bixse.losses.engines.graded_bce import graded_bce
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

    @pytest.mark.parametrize("tile", [(0, 4), (4, 0), (-1, 4)])
    def test_empty_tiles(self, random_batch, tile):
        with pytest.raises(InputError, match="expected at least 1 x 1"):
            fused(random_batch(3, 4), tile_rows=tile[0], tile_columns=tile[1])


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

    def test_a_nan_embedding_gives_a_nan_loss(self, random_batch):
        batch = random_batch(3, 4)
        batch.documents.data[1, 2] = math.nan
        assert math.isnan(float(fused(batch)))

    def test_vectors_that_are_not_normalised(self, random_batch, naive):
        batch = random_batch(5, 7)
        batch.queries.data *= 9.0
        batch.documents.data *= 7.0
        expected, gradients = naive(batch)
        loss = fused(batch)
        loss.backward()
        assert float(loss) == pytest.approx(expected, rel=1e-12)
        torch.testing.assert_close(batch.queries.grad, gradients[0], rtol=1e-11, atol=1e-11)

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

    def test_a_single_cell(self):
        q, d = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.6, 0.8]])
        targets = GradedTargets.from_entries(*torch.tensor([[0.0, 0.0, 0.25]]).T, (1, 1))
        assert float(graded_bce(q, d, targets, 10.0, -2.0)) == pytest.approx(math.log1p(math.exp(4.0)) - 1.0, rel=1e-6)

    def test_targets_without_a_known_cell_are_all_irrelevant(self, random_batch):
        batch = random_batch(3, 4, known=0.0)
        assert len(batch.targets.rows) == 0
        logits = 3.0 * batch.queries @ batch.documents.T - 0.7
        torch.testing.assert_close(fused(batch), torch.log1p(logits.exp()).sum() / 3)


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

    def test_the_order_of_the_known_cells_does_not_matter(self, random_batch):
        batch = random_batch(9, 12)
        t = batch.targets
        order = torch.argsort(t.columns * 31 + t.rows * 17 % 5)
        other = GradedTargets(t.rows[order], t.columns[order], t.relevance[order], t.shape)
        again = graded_bce(batch.queries, batch.documents, other, batch.scale, batch.bias, tile_rows=4, tile_columns=4)
        torch.testing.assert_close(fused(batch), again, rtol=1e-13, atol=0)

    @pytest.mark.parametrize("layout", ["transposed", "strided", "expanded"])
    def test_inputs_that_are_not_contiguous(self, random_batch, layout):
        batch = random_batch(6, 8, dim=4)
        copy = {
            "transposed": lambda x: x.detach().T.contiguous().T,
            "strided": lambda x: torch.stack([x.detach(), x.detach()], dim=2)[:, :, 0],
            "expanded": lambda x: x.detach()[:1].expand_as(x),
        }[layout]
        queries, documents = copy(batch.queries).requires_grad_(), copy(batch.documents).requires_grad_()
        assert not queries.is_contiguous()
        plain = [x.detach().clone(memory_format=torch.contiguous_format).requires_grad_() for x in (queries, documents)]
        results = []
        for q, d in ((queries, documents), plain):
            loss = graded_bce(q, d, batch.targets, 3.0, -1.0, tile_rows=4, tile_columns=3)
            results.append((loss, *torch.autograd.grad(loss, (q, d))))
        for own, expected in zip(*results, strict=True):
            torch.testing.assert_close(own, expected)


class TestAutograd:
    @pytest.mark.parametrize("factor", [3.0, -0.5, 0.0])
    def test_a_multiplied_loss_multiplies_every_gradient(self, random_batch, factor):
        batch = random_batch(5, 8)
        once = torch.autograd.grad(fused(batch), batch.leaves)
        scaled = torch.autograd.grad(fused(batch) * factor, batch.leaves)
        for single, multiplied in zip(once, scaled, strict=True):
            torch.testing.assert_close(multiplied, single * factor)

    def test_two_passes_through_a_retained_graph_add_up(self, random_batch):
        batch = random_batch(5, 8)
        once = torch.autograd.grad(fused(batch), batch.leaves)
        loss = fused(batch)
        loss.backward(retain_graph=True)
        (loss * 2).backward()
        for leaf, single in zip(batch.leaves, once, strict=True):
            torch.testing.assert_close(leaf.grad, 3 * single)

    @pytest.mark.parametrize("wanted", range(4))
    def test_one_input_alone_gets_the_same_gradient(self, random_batch, wanted):
        batch = random_batch(5, 8)
        expected = torch.autograd.grad(fused(batch), batch.leaves)[wanted]
        for number, leaf in enumerate(batch.leaves):
            leaf.requires_grad_(number == wanted)
        fused(batch).backward()
        torch.testing.assert_close(batch.leaves[wanted].grad, expected, rtol=1e-13, atol=0)
        assert all(leaf.grad is None for number, leaf in enumerate(batch.leaves) if number != wanted)

    def test_without_gradients_the_value_is_the_same(self, random_batch):
        batch = random_batch(5, 8)
        with torch.no_grad():
            value = fused(batch)
        assert not value.requires_grad
        torch.testing.assert_close(value, fused(batch).detach(), rtol=0, atol=0)

    def test_numbers_for_scale_and_bias(self, random_batch):
        batch = random_batch(5, 8)
        numbers = graded_bce(batch.queries, batch.documents, batch.targets, 3.0, -0.7)
        torch.testing.assert_close(numbers, fused(batch), rtol=0, atol=0)

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

    def test_a_step_of_the_bias_that_bf16_cannot_hold_is_seen(self, random_batch):
        batch = random_batch(16, 20, dim=8).as_type(torch.bfloat16)
        assert torch.tensor(-6.0, dtype=torch.bfloat16) == torch.tensor(-6.001, dtype=torch.bfloat16)
        losses = [graded_bce(batch.queries, batch.documents, batch.targets, 20.0, b) for b in (-6.0, -6.001)]
        assert losses[0] != losses[1]
