"""The Triton kernels of the BiXSE loss against the dense formula in float64: on a GPU, or in Triton's interpreter.

The interpreter needs Triton, which comes with PyTorch for CUDA:
`TRITON_INTERPRET=1 pytest tests/losses/test_kernel.py`.
"""

import os
import warnings
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch.nn.functional import softplus

from bixse.losses.targets import GradedTargets
from bixse.losses.tiles.bce import graded_bce, has_kernel
from helpers.batches import random_batch, relative_errors, value_and_gradients

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
SHAPES = [(37, 53, 24), (1, 300, 40), (260, 140, 72), (128, 256, 64)]


@pytest.fixture(params=["interpreter", "descriptors", pytest.param("cuda", marks=pytest.mark.nvidia)])
def device(request, monkeypatch):
    """The device whose tiles the kernels compute; tiles are read by pointers, or by the descriptors of Hopper."""
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("no NVIDIA GPU here")
        return "cuda"
    if not INTERPRETED:
        pytest.skip("opt-in: TRITON_INTERPRET=1, with Triton")
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    multiply, patch = InterpreterBuilder.create_dot, interpreter._patch_lang_tensor
    convert = InterpreterBuilder.cast_impl

    def dot(self, left, right, *rest):  # it multiplies the bits of bf16 as whole numbers
        wide = ((part.data.astype(np.uint32) << 16).view(np.float32) for part in (left, right))
        return multiply(self, *(TensorHandle(part, rest[0].dtype.scalar) for part in wide), *rest)

    def patch_tensor(tensor, scope):  # NumPy 2.4 refuses int() of an array of one number
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    def round_to_bf16(self, source, kind):  # it cuts off
        if not kind.scalar.is_bf16():
            return convert(self, source, kind)
        bits = torch.from_numpy(np.ascontiguousarray(source.data)).bfloat16().view(torch.int16)
        return TensorHandle(bits.numpy().view(np.uint16), kind.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_fp_trunc", round_to_bf16)
    monkeypatch.setattr(InterpreterBuilder, "create_dot", dot)
    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch_tensor)
    monkeypatch.setattr("bixse.losses.tiles.bce.has_kernel", lambda device: True)
    monkeypatch.setattr("bixse.losses.tiles.kernel.ENTRIES", 256)  # a program takes 20 ms
    monkeypatch.setattr("bixse.losses.tiles.kernel.DESCRIBED_FROM", 128 * 128)
    if request.param == "descriptors":
        monkeypatch.setattr("bixse.losses.tiles.kernel._has_descriptors", lambda device: True)
    return "cpu"


def dense(batch, reduction):
    """Return value and gradients of the formula over the whole matrix, by autograd in float64."""
    z, weight = batch.targets.dense(torch.float64)
    logits = batch.scale * (batch.queries @ batch.documents.T) + batch.bias
    terms = weight * (softplus(logits, threshold=500.0) - z * logits)
    loss = terms.sum() / (len(z) if reduction == "query" else weight.sum())
    return [loss.detach(), *torch.autograd.grad(loss, batch.leaves)]


def in_kernel(batch, device, **options):
    single = batch.as_type(torch.float32)
    for name in ("queries", "documents", "scale", "bias"):
        setattr(single, name, getattr(single, name).detach().to(device).requires_grad_())
    single.targets = batch.targets.to(device)
    return [part.cpu() for part in value_and_gradients(single, products="bfloat16", **options)]


@pytest.mark.parametrize(("rows", "columns", "dim"), SHAPES)
@pytest.mark.parametrize("reduction", ["query", "mean"])
@pytest.mark.parametrize("tile", [{}, {"tile_rows": 135, "tile_columns": 51}])
def test_value_and_all_four_gradients_equal_the_dense_formula(device, rows, columns, dim, reduction, tile):
    batch = random_batch(rows, columns, dim=dim, known=0.05, masked=0.3, scale=10.0, bias=-4.0).rounded_to_bf16()
    errors = relative_errors(in_kernel(batch, device, reduction=reduction, **tile), dense(batch, reduction))
    assert max(errors[0], errors[4]) < 5e-6
    assert max(errors[1:4]) < 2**-9  # sigma in bf16


@pytest.mark.parametrize("bias", [-90.0, -20.0, 0.0, 20.0, 90.0])
@pytest.mark.parametrize("scale", [5.0, -90.0])
def test_extreme_logits_are_exact(device, scale, bias):
    batch = random_batch(37, 53, dim=24, known=0.1, masked=0.5, scale=scale, bias=bias).rounded_to_bf16()
    errors = relative_errors(in_kernel(batch, device), dense(batch, "query"))
    assert max(errors[0], errors[4]) < 2e-5
    assert max(errors[1:4]) < 2**-7


def test_small_losses_of_unlabelled_entries_are_exact(device):
    batch = random_batch(37, 53, dim=24, known=0.0, scale=10.0, bias=-16.0).rounded_to_bf16()
    errors = relative_errors(in_kernel(batch, device), dense(batch, "query"))
    assert max(errors[0], errors[4]) < 5e-6


@pytest.mark.parametrize("dim", [24, 130])
@pytest.mark.parametrize("tile", [{}, {"tile_rows": 20, "tile_columns": 30}])
@pytest.mark.parametrize("deterministic", [False, True])
def test_known_entries_use_embeddings_that_are_not_rounded(device, dim, tile, deterministic, monkeypatch):
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    batch = random_batch(23, 31, dim=dim, known=1.0, masked=0.2, scale=10.0, bias=-4.0)
    assert max(relative_errors(in_kernel(batch, device, **tile), dense(batch, "query"))) < 1e-5


@pytest.mark.parametrize("needed", [[0], [1], [2], [3], []])
def test_only_gradients_that_are_needed(device, needed):
    batch = random_batch(37, 53, dim=24, known=0.2, masked=0.3, scale=10.0, bias=-4.0).rounded_to_bf16()
    exact = dense(batch, "query")
    leaves = [leaf.detach().float().to(device) for leaf in batch.leaves]
    for number in needed:
        leaves[number].requires_grad_()
    loss = graded_bce(*leaves[:2], batch.targets.to(device), *leaves[2:], products="bfloat16")
    assert float(loss) == pytest.approx(float(exact[0]), rel=5e-6)
    for number in needed:
        (gradient,) = torch.autograd.grad(3.0 * loss, leaves[number])
        assert relative_errors([gradient.cpu()], [3.0 * exact[1 + number]])[0] < 2**-8


@pytest.mark.parametrize("entries", [4, 32])
def test_known_entries_in_any_order_and_without_known_entries(device, entries, monkeypatch):
    monkeypatch.setattr("bixse.losses.tiles.kernel.ENTRIES", entries)
    batch = random_batch(23, 31, dim=24, known=0.5, masked=0.2, scale=10.0, bias=-4.0).rounded_to_bf16()
    exact = dense(batch, "query")
    order = torch.randperm(len(batch.targets.rows), generator=torch.Generator().manual_seed(0))
    parts = (part[order] for part in batch.targets.tensors().values())
    batch.targets = GradedTargets(*parts, batch.targets.shape)
    assert max(relative_errors(in_kernel(batch, device), exact)) < 2**-9
    batch.targets = GradedTargets.from_entries([], [], [], batch.targets.shape)
    assert max(relative_errors(in_kernel(batch, device), dense(batch, "query"))) < 2**-8


def test_the_check_before_the_first_use_runs_the_kernels(device, monkeypatch):
    if device == "cpu":
        monkeypatch.setattr("bixse.losses.tiles.bce.has_wide_products", lambda device: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert has_kernel.__wrapped__(torch.device(device))


def test_embeddings_may_be_stored_by_column(device):
    batch = random_batch(37, 53, dim=24, scale=10.0, bias=-4.0).rounded_to_bf16()
    exact = dense(batch, "query")
    batch.queries, batch.documents = (
        part.detach().T.contiguous().T.requires_grad_() for part in (batch.queries, batch.documents)
    )
    assert max(relative_errors(in_kernel(batch, device), exact)) < 2**-8


def test_an_embedding_that_is_not_finite_makes_the_loss_nan(device):
    batch = random_batch(5, 7, dim=16).rounded_to_bf16()
    batch.documents.data[3, 2] = torch.nan
    assert in_kernel(batch, device)[0].isnan()


@pytest.mark.nvidia
def test_16384_queries_and_documents_take_at_most_600_mb():
    generator = torch.Generator().manual_seed(0)
    embeddings = (torch.nn.functional.normalize(torch.randn(16384, 384, generator=generator)) for _ in range(2))
    queries, documents = (part.cuda().requires_grad_() for part in embeddings)
    rows = torch.arange(65536) // 4
    targets = GradedTargets(rows, (rows + torch.arange(65536) % 4) % 16384, torch.ones(65536), (16384, 16384))
    targets = targets.to("cuda")
    for _ in range(2):  # the first run loads the kernels
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        graded_bce(queries, documents, targets, 10.0, -6.0, products="bfloat16").backward()
        queries.grad = documents.grad = None
        peak = torch.cuda.max_memory_allocated() - before
    assert peak < 600e6
