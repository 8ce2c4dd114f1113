"""Time and memory of the losses: the fused graded BCE and plain PyTorch, or every loss against the batch size.

    python benchmarks/bench_loss.py [--device cpu] [--sizes 4096 16384] [--dims 384 1024] [--repeats 5] [--out FILE]
        [--quick]
    python benchmarks/bench_loss.py --growth [--sizes 256 ... 16384] [--dims 384] [--losses ...] [--plot F.svg]

Forward and backward together, B = N = size unit embeddings with four graded documents per query. One row per size and
method, in float32 on the CPU:

- `fused`: `bixse.losses.graded_bce`;
- `plain`: dense `binary_cross_entropy_with_logits` with autograd, scale and bias included;
- `products`: the three bare matrix products S = Q D^T, G D and G^T Q, nothing else, on whole matrices;
- `products, tiled`: the same in the tiles of the fused loss.

On a GPU (the default where there is one) products are bf16 in every method, logits of the losses float32. `plain` finds
its dense targets ready, `compiled` is `plain` by torch.compile, both up to size 16,384, and the tiles of the products
have 16,384 rows and columns. Every run ends with a wait for the device.

With `--growth` one row per loss of the catalogue and size, on the CPU; "dense" rows are the same objectives over the
whole matrix (for pairs, the whole B x N x N tensor) in plain PyTorch, up to the size they can bear. The growth exponent
is the slope of log(time) or log(memory) over log(size), least squares over the three largest sizes.

The ratio is that to the faster products. Memory is the peak of the resident memory beyond inputs and gradients, each in
a process of its own; on a GPU the peak of what PyTorch allocates beyond the inputs.
"""

from __future__ import annotations

import itertools
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, logsigmoid, normalize

from bixse.encoders.loading.precision import default_device
from bixse.losses.catalogue import LOSSES, build_loss
from bixse.losses.targets import GradedTargets
from bixse.losses.tiles.bce import graded_bce
from bixse.losses.tiles.products import TILE_SIDE
from measuring import (
    OUT,
    Option,
    in_turn,
    memory_alone,
    middle,
    options,
    peak_beyond_gradients,
    ratio,
    show,
    show_growth,
    timed,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

METHODS = {"cpu": ("fused", "plain", "products", "products, tiled"), "cuda": ("fused", "plain", "compiled", "products")}
GPU_CASES = [(4096, 384), (16384, 384), (16384, 1024), (65536, 1024)]
LARGEST_DENSE = 16384
"""Largest size of the dense methods on a GPU, and side of the tiles of its products."""
WORDS = [word for word in LOSSES if word not in ("bixse-without-bias", "bixse-binarised")]
"""The ablations of BiXSE are the same computation."""
DENSE = {"dense bixse": 16384, "dense infonce": 16384, "dense pairwise-bce": 512}
"""Plain PyTorch, and the largest size it is run at."""


class Problem:
    """Unit embeddings of B = N texts in D dimensions; each query's own document is the best of four graded ones."""

    def __init__(self, size: int, dim: int, device: str = "cpu") -> None:
        generator = torch.Generator().manual_seed(0)
        self.queries, self.documents = (
            normalize(torch.randn(size, dim, generator=generator), dim=1).to(device).requires_grad_() for _ in range(2)
        )
        self.scale, self.bias = (torch.tensor(value, device=device, requires_grad=True) for value in (20.0, -8.0))
        rows = torch.arange(size).repeat_interleave(4)
        columns = (rows + torch.arange(4).repeat(size)) % size
        relevance = torch.tensor([1.0, 0.67, 0.33, 0.0]).repeat(size)
        self.targets = GradedTargets(rows, columns, relevance, (size, size)).to(device)

    @cached_property
    def relevance(self) -> Tensor:
        """The dense targets."""
        return self.targets.dense()[0]

    @cached_property
    def rounded(self) -> tuple[Tensor, Tensor]:
        """The embeddings in bf16."""
        return self.queries.detach().bfloat16(), self.documents.detach().bfloat16()


def step(word: str, problem: Problem) -> Tensor:
    """Compute loss and gradients of one method; the products stand for both."""
    leaves = [problem.queries, problem.documents]
    if word.startswith("products"):
        return products(leaves, TILE_SIDE if word.endswith("tiled") else len(problem.queries))
    if word in ("fused", "plain"):
        leaves += [problem.scale, problem.bias]
        loss = (
            graded_bce(*leaves[:2], problem.targets, *leaves[2:])
            if word == "fused"
            else dense("bixse", problem, *leaves[2:])
        )
    elif word in DENSE:
        loss = dense(word.removeprefix("dense "), problem, 20.0, -8.0)
    else:
        settings = {"bias": -8.0} if word == "bixse" else {}
        loss = build_loss(word, nn.Identity(), **settings).compute_loss_from_embeddings(*leaves, problem.targets)
    _gradients = torch.autograd.grad(loss, leaves)
    return loss.detach()


def gpu_step(word: str, problem: Problem) -> Tensor:
    """Compute loss and gradients of one method with products in bf16."""
    if word == "products":
        return products(problem.rounded, LARGEST_DENSE)
    leaves = [problem.queries, problem.documents, problem.scale, problem.bias]
    if word == "fused":
        loss = graded_bce(*leaves[:2], problem.targets, *leaves[2:], products="bfloat16")
    else:
        loss = (compiled() if word == "compiled" else plain)(*leaves, problem.relevance)
    _gradients = torch.autograd.grad(loss, leaves)
    return loss.detach()


def plain(queries: Tensor, documents: Tensor, scale: Tensor, bias: Tensor, relevance: Tensor) -> Tensor:
    """Compute the loss in plain PyTorch, with the product in bf16."""
    with torch.autocast(queries.device.type, torch.bfloat16):
        cosines = queries @ documents.T
    logits = scale * cosines.float() + bias
    return binary_cross_entropy_with_logits(logits, relevance, reduction="sum") / len(logits)


@cache
def compiled() -> Any:
    """Return the compiled form of `plain`."""
    return torch.compile(plain, dynamic=False)


def dense(word: str, problem: Problem, scale: Any, bias: Any) -> Tensor:
    """Compute an objective over the whole matrix, as plain PyTorch has it; the dense targets are part of it."""
    relevance, _ = problem.targets.dense()
    logits = scale * (problem.queries @ problem.documents.T)
    if word == "bixse":
        return binary_cross_entropy_with_logits(logits + bias, relevance, reduction="sum") / len(logits)
    if word == "infonce":
        return cross_entropy(logits, torch.arange(len(logits)))
    pairs = relevance.unsqueeze(2) > relevance.unsqueeze(1)  # (B, N, N)
    return -logsigmoid(logits.unsqueeze(2) - logits.unsqueeze(1))[pairs].mean()


@torch.no_grad()
def products(embeddings: Sequence[Tensor], side: int) -> Tensor:
    """Compute the three products in tiles; the scores stand in for their gradient."""
    queries, documents = embeddings
    gradients = torch.empty_like(queries), torch.empty_like(documents)
    buffer = queries.new_empty(min(side, len(queries)) ** 2)
    for row in range(0, len(queries), side):
        q = queries[row : row + side]
        for column in range(0, len(documents), side):
            d = documents[column : column + side]
            scores = torch.mm(q, d.T, out=buffer[: len(q) * len(d)].view(len(q), len(d)))
            gradients[0][row : row + side].addmm_(scores, d, beta=min(column, 1))
            gradients[1][column : column + side].addmm_(scores.T, q, beta=min(row, 1))
    return scores[-1, -1]


def memory_of(word: str, size: int, dim: int) -> float:
    """Measure the peak resident memory in MiB beyond inputs and gradients, of one run in this (fresh) process."""
    step(word, Problem(64, dim))  # load the kernels
    problem = Problem(size, dim)
    return peak_beyond_gradients(lambda: step(word, problem), (problem.queries, problem.documents))


def rows_of(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield one table row per size, dimension and method."""
    for size, dim in itertools.product(given.sizes, given.dims):
        problem = Problem(size, dim)
        losses = [float(step(method, problem)) for method in ("fused", "plain")]
        if abs(losses[0] - losses[1]) > 1e-5 * abs(losses[1]):
            raise SystemExit(f"the losses differ: fused {losses[0]}, plain {losses[1]}")
        methods = METHODS["cpu"]
        runs = in_turn({name: partial(step, name, problem) for name in methods}, given.repeats)
        yardstick = min((runs[name] for name in methods if name.startswith("products")), key=middle)
        for name in methods:
            yield {
                "size": size,
                "dim": dim,
                "threads": torch.get_num_threads(),
                "method": name,
                "seconds": middle(runs[name]),
                "ratio_to_products": ratio(runs[name], yardstick),
                "extra_mib": memory_alone(memory_of, name, size, dim),
            }


def gpu_rows(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield one table row per case and method on a GPU."""
    for size, dim in itertools.product(given.sizes, given.dims) if given.sizes else GPU_CASES:
        problem = Problem(size, dim, given.device)
        methods = [name for name in METHODS["cuda"] if name in ("fused", "products") or size <= LARGEST_DENSE]
        if size <= LARGEST_DENSE:  # plain in float32: its bf16 product rounds logits
            losses = [float(gpu_step("fused", problem)), float(step("plain", problem))]
            if abs(losses[0] - losses[1]) > 1e-4 * abs(losses[1]):
                raise SystemExit(f"the losses differ: fused {losses[0]}, plain {losses[1]}")
        work = {name: partial(waited, name, problem) for name in methods}
        peaks = {name: gpu_peak(run) for name, run in work.items()}  # kernels are loaded here
        in_turn(work, 2)
        runs = in_turn(work, given.repeats)
        for name in methods:
            yield {
                "size": size,
                "dim": dim,
                "card": torch.cuda.get_device_name(),
                "method": name,
                "seconds": middle(runs[name], digits=6),
                "ratio_to_products": ratio(runs[name], runs["products"]),
                "extra_mib": peaks[name],
            }


def waited(word: str, problem: Problem) -> None:
    """Compute one method and wait for the device."""
    gpu_step(word, problem)
    torch.cuda.synchronize()


def gpu_peak(work: Callable[[], None]) -> float:
    """Return the peak in MiB of what the second call allocates; the first loads kernels."""
    work()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    level = torch.cuda.memory_allocated()
    work()
    return round((torch.cuda.max_memory_allocated() - level) / 2**20, 1)


def growth_rows(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield one table row per loss and size."""
    for word, size in itertools.product(given.losses, sorted(given.sizes)):
        if size <= DENSE.get(word, size):
            work = partial(step, word, Problem(size, given.dims[0]))
            yield {
                "loss": word,
                "size": size,
                "dim": given.dims[0],
                "threads": torch.get_num_threads(),
                "seconds": middle([timed(work) for _ in range(given.repeats if size <= 4096 else 1)]),
                "extra_mib": memory_alone(memory_of, word, size, given.dims[0]),
            }


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw time and memory against the batch size, both axes logarithmic."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "bixse"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    for axis, column, label in zip(axes, ("seconds", "extra_mib"), ("seconds", "extra memory, MiB"), strict=True):
        for word in dict.fromkeys(row["loss"] for row in rows):
            points = [(row["size"], max(row[column], 1e-4)) for row in rows if row["loss"] == word]
            style = "--" if word.startswith("dense") else "-"
            axis.loglog(*zip(*points, strict=True), style, marker="o", ms=3, label=word)
        axis.set_xscale("log", base=2)
        axis.set(xlabel="batch size B (B queries, B documents)", ylabel=label)
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    """Measure, print the tables, write CSV and plot."""
    given = options(
        __doc__,
        quick={"sizes": [1024], "dims": [64], "repeats": 3},
        out=OUT,
        device=Option(default_device(), "what computes", ["cpu", "cuda"]),
        growth=Option(False, "every loss against the batch size, on the CPU"),
        sizes=Option([int], "B = N"),
        dims=Option([int], "D; the growth takes the first"),
        repeats=Option(int, "rounds; the median counts; above size 4,096 the growth takes one"),
        losses=Option([*WORDS, *DENSE], "of the growth", [*WORDS, *DENSE]),
        plot=Option(Path, "write the plot of the growth here (.svg or .png)"),
    )
    on_gpu = given.device == "cuda" and not given.growth
    sizes, dims, repeats = ([2**n for n in range(8, 15)], [384], 3) if given.growth else ([4096, 16384], [384, 1024], 5)
    if not on_gpu or given.sizes or given.dims:  # a GPU has cases of its own
        given.sizes, given.dims = given.sizes or sizes, given.dims or dims
    given.repeats = given.repeats or (15 if on_gpu else repeats)
    rows = show((growth_rows if given.growth else gpu_rows if on_gpu else rows_of)(given), given.out)
    if given.growth:
        show_growth(rows, "loss", {"seconds": "time grows as B^", "extra_mib": "memory as B^"}, 3)
    if given.plot:
        draw(rows, given.plot)


if __name__ == "__main__":
    main()
