"""The form of the losses on a GPU, run on the processor: equal to float64, and nothing waits for the device."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bixse.errors import ConfigError, InputError
from bixse.losses import build_loss
from bixse.losses.bce import graded_bce
from bixse.losses.products import product_dtype
from bixse.losses.row_chunks import row_wise_loss
from bixse.losses.targets import GradedTargets

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """Take the tiles that other devices have."""
    monkeypatch.setattr("bixse.losses.bce._on_host", lambda embeddings, rounded: False)


def value_and_gradients(batch, **options):
    loss = graded_bce(*batch.leaves[:2], batch.targets, *batch.leaves[2:], **options)
    return [loss.detach(), *torch.autograd.grad(loss, batch.leaves)]


def relative_errors(found, exact):
    return [float((a.double() - b.double()).norm() / b.double().norm()) for a, b in zip(found, exact, strict=True)]


def rounded_to_bf16(batch):
    """The same batch with embeddings that bf16 holds exactly."""
    for side in (batch.queries, batch.documents):
        side.data = side.data.bfloat16().double()
    return batch


SHAPES = [(70, 45), (33, 100), (1, 65), (64, 64)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reduction", ["query", "mean"])
def test_float32_is_exact(random_batch, shape, reduction):
    """Ragged tiles, masks, known entries in every tile."""
    batch = random_batch(*shape, dim=40, known=0.2, masked=0.3, scale=10.0, bias=-4.0)
    exact = value_and_gradients(batch, reduction=reduction)
    options = {"tile_rows": 40, "tile_columns": 33, "products": "float32"}
    found = value_and_gradients(batch.as_type(torch.float32), reduction=reduction, **options)
    assert max(relative_errors(found, exact)) < 1e-6


@pytest.mark.parametrize("shape", SHAPES)
def test_bf16_rounds_sigma_alone(random_batch, shape):
    """Embeddings that bf16 holds: values are those of float32, gradients off by the rounding of sigma, 2^-9 at most."""
    batch = rounded_to_bf16(random_batch(*shape, dim=40, known=0.2, masked=0.3, scale=10.0, bias=-4.0))
    exact = value_and_gradients(batch)
    options = {"tile_rows": 40, "tile_columns": 33, "products": "bfloat16"}
    value, queries, documents, scale, bias = relative_errors(
        value_and_gradients(batch.as_type(torch.float32), **options), exact
    )
    assert max(value, bias) < 1e-6
    assert max(queries, documents, scale) < 2**-9


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_embeddings_of_either_type(random_batch, dtype):
    batch = rounded_to_bf16(random_batch(40, 50, dim=32, known=0.1, scale=10.0, bias=-4.0))
    exact = value_and_gradients(batch)
    found = value_and_gradients(batch.as_type(dtype), products="bfloat16")
    assert found[1].dtype == dtype
    assert max(relative_errors(found, exact)[1:3]) < 2**-8


def test_entries_with_a_grade_are_float32_with_bf16_products(random_batch):
    """Every entry is graded: nothing is left to round."""
    batch = random_batch(20, 30, dim=16, known=1.0, masked=0.2, scale=10.0, bias=-4.0)
    exact = value_and_gradients(batch)
    found = value_and_gradients(batch.as_type(torch.float32), products="bfloat16")
    assert max(relative_errors(found, exact)) < 1e-6


def test_every_entry_masked_is_exactly_zero(random_batch):
    batch = random_batch(5, 6, known=1.0, masked=1.0).as_type(torch.float32)
    assert all(float(part.abs().sum()) == 0.0 for part in value_and_gradients(batch))


@pytest.mark.parametrize(("scale", "bias"), [(1e3, 0.0), (1e3, 1e3), (20.0, -200.0), (-20.0, 5.0), (0.0, 0.0)])
def test_extreme_logits(random_batch, scale, bias):
    batch = random_batch(6, 8, scale=scale, bias=bias)
    exact = value_and_gradients(batch)
    found = value_and_gradients(batch.as_type(torch.float32), products="float32")
    for own, expected in zip(found, exact, strict=True):
        torch.testing.assert_close(own.double(), expected, rtol=3e-5, atol=3e-3)


def test_many_small_gradients_are_kept():
    """At a batch of 65,536 with one relevant document a query, sigma of the others is about 1.5e-5 after some steps.

    Each is far below 2^-12, under which softmax kernels leave out whole blocks; their sum is what a positive gives.
    """
    documents, sigma = 2048, 1.5e-5
    bias = math.log(sigma / (1 - sigma))
    q, d = torch.zeros(1, 2, requires_grad=True), torch.zeros(documents, 2)
    d[:, 0] = 1.0
    nothing = GradedTargets.from_entries([], [], [], (1, documents))
    loss = graded_bce(q, d, nothing, 1.0, bias, products="bfloat16")
    (gradient,) = torch.autograd.grad(loss, q)
    assert loss.item() == pytest.approx(documents * math.log1p(math.exp(bias)), rel=1e-5)
    assert float(gradient[0, 0]) == pytest.approx(documents * sigma, rel=2**-9)
    assert sigma < 2**-12 < documents * sigma


@GPU
@pytest.mark.gpu
@pytest.mark.parametrize("products", ["float32", "bfloat16"])
def test_on_a_gpu(random_batch, products):
    """Large enough for many programs of the kernel; more than one tile, ragged ones too."""
    batch = rounded_to_bf16(random_batch(700, 1100, dim=96, known=0.01, masked=0.2, scale=10.0, bias=-6.0))
    exact = value_and_gradients(batch)
    device = batch.as_type(torch.float32)
    device.queries, device.documents, device.scale, device.bias = (
        leaf.detach().cuda().requires_grad_() for leaf in device.leaves
    )
    device.targets = batch.targets.to("cuda")
    found = value_and_gradients(device, products=products, tile_rows=500, tile_columns=600)
    value, *gradients = relative_errors([part.cpu() for part in found], exact)
    assert value < 1e-5
    assert max(gradients) < (2**-8 if products == "bfloat16" else 1e-4)


class HostReads(TorchDispatchMode):
    """Counts operations whose result the processor must wait for."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket.__name__ in ("_local_scalar_dense", "nonzero", "_unique2", "masked_select"):
            self.found.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("products", ["float32", "bfloat16"])
@pytest.mark.parametrize("reduction", ["query", "mean"])
def test_nothing_is_read_from_the_device(random_batch, products, reduction):
    batch = random_batch(20, 30, known=0.2).as_type(torch.float32)
    options = {"products": products, "reduction": reduction, "tile_rows": 8}
    with HostReads() as reads:
        graded_bce(*batch.leaves[:2], batch.targets, *batch.leaves[2:], **options)
    assert reads.found == []
    with HostReads() as reads:  # that the count counts
        float(batch.scale.detach() + 1)
    assert len(reads.found) == 1


@pytest.mark.parametrize("products", ["float32", "bfloat16"])
def test_forward_and_backward_without_any_data(products):
    """On a device that holds no numbers every read is an error; bf16 takes PyTorch's product with a float32 result."""
    leaves = [torch.empty(size, 16, device="meta", requires_grad=True) for size in (20, 30)]
    numbers = [torch.empty((), device="meta", requires_grad=True) for _ in range(2)]
    index = torch.empty(7, dtype=torch.long, device="meta")
    targets = GradedTargets(index, index, torch.empty(7, device="meta"), (20, 30))
    loss = graded_bce(*leaves, targets, *numbers, "mean", 8, 16, products=products)
    (loss * 2.0).backward()
    assert [leaf.grad.shape for leaf in leaves] == [(20, 16), (30, 16)]


class TestProducts:
    def test_bf16_products_that_pytorch_lacks(self, monkeypatch):
        monkeypatch.setattr("bixse.losses.products.has_wide_products", lambda device: False)
        with pytest.raises(InputError, match="products: float32"):
            product_dtype("bfloat16", torch.device("cuda"), torch.float32)
        assert product_dtype("auto", torch.device("cuda"), torch.float32) == torch.float32

    def test_auto_is_float32_on_the_processor(self):
        assert product_dtype("auto", torch.device("cpu"), torch.float32) == torch.float32
        assert product_dtype("bfloat16", torch.device("cpu"), torch.float32) == torch.bfloat16

    def test_unknown_words(self, tiny_model):
        with pytest.raises(ConfigError, match="products"):
            build_loss("bixse", tiny_model, products="float16")


@pytest.mark.parametrize("word", ["infonce", "soft-infonce", "margin-mse", "lambdarank"])
def test_rows_with_bf16_products(tiny_model, random_batch, word):
    """Embeddings that bf16 holds: only the gradient of entries without a grade is rounded."""
    batch = rounded_to_bf16(random_batch(24, 40, dim=16, known=0.1))
    found = []
    for products in ("float32", "bfloat16"):
        leaves = [side.detach().float().requires_grad_() for side in (batch.queries, batch.documents)]
        loss = build_loss(word, tiny_model, scale=4.0, products=products)
        value, _ = row_wise_loss(loss, *leaves, batch.targets, 200)
        found.append([value.detach(), *torch.autograd.grad(value, leaves)])
    value, *gradients = relative_errors(found[1], found[0])
    assert value < 1e-6
    assert max(gradients) < 2**-9
    assert word == "margin-mse" or max(gradients) > 0
