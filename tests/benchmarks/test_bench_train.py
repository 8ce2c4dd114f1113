from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from bixse.encoders.loading.precision import PRECISION_VARIABLE

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "bench_train.py"
METHODS = ["stock", "stock, tuned", "stock, cached", "bixse", "infonce"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(BENCHMARK), *arguments], capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rounds", "0"], "at least 1"),
        (["--queries", "8", "--batch-size", "16"], "--batch-size"),
        (["--max-lengths", "600"], "4 to 512"),
        (["--queries", "10000"], "expected at most"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments, said):
    refused = run(*arguments)
    assert refused.returncode != 0
    assert said in refused.stderr


@pytest.mark.parametrize("precision", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
def test_a_quick_run_prints_and_writes_one_row_a_method(tmp_path, monkeypatch, precision):
    monkeypatch.setenv(PRECISION_VARIABLE, precision)
    done = run("--quick", "--out", str(tmp_path / "made" / "train.csv"))
    assert done.returncode == 0, done.stderr
    with (tmp_path / "made" / "train.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == METHODS
    assert float(rows[0]["ratio_to_stock"]) == 1.0
    assert 1.0 in (float(rows[1]["ratio_to_tuned"]), float(rows[2]["ratio_to_tuned"]))
    assert [row["bf16"] == "True" for row in rows] == [False] + [precision == "bfloat16"] * 4
    for row in rows:
        assert float(row["pairs_per_second"]) == pytest.approx(4 * 4 / float(row["seconds"]), rel=0.01)
        assert float(row["texts_per_second"]) == pytest.approx(4 * 5 / float(row["seconds"]), rel=0.01)
        assert 0 <= float(row["padding"]) < 1
    assert all(method in done.stdout for method in METHODS)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("method", ["stock", "bixse"])
def test_memory_is_that_of_adam_and_the_states(method):
    case = ["--documents", "1", "--max-lengths", "16", "--batch-size", "4", "--queries", "4"]
    done = run("--memory-of", method, *case)
    assert done.returncode == 0, done.stderr
    moments = 2 * 22.7e6 * 4 / 2**20
    assert moments < float(done.stdout) < 3 * moments
