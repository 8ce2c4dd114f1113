"""The scripts beside the large benchmarks run at their smallest size, and no script of the folder is left untested."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SMALLEST = {
    "bench_grade_server": (["--quick"], "bixse_per_second"),
    "bench_pairs": (["--pairs", "2000", "--batches", "5"], "all"),
    "mining_grades": (["--quick"], "hard-negatives"),
    "padding": (["--quick"], "by length"),
    "scaling": (["--batches", "256"], "Mistral-7B"),
    "results": (["--help"], "--cranfield"),
}
"""Script -> its smallest run, and a word of what it prints. That of `results` is `tests/test_results.py`."""


def test_every_script_is_run() -> None:
    own = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
    helpers = {"measuring"}
    assert {path.stem for path in FOLDER.glob("*.py")} <= own | set(SMALLEST) | helpers


@pytest.mark.parametrize("script", list(SMALLEST))
def test_the_smallest_run(script: str) -> None:
    arguments, word = SMALLEST[script]
    command = [sys.executable, str(FOLDER / f"{script}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert word in done.stdout
