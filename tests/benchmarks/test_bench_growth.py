from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "bench_growth.py"


@pytest.mark.parametrize(
    "losses", [["bixse"], pytest.param(["bixse", "lambdaloss-v2", "dense infonce"], marks=pytest.mark.slow)]
)
def test_a_small_run_writes_a_row_a_loss_and_size_and_a_plot(tmp_path, losses):
    sizes = ["64", "128"]
    files = ["--out", str(tmp_path / "made" / "growth.csv"), "--plot", str(tmp_path / "growth.svg")]
    command = [sys.executable, str(BENCHMARK), "--sizes", *sizes, "--dim", "16", "--losses", *losses, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "made" / "growth.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["loss"], row["size"]) for row in rows] == [(loss, size) for loss in losses for size in sizes]
    assert all(float(row["seconds"]) > 0 for row in rows)
    assert (tmp_path / "growth.svg").read_text(encoding="utf-8").lstrip().startswith("<?xml")
    assert done.stdout.count(losses[-1]) >= 3  # two sizes and the growth
