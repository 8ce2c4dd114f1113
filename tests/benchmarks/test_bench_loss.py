from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "bench_loss.py"
METHODS = ["fused", "plain", "products", "products, tiled"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(BENCHMARK), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_no_repeats_are_refused():
    refused = run("--repeats", "0")
    assert refused.returncode == 2
    assert "at least 1" in refused.stderr


def test_a_quick_run_prints_and_writes_one_row_a_method(tmp_path):
    done = run("--quick", "--out", str(tmp_path / "made" / "loss.csv"))
    assert done.returncode == 0, done.stderr
    with (tmp_path / "made" / "loss.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == METHODS
    assert all(float(row["seconds"]) > 0 for row in rows)
    assert any(float(row["ratio_to_products"]) == 1.0 for row in rows[2:])
    if sys.platform == "linux":
        memory = {row["method"]: float(row["extra_mib"]) for row in rows}
        assert memory["plain"] > 4.0 * 5
        assert memory["fused"] < memory["plain"]
    assert all(method in done.stdout for method in METHODS)
