"""What the benchmarks share: methods timed in turn, memory of a run in a process of its own, and the table of rows."""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import torch

Shapes: TypeAlias = "Counter[tuple[int, int, int]]"
"""How often a product of (rows, inputs) and (inputs, outputs) was computed."""


class Timed(NamedTuple):
    """One run of a method."""

    seconds: float
    cpu_seconds: float
    """Of this process, over all threads."""
    result: Any


def timed(work: Callable[[], Any]) -> Timed:
    """Run it once."""
    start, cpu_start = time.perf_counter(), time.process_time()
    result = work()
    return Timed(time.perf_counter() - start, time.process_time() - cpu_start, result)


def in_turn(methods: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[Timed]]:
    """Every method in each round, each round beginning with another: what else the machine does slows all alike."""
    names = list(methods)
    runs: dict[str, list[Timed]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            runs[name].append(timed(methods[name]))
    return runs


def middle(runs: Sequence[Timed], figure: str = "seconds", digits: int = 4) -> float:
    """The median of a figure."""
    return round(statistics.median(getattr(run, figure) for run in runs), digits)


def ratio(over: Sequence[Timed], under: Sequence[Timed], figure: str = "seconds") -> float:
    """The median over rounds of the ratio within a round."""
    return round(statistics.median(_ratios(over, under, figure)), 3)


def ratio_with_ends(over: Sequence[Timed], under: Sequence[Timed]) -> list[float]:
    """The ratio of seconds: median, lowest and highest over the rounds."""
    found = _ratios(over, under, "seconds")
    return [round(value, 3) for value in (statistics.median(found), min(found), max(found))]


def _ratios(over: Sequence[Timed], under: Sequence[Timed], figure: str) -> list[float]:
    return [getattr(a, figure) / getattr(b, figure) for a, b in zip(over, under, strict=True)]


@contextmanager
def linear_shapes(model: torch.nn.Module, with_gradient: bool = False) -> Iterator[Shapes]:
    """The shapes of the products that the linear layers of a model compute within this block.

    `with_gradient` leaves out passes without gradients.
    """
    import torch

    found: Shapes = Counter()

    def count(layer: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if torch.is_grad_enabled() or not with_gradient:
            found[inputs[0].numel() // inputs[0].shape[-1], layer.in_features, layer.out_features] += 1

    layers = [part for part in model.modules() if isinstance(part, torch.nn.Linear)]
    hooks = [layer.register_forward_pre_hook(count) for layer in layers]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def bare_products(shapes: Shapes, precision: str, backward: bool = False) -> None:
    """Compute products of these shapes and nothing else: what no code that uses PyTorch's products can do without.

    With `backward` also the two products of the gradients.
    """
    import torch

    with torch.inference_mode():
        for (rows, inputs, outputs), times in shapes.items():
            states, weight = (torch.ones(size, inputs, dtype=getattr(torch, precision)) for size in (rows, outputs))
            gradient = states.new_ones(rows, outputs)
            for _ in range(times):
                torch.nn.functional.linear(states, weight)
                if backward:
                    gradient @ weight
                    gradient.T @ states


def in_a_process_of_its_own(script: str, *arguments: object) -> float:
    """The number that a script prints when called so, rounded; NaN on a system without /proc."""
    from memory import CLEAR_PEAK, freed_at_once  # with PyTorch, which not every script needs

    if not CLEAR_PEAK.exists():
        return math.nan
    command = [sys.executable, script, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=freed_at_once())
    return round(float(done.stdout), 1)


def exponent(sizes: Sequence[float], values: Sequence[float], last: int = 3) -> float:
    """Slope of log(value) over log(size), least squares over the `last` largest sizes; NaN of fewer than two."""
    points = sorted(zip(sizes, values, strict=True))[-last:]
    points = [(math.log(size), math.log(value)) for size, value in points if value > 0]
    if len(points) < 2:
        return math.nan
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def make_parser(doc: str | None, quick: str = "") -> argparse.ArgumentParser:
    """A parser with --out, and --quick where its help is given."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    parser.add_argument("--out", type=Path, help="write the table here as CSV")
    if quick:
        parser.add_argument("--quick", action="store_true", help=quick)
    return parser


def show(rows: Iterable[dict[str, Any]], out: Path | None) -> list[dict[str, Any]]:
    """Print rows of the same keys as they come, and write them as CSV."""
    kept: list[dict[str, Any]] = []
    for row in rows:
        if not kept:
            widths = {name: max(len(name), len(str(value)), 8) for name, value in row.items()}
            print("  ".join(f"{name:>{width}}" for name, width in widths.items()))
        kept.append(row)
        print("  ".join(f"{row[name]!s:>{width}}" for name, width in widths.items()), flush=True)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(kept[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(kept)
    return kept
