"""`--precision`, BIXSE_PRECISION and `precision:`: what is refused, what is recorded, and what is never mixed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from bixse.cli.main import main
from bixse.data.collection import Collection, Document
from bixse.data.collection_files import save_collection
from bixse.encoders.loading.precision import PRECISION_VARIABLE

if TYPE_CHECKING:
    from pathlib import Path

BOTH = ("float32", "bfloat16")
CORPUS = {f"d{n}": Document("", f"{verb} the {thing}") for n, (verb, thing) in enumerate(
    (verb, thing) for verb in ("copy", "move", "delete") for thing in ("file", "folder", "path")
)}  # fmt: skip
QUERIES = {f"q{n}": f"how do i {document.text}" for n, document in enumerate(CORPUS.values())}


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    qrels: Any = {"q" + name[1:]: {name: 1, "d0" if name != "d0" else "d1": 0} for name in CORPUS}
    save_collection(Collection("toy", CORPUS, QUERIES, {"test": qrels, "dev": qrels}), tmp_path / "toy")
    return tmp_path / "toy"


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    rows = [
        {"query": QUERIES[f"q{n}"], "document": CORPUS[f"d{other}"].text, "relevance": float(n == other)}
        for n in range(8)
        for other in (n, (n + 1) % 9)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    code = main([*map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return found


class TestRefused:
    @pytest.mark.parametrize("verb", ["doctor", "train", "evaluate", "study", "sweep", "grade"])
    def test_a_flag_that_is_no_precision(self, capsys: pytest.CaptureFixture[str], verb: str) -> None:
        code, found = run(capsys, verb, "--precision", "half")
        assert code == 2
        assert "precision: got 'half'; expected one of auto, float32, bfloat16; fix: " in found["errors"][0]

    @pytest.mark.parametrize(
        ("verb", "value", "flag"),
        [("calibrate", "0.9", "--at-precision"), ("search", "0.8", "--at-precision"), ("index", "float16", "--dtype")],
    )
    def test_who_means_another_number_is_told_its_flag(
        self, capsys: pytest.CaptureFixture[str], verb: str, value: str, flag: str
    ) -> None:
        code, found = run(capsys, verb, "--precision", value)
        assert code == 2
        assert f"{flag} {value}" in found["errors"][0]

    @pytest.mark.parametrize("words", [("convert", "x.jsonl"), ("generate", "--corpus", "x.jsonl", "--server", "x")])
    def test_verbs_that_compute_nothing_have_no_such_flag(
        self, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
    ) -> None:
        code, found = run(capsys, *words, "--precision", "float32")
        assert code == 2
        assert "--precision" in found["errors"][0]

    def test_a_variable_that_holds_none(self) -> None:
        environment = {**os.environ, PRECISION_VARIABLE: "fp16"}
        done = subprocess.run(
            [sys.executable, "-m", "bixse", "doctor"], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert f"{PRECISION_VARIABLE}: got 'fp16'; expected one of auto, float32, bfloat16" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("precision", BOTH)
def test_doctor_says_setting_and_source(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    monkeypatch.delenv(PRECISION_VARIABLE)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert "auto (the default)" in shown
    assert "auto means " in shown
    assert main(["doctor", "--precision", precision]) == 0
    assert f"{precision} (from --precision)" in capsys.readouterr().out
    monkeypatch.setenv(PRECISION_VARIABLE, precision)
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert f"{precision} (from {PRECISION_VARIABLE})" in shown
    assert f"models compute in {precision}" in shown


def test_an_evaluation_says_its_precision_and_is_not_taken_for_another(
    capsys: pytest.CaptureFixture[str], collection: Path, tiny_model_path: Path, tmp_path: Path
) -> None:
    words = ("evaluate", tiny_model_path, "--collection", collection, "--out", tmp_path / "out")
    code, found = run(capsys, *words, "--precision", "bfloat16")
    assert code == 0
    assert found["metrics"]["precision"] == record(tmp_path / "out")["config"]["precision"] == "bfloat16"
    assert main([*map(str, words), "--precision", "bfloat16"]) == 0
    assert "queries, bfloat16)" in capsys.readouterr().out
    code, found = run(capsys, *words, "--precision", "float32")
    assert code == 2
    assert "precision (was 'bfloat16', now 'float32')" in found["errors"][0]


def test_words_have_no_precision(capsys: pytest.CaptureFixture[str], collection: Path, tmp_path: Path) -> None:
    words = ("evaluate", "bm25", "--collection", collection, "--out", tmp_path / "out")
    for precision in BOTH:
        code, found = run(capsys, *words, "--precision", precision)
        assert code == 0
        assert "precision" not in found["metrics"]


def test_a_comparison_says_its_precision(
    capsys: pytest.CaptureFixture[str], collection: Path, tiny_model_path: Path
) -> None:
    words = ["evaluate", str(tiny_model_path), "bm25", "--collection", str(collection), "--precision", "bfloat16"]
    assert run(capsys, *words)[1]["metrics"]["precision"] == "bfloat16"
    main(words)
    assert "Precision: bfloat16." in capsys.readouterr().out


class TestTraining:
    @pytest.fixture
    def settings(self, pairs: Path, collection: Path, tiny_model_path: Path, tmp_path: Path) -> Path:
        path = tmp_path / "run.yaml"
        own = {"pairs": str(pairs), "dev": str(collection), "model": str(tiny_model_path), "precision": "float32"}
        own |= {"allow_shared_queries": True, "merge": None}
        path.write_text(yaml.safe_dump({**own, "optimizer": {"steps": 1, "batch_size": 4}}), encoding="utf-8")
        return path

    def test_the_record_holds_what_was_computed_in(
        self, capsys: pytest.CaptureFixture[str], settings: Path, tmp_path: Path
    ) -> None:
        """The flag beats the file; a run in another precision is another run."""
        for precision in BOTH:
            code, found = run(capsys, "train", "--config", settings, "--precision", precision, "--out",
                              tmp_path / precision)  # fmt: skip
            assert code == 0, found
            assert found["metrics"]["precision"] == precision
            assert record(tmp_path / precision)["config"]["precision"] == precision
        losses = [record(tmp_path / p)["results"]["history"][1]["loss"] for p in BOTH]
        assert losses[0] != losses[1]
        code, found = run(capsys, "train", "--config", settings, "--out", tmp_path / "bfloat16")
        assert code == 2
        assert "precision (was 'bfloat16', now 'float32')" in found["errors"][0]

    def test_a_launchers_mixed_precision_does_not_decide(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settings: Path, tmp_path: Path
    ) -> None:
        run(capsys, "train", "--config", settings, "--out", tmp_path / "plain")
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
        run(capsys, "train", "--config", settings, "--out", tmp_path / "launched")
        histories = [record(tmp_path / name)["results"]["history"] for name in ("plain", "launched")]
        assert histories[0] == histories[1]

    def test_a_sweep_says_it_in_its_table(
        self, capsys: pytest.CaptureFixture[str], settings: Path, tmp_path: Path
    ) -> None:
        path = tmp_path / "sweep.yaml"
        path.write_text(yaml.safe_dump({"base": str(settings), "vary": {"scale": [10, 20]}}), encoding="utf-8")
        code, found = run(capsys, "sweep", "--config", path, "--precision", "bfloat16", "--out", tmp_path / "sweep")
        assert code == 0, found
        assert [row["precision"] for row in found["metrics"]["rows"]] == ["bfloat16"] * 2
        assert (tmp_path / "sweep" / "sweep.csv").read_text(encoding="utf-8").count("bfloat16") == 2
        assert yaml.safe_load((tmp_path / "sweep" / "best.yaml").read_text(encoding="utf-8"))["precision"] == "bfloat16"
        code, found = run(capsys, "sweep", "--config", path, "--out", tmp_path / "sweep")
        assert code == 2
        assert "precision (was 'bfloat16', now 'float32')" in found["errors"][0]


def test_a_study_says_it_on_its_page_and_in_its_table(
    capsys: pytest.CaptureFixture[str], collection: Path, pairs: Path, tiny_model_path: Path, tmp_path: Path
) -> None:
    path = tmp_path / "study.yaml"
    data = {"pairs": [str(pairs)], "dev": [str(collection)], "test": [str(collection)], "min_relevant_grade": 1}
    train = {"optimizer": {"steps": 1, "batch_size": 4}, "allow_shared_queries": True}
    values = {"losses": ["bixse"]}
    settings = {"data": data, "model": str(tiny_model_path), "train": train, "values": values, "seeds": [0]}
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    words = ("study", "losses", "--config", path, "--out", tmp_path / "out", "--jobs", "1")
    code, found = run(capsys, *words, "--precision", "bfloat16")
    assert code == 0, found
    assert "Computed in bfloat16." in (tmp_path / "out" / "findings.md").read_text(encoding="utf-8")
    assert "bfloat16" in (tmp_path / "out" / "runs.csv").read_text(encoding="utf-8")
    assert record(tmp_path / "out")["config"]["train"]["precision"] == "bfloat16"
    code, found = run(capsys, *words, "--precision", "float32")
    assert code == 2
    assert "train.precision (was 'bfloat16', now 'float32')" in found["errors"][0]
