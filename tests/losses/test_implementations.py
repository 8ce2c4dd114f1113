"""What computes a loss: each form is held to float64, and none waits for a device or is replaced silently."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bixse.errors import ConfigError, InputError
from bixse.losses import BiXSELoss, build_loss
from bixse.losses.engines import implementations
from bixse.losses.engines.graded_bce import graded_bce
from bixse.losses.engines.row_chunks import row_wise_loss
from bixse.losses.engines.tiles import EagerTiles
from bixse.losses.targets import GradedTargets

TRITON = pytest.mark.skipif(not implementations.find_spec("triton"), reason="triton is missing")
INTERPRETER = pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a GPU, kernels run on it")
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")
SOFTMAX = ["infonce", "infonce-masked", "soft-infonce"]
FORMS = ["eager", pytest.param("triton", marks=[TRITON, INTERPRETER])]


@pytest.fixture
def form(monkeypatch):
    """Keywords of a form by name; "eager" is what "tiles" is on a GPU."""

    def keywords(name):
        if name == "eager":

            def eager(implementation, products, device, embeddings):
                dtype = implementations.product_dtype(products, device, embeddings)
                return implementations.Chosen("tiles", dtype, device, EagerTiles)

            monkeypatch.setattr("bixse.losses.engines.graded_bce.choose", eager)
            return {}
        return {"implementation": name}

    return keywords


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


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reduction", ["query", "mean"])
def test_float32_is_exact(random_batch, form, name, shape, reduction):
    """Ragged tiles, masks, known entries in every tile."""
    batch = random_batch(*shape, dim=40, known=0.2, masked=0.3, scale=10.0, bias=-4.0)
    exact = value_and_gradients(batch, reduction=reduction)
    options = {"tile_rows": 40, "tile_columns": 33, "products": "float32", **form(name)}
    found = value_and_gradients(batch.as_type(torch.float32), reduction=reduction, **options)
    assert max(relative_errors(found, exact)) < 1e-6


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_bf16_rounds_sigma_alone(random_batch, form, name, shape):
    """Embeddings that bf16 holds: values are those of float32, gradients off by the rounding of sigma, 2^-9 at most."""
    batch = rounded_to_bf16(random_batch(*shape, dim=40, known=0.2, masked=0.3, scale=10.0, bias=-4.0))
    exact = value_and_gradients(batch)
    options = {"tile_rows": 40, "tile_columns": 33, "products": "bfloat16", **form(name)}
    value, queries, documents, scale, bias = relative_errors(
        value_and_gradients(batch.as_type(torch.float32), **options), exact
    )
    assert max(value, bias) < 1e-6
    assert max(queries, documents, scale) < 2**-9


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_embeddings_of_either_type(random_batch, form, name, dtype):
    batch = rounded_to_bf16(random_batch(40, 50, dim=32, known=0.1, scale=10.0, bias=-4.0))
    exact = value_and_gradients(batch)
    found = value_and_gradients(batch.as_type(dtype), products="bfloat16", **form(name))
    assert found[1].dtype == dtype
    assert max(relative_errors(found, exact)[1:3]) < 2**-8


@pytest.mark.parametrize("name", FORMS)
def test_entries_with_a_grade_are_float32_with_bf16_products(random_batch, form, name):
    """Every entry is graded: nothing is left to round."""
    batch = random_batch(20, 30, dim=16, known=1.0, masked=0.2, scale=10.0, bias=-4.0)
    exact = value_and_gradients(batch)
    found = value_and_gradients(batch.as_type(torch.float32), products="bfloat16", **form(name))
    assert max(relative_errors(found, exact)) < 1e-6


@pytest.mark.parametrize("name", FORMS)
def test_every_entry_masked_is_exactly_zero(random_batch, form, name):
    batch = random_batch(5, 6, known=1.0, masked=1.0).as_type(torch.float32)
    assert all(float(part.abs().sum()) == 0.0 for part in value_and_gradients(batch, **form(name)))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(("scale", "bias"), [(1e3, 0.0), (1e3, 1e3), (20.0, -200.0), (-20.0, 5.0), (0.0, 0.0)])
def test_extreme_logits(random_batch, form, name, scale, bias):
    batch = random_batch(6, 8, scale=scale, bias=bias)
    exact = value_and_gradients(batch)
    found = value_and_gradients(batch.as_type(torch.float32), products="float32", **form(name))
    for own, expected in zip(found, exact, strict=True):
        torch.testing.assert_close(own.double(), expected, rtol=3e-5, atol=3e-3)


@pytest.mark.parametrize("name", FORMS)
def test_many_small_gradients_are_kept(form, name):
    """At a batch of 65,536 with one relevant document a query, sigma of the others is about 1.5e-5 after some steps.

    Each is far below 2^-12, under which softmax kernels leave out whole blocks; their sum is what a positive gives.
    """
    documents, sigma = 2048, 1.5e-5
    bias = math.log(sigma / (1 - sigma))
    q, d = torch.zeros(1, 2, requires_grad=True), torch.zeros(documents, 2)
    d[:, 0] = 1.0
    nothing = GradedTargets.from_entries([], [], [], (1, documents))
    loss = graded_bce(q, d, nothing, 1.0, bias, products="bfloat16", **form(name))
    (gradient,) = torch.autograd.grad(loss, q)
    assert loss.item() == pytest.approx(documents * math.log1p(math.exp(bias)), rel=1e-5)
    assert float(gradient[0, 0]) == pytest.approx(documents * sigma, rel=2**-9)
    assert sigma < 2**-12 < documents * sigma


@pytest.mark.slow
@pytest.mark.skipif(not implementations.shutil.which("g++"), reason="torch.compile needs a C++ compiler")
def test_compiled(random_batch):
    """Every case in one test: compiling takes most of its time."""
    for products, most in (("float32", 1e-6), ("bfloat16", 2**-9)):
        for shape in SHAPES:
            batch = rounded_to_bf16(random_batch(*shape, dim=40, known=0.2, masked=0.3, scale=10.0, bias=-4.0))
            exact = value_and_gradients(batch)
            options = {"implementation": "compiled", "products": products, "tile_rows": 40, "tile_columns": 33}
            assert max(relative_errors(value_and_gradients(batch.as_type(torch.float32), **options), exact)) < most


@GPU
@pytest.mark.gpu
@pytest.mark.parametrize("name", ["tiles", "compiled", "triton"])
@pytest.mark.parametrize("products", ["float32", "bfloat16"])
def test_on_a_gpu(random_batch, name, products):
    """Large enough for many programs of the kernel; more than one tile, ragged ones too."""
    batch = rounded_to_bf16(random_batch(700, 1100, dim=96, known=0.01, masked=0.2, scale=10.0, bias=-6.0))
    exact = value_and_gradients(batch)
    device = batch.as_type(torch.float32)
    device.queries, device.documents, device.scale, device.bias = (
        leaf.detach().cuda().requires_grad_() for leaf in device.leaves
    )
    device.targets = batch.targets.to("cuda")
    found = value_and_gradients(device, implementation=name, products=products, tile_rows=500, tile_columns=600)
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


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("products", ["float32", "bfloat16"])
@pytest.mark.parametrize("reduction", ["query", "mean"])
def test_nothing_is_read_from_the_device(random_batch, form, name, products, reduction):
    batch = random_batch(20, 30, known=0.2).as_type(torch.float32)
    options = {"products": products, "reduction": reduction, "tile_rows": 8, **form(name)}
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


@TRITON
@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("kernel", ["score_tile", "softmax_tile summing", "softmax_tile weighing"])
def test_the_kernels_compile_for_a_gpu_that_is_not_here(kernel, capability, tmp_path):
    """To machine code, within the registers and the shared memory of the GPU; in a process without the interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", AHEAD_OF_TIME, str(capability), *kernel.split()],
        capture_output=True,
        text=True,
        env={**implementations.os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shared, instruction, machine_code = done.stdout.split()
    assert int(shared) <= {80: 163, 90: 227}[capability] * 1024
    assert instruction == {80: "mma.sync", 90: "wgmma"}[capability]
    assert int(machine_code) > 0


AHEAD_OF_TIME = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from bixse.losses.engines import triton_tiles
from bixse.losses.engines.triton_tiles import GROUP, LAUNCH, SHAPE

capability, name, *form = sys.argv[1:]
kernel = getattr(triton_tiles, name)
names = kernel.arg_names
constants = dict(zip(names[-5:], (*SHAPE, GROUP, False))) | {"summing": form == ["summing"] for _ in form}
kinds = dict.fromkeys(names, "i32") | dict.fromkeys(("queries", "documents", "numbers"), "*bf16")
kinds |= dict.fromkeys(("values", "totals", "of_terms", "highest"), "*fp32") | dict.fromkeys(("first", "last"), "*i64")
kinds |= dict.fromkeys(("scale", "bias"), "fp32" if form else "*fp32") | dict.fromkeys(constants, "constexpr")
kinds = {name: kinds[name] for name in names}
aligned = ("queries", "documents", "numbers", "rows", "columns", "dimensions")
attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
source = ASTSource(kernel, kinds, constants, attributes)
made = triton.compile(source, target=GPUTarget("cuda", int(capability), 32), options=LAUNCH)
kind = next(word for word in ("wgmma", "mma.sync") if word in made.asm["ptx"])
print(made.metadata.shared, kind, len(made.asm["cubin"]))
"""


class TestChoice:
    def refused(self, *arguments):
        with pytest.raises(InputError) as caught:
            implementations.choose(*arguments)
        return str(caught.value)

    def test_without_triton(self, monkeypatch):
        monkeypatch.setattr(implementations, "find_spec", lambda name: None)
        assert "pip install triton" in self.refused("triton", "auto", torch.device("cuda"), torch.float32)
        assert "pip install triton" in self.refused("compiled", "float32", torch.device("cuda"), torch.float32)

    def test_triton_on_the_processor(self, monkeypatch):
        monkeypatch.setattr(implementations, "find_spec", lambda name: True)
        monkeypatch.setenv("TRITON_INTERPRET", "0")
        assert "got the processor" in self.refused("triton", "auto", torch.device("cpu"), torch.float32)
        assert "float64" in self.refused("triton", "auto", torch.device("cpu"), torch.float64)

    @pytest.mark.parametrize(("capability", "allowed"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
    def test_triton_on_an_old_gpu(self, monkeypatch, capability, allowed):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        monkeypatch.setattr(implementations, "find_spec", lambda name: True)
        missing = implementations._missing_for_triton(torch.device("cuda"), torch.bfloat16)
        assert (missing is None) == allowed

    def test_compiled_without_a_compiler(self, monkeypatch):
        monkeypatch.setenv("CXX", "no-such-compiler")
        assert "no-such-compiler" in self.refused("compiled", "auto", torch.device("cpu"), torch.float32)

    def test_bf16_products_that_pytorch_lacks(self, monkeypatch):
        monkeypatch.setattr("bixse.losses.engines.products.has_wide_products", lambda device: False)
        assert "products: float32" in self.refused("tiles", "bfloat16", torch.device("cuda"), torch.float32)
        assert implementations.choose("auto", "auto", torch.device("cuda"), torch.float32).dtype == torch.float32

    def test_auto_is_float32_on_the_processor(self):
        choice = implementations.choose("auto", "auto", torch.device("cpu"), torch.float32)
        assert str(choice) == "tiles, products of float32"

    def test_a_loss_says_what_computes_it(self, tiny_model):
        loss = BiXSELoss(tiny_model, products="bfloat16")
        assert loss.computed_by(torch.device("cpu")) == "tiles, products of bfloat16"
        assert build_loss("infonce", tiny_model).computed_by(torch.device("cpu")) == "rows, products of float32"
        assert build_loss("lambdarank", tiny_model).computed_by(torch.device("cpu")) == "rows, products of float32"

    @TRITON
    @INTERPRETER
    @pytest.mark.parametrize("word", SOFTMAX)
    def test_a_softmax_loss_by_its_kernel(self, tiny_model, word):
        loss = build_loss(word, tiny_model, implementation="triton", products="bfloat16")
        assert loss.computed_by(torch.device("cpu")) == "triton, products of bfloat16"

    @TRITON
    @pytest.mark.parametrize("word", SOFTMAX)
    def test_a_kernel_that_cannot_run_is_refused(self, tiny_model, random_batch, monkeypatch, word):
        """By the check before training, and by the loss itself, which takes no other form."""
        monkeypatch.setenv("TRITON_INTERPRET", "0")
        batch = random_batch(4, 5).as_type(torch.float32)
        loss = build_loss(word, tiny_model, implementation="triton")
        with pytest.raises(InputError, match="implementation: rows"):
            loss.computed_by(torch.device("cpu"))
        with pytest.raises(InputError, match="implementation: rows"):
            loss.compute_loss_from_embeddings(batch.queries, batch.documents, batch.targets)

    @pytest.mark.parametrize(
        ("word", "name"),
        [("infonce", "tiles"), ("soft-infonce", "compiled"), ("lambdarank", "triton"), ("bixse", "rows")],
    )
    def test_what_a_loss_does_not_have(self, tiny_model, word, name):
        with pytest.raises(ConfigError, match="implementation"):
            build_loss(word, tiny_model, implementation=name)

    @pytest.mark.parametrize("options", [{"implementation": "cuda"}, {"products": "float16"}])
    def test_unknown_words(self, tiny_model, options):
        with pytest.raises(ConfigError, match=next(iter(options))):
            build_loss("bixse", tiny_model, **options)

    def test_the_option_reaches_the_computation(self, tiny_model, random_batch, monkeypatch):
        monkeypatch.setenv("CXX", "no-such-compiler")
        batch = random_batch(4, 5).as_type(torch.float32)
        loss = build_loss("bixse", tiny_model, bias=-1.0, implementation="compiled")
        with pytest.raises(InputError, match="no-such-compiler"):
            loss.compute_loss_from_embeddings(batch.queries, batch.documents, batch.targets)


@pytest.mark.parametrize("word", ["infonce", "soft-infonce", "margin-mse", "lambdarank"])
def test_rows_with_bf16_products(tiny_model, random_batch, word):
    """Embeddings that bf16 holds: only the gradient of entries without a grade is rounded."""
    batch = rounded_to_bf16(random_batch(24, 40, dim=16, known=0.1))
    loss = build_loss(word, tiny_model, scale=4.0)
    found = []
    for products in ("float32", "bfloat16"):
        leaves = [side.detach().float().requires_grad_() for side in (batch.queries, batch.documents)]
        value, _ = row_wise_loss(*leaves, batch.targets, 4.0, loss.chunk_result, 200, products)
        found.append([value.detach(), *torch.autograd.grad(value, leaves)])
    value, *gradients = relative_errors(found[1], found[0])
    assert value < 1e-6
    assert max(gradients) < 2**-9
    assert word == "margin-mse" or max(gradients) > 0


def softmax_parts(word, batch, **options):
    """Value and gradients, in tiles that are ragged; without options on whole rows, which are the oracle."""
    loss = build_loss(word, torch.nn.Identity(), **{"scale": 10.0, **options})
    tile = {"tile": (40, 33)} if options.get("implementation") == "triton" else {}
    value, _ = loss.loss_and_denominator(*batch.leaves[:2], batch.targets, **tile)
    return [value.detach(), *torch.autograd.grad(value, batch.leaves[:2])]


@TRITON
@INTERPRETER
@pytest.mark.parametrize("word", SOFTMAX)
class TestSoftmaxKernel:
    """Several positives a query, queries without one, graded negatives and masks in every tile."""

    @pytest.mark.parametrize("shape", SHAPES)
    def test_float32_is_exact(self, random_batch, word, shape):
        batch = random_batch(*shape, dim=40, known=0.2, masked=0.3)
        exact = softmax_parts(word, batch)
        found = softmax_parts(word, batch.as_type(torch.float32), implementation="triton", products="float32")
        assert exact[0] > 0
        assert max(relative_errors(found, exact)) < 1e-6

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
    def test_bf16_rounds_gradients_alone(self, random_batch, word, dtype):
        """Embeddings that bf16 holds: the value is that of float32, gradients are off by the rounding of weights."""
        batch = rounded_to_bf16(random_batch(33, 70, dim=40, known=0.2, masked=0.3))
        exact = softmax_parts(word, batch)
        found = softmax_parts(word, batch.as_type(dtype), implementation="triton", products="bfloat16")
        value, *gradients = relative_errors(found, exact)
        if dtype == torch.float32:
            assert value < 1e-6
            assert 0 < max(gradients) < 2**-9
        assert value < 2**-8
        assert max(gradients) < 2**-8

    @pytest.mark.parametrize("scale", [1e-3, 2e3])
    def test_extreme_logits(self, random_batch, word, scale):
        batch = random_batch(6, 8)
        exact = softmax_parts(word, batch, scale=scale)
        options = {"implementation": "triton", "products": "float32", "scale": scale}
        for own, expected in zip(softmax_parts(word, batch.as_type(torch.float32), **options), exact, strict=True):
            torch.testing.assert_close(own.double(), expected, rtol=1e-4, atol=1e-3 * min(scale, 1.0))

    @pytest.mark.parametrize(("known", "masked"), [(0.0, 0.0), (1.0, 1.0)])
    def test_nothing_to_learn_from_is_exactly_zero(self, random_batch, word, known, masked):
        batch = random_batch(5, 6, known=known, masked=masked).as_type(torch.float32)
        assert all(float(part.abs().sum()) == 0.0 for part in softmax_parts(word, batch, implementation="triton"))

    def test_without_any_negative(self, random_batch, word):
        """Every document is a positive: InfoNCE has nothing to tell them from."""
        batch = random_batch(3, 4).with_entries([(i, j, 1.0) for i in range(3) for j in range(4)])
        exact = softmax_parts(word, batch)
        found = softmax_parts(word, batch.as_type(torch.float32), implementation="triton")
        for own, expected in zip(found, exact, strict=True):
            torch.testing.assert_close(own.double(), expected, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("alone", [0, 1])
    def test_one_side_frozen(self, random_batch, word, alone):
        batch = random_batch(9, 14).as_type(torch.float32)
        whole = softmax_parts(word, batch, implementation="triton")
        leaves = [batch.queries.detach(), batch.documents.detach()]
        leaves[alone].requires_grad_()
        loss = build_loss(word, torch.nn.Identity(), scale=10.0, implementation="triton")
        value = loss.compute_loss_from_embeddings(*leaves, batch.targets)
        torch.testing.assert_close(torch.autograd.grad(value * 2.0, leaves[alone])[0], 2.0 * whole[1 + alone])

    def test_many_small_gradients_are_kept(self, word):
        """One document is relevant and found; the others' weights are below 2^-12 each, and sum to what pulls on it."""
        documents, scale = 1024, 10.0
        q, d = torch.tensor([[1.0, 0.0]], requires_grad=True), torch.zeros(documents, 2)
        d[1:, 1], d[0, 0] = 1.0, 1.0
        targets = GradedTargets.from_entries([0], [0], [1.0], (1, documents))
        loss = build_loss(word, torch.nn.Identity(), scale=scale, implementation="triton", products="bfloat16")
        (gradient,) = torch.autograd.grad(loss.compute_loss_from_embeddings(q, d, targets), q)
        share = 1 / (1 + math.exp(scale) / (documents - 1))
        assert gradient[0].tolist() == pytest.approx([-scale * share, scale * share], rel=2**-8)
        assert share / documents < 2**-12 < share

    def test_nothing_is_read_from_the_device(self, random_batch, word):
        batch = random_batch(20, 30, known=0.2).as_type(torch.float32)
        loss = build_loss(word, torch.nn.Identity(), implementation="triton", products="bfloat16")
        with HostReads() as reads:
            loss.loss_and_denominator(*batch.leaves[:2], batch.targets, tile=(8, 16))
        assert reads.found == []


@GPU
@pytest.mark.gpu
@pytest.mark.parametrize("word", SOFTMAX)
@pytest.mark.parametrize("implementation", ["rows", "triton"])
@pytest.mark.parametrize("products", ["float32", "bfloat16"])
def test_softmax_on_a_gpu(random_batch, word, implementation, products):
    """Against float64 on the processor; more than one tile of the kernel, ragged ones too."""
    batch = rounded_to_bf16(random_batch(700, 1100, dim=96, known=0.01, masked=0.2))
    exact = softmax_parts(word, batch)
    device = batch.as_type(torch.float32)
    device.queries, device.documents = (leaf.detach().cuda().requires_grad_() for leaf in device.leaves[:2])
    device.targets = batch.targets.to("cuda")
    loss = build_loss(word, torch.nn.Identity(), scale=10.0, implementation=implementation, products=products)
    tile = {"tile": (500, 600)} if implementation == "triton" else {}
    value, _ = loss.loss_and_denominator(*device.leaves[:2], device.targets, **tile)
    found = [part.cpu() for part in (value.detach(), *torch.autograd.grad(value, device.leaves[:2]))]
    of_value, *gradients = relative_errors(found, exact)
    assert of_value < 1e-5
    assert max(gradients) < (2**-8 if products == "bfloat16" else 1e-4)
