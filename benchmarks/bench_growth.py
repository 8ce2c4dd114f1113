"""Time and memory of every loss against the batch size, with growth exponents.

    python benchmarks/bench_growth.py [--sizes 256 ... 16384] [--dim 384] [--repeats 3] [--out F.csv] [--plot F.svg]

One row per loss and size: forward and backward of the loss alone, B = N = size unit embeddings, four graded documents a
query, float32, on the processor. The losses are those of the catalogue; "dense" rows are the same objectives over the
whole matrix (or, for pairs, the whole B x N x N tensor) in plain PyTorch, up to the size they can bear.

Times are medians of runs in turn within one process. Memory is the peak of the resident memory beyond inputs and
gradients, each in a process of its own. The growth exponent is the slope of log(time) or log(memory) over log(size),
least squares over the three largest sizes.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, logsigmoid

from bixse.losses.catalogue import LOSSES, build_loss
from measuring import exponent, in_a_process_of_its_own, make_parser, middle, show, timed
from memory import Problem, peak_beyond_gradients

if TYPE_CHECKING:
    from collections.abc import Iterator

WORDS = [word for word in LOSSES if word not in ("bixse-without-bias", "bixse-binarised")]
"""The ablations of BiXSE are the same computation."""
DENSE = {"dense bixse": 16384, "dense infonce": 16384, "dense pairwise-bce": 512}
"""Plain PyTorch, and the largest size it is run at."""


def step(word: str, problem: Problem) -> Tensor:
    """Loss and gradients of one method."""
    leaves = (problem.queries, problem.documents)
    if word.startswith("dense "):
        loss = dense(word.removeprefix("dense "), problem)
    else:
        options = {"bias": -8.0} if word == "bixse" else {}
        loss = build_loss(word, nn.Identity(), **options).compute_loss_from_embeddings(*leaves, problem.targets)
    _gradients = torch.autograd.grad(loss, leaves)
    return loss.detach()


def dense(word: str, problem: Problem) -> Tensor:
    """The objective over the whole matrix, as plain PyTorch has it."""
    relevance, _ = problem.targets.dense()
    logits = 20.0 * problem.queries @ problem.documents.T
    if word == "bixse":
        return binary_cross_entropy_with_logits(logits - 8.0, relevance, reduction="sum") / len(logits)
    if word == "infonce":
        return cross_entropy(logits, torch.arange(len(logits)))
    pairs = relevance.unsqueeze(2) > relevance.unsqueeze(1)  # (B, N, N)
    return -logsigmoid(logits.unsqueeze(2) - logits.unsqueeze(1))[pairs].mean()


def measure_memory(word: str, size: int, dim: int) -> float:
    """Peak resident memory in MiB beyond inputs and gradients, of one run in this (fresh) process."""
    step(word, Problem(64, dim))  # load the kernels
    problem = Problem(size, dim)
    return peak_beyond_gradients(lambda: step(word, problem), (problem.queries, problem.documents))


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Time and memory against the batch size, both axes logarithmic."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "bixse"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    for axis, column, label in zip(axes, ("seconds", "extra_mib"), ("seconds", "extra memory, MiB"), strict=True):
        for word in dict.fromkeys(row["loss"] for row in rows):
            own = [row for row in rows if row["loss"] == word]
            style = "--" if str(word).startswith("dense") else "-"
            axis.loglog(
                [r["size"] for r in own], [max(r[column], 1e-4) for r in own], style, marker="o", ms=3, label=word
            )
        axis.set_xscale("log", base=2)
        axis.set_xlabel("batch size B (B queries, B documents)")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def rows_of(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One table row a loss and size."""
    for word in options.losses:
        for size in (size for size in sorted(options.sizes) if size <= DENSE.get(word, size)):
            work = partial(step, word, Problem(size, options.dim))
            yield {
                "loss": word,
                "size": size,
                "dim": options.dim,
                "threads": torch.get_num_threads(),
                "seconds": middle([timed(work) for _ in range(options.repeats if size <= 4096 else 1)]),
                "extra_mib": in_a_process_of_its_own(
                    __file__, "--memory-of", word, "--sizes", size, "--dim", options.dim
                ),
            }


def main() -> None:
    """Measure, print the tables, write CSV and plot."""
    parser = make_parser(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096, 8192, 16384], help="B = N")
    parser.add_argument("--dim", type=int, default=384, help="D")
    parser.add_argument("--repeats", type=int, default=3, help="runs up to size 4,096; above it one")
    parser.add_argument("--losses", nargs="+", default=[*WORDS, *DENSE], choices=[*WORDS, *DENSE], metavar="LOSS")
    parser.add_argument("--plot", type=Path, help="write the plot here (.svg or .png)")
    parser.add_argument("--memory-of", choices=[*WORDS, *DENSE], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if min([options.repeats, options.dim, *options.sizes]) < 1:
        parser.error("expected --repeats, --sizes and --dim of at least 1")
    if options.memory_of:
        print(measure_memory(options.memory_of, options.sizes[0], options.dim))
        return
    rows = show(rows_of(options), options.out)
    print(f"\n{'loss':<20} {'time grows as B^':>16} {'memory as B^':>13}")
    for word in options.losses:
        own = [row for row in rows if row["loss"] == word]
        grown = [exponent([r["size"] for r in own], [r[name] for r in own]) for name in ("seconds", "extra_mib")]
        print(f"{word:<20} {grown[0]:>16.2f} {grown[1]:>13.2f}")
    if options.plot:
        draw(rows, options.plot)


if __name__ == "__main__":
    main()
