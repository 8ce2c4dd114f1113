from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "bench_eval.py"
METHODS = ["product, top 100", "bixse, search", "bixse", "sentence-transformers", "mteb, top 100", "mteb"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(BENCHMARK), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--passages", "100", "--queries", "50"]])
def test_sizes_that_cannot_be_are_refused(arguments):
    pytest.importorskip("mteb")
    refused = run(*arguments)
    assert refused.returncode == 2
    assert "expected" in refused.stderr


def test_a_quick_run_prints_and_writes_one_row_a_method(tmp_path):
    pytest.importorskip("mteb")
    done = run("--quick", "--out", str(tmp_path / "made" / "eval.csv"))
    assert done.returncode == 0, done.stderr
    with (tmp_path / "made" / "eval.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == METHODS
    assert all(float(row["seconds"]) > 0 and 0 < float(row["ndcg_at_10"]) < 1 for row in rows)
    assert float(rows[0]["ratio"]) == float(rows[0]["cpu_ratio"]) == 1.0
    assert all(method in done.stdout for method in METHODS)
