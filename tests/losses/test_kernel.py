"""The Triton kernel of the BiXSE loss against the dense formula in float64: on a GPU, or in Triton's interpreter.

The interpreter needs Triton, which comes with PyTorch for CUDA:
`TRITON_INTERPRET=1 pytest tests/losses/test_kernel.py`.
"""

import os
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch.nn.functional import softplus

from bixse.losses.targets import GradedTargets
from bixse.losses.tiles.bce import graded_bce
from helpers.batches import random_batch, relative_errors, value_and_gradients

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
SHAPES = [(37, 53, 24), (1, 300, 40), (260, 140, 72), (128, 256, 64)]


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    """The device whose tiles the kernel computes."""
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("no NVIDIA GPU here")
        return "cuda"
    if not INTERPRETED:
        pytest.skip("opt-in: TRITON_INTERPRET=1, with Triton")
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    multiply, patch = InterpreterBuilder.create_dot, interpreter._patch_lang_tensor

    def dot(self, left, right, *rest):  # it multiplies the bits of bf16 as whole numbers
        wide = ((part.data.astype(np.uint32) << 16).view(np.float32) for part in (left, right))
        return multiply(self, *(TensorHandle(part, rest[0].dtype.scalar) for part in wide), *rest)

    def patch_tensor(tensor, scope):  # NumPy 2.4 refuses int() of an array of one number
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(InterpreterBuilder, "create_dot", dot)
    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch_tensor)
    monkeypatch.setattr("bixse.losses.tiles.bce.has_kernel", lambda device: True)
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
@pytest.mark.parametrize("tile", [{}, {"tile_rows": 21, "tile_columns": 33}])
def test_value_and_all_four_gradients_equal_the_dense_formula(device, rows, columns, dim, reduction, tile):
    batch = random_batch(rows, columns, dim=dim, known=0.2, masked=0.3, scale=10.0, bias=-4.0).rounded_to_bf16()
    errors = relative_errors(in_kernel(batch, device, reduction=reduction, **tile), dense(batch, reduction))
    assert max(errors[0], errors[4]) < 5e-6
    assert max(errors[1:4]) < (2**-9 if device == "cuda" else 2**-8)  # sigma in bf16, which the interpreter cuts off


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


def test_known_entries_use_embeddings_that_are_not_rounded(device):
    batch = random_batch(37, 53, dim=24, known=1.0, masked=0.2, scale=10.0, bias=-4.0)
    assert max(relative_errors(in_kernel(batch, device), dense(batch, "query"))) < 1e-5


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")
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
