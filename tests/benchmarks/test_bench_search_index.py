from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "bench_search_index.py"


def test_a_quick_run_writes_a_row_a_setting(tmp_path):
    pytest.importorskip("faiss")
    command = [sys.executable, str(BENCHMARK), "--quick", "--out", str(tmp_path / "index.csv")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "index.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["kind"] for row in rows] == ["exact", "hnsw", "ivf"]
    assert all(0 < float(row["query_ms"]) <= float(row["query_ms_p95"]) for row in rows)
    assert (float(rows[0]["recall_at_10"]), float(rows[0]["recall_at_100"])) == (1.0, 1.0)
    assert all(0.5 < float(row["recall_at_10"]) <= 1 for row in rows)
