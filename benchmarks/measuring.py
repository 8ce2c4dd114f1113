"""What the benchmarks share: their options, methods timed in turn, runs in fresh processes, and the table of rows.

Seconds are medians over rounds. Methods run in turn in one process, so that another program slows all of a round alike,
and a ratio is the median over rounds of the ratio within a round. Set OMP_NUM_THREADS to change the number of threads.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import statistics
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from unittest.mock import patch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import torch

CLEAR_PEAK = Path("/proc/self/clear_refs")
"""The file by which Linux is asked to count the peak of resident memory anew."""
FREED_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""The environment of a process that gives memory back as soon as it is freed, so that peaks are those in use."""
Shapes: TypeAlias = "Counter[tuple[int, int, int]]"
"""How often a product of (rows, inputs) and (inputs, outputs) was computed."""


class Option(NamedTuple):
    """An option of a benchmark, where its default does not say all of it."""

    default: Any
    """One value or a list of some; a type: none is given. Its type is that of the option."""
    help: str | None = None
    choices: Sequence[str] | None = None
    positional: bool = False


def options(doc: str | None, quick: Mapping[str, Any] | None = None, **table: Any) -> argparse.Namespace:
    """Parse an option per entry of the table, and `--quick`, which sets some. Refuse counts below 1."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    known = {name: entry if isinstance(entry, Option) else Option(entry) for name, entry in table.items()}
    for name, (default, text, _, positional) in known.items():
        one = default[0] if isinstance(default, list) else default
        words: dict[str, Any] = {"help": text, "default": None if isinstance(one, type) else default}
        if isinstance(one, bool):
            words["action"] = "store_true"
        else:
            several = "*" if positional else "+"
            words |= {"metavar": name.upper(), "nargs": several if isinstance(default, list) else None}
            words["type"] = one if isinstance(one, type) else type(one)
        parser.add_argument(name if positional else f"--{name.replace('_', '-')}", **words)
    if quick is not None:
        parser.add_argument("--quick", action="store_true", help="at the smallest size: a look, not a measurement")
    given = parser.parse_args()
    for name, option in known.items():
        value = getattr(given, name)
        for one in value if isinstance(value, list) else [value]:
            if type(one) is int and one < 1:
                parser.error(f"--{name.replace('_', '-')}: got {one}; expected at least 1")
            if option.choices and one not in option.choices:
                parser.error(f"{name}: got {one!r}; expected one of {', '.join(option.choices)}")
    if quick is not None and given.quick:
        vars(given).update(quick)
    return given


OUT = Option(Path, "write the table here as CSV")


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
    """Run every method in each round, each round beginning with another: other programs then slow all methods alike."""
    names = list(methods)
    runs: dict[str, list[Timed]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            runs[name].append(timed(methods[name]))
    return runs


def middle(runs: Sequence[Timed], figure: str = "seconds", digits: int = 4) -> float:
    """Return the median of a figure."""
    return round(statistics.median(getattr(run, figure) for run in runs), digits)


def ratio(over: Sequence[Timed], under: Sequence[Timed], figure: str = "seconds") -> float:
    """Return the median over rounds of the ratio within a round."""
    return round(statistics.median(_ratios(over, under, figure)), 3)


def ratios(over: Sequence[Timed], under: Sequence[Timed], name: str = "ratio") -> dict[str, float]:
    """Return the ratio of seconds as columns: median, lowest and highest over the rounds."""
    quotients = _ratios(over, under, "seconds")
    columns = {name: statistics.median(quotients), "ratio_lowest": min(quotients), "ratio_highest": max(quotients)}
    return {column: round(value, 3) for column, value in columns.items()}


def _ratios(over: Sequence[Timed], under: Sequence[Timed], figure: str) -> list[float]:
    return [getattr(a, figure) / getattr(b, figure) for a, b in zip(over, under, strict=True)]


@contextmanager
def linear_shapes(model: torch.nn.Module, with_gradient: bool = False) -> Iterator[Shapes]:
    """Count the products that the linear layers of a model compute within this block.

    `with_gradient` leaves out passes without gradients.
    """
    import torch

    shapes: Shapes = Counter()

    def count(layer: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if torch.is_grad_enabled() or not with_gradient:
            shapes[inputs[0].numel() // inputs[0].shape[-1], layer.in_features, layer.out_features] += 1

    layers = [part for part in model.modules() if isinstance(part, torch.nn.Linear)]
    hooks = [layer.register_forward_pre_hook(count) for layer in layers]
    try:
        yield shapes
    finally:
        for hook in hooks:
            hook.remove()


def bare_products(shapes: Shapes, precision: str, backward: bool = False, device: str = "cpu") -> None:
    """Compute products of these shapes and nothing else: what no code that uses PyTorch's products can do without.

    With `backward` also the two products of the gradients.
    """
    import torch

    with torch.inference_mode():
        for (rows, inputs, outputs), times in shapes.items():
            kind: dict[str, Any] = {"dtype": getattr(torch, precision), "device": device}
            states, weight = (torch.ones(size, inputs, **kind) for size in (rows, outputs))
            gradient = states.new_ones(rows, outputs)
            for _ in range(times):
                torch.nn.functional.linear(states, weight)
                if backward:
                    gradient @ weight
                    gradient.T @ states


def alone(function: Callable[..., Any], *arguments: Any, **environment: str) -> Any:
    """Return what a function of a script gives in a fresh process."""
    with patch.dict(os.environ, environment), ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def memory_alone(function: Callable[..., float], *arguments: Any) -> float:
    """Return the MiB that a function measures in a fresh process, rounded; NaN on a system without /proc."""
    return round(alone(function, *arguments, **FREED_AT_ONCE), 1) if CLEAR_PEAK.exists() else math.nan


def resident(field: str) -> float:
    """Return VmRSS (now) or VmHWM (peak) of this process in MiB; Linux."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def peak_beyond_gradients(work: Callable[[], object], inputs: Sequence[torch.Tensor] = ()) -> float:
    """Return the peak resident memory in MiB of one call, beyond its inputs and as much again for their gradients."""
    gradients = [part.new_ones(part.shape) for part in inputs]
    level = resident("VmRSS")
    CLEAR_PEAK.write_text("5", encoding="ascii")
    del gradients
    work()
    return max(0.0, resident("VmHWM") - level)


def show_growth(rows: Sequence[dict[str, Any]], key: str, figures: Mapping[str, str], last: int) -> None:
    """Print how figures grow with the size, for each value of a key: slopes of log(figure) over log(size).

    They are least squares over the `last` largest sizes; NaN of fewer than two. `figures` are columns with headings.
    """
    print(f"\n{key:<20}", *(f"{heading:>16}" for heading in figures.values()))
    for value in dict.fromkeys(row[key] for row in rows):
        largest = sorted((row for row in rows if row[key] == value), key=lambda row: row["size"])[-last:]
        slopes = []
        for name in figures:
            points = [(math.log(row["size"]), math.log(row[name])) for row in largest if row[name] > 0]
            slopes.append(statistics.linear_regression(*zip(*points, strict=True)).slope if points[1:] else math.nan)
        print(f"{value:<20}", *(f"{slope:>16.2f}" for slope in slopes))


def show(rows: Iterable[dict[str, Any]], out: Path | None) -> list[dict[str, Any]]:
    """Print the load of the machine, then rows of the same keys as they come, and write the rows as CSV."""
    print(f"{os.cpu_count()} cores, load before: {os.getloadavg()[0]:.1f}")
    shown: list[dict[str, Any]] = []
    for row in rows:
        if not shown:
            widths = {name: max(len(name), len(str(value)), 8) for name, value in row.items()}
            print("  ".join(f"{name:>{width}}" for name, width in widths.items()))
        shown.append(row)
        print("  ".join(f"{row[name]!s:>{width}}" for name, width in widths.items()), flush=True)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(shown[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(shown)
    return shown
