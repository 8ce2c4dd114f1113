"""Time and memory of the fused graded BCE, beside plain PyTorch and the matrix products nothing exact avoids.

    python benchmarks/bench_loss.py [--sizes 4096 16384] [--dims 384 1024] [--repeats 5] [--out FILE] [--quick]

One row a method and size; forward and backward together, B = N = size, float32, on the processor:

- `fused`: `bixse.losses.graded_bce`;
- `plain`: dense `binary_cross_entropy_with_logits` with autograd, scale and bias included;
- `products`: the three bare matrix products S = Q D^T, G D and G^T Q, nothing else, on whole matrices;
- `products, tiled`: the same in the tiles of the fused loss.

Times are medians of runs interleaved in one process, so that another program on the machine slows all alike; the
ratio is the median over rounds of a method's time to that of the faster products in the same round. Memory is
measured in a process of its own for each method: the peak of the resident memory beyond inputs and gradients.
The number of threads is PyTorch's: set OMP_NUM_THREADS to change it.
"""

from __future__ import annotations

import argparse
import itertools
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, normalize

from bixse.losses.bce import graded_bce
from bixse.losses.products import TILE_SIDE
from bixse.losses.targets import GradedTargets
from measuring import in_a_process_of_its_own, in_turn, make_parser, middle, ratio, show
from memory import peak_beyond_gradients

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Problem:
    """Unit embeddings of B = N texts and one graded document for each query."""

    def __init__(self, size: int, dim: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.queries = normalize(torch.randn(size, dim, generator=generator), dim=1).requires_grad_()
        self.documents = normalize(torch.randn(size, dim, generator=generator), dim=1).requires_grad_()
        self.scale = torch.tensor(20.0, requires_grad=True)
        self.bias = torch.tensor(-8.0, requires_grad=True)
        rows = torch.arange(size)
        self.targets = GradedTargets(rows, rows, torch.rand(size, generator=generator), (size, size))

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What is differentiated."""
        return self.queries, self.documents, self.scale, self.bias


def fused(problem: Problem) -> Tensor:
    """Loss and all four gradients, tile by tile."""
    loss = graded_bce(problem.queries, problem.documents, problem.targets, problem.scale, problem.bias)
    _gradients = torch.autograd.grad(loss, problem.inputs)
    return loss


def plain(problem: Problem) -> Tensor:
    """Loss and all four gradients through the dense matrix; the dense targets are part of the method."""
    relevance, _ = problem.targets.dense()
    logits = problem.scale * (problem.queries @ problem.documents.T) + problem.bias
    loss = binary_cross_entropy_with_logits(logits, relevance, reduction="sum") / len(relevance)
    _gradients = torch.autograd.grad(loss, problem.inputs)
    return loss


@torch.no_grad()
def products(problem: Problem) -> Tensor:
    """The three products on whole matrices; the scores stand in for their gradient."""
    scores = problem.queries @ problem.documents.T
    _gradients = scores @ problem.documents, scores.T @ problem.queries
    return scores[0, 0]


@torch.no_grad()
def products_tiled(problem: Problem) -> Tensor:
    """The three products in the tiles of the fused loss."""
    queries, documents = problem.queries, problem.documents
    gradients = torch.zeros_like(queries), torch.zeros_like(documents)
    buffer = queries.new_empty(TILE_SIDE * TILE_SIDE)
    for row in range(0, len(queries), TILE_SIDE):
        q = queries[row : row + TILE_SIDE]
        for column in range(0, len(documents), TILE_SIDE):
            d = documents[column : column + TILE_SIDE]
            scores = torch.mm(q, d.T, out=buffer[: len(q) * len(d)].view(len(q), len(d)))
            gradients[0][row : row + TILE_SIDE].addmm_(scores, d)
            gradients[1][column : column + TILE_SIDE].addmm_(scores.T, q)
    return scores[-1, -1]


METHODS: dict[str, Callable[[Problem], Tensor]] = {
    "fused": fused,
    "plain": plain,
    "products": products,
    "products, tiled": products_tiled,
}


def measure_memory(method: str, size: int, dim: int) -> float:
    """Peak resident memory in MiB beyond inputs and gradients, of one run in this (fresh) process."""
    METHODS[method](Problem(64, dim))  # load the kernels
    problem = Problem(size, dim)
    return peak_beyond_gradients(lambda: METHODS[method](problem), problem.inputs)


def rows_of(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    """One table row a size, dimension and method."""
    for size, dim in itertools.product(options.sizes, options.dims):
        problem = Problem(size, dim)
        losses = [float(method(problem).detach()) for method in (fused, plain)]
        if abs(losses[0] - losses[1]) > 1e-5 * abs(losses[1]):
            raise SystemExit(f"the losses differ: fused {losses[0]}, plain {losses[1]}")
        runs = in_turn({name: partial(method, problem) for name, method in METHODS.items()}, options.repeats)
        yardstick = min((runs[name] for name in METHODS if name.startswith("products")), key=middle)
        for name in METHODS:
            yield {
                "size": size,
                "dim": dim,
                "threads": torch.get_num_threads(),
                "method": name,
                "seconds": middle(runs[name]),
                "ratio_to_products": ratio(runs[name], yardstick),
                "extra_mib": in_a_process_of_its_own(__file__, "--memory-of", name, "--sizes", size, "--dims", dim),
            }


def main() -> None:
    """Measure, print the table, write the CSV."""
    parser = make_parser(__doc__, quick="small sizes, a few seconds: a look, not a measurement")
    parser.add_argument("--sizes", type=int, nargs="+", default=[4096, 16384], help="B = N")
    parser.add_argument("--dims", type=int, nargs="+", default=[384, 1024], help="D")
    parser.add_argument("--repeats", type=int, default=5, help="rounds; the median counts")
    parser.add_argument("--memory-of", choices=list(METHODS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.repeats < 1 or min(options.sizes + options.dims) < 1:
        parser.error("expected --repeats, --sizes and --dims of at least 1")
    if options.memory_of:
        print(measure_memory(options.memory_of, options.sizes[0], options.dims[0]))
        return
    if options.quick:
        options.sizes, options.dims, options.repeats = [1024], [64], 3
    show(rows_of(options), options.out)


if __name__ == "__main__":
    main()
