"""Studies as commands: every one runs, resumes run by run, and writes the same table for the same seed."""

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
from xml.etree import ElementTree

import psutil
import pytest

from bixse.cli.main import main
from bixse.data.collection import Collection, Document, save_collection
from bixse.data.graded_pairs import GradedPairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.errors import ConfigError, InputError, OutputExistsError
from bixse.lab.lab_config import StudyConfig, preset_names
from bixse.lab.studies.paper import STUDIES, find_study
from bixse.lab.studies.run_study import run_study
from bixse.lab.studies.study import chosen_values
from bixse.machine import cores
from bixse.relevance import GradeScale
from helpers.toy import action_collection

QUICK = ("cutoff", "rankers")
"""Studies that are run by default besides losses; the others are slow tests."""
needs_two_cores = pytest.mark.skipif(cores() < 2, reason="needs two cores")


@pytest.fixture
def study(actions, student):
    """Makes the configuration of a study of two losses; keywords replace its settings."""

    def make(name="losses", **changes):
        settings = {
            "data": {"collection": str(actions), "scale": (0, 3), "min_relevant_grade": 2},
            "model": str(student),
            "seeds": (0, 1),
            "train": {"optimizer": {"learning_rate": 1e-2, "num_train_epochs": 1, "global_batch_size": 8}},
            "values": {"losses": ["bixse", "infonce"]},
            "jobs": 1,
        }
        return StudyConfig(study=name, **{**settings, **changes})

    return make


def runs_table(out):
    with (out / "runs.csv").open(encoding="utf-8") as file:
        return [{key: value for key, value in row.items() if key != "seconds"} for row in csv.DictReader(file)]


def test_a_study_leaves_tables_plot_findings_and_page(study, tmp_path):
    out = tmp_path / "study"
    found = run_study(study(), out, command="bixse study losses")
    rows = runs_table(out)
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
    assert ElementTree.parse(out / "plot.svg").getroot().tag.endswith("svg")
    assert json.loads((out / "run.json").read_text())["status"] == "finished"
    assert not list((out / "runs").rglob("*.safetensors"))
    again = run_study(study(), out)
    assert (found.made, again.made, runs_table(out)) == (6, 0, rows)
    shutil.rmtree(out / "runs" / "loss=infonce" / "seed-1")
    again = run_study(study(), out)
    assert (again.made, runs_table(out)) == (1, rows)  # the same seed, the same figures
    assert again.outcome.verdict() == found.outcome.verdict()


def divided_actions(folder):
    """Pairs of the train queries, and collections with a test split: of the same domain, and another beside it."""
    whole = action_collection()
    pairs = GradedPairs.from_collection(whole, "train", GradeScale(0, 3))
    save_graded_pairs(pairs, folder / "pairs.parquet")
    queries = list(whole.qrels["test"])
    for name, own in (("test", queries[::2]), ("other", queries[1::2])):
        qrels = {"test": {query: whole.qrels["test"][query] for query in own}}
        save_collection(Collection(name, whole.corpus, {q: whole.queries[q] for q in own}, qrels), folder / name)
    trained = {"test": {query: whole.qrels["train"][query] for query in list(whole.qrels["train"])[:3]}}
    texts = {query: whole.queries[query] for query in trained["test"]}
    save_collection(Collection("trained", whole.corpus, texts, trained), folder / "trained")
    return {"pairs": [folder / "pairs.parquet"], "test": [folder / "test"], "beside": [folder / "other"]}


def test_collections_beside_and_the_model_before_it_was_merged_are_measured_apart(study, tmp_path):
    data = divided_actions(tmp_path)
    train = {
        "optimizer": {"learning_rate": 1e-2, "num_train_epochs": 1, "global_batch_size": 8},
        "merge": {"weights": [0.5], "keep_tuned": True},
        "evaluations_per_epoch": 0,
    }
    out = tmp_path / "study"
    found = run_study(study(data=data, train=train, values={"losses": ["bixse"]}), out)
    assert found.outcome.failed == []
    with (out / "apart.csv").open(encoding="utf-8") as file:
        rows = {(row["measured_on"], row["loss"]): row for row in csv.DictReader(file)}
    assert set(rows) == {
        ("other", "bixse"), ("other, not merged", "bixse"), ("test, not merged", "bixse"), ("other", "untrained"),
        ("other", "bm25"),
    }  # fmt: skip
    base, row = (float(rows["other", loss]["ndcg@10"]) for loss in ("untrained", "bixse"))
    assert float(rows["other", "bixse"]["difference"]) == pytest.approx(row - base, abs=1e-5)
    assert rows["other", "untrained"]["difference"] == ""
    summary = {row.labels["loss"]: row.figures["ndcg@10"] for row in found.outcome.summary}
    unmerged = rows["test, not merged", "bixse"]
    gap = float(unmerged["ndcg@10"]) - summary["untrained"]
    assert float(unmerged["difference"]) == pytest.approx(gap, abs=1e-5)
    assert summary["bixse"] != pytest.approx(float(unmerged["ndcg@10"]), abs=1e-9)
    assert {claim.claim for claim in found.outcome.claims} == {"bixse above the untrained encoder"}
    assert "other, not merged" in (out / "findings.md").read_text(encoding="utf-8")
    assert run_study(study(data=data, train=train, values={"losses": ["bixse"]}), out).made == 0


@pytest.mark.slow
@needs_two_cores
def test_two_processes_give_the_table_of_one(study, tmp_path):
    for jobs in (1, 2):
        run_study(study(jobs=jobs), tmp_path / str(jobs))
    for one, other in zip(*(runs_table(tmp_path / str(jobs)) for jobs in (1, 2)), strict=True):
        assert float(one["ndcg@10"]) == pytest.approx(float(other["ndcg@10"]), abs=2e-2)


@pytest.mark.slow
def test_models_are_kept_where_they_are_asked_for(study, tmp_path):
    run_study(study(seeds=(3,), keep_models=True), tmp_path / "study")
    assert len(list(tmp_path.glob("study/runs/*/*/train/model/model.safetensors"))) == 2


@pytest.mark.slow
def test_a_run_stopped_before_the_record_of_its_training_is_made_again(study, tmp_path):
    config, out = study(seeds=(0,), values={"losses": ["bixse"]}), tmp_path / "study"
    run_study(config, out)
    shutil.rmtree(out / "runs" / "loss=bixse")
    (out / "runs" / "loss=bixse" / "seed-0" / "train" / "checkpoints").mkdir(parents=True)
    assert run_study(config, out).made == 1


@pytest.mark.slow
def test_a_failed_run_is_told_and_tried_again(study, tmp_path):
    config, out = study(per_loss={"infonce": {"instructions": tmp_path / "none.json"}}), tmp_path / "study"
    found = run_study(config, out)
    assert {row.labels["loss"] for row in found.outcome.failed} == {"infonce"}
    assert all("; fix: " in row.reason for row in found.outcome.failed)
    assert json.loads((out / "run.json").read_text())["status"] == "failed"
    assert {claim.finding for claim in found.outcome.claims if "infonce" in claim.claim} == {"no figures"}
    assert run_study(config, out).made == 2


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in STUDIES if name != "losses"],
)
def test_every_study_runs(name, study, tmp_path):
    small = {
        "noise": {"noise": [0, 0.5]},
        "cutoff": {"cutoffs": [0, 0.9]},
        "batch-size": {"batch_sizes": [4, 8]},
        "bias-rate": {"multipliers": [1, 100], "starts": ["fit", "prior"]},
        "hard-negatives": {"hard_negatives": [0, 3], "documents": 16, "losses": ["bixse", "lambdaloss-v2"]},
        "annotation": {"labels_per_query": [1, 3], "losses": ["bixse", "infonce"]},
        "rankers": {"losses": ["bixse"], "depth": 5},
    }[name]
    found = run_study(study(name, values=small, seeds=(0,)), tmp_path / "study")
    assert not found.outcome.failed
    assert found.outcome.claims
    assert all(claim.finding != "no figures" for claim in found.outcome.claims)


def test_an_only_split_is_divided_by_query_text(study, tmp_path):
    whole = action_collection(splits=False)
    corpus = {**whole.corpus, "copy-0": Document("", "")}  # judged, and empty, as published collections have them
    save_collection(Collection("actions", corpus, whole.queries, whole.qrels), tmp_path / "actions")
    data = {"collection": str(tmp_path / "actions"), "min_relevant_grade": 2, "shares": (0.4, 0.2, 0.4)}
    run_study(study(data=data, seeds=(0,), values={"losses": ["bixse"]}), tmp_path / "study")
    folder = tmp_path / "study" / "inputs" / "actions" / "qrels"
    parts = [{line.split("\t")[0] for line in path.read_text().splitlines()[1:]} for path in folder.iterdir()]
    assert len(parts) == 3 and len(set().union(*parts)) == sum(map(len, parts)) == 60


class TestUnhappyPaths:
    @pytest.mark.parametrize(
        ("changes", "error"),
        [
            ({"per_loss": {"bixse": {"learning_rat": 1}}}, ConfigError),
            ({"train": {"optimizer": {"learning_rat": 1}}}, ConfigError),
            ({"values": {"loses": []}}, ConfigError),
            ({"values": {"losses": "bixse"}}, ConfigError),
            ({"data": {"pairs": ["no.parquet"], "dev": ["dev"], "test": ["test"]}}, InputError),
            ({"name": "cutoff", "values": {"cutoffs": [0, 1.1]}}, InputError),
            ({"jobs": 1000}, InputError),
            ({"name": "loses"}, InputError),
        ],
    )
    def test_a_refused_study_leaves_no_folder(self, study, tmp_path, changes, error):
        with pytest.raises(error):
            run_study(study(**changes), tmp_path / "study")
        assert not (tmp_path / "study").exists()

    @pytest.mark.parametrize("role", ["test", "beside"])
    def test_test_queries_that_stand_in_the_training_pairs(self, study, tmp_path, role):
        data = {**divided_actions(tmp_path), role: [tmp_path / "trained"]}
        with pytest.raises(InputError, match="test trained: got 3 of 3 queries"):
            run_study(study(data=data), tmp_path / "study")
        assert not (tmp_path / "study").exists()

    def test_settings_that_a_study_owns_and_names_that_are_not_there(self):
        for settings, said in (
            ({"study": "losses", "preset": "latop"}, "did you mean 'laptop'"),
            ({"study": "losses", "preset": "smoke", "train": {"seed": 3}}, "which the study sets"),
            ({"study": "losses", "per_loss": {"bixs": {}}}, "did you mean 'bixse'"),
            ({"preset": "smoke"}, "study: got nothing"),
        ):
            with pytest.raises(InputError, match=said):
                StudyConfig.load(None, settings)
        with pytest.raises(ConfigError, match="did you mean 'losses'"):
            chosen_values(find_study("losses"), StudyConfig(study="losses", values={"loses": []}))

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("noise", {"noise": [0, 2]}),
            ("noise", {"noise": [True]}),
            ("noise", {"labels_per_query": [4]}),
            ("noise", {"labels_per_query": -2}),
            ("cutoff", {"cutoffs": [0.5, "x"]}),
            ("cutoff", {"cutoffs": [float("nan")]}),
            ("batch-size", {"batch_sizes": [4.5]}),
            ("bias-rate", {"multipliers": [0]}),
            ("bias-rate", {"starts": [1]}),
            ("hard-negatives", {"hard_negatives": [-1]}),
            ("hard-negatives", {"documents": None}),
            ("annotation", {"labels_per_query": [0]}),
            ("annotation", {"labels": -4}),
            ("hard-negatives", {"documents": "x"}),
            ("rankers", {"depth": 0}),
            ("losses", {"losses": [3]}),
        ],
    )
    def test_values_that_mean_nothing(self, name, values):
        with pytest.raises(ConfigError, match=next(iter(values))):
            chosen_values(find_study(name), StudyConfig(study=name, values=values))

    @pytest.mark.parametrize(
        ("name", "values"),
        [("noise", {"noise": [0, 1], "labels_per_query": 2}), ("annotation", {"labels": None}), ("rankers", {})],
    )
    def test_values_at_the_edge(self, name, values):
        assert chosen_values(find_study(name), StudyConfig(study=name, values=values)).items() >= values.items()

    def test_another_study_or_other_inputs_are_refused(self, study, actions, tmp_path):
        folder = shutil.copytree(actions, tmp_path / "actions")
        config = study(data={"collection": str(folder), "scale": (0, 3), "min_relevant_grade": 2}, seeds=(0,))
        run_study(config, tmp_path / "study")
        with pytest.raises(OutputExistsError, match="seeds"):
            run_study(config.model_copy(update={"seeds": (0, 1, 2)}), tmp_path / "study")
        path = folder / "qrels" / "test.tsv"
        path.write_text(path.read_text().replace("\t3\n", "\t2\n"))
        with pytest.raises(OutputExistsError, match=r"test\.tsv"):
            run_study(config, tmp_path / "study")


@pytest.mark.slow
@needs_two_cores
def test_a_process_that_is_killed_costs_its_own_run_alone(study, tmp_path):
    config = study(train={"optimizer": {"global_batch_size": 8, "num_train_epochs": 20}}, seeds=(0, 1, 2), jobs=2)
    out, killed = tmp_path / "study", []

    def kill_one():
        while not list(out.glob("runs/*/*/train/checkpoints")):
            time.sleep(0.05)
        child = next(p for p in psutil.Process().children() if "spawn_main" in " ".join(p.cmdline()))
        killed.append(child.pid)
        child.kill()

    watcher = threading.Thread(target=kill_one, daemon=True)
    watcher.start()
    found = run_study(config, out)
    assert killed
    assert not found.outcome.failed
    assert len(found.outcome.results) == 8


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=needs_two_cores)])
def test_ctrl_c_and_the_same_command_goes_on(jobs, actions, student, tmp_path):
    path, out = tmp_path / "study.yaml", tmp_path / "out"
    path.write_text(
        f"data: {{collection: {actions}, scale: [0, 3], min_relevant_grade: 2}}\nmodel: {student}\nseeds: [0, 1, 2]\n"
        "values: {losses: [bixse, infonce]}\ntrain: {optimizer: {global_batch_size: 8, num_train_epochs: 40}}\n"
    )
    command = [sys.executable, "-m", "bixse", "study", "losses", "--config", str(path), "--out", str(out)]
    command += ["--jobs", str(jobs)]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    limit = time.monotonic() + 120
    while not list(out.glob("runs/*/*/result.json")) and time.monotonic() < limit and running.poll() is None:
        time.sleep(0.1)
    os.kill(running.pid, signal.SIGINT)
    said = running.communicate(timeout=120)[1]
    if running.returncode != 0:  # it may have been done already
        assert running.returncode == 130, said
        assert "give the same command again" in said
        assert json.loads((out / "run.json").read_text())["status"] == "interrupted"
    known = [file for file in out.glob("runs/*/*/result.json") if json.loads(file.read_text())["status"] == "finished"]
    times = {file: file.stat().st_mtime_ns for file in known}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert all(file.stat().st_mtime_ns == stamp for file, stamp in times.items())
    assert len(runs_table(out)) == 8


class TestCommand:
    def test_the_page_says_the_command_that_makes_it_again(self, actions, student, tmp_path, capsys):
        out, path = tmp_path / "out", tmp_path / "study.yaml"
        path.write_text(f"model: {student}\nvalues: {{losses: [bixse]}}\n")
        words = ["study", "losses", "--config", str(path), "--seeds", "0"]
        words += ["--collection", str(actions), "--scale", "0", "3", "--min-relevant-grade", "2"]
        assert main([*words, "--out", str(out), "--jobs", "1", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["metrics"]["runs"] == 3
        (command,) = [line for line in (out / "findings.md").read_text().splitlines() if line.startswith("`bixse")]
        assert main([*command.strip("`").split()[1:], "--out", str(out), "--jobs", "1", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["metrics"]["made"] == 0

    def test_the_list_names_studies_and_presets(self, capsys):
        assert main(["study", "--list"]) == 0
        said = capsys.readouterr().out
        assert all(name in said for name in [*STUDIES, *preset_names()])

    @pytest.mark.parametrize("preset", [name for name in preset_names() if name.startswith("paper")])
    @pytest.mark.parametrize("study", STUDIES)
    def test_the_papers_settings_are_checked_without_their_data(self, preset, study, capsys):
        assert main(["study", study, "--preset", preset, "--dry-run", "--json"]) == 0
        figures = json.loads(capsys.readouterr().out)["metrics"]
        assert figures["runs"] >= 3 and figures["missing"]

    @pytest.mark.parametrize(
        "words",
        [
            [],
            ["nois", "--preset", "smoke"],
            ["losses", "--collection", "x"],
            ["losses", "--collection", "x", "--scale", "0", "3", "--min-relevant-grade", "2", "--preset",
             "paper-qwen2.5-0.5b"],
        ],
    )  # fmt: skip
    def test_words_that_cannot_be_used(self, words, tmp_path, capsys):
        assert main(["study", *words, "--out", str(tmp_path / "out")]) == 2
        assert "fix: " in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
