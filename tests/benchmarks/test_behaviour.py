from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "behaviour.py"


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_every_figure_that_differs_is_printed(tmp_path):
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(json.dumps({"train": {"rate": 5e-5, "loss": 2.0, "word": "better", "gone": 1, "flag": True}}))
    after.write_text(json.dumps({"train": {"rate": 5.05e-5, "loss": 2.0000001, "word": "worse", "flag": 1, "new": 0}}))
    done = run("compare", before, after)
    assert done.returncode == 1
    assert [line.split(":")[0] for line in done.stdout.splitlines()[:-1]] == [
        f"train | {name}" for name in ("flag", "gone", "new", "rate", "word")
    ]
    assert run("compare", before, before).returncode == 0


@pytest.mark.slow
def test_two_records_of_the_same_code_agree(tmp_path):
    paths = [tmp_path / "one.json", tmp_path / "two.json"]
    for path in paths:
        done = run("record", path, "--only", "conversion")
        assert done.returncode == 0, done.stderr
    same = run("compare", *paths)
    assert same.returncode == 0, same.stdout
    assert len(json.loads(paths[0].read_text())["conversion"]) > 100
