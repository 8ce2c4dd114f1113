"""What the benchmarks share: memory of a run in a process of its own, and tables as CSV."""

from __future__ import annotations

import csv
import math
import subprocess
import sys
from typing import TYPE_CHECKING

from bixse.studies.paper.memory import CLEAR_PEAK, freed_at_once

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def in_a_process_of_its_own(script: str, *arguments: object) -> float:
    """The number that a script prints when called so; NaN on a system without /proc."""
    if not CLEAR_PEAK.exists():
        return math.nan
    command = [sys.executable, script, *map(str, arguments)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, env=freed_at_once()).stdout)


def write_table(path: Path, columns: Sequence[str], rows: Sequence[dict[str, object]]) -> None:
    """A CSV file, its folder made where it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
