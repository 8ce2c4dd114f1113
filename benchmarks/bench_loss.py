"""Time and memory of the losses: the fused graded BCE and plain PyTorch, or every loss against the batch size.

    python benchmarks/bench_loss.py [--sizes 4096 16384] [--dims 384 1024] [--repeats 5] [--out FILE] [--quick]
    python benchmarks/bench_loss.py --growth [--sizes 256 ... 16384] [--dims 384] [--losses ...] [--plot F.svg]

Forward and backward together, B = N = size unit embeddings with four graded documents per query, float32, on the
processor. One row per size and method:

- `fused`: `bixse.losses.graded_bce`;
- `plain`: dense `binary_cross_entropy_with_logits` with autograd, scale and bias included;
- `products`: the three bare matrix products S = Q D^T, G D and G^T Q, nothing else, on whole matrices;
- `products, tiled`: the same in the tiles of the fused loss.

With `--growth` one row per loss of the catalogue and size; "dense" rows are the same objectives over the whole matrix
(for pairs, the whole B x N x N tensor) in plain PyTorch, up to the size they can bear. The growth exponent is the slope
of log(time) or log(memory) over log(size), least squares over the three largest sizes.

The ratio is that to the faster products. Memory is the peak of the resident memory beyond inputs and gradients, each in
a process of its own.
"""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, logsigmoid, normalize

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
    from collections.abc import Iterator

METHODS = ("fused", "plain", "products", "products, tiled")
WORDS = [word for word in LOSSES if word not in ("bixse-without-bias", "bixse-binarised")]
"""The ablations of BiXSE are the same computation."""
DENSE = {"dense bixse": 16384, "dense infonce": 16384, "dense pairwise-bce": 512}
"""Plain PyTorch, and the largest size it is run at."""
SCALE, BIAS = (torch.tensor(value, requires_grad=True) for value in (20.0, -8.0))


class Problem:
    """Unit embeddings of B = N texts in D dimensions; each query's own document is the best of four graded ones."""

    def __init__(self, size: int, dim: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.queries = normalize(torch.randn(size, dim, generator=generator), dim=1).requires_grad_()
        self.documents = normalize(torch.randn(size, dim, generator=generator), dim=1).requires_grad_()
        rows = torch.arange(size).repeat_interleave(4)
        columns = (rows + torch.arange(4).repeat(size)) % size
        relevance = torch.tensor([1.0, 0.67, 0.33, 0.0]).repeat(size)
        self.targets = GradedTargets(rows, columns, relevance, (size, size))


def step(word: str, problem: Problem) -> Tensor:
    """Compute loss and gradients of one method; the products stand for both."""
    leaves = [problem.queries, problem.documents]
    if word.startswith("products"):
        return products(problem, TILE_SIDE if word.endswith("tiled") else len(problem.queries))
    if word in ("fused", "plain"):
        leaves += [SCALE, BIAS]
        loss = (
            graded_bce(problem.queries, problem.documents, problem.targets, SCALE, BIAS)
            if word == "fused"
            else dense("bixse", problem, SCALE, BIAS)
        )
    elif word in DENSE:
        loss = dense(word.removeprefix("dense "), problem, 20.0, -8.0)
    else:
        settings = {"bias": -8.0} if word == "bixse" else {}
        loss = build_loss(word, nn.Identity(), **settings).compute_loss_from_embeddings(*leaves, problem.targets)
    _gradients = torch.autograd.grad(loss, leaves)
    return loss.detach()


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
def products(problem: Problem, side: int) -> Tensor:
    """Compute the three products in tiles; the scores stand in for their gradient."""
    queries, documents = problem.queries, problem.documents
    gradients = torch.zeros_like(queries), torch.zeros_like(documents)
    buffer = queries.new_empty(side * side)
    for row in range(0, len(queries), side):
        q = queries[row : row + side]
        for column in range(0, len(documents), side):
            d = documents[column : column + side]
            scores = torch.mm(q, d.T, out=buffer[: len(q) * len(d)].view(len(q), len(d)))
            gradients[0][row : row + side].addmm_(scores, d)
            gradients[1][column : column + side].addmm_(scores.T, q)
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
        runs = in_turn({name: partial(step, name, problem) for name in METHODS}, given.repeats)
        yardstick = min((runs[name] for name in METHODS if name.startswith("products")), key=middle)
        for name in METHODS:
            yield {
                "size": size,
                "dim": dim,
                "threads": torch.get_num_threads(),
                "method": name,
                "seconds": middle(runs[name]),
                "ratio_to_products": ratio(runs[name], yardstick),
                "extra_mib": memory_alone(memory_of, name, size, dim),
            }


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
        growth=Option(False, "every loss against the batch size"),
        sizes=Option([int], "B = N"),
        dims=Option([int], "D; the growth takes the first"),
        repeats=Option(int, "rounds; the median counts; above size 4,096 the growth takes one"),
        losses=Option([*WORDS, *DENSE], "of the growth", [*WORDS, *DENSE]),
        plot=Option(Path, "write the plot of the growth here (.svg or .png)"),
    )
    sizes, dims, repeats = ([2**n for n in range(8, 15)], [384], 3) if given.growth else ([4096, 16384], [384, 1024], 5)
    given.sizes, given.dims = given.sizes or sizes, given.dims or dims
    given.repeats = given.repeats or repeats
    rows = show((growth_rows if given.growth else rows_of)(given), given.out)
    if given.growth:
        show_growth(rows, "loss", {"seconds": "time grows as B^", "extra_mib": "memory as B^"}, 3)
    if given.plot:
        draw(rows, given.plot)


if __name__ == "__main__":
    main()
