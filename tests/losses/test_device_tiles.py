"""What only the form of a GPU does, run on the CPU: products in bf16, and no read that would wait for the device."""

import math

import pytest
import torch

from bixse.errors import InputError
from bixse.losses import build_loss
from bixse.losses.targets import GradedTargets
from bixse.losses.tiles.bce import graded_bce
from bixse.losses.tiles.products import product_dtype
from helpers.batches import random_batch, relative_errors, value_and_gradients

pytestmark = [pytest.mark.usefixtures("form"), pytest.mark.parametrize("form", ["gpu"], indirect=True)]


@pytest.mark.parametrize("shape", [(70, 45), (33, 100), (1, 65), (64, 64)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_bf16_products_round_sigma_alone(shape, dtype):
    batch = random_batch(*shape, dim=40, known=0.2, masked=0.3, scale=10.0, bias=-4.0).rounded_to_bf16()
    single = batch.as_type(torch.float32)
    single.queries, single.documents = batch.as_type(dtype).leaves[:2]
    rounded = value_and_gradients(single, tile_rows=40, tile_columns=33, products="bfloat16")
    value, queries, documents, scale, bias = relative_errors(rounded, value_and_gradients(batch))
    assert rounded[1].dtype == dtype
    assert max(value, bias) < 1e-6
    assert scale < 2**-9
    assert max(queries, documents) < (2**-9 if dtype == torch.float32 else 2**-8)  # the gradients are rounded too


def test_entries_with_a_grade_are_float32_with_bf16_products():
    batch = random_batch(20, 30, dim=16, known=1.0, masked=0.2, scale=10.0, bias=-4.0)
    rounded = value_and_gradients(batch.as_type(torch.float32), products="bfloat16")
    assert max(relative_errors(rounded, value_and_gradients(batch))) < 1e-6


def test_many_small_gradients_are_kept():
    documents, sigma = 2048, 1.5e-5  # of the irrelevant documents of a batch of 65,536 after some steps
    assert sigma < 2**-12 < documents * sigma, "softmax kernels leave out blocks below 2^-12"
    bias = math.log(sigma / (1 - sigma))
    q, d = torch.zeros(1, 2, requires_grad=True), torch.zeros(documents, 2)
    d[:, 0] = 1.0
    loss = graded_bce(q, d, GradedTargets.from_entries([], [], [], (1, documents)), 1.0, bias, products="bfloat16")
    (gradient,) = torch.autograd.grad(loss, q)
    assert loss.item() == pytest.approx(documents * math.log1p(math.exp(bias)), rel=1e-5)
    assert float(gradient[0, 0]) == pytest.approx(documents * sigma, rel=2**-9)


@pytest.mark.gpu
@pytest.mark.parametrize("products", ["float32", "bfloat16"])
def test_the_loss_on_a_gpu(products):
    batch = random_batch(700, 1100, dim=96, known=0.01, masked=0.2, scale=10.0, bias=-6.0).rounded_to_bf16()
    device = batch.as_type(torch.float32)
    device.queries, device.documents, device.scale, device.bias = (
        leaf.detach().cuda().requires_grad_() for leaf in device.leaves
    )
    device.targets = batch.targets.to("cuda")
    rounded = value_and_gradients(device, products=products, tile_rows=500, tile_columns=600)
    value, *gradients = relative_errors([part.cpu() for part in rounded], value_and_gradients(batch))
    assert value < 1e-5
    assert max(gradients) < (2**-8 if products == "bfloat16" else 1e-4)


@pytest.mark.parametrize("products", ["float32", "bfloat16"])
@pytest.mark.parametrize("reduction", ["query", "mean"])
def test_nothing_is_read_from_the_device(products, reduction):
    leaves = [torch.empty(size, 16, device="meta", requires_grad=True) for size in (20, 30)]
    numbers = [torch.empty((), device="meta", requires_grad=True) for _ in range(2)]
    index = torch.empty(7, dtype=torch.long, device="meta")
    targets = GradedTargets(index, index, torch.empty(7, device="meta"), (20, 30))
    loss = graded_bce(*leaves, targets, *numbers, reduction, 8, 16, products=products)
    (loss * 2.0).backward()  # on a device without data every read is an error
    assert [leaf.grad.shape for leaf in leaves] == [(20, 16), (30, 16)]
    with pytest.raises(RuntimeError, match="meta"):  # the check sees a read
        float(numbers[0])


class Projection(torch.nn.Module):
    """An encoder whose texts are rows of 6 numbers."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(6, 16)

    def forward(self, features):
        return {"sentence_embedding": self.linear(features["input_ids"])}


@pytest.mark.parametrize("word", ["bixse", "bixse-without-bias", "bixse-binarised", "infonce", "soft-infonce"])
def test_a_step_reads_nothing_from_the_device(word):
    loss = build_loss(word, Projection())
    labels = GradedTargets.from_entries([0, 0, 1], [0, 1, 2], [1.0, math.nan, 0.5], (2, 3)).tensors()
    generator = torch.Generator().manual_seed(0)
    queries, documents = ({"input_ids": torch.randn(rows, 6, generator=generator)} for rows in (2, 3))
    loss([queries, documents], labels).backward()  # the first step starts the bias
    loss.to("meta")  # on a device without data every read is an error
    on_meta = [{name: part.to("meta") for name, part in parts.items()} for parts in (queries, documents, labels)]
    loss(on_meta[:2], on_meta[2]).backward()
    assert all(value.is_meta for value in loss.statistics.values())


def test_bf16_products_that_pytorch_lacks_are_refused(monkeypatch):
    monkeypatch.setattr("bixse.losses.tiles.products.has_wide_products", lambda device: False)
    with pytest.raises(InputError, match="products: float32"):
        product_dtype("bfloat16", torch.device("cuda"), torch.float32)
    assert product_dtype("auto", torch.device("cuda"), torch.float32) == torch.float32
    assert product_dtype("auto", torch.device("cpu"), torch.float32) == torch.float32
    assert product_dtype("bfloat16", torch.device("cpu"), torch.float32) == torch.bfloat16


@pytest.mark.parametrize("word", ["infonce", "soft-infonce", "margin-mse", "lambdarank"])
def test_losses_over_rows_round_the_gradient_of_unlabelled_entries_alone(tiny_model, word, monkeypatch):
    monkeypatch.setattr("bixse.losses.tiles.row_chunks.ENTRIES_PER_CHUNK", 200)
    batch = random_batch(24, 40, dim=16, known=0.1).rounded_to_bf16()
    results = []
    for products in ("float32", "bfloat16"):
        leaves = batch.as_type(torch.float32).leaves[:2]
        loss = build_loss(word, tiny_model, scale=4.0, products=products)
        value = loss.compute_loss_from_embeddings(*leaves, batch.targets)
        results.append([value.detach(), *torch.autograd.grad(value, leaves)])
    value, *gradients = relative_errors(results[1], results[0])
    assert value < 1e-6
    assert max(gradients) < 2**-9
    assert word == "margin-mse" or max(gradients) > 0
