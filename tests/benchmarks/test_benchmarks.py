import csv
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bixse.encoders.loading.precision import PRECISION_VARIABLE
from helpers.tiny_judges import save_judge

FOLDER = Path(__file__).parents[2] / "benchmarks"
OTHERS = {
    "bench_grade_server": (["--quick"], "bixse_per_second"),
    "bench_jobs": (["--sizes", "200"], "grade from ledger"),
    "bench_stores": (["--quick"], "SQ8"),
    "cost": (["train", "scaling", "gpu"], "does not fit"),
    "mining_grades": (["--quick"], "top, one known"),
    "results": (["--help"], "--cranfield"),
}
"""Script -> its smallest run, and a word of what it prints. That of `results` is in `tests/test_pages.py`."""
LONG = ("bench_encode", "bench_grade_server", "bench_jobs", "bench_train", "mining_grades", "results")
"""Scripts that take ten seconds and more all the same."""


def run(script, *arguments):
    command = [sys.executable, str(FOLDER / f"{script}.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def printed(script, *arguments):
    done = run(script, *arguments)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.fixture
def table(tmp_path):
    """Runs a benchmark and gives the rows that it wrote and printed."""

    def rows_of(script, *arguments):
        out = tmp_path / "made" / "table.csv"
        shown = printed(script, *arguments, "--out", out)
        with out.open(encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert all(value in shown for row in rows for value in row.values())
        return rows

    return rows_of


def test_every_script_is_run():
    tested = {"behaviour", *OTHERS, *re.findall(r'"(bench_\w+)"', Path(__file__).read_text(encoding="utf-8"))}
    assert {path.stem for path in FOLDER.glob("*.py")} - tested == {"measuring"}


@pytest.mark.parametrize(
    "script", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in OTHERS]
)
def test_the_smallest_run(script):
    arguments, word = OTHERS[script]
    if script == "bench_stores":
        pytest.importorskip("lancedb", reason="needs bixse[lancedb]")
    assert word in printed(script, *arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("bench_eval", ["--passages", "100", "--queries", "50"]),
        ("bench_grade", ["--rubrics", "one-to-nine"]),
        ("bench_loss", ["--repeats", "0"]),
        ("bench_train", ["--queries", "8", "--batch-size", "16"]),
        ("bench_train", ["--queries", "10000"]),
    ],
)
def test_what_cannot_be_measured_is_refused(script, arguments):
    refused = run(script, *arguments)
    assert refused.returncode != 0
    assert "expected" in refused.stderr


def test_every_figure_that_differs_is_printed(tmp_path):
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(json.dumps({"train": {"rate": 5e-5, "loss": 2.0, "word": "better", "gone": 1, "flag": True}}))
    after.write_text(json.dumps({"train": {"rate": 5.05e-5, "loss": 2.0000001, "word": "worse", "flag": 1, "new": 0}}))
    done = run("behaviour", "compare", before, after)
    assert done.returncode == 1
    names = [line.split(":")[0] for line in done.stdout.splitlines()[:-1]]
    assert names == [f"train | {name}" for name in ("flag", "gone", "new", "rate", "word")]
    printed("behaviour", "compare", before, before)


@pytest.mark.slow
def test_two_records_of_the_same_code_agree(tmp_path):
    paths = [tmp_path / "one.json", tmp_path / "two.json"]
    for path in paths:
        printed("behaviour", "record", path, "--only", "conversion")
    printed("behaviour", "compare", *paths)
    assert len(json.loads(paths[0].read_text())["conversion"]) > 100


@pytest.mark.slow
def test_bench_encode(table):
    rows = {row["method"]: row for row in table("bench_encode", "--quick")}
    methods = ["sentence-transformers", "sentence-transformers, best", "bixse", "bixse, int8"]
    assert list(rows) == [*methods, "tokenizer", "bare products"]
    assert all(0 <= float(rows[method]["padding"]) < 1 for method in methods[:3])
    assert float(rows[methods[0]]["ratio"]) == 1.0
    assert all(float(row["difference"]) < 0.02 for method, row in rows.items() if method != "bixse, int8")
    assert 0.001 < float(rows["bixse, int8"]["difference"]) < 0.2


@pytest.mark.slow
def test_bench_eval(table):
    pytest.importorskip("mteb")
    rows = table("bench_eval", "--quick")
    methods = ["product, top 100", "bixse, search", "bixse", "sentence-transformers", "mteb, top 100", "mteb"]
    assert [row["method"] for row in rows] == methods
    assert all(float(row["seconds"]) > 0 and 0 < float(row["ndcg_at_10"]) < 1 for row in rows)
    assert float(rows[0]["ratio"]) == float(rows[0]["cpu_ratio"]) == 1.0


ON_A_GPU = {
    "bench_loss": ["fused", "plain", "compiled", "products"],
    "bench_eval": ["product, top 100", "product", "bixse, search", "bixse, search from host memory"],
    "bench_encode": ["sentence-transformers, best", "bixse", "tokenizer", "bare products"],
    "bench_train": ["stock, tuned", "stock, tuned, 4 workers", "stock, tuned, 8 workers", "bixse", "infonce"],
}


@pytest.mark.gpu
@pytest.mark.precision("bfloat16")  # as on a GPU
@pytest.mark.parametrize(
    "script", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in ON_A_GPU]
)
def test_the_smallest_run_on_a_gpu(script, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr(sys, "argv", [script, "--quick", "--out", str(tmp_path / "table.csv")])
    importlib.import_module(script).main()
    with (tmp_path / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ON_A_GPU[script]
    assert len({row["card"] for row in rows}) == 1
    assert all(float(row.get("difference") or 0) < 0.02 for row in rows)


@pytest.mark.slow
def test_bench_grade(table, tmp_path):
    rows = table("bench_grade", "--quick", "--dtype", "float32", "--model", save_judge(tmp_path / "judge"))
    methods = ["generate, one by one", "generate, 8 tokens", "forward, batches of 8", "bixse", "bare products"]
    assert [row["method"] for row in rows] == methods
    assert float(rows[0]["ratio_to_generate"]) == float(rows[2]["ratio_to_forward"]) == 1.0
    assert all(row["dtype"] == "float32" and float(row["largest_difference"]) < 1e-4 for row in rows[:-1])
    assert float(rows[-1]["seconds"]) < float(rows[-2]["seconds"])


@pytest.mark.slow
@pytest.mark.parametrize("losses", [["bixse"], ["bixse", "lambdaloss-v2", "dense infonce"]])
def test_growth_of_losses(table, tmp_path, losses):
    plot = tmp_path / "growth.svg"
    rows = table("bench_loss", "--growth", "--sizes", 64, 128, "--dims", 16, "--losses", *losses, "--plot", plot)
    assert [(row["loss"], row["size"]) for row in rows] == [(loss, size) for loss in losses for size in ("64", "128")]
    assert plot.read_text(encoding="utf-8").lstrip().startswith("<?xml")


@pytest.mark.slow
def test_bench_loss(table):
    rows = table("bench_loss", "--quick")
    assert [row["method"] for row in rows] == ["fused", "plain", "products", "products, tiled"]
    assert any(float(row["ratio_to_products"]) == 1.0 for row in rows[2:])
    if sys.platform == "linux":
        memory = {row["method"]: float(row["extra_mib"]) for row in rows}
        assert memory["plain"] > max(4.0 * 5, memory["fused"])


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_bench_train(table, monkeypatch, precision):
    monkeypatch.setenv(PRECISION_VARIABLE, precision)
    rows = table("bench_train", "--quick")
    ours = ["bixse", "infonce", "bixse, no dropout"]
    assert [row["method"] for row in rows] == ["stock", "stock, tuned", "stock, cached", *ours]
    assert float(rows[0]["ratio_to_stock"]) == 1.0
    assert 1.0 in (float(rows[1]["ratio_to_tuned"]), float(rows[2]["ratio_to_tuned"]))
    assert [row["bf16"] == "True" for row in rows] == [False] + [precision == "bfloat16"] * 5
    for row in rows:
        assert float(row["pairs_per_second"]) == pytest.approx(4 * 4 / float(row["seconds"]), rel=0.01)
        assert 0 <= float(row["padding"]) < 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("method", ["stock", "bixse"])
def test_memory_of_training_is_that_of_adam_and_the_states(method):
    code = f"import bench_train; print(bench_train.memory_of({method!r}, bench_train.Case(1, 16, 4, 4, 1)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=FOLDER)
    assert done.returncode == 0, done.stderr
    moments = 2 * 22.7e6 * 4 / 2**20
    assert moments < float(done.stdout) < 3 * moments


def gpu(out, *parts):
    """Rehearse the script that takes all figures of a GPU, with this Python."""
    command = ["bash", str(FOLDER / "gpu.sh"), str(out), "--rehearse", *parts]
    environment = {**os.environ, "PYTHON": sys.executable}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.slow
@pytest.mark.parametrize(
    "parts",
    [["quickstart", "resume"], ["loss", "search", "encode", "train", "tests"]],
)
def test_the_figures_of_a_gpu_can_be_rehearsed(tmp_path, parts):
    done = gpu(tmp_path / "figures", *parts)
    assert done.returncode == 0, done.stdout
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == parts
    tables = {path.stem for path in (tmp_path / "figures").glob("*.csv")}
    assert tables == {"loss", "search", "encode", "train"} & set(parts)


def test_a_part_that_fails_does_not_stop_the_others(tmp_path):
    done = gpu(tmp_path, "nothing", "quickstart")
    assert done.returncode == 1
    assert "nothing: no such part" in done.stdout
    assert "quickstart: done" in done.stdout
