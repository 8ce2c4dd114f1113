import math

import pytest
import torch
from torch.nn.functional import cosine_similarity

from bixse.errors import InputError
from bixse.losses.targets import GradedTargets
from bixse.losses.tiles.bce import graded_bce
from bixse.losses.tiles.products import mean_logits
from helpers.batches import assert_all_close, naive_bce, random_batch, relative_errors, value_and_gradients


def test_embeddings_that_do_not_fit_are_refused():
    batch = random_batch(3, 4)
    for queries, got in ((batch.queries[:, :4], "queries (3, 4)"), (batch.queries[:2], "targets of shape (3, 4)")):
        with pytest.raises(InputError) as caught:
            graded_bce(queries, batch.documents, batch.targets, 1.0, 0.0)
        assert caught.value.got.startswith(got)


@pytest.mark.parametrize(
    ("rows", "columns", "known", "masked"),
    [(4, 4, 0.3, 0.0), (5, 17, 0.5, 0.2), (17, 5, 0.5, 0.5), (1, 9, 0.4, 0.2), (9, 1, 0.4, 0.2), (8, 24, 1.0, 0.1)],
)
@pytest.mark.parametrize("reduction", ["query", "mean"])
@pytest.mark.usefixtures("form")
def test_loss_and_all_four_gradients_equal_python_loops(rows, columns, known, masked, reduction):
    batch = random_batch(rows, columns, known=known, masked=masked)
    fused = value_and_gradients(batch, reduction=reduction, tile_rows=4, tile_columns=6)
    assert_all_close(fused, naive_bce(batch, reduction), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("tile", [(1, 1), (1, 64), (64, 1), (3, 5), (7, 8), (13, 11), (512, 1024)])
@pytest.mark.usefixtures("form")
def test_tile_sizes_do_not_matter(tile):
    batch = random_batch(13, 22)
    tiled, in_one = (value_and_gradients(batch, tile_rows=r, tile_columns=c) for r, c in (tile, (13, 22)))
    assert_all_close(tiled, in_one, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(
    ("scale", "bias"),
    [(20.0, 200.0), (20.0, -200.0), (1e3, 0.0), (1e3, -500.0), (1e3, 1e3), (-20.0, 5.0), (0.0, 0.0), (60.0, 25.0)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.usefixtures("form")
def test_extreme_logits_give_finite_and_right_gradients(scale, bias, dtype):
    batch = random_batch(6, 8, scale=scale, bias=bias)
    tolerance = {"rtol": 1e-11, "atol": 1e-11} if dtype == torch.float64 else {"rtol": 3e-5, "atol": 3e-3}
    fused = value_and_gradients(batch.as_type(dtype), tile_rows=4, tile_columns=4, products="float32")
    assert_all_close(fused, naive_bce(batch), **tolerance)


@pytest.mark.parametrize("bias", [-9.0, -4.0, 0.0, 25.0, 90.0])
@pytest.mark.usefixtures("form")
def test_float32_is_as_exact_as_float32_allows(bias):
    batch = random_batch(130, 150, dim=32, known=0.05, scale=20.0, bias=bias)
    single = value_and_gradients(batch.as_type(torch.float32), tile_rows=40, tile_columns=33, products="float32")
    assert max(relative_errors(single, value_and_gradients(batch))) < 2e-5


@pytest.mark.parametrize("reduction", ["query", "mean"])
@pytest.mark.usefixtures("form")
def test_a_batch_with_all_entries_masked_has_loss_and_gradients_0(reduction):
    batch = random_batch(5, 6, known=1.0, masked=1.0).as_type(torch.float32)
    assert all(float(part.abs().sum()) == 0.0 for part in value_and_gradients(batch, reduction=reduction))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_a_batch_without_queries_or_documents_has_loss_0(shape):
    q, d = torch.zeros(shape[0], 4, requires_grad=True), torch.zeros(shape[1], 4, requires_grad=True)
    loss = graded_bce(q, d, GradedTargets.from_entries([], [], [], shape), 20.0, 0.0)
    loss.backward()
    assert float(loss) == 0.0
    assert q.grad.shape == q.shape


@pytest.mark.parametrize("factor", [1.0, 3.0, -0.5, 0.0])
@pytest.mark.parametrize("wanted", range(4))
def test_the_gradient_of_one_input_alone_is_the_same_and_multiplied_with_the_loss(wanted, factor):
    batch = random_batch(5, 8)
    expected = value_and_gradients(batch)[1 + wanted]
    for number, leaf in enumerate(batch.leaves):
        leaf.requires_grad_(number == wanted)
    (factor * graded_bce(*batch.leaves[:2], batch.targets, *batch.leaves[2:])).backward()
    torch.testing.assert_close(batch.leaves[wanted].grad, factor * expected, rtol=1e-13, atol=0)
    assert [leaf.grad is not None for leaf in batch.leaves].count(True) == 1


def test_a_second_derivative_is_refused():
    batch = random_batch(3, 4)
    loss = graded_bce(*batch.leaves[:2], batch.targets, *batch.leaves[2:])
    (gradient,) = torch.autograd.grad(loss**2, batch.queries, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        gradient.sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_embeddings_keep_the_bias_and_get_gradients_of_their_dtype(dtype):
    batch = random_batch(16, 20, dim=8, scale=20.0, bias=-6.0)
    low = [x.detach().to(dtype).requires_grad_() for x in (batch.queries, batch.documents)]
    loss = graded_bce(*low, batch.targets, 20.0, -6.0)
    exact = graded_bce(*(x.detach().double() for x in low), batch.targets, 20.0, -6.0)
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(float(exact), rel=1e-6)
    assert all(g.dtype == dtype and bool(g.isfinite().all()) for g in torch.autograd.grad(loss, low))


def test_autocast_changes_nothing():
    batch = random_batch(16, 20, dim=8, scale=20.0, bias=-6.003).as_type(torch.float32)
    plain = value_and_gradients(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = value_and_gradients(batch)
    assert_all_close(inside, plain, rtol=0, atol=0)


@pytest.mark.parametrize("numbers_at_once", [2**20, 40])
def test_mean_logits_equal_the_dense_computation(monkeypatch, numbers_at_once):
    monkeypatch.setattr("bixse.losses.tiles.products.NUMBERS_AT_ONCE", numbers_at_once)
    batch = random_batch(23, 31, known=0.2).as_type(torch.float32)
    z, weight = batch.targets.dense()
    s = 20.0 * cosine_similarity(batch.queries.detach()[:, None], batch.documents.detach()[None], dim=2) - 5.0
    relevant, others = mean_logits(batch.queries, batch.documents, batch.targets, 20.0, -5.0)
    assert float(relevant) == pytest.approx(float(s[z >= 0.5].mean()), abs=1e-4)
    assert float(others) == pytest.approx(float(s[(z < 0.5) & weight.bool()].mean()), abs=1e-4)


@pytest.mark.parametrize(("known", "expected"), [(0.0, [True, False]), (1.0, [False, True])])
def test_the_mean_logit_of_no_entry_is_nan(known, expected):
    batch = random_batch(3, 4, known=0.0).with_entries([(i, j, 1.0) for i in range(3) for j in range(4) if known])
    means = mean_logits(batch.queries, batch.documents, batch.targets, 20.0)
    assert [math.isnan(float(mean)) for mean in means] == expected
