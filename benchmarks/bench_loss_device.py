"""A loss on a GPU: each implementation beside the three bare matrix products, its memory and its error.

    python benchmarks/bench_loss_device.py [--device cuda] [--loss bixse] [--sizes 16384 65536 262144 1048576]
        [--dim 1024] [--implementations tiles compiled triton] [--products bfloat16] [--tile R C] [--out FILE]
        [--quick]

One row a size and method; forward and backward together, B = N = size, one graded document a query (for the softmax
losses of relevance 1). "products" are
S = Q D^T, S D and S^T Q and nothing else, in the type of the products throughout, in the tiles of the leanest
implementation. Times are medians of runs in turn, the share is the median over rounds of the products' time over the
method's. Memory is the peak beyond inputs and gradients (of the allocator on a GPU, of a process of its own on the
processor). Errors are those of each gradient, |g - exact| / |exact|, against float64 at --check-size.

Beside the table (--out) stands FILE.md: the lines for docs/results.md.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import normalize

from bixse.errors import ConfigError, InputError
from bixse.losses import build_loss
from bixse.losses.engines.graded_bce import graded_bce
from bixse.losses.engines.implementations import choose
from bixse.losses.engines.products import add_product, multiply, tile_bytes, tile_shape
from bixse.losses.engines.tiles import blocks
from bixse.losses.targets import GradedTargets
from bixse.studies.paper.memory import peak_beyond_gradients
from measuring import in_a_process_of_its_own, in_turn, make_parser, middle, ratio, show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


IMPLEMENTATIONS = {
    "bixse": ["tiles", "compiled", "triton"],
    "infonce": ["rows", "triton"],
    "infonce-masked": ["rows", "triton"],
    "soft-infonce": ["rows", "triton"],
}
"""Loss -> what can compute it; the first runs everywhere and is the measure of error."""


class Problem:
    """Unit embeddings of B = N texts, one graded document for each query, a bias near its level after some steps."""

    def __init__(self, size: int, options: argparse.Namespace) -> None:
        dim, device = options.dim, options.device
        generator = torch.Generator(device).manual_seed(0)
        rows = torch.arange(size, device=device)
        relevance = torch.rand(size, generator=generator, device=device)
        if options.loss != "bixse":
            relevance = torch.ones_like(relevance)
        self.targets = GradedTargets(rows, rows, relevance, (size, size))
        sides = [normalize(torch.randn(size, dim, generator=generator, device=device), dim=1) for _ in range(2)]
        numbers = [torch.tensor(value, device=device) for value in (10.0, -8.0)] if options.loss == "bixse" else []
        self.leaves = [leaf.requires_grad_() for leaf in (*sides, *numbers)]


def loss_and_gradients(problem: Problem, options: argparse.Namespace, implementation: str) -> list[Tensor]:
    """Of one implementation; "tiles" in the precision of the products on every device."""
    rows, columns = options.tile or (None, None)
    q, d, *numbers = problem.leaves
    if numbers:
        chosen = ("query", rows, columns, implementation, options.products)
        loss = graded_bce(q, d, problem.targets, *numbers, *chosen)  # type: ignore[arg-type]
    else:
        loss, _ = built(options, implementation).loss_and_denominator(q, d, problem.targets, tile=options.tile)
    return [loss.detach(), *torch.autograd.grad(loss, problem.leaves)]


def built(options: argparse.Namespace, implementation: str) -> Any:
    """The loss by one implementation, without an encoder."""
    nothing: Any = torch.nn.Identity()
    return build_loss(options.loss, nothing, implementation=implementation, products=options.products)


@torch.no_grad()
def bare_products(problem: Problem, options: argparse.Namespace) -> None:
    """The three products in their own type, on tiles that hold the scores alone."""
    dtype = choose("tiles", options.products, torch.device(options.device), torch.float32).dtype
    q, d = (side.detach().to(dtype) for side in problem.leaves[:2])
    gradients = torch.zeros_like(q), torch.zeros_like(d)
    shape = options.tile or tile_shape(len(q), len(d), dtype.itemsize, tile_bytes(torch.device(options.device)))
    buffer = q.new_empty(min(shape[0], len(q)) * min(shape[1], len(d)))
    for rows, columns in blocks(len(q), len(d), shape):
        left, right = q[rows], d[columns]
        scores = multiply(left, right.T, out=buffer[: len(left) * len(right)].view(len(left), len(right)))
        add_product(gradients[0][rows], scores, right)
        add_product(gradients[1][columns], scores.T, left)


def work(method: str, problem: Problem, options: argparse.Namespace) -> None:
    """One run, to its end."""
    if method == "products":
        bare_products(problem, options)
    else:
        loss_and_gradients(problem, options, method)
    if options.device == "cuda":
        torch.cuda.synchronize()


def extra_mib(method: str, problem: Problem, options: argparse.Namespace) -> float:
    """Peak memory beyond inputs and gradients."""
    size, dim = problem.leaves[0].shape
    if options.device != "cuda":
        flags = (
            "--memory-of",
            method,
            "--sizes",
            size,
            "--dim",
            dim,
            "--products",
            options.products,
            "--loss",
            options.loss,
        )
        return in_a_process_of_its_own(__file__, "--device", options.device, *flags)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work(method, problem, options)
    gradients = sum(leaf.nbytes for leaf in problem.leaves)
    return round((torch.cuda.max_memory_allocated() - before - gradients) / 2**20, 1)


def errors(options: argparse.Namespace, implementation: str) -> dict[str, float]:
    """Of each gradient against float64."""
    found = loss_and_gradients(Problem(options.check_size, options), options, implementation)
    wide = Problem(options.check_size, options)
    wide.leaves = [leaf.detach().double().requires_grad_() for leaf in wide.leaves]
    exact = loss_and_gradients(wide, options, IMPLEMENTATIONS[options.loss][0])
    names = ("loss", "queries", "documents", "scale", "bias")[: len(exact)]
    return {
        f"error_{name}": float(f"{float((a.double() - b).norm() / b.norm()):.2e}")
        for name, a, b in zip(names, found, exact, strict=True)
    }


def rows_of(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One table row a size and method."""
    device = torch.device(options.device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "processor"
    exactness = {}
    for method in options.implementations:
        built(options, method).computed_by(device)  # refuses before anything is timed
        exactness[method] = errors(options, method)
    blank = dict.fromkeys(next(iter(exactness.values())), "")
    for size in options.sizes:
        problem = Problem(size, options)
        methods = {method: partial(work, method, problem, options) for method in ("products", *options.implementations)}
        for once in methods.values():  # load and compile
            once()
        runs = in_turn(methods, options.repeats)
        for method in methods:
            yield {
                "device": name,
                "size": size,
                "dim": options.dim,
                "loss": options.loss,
                "method": method,
                "milliseconds": 1e3 * middle(runs[method], digits=6),
                "share_of_products": ratio(runs["products"], runs[method]),
                "extra_mib": extra_mib(method, problem, options),
                **exactness.get(method, blank),
            }


def lines(rows: list[dict[str, Any]]) -> str:
    """What docs/results.md says of a table: one line for each implementation at the largest size."""
    largest = max(row["size"] for row in rows)
    said = []
    for row in rows:
        if row["size"] == largest and row["method"] != "products":
            worst = max(row[name] for name in row if name.startswith("error_") and name != "error_loss")
            said.append(
                f"- {row['device']}, `{row['loss']}` by `{row['method']}`, "
                f"B = N = {row['size']:,}, D = {row['dim']:,}: {row['milliseconds']:.1f} ms, "
                f"{row['share_of_products']:.0%} of the bare products, "
                f"{row['extra_mib']:.0f} MiB beyond inputs and gradients; error of a gradient at most {worst:.1e}"
            )
    return "\n".join(said) + "\n"


def main() -> None:
    """Measure, print the table, write it and its lines."""
    parser = make_parser(__doc__, quick="small sizes, a few seconds: a look, not a measurement")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--loss", default="bixse", choices=[*IMPLEMENTATIONS])
    parser.add_argument("--sizes", type=int, nargs="+", default=[16384, 65536, 262144, 1048576], help="B = N")
    parser.add_argument("--dim", type=int, default=1024, help="D")
    parser.add_argument(
        "--implementations", nargs="+", default=None, help="default: all on a GPU, the first on a processor"
    )
    parser.add_argument("--products", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument(
        "--tile", type=int, nargs=2, metavar=("R", "C"), help="rows and columns of a tile (whole rows have none)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="rounds; the median counts")
    parser.add_argument("--check-size", type=int, default=4096, help="B = N of the comparison with float64")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("no NVIDIA GPU here; fix: --device cpu")
    if min(options.repeats, options.dim, options.check_size, *options.sizes, *(options.tile or [1])) < 1:
        parser.error("expected numbers of at least 1")
    options.implementations = (
        options.implementations or IMPLEMENTATIONS[options.loss][: None if options.device == "cuda" else 1]
    )
    if options.memory_of:
        work(options.memory_of, Problem(64, options), options)
        problem = Problem(options.sizes[0], options)
        print(peak_beyond_gradients(lambda: work(options.memory_of, problem, options), problem.leaves))
        return
    if options.quick:
        options.sizes, options.dim, options.repeats, options.check_size = [512], 64, 3, 256
    try:
        rows = show(rows_of(options), options.out)
    except (ConfigError, InputError) as error:
        parser.error(str(error))
    print(lines(rows), end="")
    if options.out is not None:
        Path(f"{options.out}.md").write_text(lines(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
