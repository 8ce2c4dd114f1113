"""What the benchmarks share: memory of a run in a process of its own, and tables as CSV."""

from __future__ import annotations

import csv
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

CLEAR_PEAK = Path("/proc/self/clear_refs")
"""Where Linux is told to count the peak of resident memory anew."""


def resident(field: str) -> float:
    """VmRSS (now) or VmHWM (peak) of this process in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def peak_beyond_gradients(work: Callable[[], object], inputs: Sequence[Tensor]) -> float:
    """Peak resident memory in MiB of one call, beyond its inputs and as much again for their gradients."""
    gradients = [torch.ones_like(part) for part in inputs]
    level = resident("VmRSS")
    CLEAR_PEAK.write_text("5", encoding="ascii")
    del gradients
    work()
    return max(0.0, resident("VmHWM") - level)


def in_a_process_of_its_own(script: str, *arguments: object) -> float:
    """The number that a script prints when called so; NaN on a system without /proc."""
    if not CLEAR_PEAK.exists():
        return math.nan
    at_once = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}  # freed is returned
    command = [sys.executable, script, *map(str, arguments)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, env=at_once).stdout)


def write_table(path: Path, columns: Sequence[str], rows: Sequence[dict[str, object]]) -> None:
    """A CSV file, its folder made where it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
