"""Studies as commands: every one runs, resumes cell by cell, and writes the same table for the same seed."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from bixse.studies.engine.cells import RESULT_FILE, Cell, known_result
from bixse.studies.engine.preset_names import preset_names
from filelock import FileLock

from bixse.cli.main import main
from bixse.data.collection import Collection, Document
from bixse.data.collection_files import save_collection
from bixse.encoders.static import save_static_student
from bixse.errors import ConfigError, InputError, OutputExistsError
from bixse.studies.engine import cells
from bixse.studies.engine.run_study import CELLS_FOLDER, run_study
from bixse.studies.engine.study import STUDIES, chosen_values, find_study
from bixse.studies.engine.study_config import StudyConfig, load_study_config

WORDS = [
    *("copy", "move", "delete", "rename", "open", "close", "read", "write", "list", "sort", "search", "replace"),
    *("split", "join", "parse", "format", "encode", "decode", "compress", "send", "receive", "connect", "listen"),
    *("wait", "start", "stop", "pause", "resume", "log", "test"),
]
THINGS = ["a file", "a folder", "an archive", "a stream"]


def collection(splits: bool = True) -> Collection:
    """30 words x 4 things: a query asks for one, the other things of the same word are partly relevant."""
    corpus = {f"{word}-{i}": Document(word, f"how to {word} {thing}") for word in WORDS
              for i, thing in enumerate(THINGS)}  # fmt: skip
    queries, qrels = {}, {}
    for number, word in enumerate(WORDS):
        for i, thing in enumerate(THINGS[:2]):
            query = f"q{number}-{i}"
            queries[query] = f"{word} {thing} please"
            qrels[query] = {f"{word}-{j}": (3 if j == i else 1) for j in range(len(THINGS))}
            qrels[query][f"{WORDS[(number + 1) % len(WORDS)]}-{i}"] = 0
    names = list(qrels)
    parts = {"train": names[:30], "dev": names[30:40], "test": names[40:]} if splits else {"test": names}
    return Collection("words", corpus, queries, {name: {q: qrels[q] for q in part} for name, part in parts.items()})


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("students") / "static"
    save_static_student(folder, dimensions=16)
    return folder


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("collections") / "words"
    save_collection(collection(), folder)
    return folder


@pytest.fixture
def config(words: Path, student: Path) -> StudyConfig:
    return StudyConfig(
        data={"collection": str(words), "scale": (0, 3), "relevance_level": 2},
        model=str(student),
        seeds=(0, 1),
        train={"optimizer": {"learning_rate": 1e-2, "epochs": 1, "batch_size": 8}},
        values={"losses": ["bixse", "infonce"]},
    )


def cells_table(out: Path) -> list[dict[str, str]]:
    with (out / "cells.csv").open(encoding="utf-8") as file:
        return [{key: value for key, value in row.items() if key != "seconds"} for row in csv.DictReader(file)]


def test_a_study_leaves_tables_plot_findings_and_page(config: StudyConfig, tmp_path: Path) -> None:
    out = tmp_path / "study"
    found = run_study("losses", config, out, jobs=1, command="bixse study losses")
    assert found.made == 6
    rows = cells_table(out)
    assert [(row["loss"], row["seed"], row["status"]) for row in rows] == [
        ("bixse", "0", "finished"), ("bixse", "1", "finished"), ("infonce", "0", "finished"),
        ("infonce", "1", "finished"), ("untrained", "0", "finished"), ("bm25", "0", "finished"),
    ]  # fmt: skip
    with (out / "findings.csv").open(encoding="utf-8") as file:
        claims = {row["claim"]: row for row in csv.DictReader(file)}
    shown = {row["loss"]: [float(r["ndcg@10"]) for r in rows if r["loss"] == row["loss"]] for row in rows}
    means = {loss: sum(values) / len(values) for loss, values in shown.items()}
    gap = claims["bixse above infonce"]
    assert float(gap["difference"]) == pytest.approx(means["bixse"] - means["infonce"], abs=1e-5)
    assert float(gap["low"]) <= float(gap["difference"]) <= float(gap["high"])
    findings = (out / "findings.md").read_text(encoding="utf-8")
    assert "The paper: Table 1" in findings and "bixse study losses" in findings
    assert (out / "plot.svg").read_text(encoding="utf-8").startswith("<svg")
    assert json.loads((out / "run.json").read_text())["status"] == "finished"
    assert not list((out / CELLS_FOLDER).rglob("*.safetensors"))


def test_the_same_seed_gives_the_same_table(config: StudyConfig, tmp_path: Path) -> None:
    run_study("losses", config, tmp_path / "one", jobs=1)
    run_study("losses", config, tmp_path / "again", jobs=1)
    assert cells_table(tmp_path / "one") == cells_table(tmp_path / "again")


@pytest.mark.slow
def test_two_processes_give_the_table_of_one(config: StudyConfig, tmp_path: Path) -> None:
    if (os.cpu_count() or 1) < 2:
        pytest.skip("needs two cores")
    run_study("losses", config, tmp_path / "one", jobs=1)
    run_study("losses", config, tmp_path / "two", jobs=2)
    for ours, other in zip(cells_table(tmp_path / "one"), cells_table(tmp_path / "two"), strict=True):
        assert float(ours["ndcg@10"]) == pytest.approx(float(other["ndcg@10"]), abs=2e-2)


def test_finished_cells_are_kept_and_a_lost_one_is_made_again_alone(config: StudyConfig, tmp_path: Path) -> None:
    out = tmp_path / "study"
    first = run_study("losses", config, out, jobs=1)
    assert run_study("losses", config, out, jobs=1).made == 0
    before = cells_table(out)
    lost = next(path for path in (out / CELLS_FOLDER).iterdir() if path.name.startswith("loss-infonce-seed-1"))
    (lost / RESULT_FILE).write_text('{"labels": {"loss": "inf', encoding="utf-8")  # as after a power cut elsewhere
    again = run_study("losses", config, out, jobs=1)
    assert again.made == 1
    assert cells_table(out) == before
    assert first.outcome.verdict() == again.outcome.verdict()


def test_kept_models_say_which_study_they_came_from(config: StudyConfig, tmp_path: Path) -> None:
    out, one = tmp_path / "study", config.model_copy(update={"seeds": (3,)})
    for _ in range(2):
        run_study("losses", one, out, jobs=1, keep_models=True, command="bixse study losses")
    cards = sorted(out.glob("cells/*/run/model/README.md"))
    assert len(cards) == 2
    text = cards[0].read_text(encoding="utf-8")
    assert text.count("## Study") == 1
    assert "Cell of the study `losses` (Losses on the same rows): loss bixse, seed 3." in text
    assert "ndcg@10" in text and "`bixse study losses`" in text
    assert str(cards[0].parent) in (out / "study.html").read_text(encoding="utf-8")


def test_a_cell_stopped_before_its_record_is_made_again(config: StudyConfig, tmp_path: Path) -> None:
    out, one = tmp_path / "study", config.model_copy(update={"seeds": (0,)})
    run_study("losses", one, out, jobs=1)
    cell = next(path for path in (out / CELLS_FOLDER).iterdir() if path.name.startswith("loss-bixse"))
    (cell / RESULT_FILE).unlink()
    (cell / "run" / "checkpoints").mkdir(parents=True)
    assert run_study("losses", one, out, jobs=1).made == 1


def test_a_failed_cell_is_told_and_tried_again(config: StudyConfig, tmp_path: Path) -> None:
    broken = config.model_copy(update={"per_loss": {"infonce": {"loss_options": {"cutoff": 7.0}}}})
    out = tmp_path / "study"
    found = run_study("losses", broken, out, jobs=1)
    failed = found.outcome.failed
    assert {row.labels["loss"] for row in failed} == {"infonce"}
    assert all("; fix: " in row.reason for row in failed)
    assert json.loads((out / "run.json").read_text())["status"] == "failed"
    assert {claim.finding for claim in found.outcome.claims if "infonce" in claim.claim} == {"no figures"}
    assert run_study("losses", broken, out, jobs=1).made == 2


@pytest.mark.parametrize("name", [name for name in STUDIES if name not in ("losses", "memory")])
def test_every_study_runs(name: str, config: StudyConfig, tmp_path: Path) -> None:
    small = {
        "noise": {"noise": [0, 0.5]},
        "cutoff": {"cutoffs": [0, 0.9]},
        "batch-size": {"batch_sizes": [4, 8]},
        "bias-rate": {"multipliers": [1, 100], "starts": ["fit", "prior"]},
        "hard-negatives": {"hard_negatives": [0, 3], "documents": 16, "losses": ["bixse", "lambdaloss-v2"]},
        "annotation": {"labels_per_query": [1, 3], "losses": ["bixse", "infonce"]},
        "rankers": {"losses": ["bixse"], "depth": 5},
    }[name]
    one = config.model_copy(update={"values": small, "seeds": (0,)})
    found = run_study(name, one, tmp_path / "study", jobs=1)
    assert not found.outcome.failed
    assert found.outcome.claims
    assert all(claim.finding != "no figures" for claim in found.outcome.claims)


def test_the_memory_study_measures_in_fresh_processes(tmp_path: Path) -> None:
    values = {"losses": ["bixse", "bixse, whole matrix"], "batch_sizes": [4096], "dim": 16}
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("needs Linux")
    found = run_study("memory", StudyConfig(values=values), tmp_path / "study", jobs=1)
    extra = {row.labels["loss"]: row.metrics["extra_mib"] for row in found.outcome.results}
    assert extra["bixse"] < 48 < extra["bixse, whole matrix"]  # one 4,096 x 4,096 float32 matrix is 64 MiB


def test_an_only_split_is_divided_by_query_text(student: Path, tmp_path: Path) -> None:
    whole = collection(splits=False)
    corpus = {**whole.corpus, "copy-0": Document("", "")}  # judged, and empty, as published collections have them
    save_collection(Collection("words", corpus, whole.queries, whole.qrels), tmp_path / "words")
    data = {"collection": str(tmp_path / "words"), "scale": (0, 3), "relevance_level": 2, "shares": (0.4, 0.2, 0.4)}
    config = StudyConfig(data=data, model=str(student), seeds=(0,), values={"losses": ["bixse"]},
                         train={"optimizer": {"epochs": 1, "steps": 1}})  # fmt: skip
    run_study("losses", config, tmp_path / "study", jobs=1)
    folder = tmp_path / "study" / "inputs" / "words" / "qrels"
    parts = [{line.split("\t")[0] for line in path.read_text().splitlines()[1:]} for path in folder.iterdir()]
    assert len(parts) == 3 and sum(map(len, parts)) == 60
    assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]


class TestUnhappyPaths:
    def test_a_refused_study_leaves_no_folder(self, config: StudyConfig, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="learning_rat"):
            run_study("losses", config.model_copy(update={"per_loss": {"bixse": {"learning_rat": 1}}}), tmp_path / "s")
        assert not (tmp_path / "s").exists()

    def test_files_that_are_not_there(self, config: StudyConfig, tmp_path: Path) -> None:
        data = {"pairs": [tmp_path / "no.parquet"], "dev": [tmp_path / "dev"], "test": [tmp_path / "test"]}
        with pytest.raises(InputError, match=r"neither qrels/dev\.tsv nor qrels/test\.tsv"):
            run_study("losses", StudyConfig(data=data, model=config.model), tmp_path / "s")

    def test_changed_qrels_are_noticed(self, config: StudyConfig, words: Path, tmp_path: Path) -> None:
        other = tmp_path / "words"
        shutil.copytree(words, other)
        moved = config.model_copy(update={"data": config.data.model_copy(update={"collection": str(other)})})
        run_study("losses", moved, tmp_path / "s", jobs=1)
        path = other / "qrels" / "test.tsv"
        path.write_text(path.read_text().replace("\t3\n", "\t2\n"))
        with pytest.raises(OutputExistsError, match=r"changed: .*test\.tsv"):
            run_study("losses", moved, tmp_path / "s", jobs=1)

    def test_two_commands_in_one_folder(self, config: StudyConfig, tmp_path: Path) -> None:
        (tmp_path / "s").mkdir()
        with FileLock(tmp_path / "s" / ".lock"), pytest.raises(OutputExistsError, match="another process"):
            run_study("losses", config, tmp_path / "s", jobs=1)

    def test_a_fault_of_a_library_fails_its_cell_alone(
        self, config: StudyConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        measured = cells._scored

        def broken(cell: Cell, *rest: Any) -> Any:
            if cell.labels["loss"] == "bm25":
                raise KeyError("vocabulary")
            return measured(cell, *rest)

        monkeypatch.setattr(cells, "_scored", broken)
        found = run_study("losses", config, tmp_path / "s", jobs=1)
        assert [row.reason for row in found.outcome.failed] == ["KeyError: 'vocabulary'"]
        assert len(found.outcome.results) == 6

    def test_a_collection_without_its_scale(self, words: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["study", "losses", "--collection", str(words)]) == 2
        assert "expected all three" in capsys.readouterr().err
        flags = ["--collection", str(words), "--scale", "0", "3", "--relevance-level", "2"]
        assert main(["study", "losses", "--preset", "paper-qwen2.5-0.5b", *flags]) == 2
        assert "beside files of pairs" in capsys.readouterr().err

    def test_another_studys_folder_is_refused(self, config: StudyConfig, tmp_path: Path) -> None:
        out = tmp_path / "study"
        run_study("losses", config, out, jobs=1)
        with pytest.raises(OutputExistsError, match="changed: seeds"):
            run_study("losses", config.model_copy(update={"seeds": (0, 1, 2)}), out, jobs=1)

    def test_an_unknown_study_preset_value_or_setting(self, config: StudyConfig, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="did you mean 'losses'"):
            find_study("loses")
        with pytest.raises(InputError, match="did you mean 'laptop'"):
            load_study_config("losses", "latop", None)
        with pytest.raises(ConfigError, match="did you mean 'losses'"):
            chosen_values(find_study("losses"), config.model_copy(update={"values": {"loses": []}}))
        with pytest.raises(ConfigError, match="which the study sets"):
            load_study_config("losses", "smoke", None, {"train": {"seed": 3}})
        with pytest.raises(ConfigError, match="learning_rat"):
            run_study("losses", config.model_copy(update={"train": {"optimizer": {"learning_rat": 1}}}), tmp_path / "s")

    def test_a_cutoff_no_pair_reaches(self, config: StudyConfig, tmp_path: Path) -> None:
        data = config.data.model_copy(update={"scale": (0, 4)})
        high = config.model_copy(update={"values": {"cutoffs": [0, 0.9]}, "data": data})
        with pytest.raises(InputError, match="which no training pair reaches"):
            run_study("cutoff", high, tmp_path / "study", jobs=1)

    def test_more_processes_than_cores(self, config: StudyConfig, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="the cores there are"):
            run_study("losses", config, tmp_path / "study", jobs=1000)

    def test_a_result_of_another_cell_does_not_count(self, tmp_path: Path) -> None:
        cell = Cell({"loss": "bixse"}, seed=1)
        (tmp_path / cell.name).mkdir()
        (tmp_path / cell.name / RESULT_FILE).write_text('{"labels": {}, "seed": 1, "status": "finished"}')
        assert known_result(cell, tmp_path) is None


@pytest.mark.slow
def test_a_process_that_is_killed_costs_its_own_cell_alone(config: StudyConfig, tmp_path: Path) -> None:
    if (os.cpu_count() or 1) < 2:
        pytest.skip("needs two cores")
    slow = config.model_copy(update={"train": {"optimizer": {"batch_size": 8, "epochs": 20}}, "seeds": (0, 1, 2)})
    out, killed = tmp_path / "study", []

    def kill_one() -> None:
        while not list(out.glob("cells/*/run/checkpoints")):
            time.sleep(0.05)
        child = next(p for p in psutil.Process().children() if "spawn_main" in " ".join(p.cmdline()))
        killed.append(child.pid)
        child.kill()

    watcher = threading.Thread(target=kill_one, daemon=True)
    watcher.start()
    found = run_study("losses", slow, out, jobs=2)
    assert killed
    assert not found.outcome.failed
    assert len(found.outcome.results) == 8


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_and_the_same_command_goes_on(jobs: int, words: Path, student: Path, tmp_path: Path) -> None:
    if jobs > (os.cpu_count() or 1):
        pytest.skip("needs two cores")
    path = tmp_path / "study.yaml"
    path.write_text(
        f"data: {{collection: {words}, scale: [0, 3], relevance_level: 2}}\nmodel: {student}\nseeds: [0, 1, 2]\n"
        "values: {losses: [bixse, infonce]}\ntrain: {optimizer: {batch_size: 8, epochs: 40}}\n"
    )
    out = tmp_path / "out"
    command = [sys.executable, "-m", "bixse", "study", "losses", "--config", str(path), "--out", str(out)]
    command += ["--jobs", str(jobs)]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    limit = time.monotonic() + 120
    while not list(out.glob(f"cells/*/{RESULT_FILE}")) and time.monotonic() < limit and running.poll() is None:
        time.sleep(0.1)
    os.kill(running.pid, signal.SIGINT)
    said = running.communicate(timeout=120)[1]
    if running.returncode != 0:  # it may have been done already
        assert running.returncode == 130, said
        assert "give the same command again" in said
        assert json.loads((out / "run.json").read_text())["status"] == "interrupted"
    known = set(out.glob(f"cells/*/{RESULT_FILE}"))
    times = {file: file.stat().st_mtime_ns for file in known}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert all(file.stat().st_mtime_ns == stamp for file, stamp in times.items())
    assert len(cells_table(out)) == 8


class TestCommand:
    def test_smoke_of_losses_is_deterministic(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        tables = []
        for name in ("a", "b"):
            out = tmp_path / name
            words = ["study", "losses", "--preset", "smoke", "--out", str(out), "--jobs", "1", "--seeds", "0", "--json"]
            assert main(words) == 0
            tables.append(cells_table(out))
        assert tables[0] == tables[1]
        assert len(tables[0]) == 4
        answer = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
        assert answer["metrics"]["cells"] == 4

    def test_the_list_names_studies_and_presets(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["study", "--list"]) == 0
        said = capsys.readouterr().out
        assert all(name in said for name in [*STUDIES, *preset_names()])

    @pytest.mark.parametrize("preset", [name for name in preset_names() if name.startswith("paper")])
    @pytest.mark.parametrize("study", [name for name in STUDIES if name != "memory"])
    def test_the_papers_settings_are_checked_without_their_data(
        self, preset: str, study: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["study", study, "--preset", preset, "--dry-run", "--devices", "8", "--json"]) == 0
        figures = json.loads(capsys.readouterr().out)["metrics"]
        assert figures["device_hours"] > 1
        assert 1 < figures["weights_gib"] < 60
        assert figures["missing"]

    def test_no_name_and_a_wrong_name(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["study"]) == 2
        assert main(["study", "nois", "--preset", "smoke"]) == 2
        assert "did you mean 'noise'" in capsys.readouterr().err
