from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "bench_encode.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(BENCHMARK), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--documents", "--rounds", "--processes"])
def test_sizes_that_cannot_be_are_refused(flag):
    refused = run(flag, "0")
    assert refused.returncode == 2
    assert "expected" in refused.stderr


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_quick_run_prints_and_writes_one_row_a_method(tmp_path, processes):
    done = run("--quick", "--processes", str(processes), "--out", str(tmp_path / "made" / "encode.csv"))
    assert done.returncode == 0, done.stderr
    with (tmp_path / "made" / "encode.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    methods = ["sentence-transformers", "sentence-transformers, best", "bixse", "bixse, 2 processes"][: 2 + processes]
    assert [row["method"] for row in rows] == methods
    assert all(float(row["texts_per_second"]) > 0 for row in rows)
    assert all(0 <= float(row["padding"]) < 1 for row in rows[:3])
    assert float(rows[0]["ratio"]) == 1.0
    assert all(float(row["difference"]) < 0.02 for row in rows)
