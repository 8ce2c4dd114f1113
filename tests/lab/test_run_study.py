import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from xml.etree import ElementTree

import pytest

from bixse.cli.main import main
from bixse.data.collection import Collection, save_collection
from bixse.data.corpus import Document
from bixse.data.graded_pairs import Pairs
from bixse.data.pairs_files import save_graded_pairs
from bixse.errors import ConfigError, InputError, OutputExistsError
from bixse.lab.lab_config import StudyConfig, preset_names
from bixse.lab.studies.paper import STUDIES, find_study
from bixse.lab.studies.run_study import run_study
from bixse.lab.studies.study import chosen_values
from bixse.machine import cores
from bixse.relevance import GradeScale
from helpers.command import call, refused
from helpers.shard_jobs import needs_ray
from helpers.toy import action_collection

QUICK = ("rankers",)
"""Studies that are run by default besides losses; the others are slow tests."""
OPTIMIZER = {"learning_rate": 1e-2, "num_train_epochs": 1, "global_batch_size": 8}

PAPERS_MODELS = {
    "modernbert-base": "answerdotai/ModernBERT-base",
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B",
    **{f"qwen2.5-{size.lower()}": f"Qwen/Qwen2.5-{size}" for size in ("0.5B", "1.5B", "3B")},
}


@pytest.fixture
def study(actions, student):
    """Makes the configuration of a study of two losses; keywords replace its settings."""

    def make(name="losses", **changes):
        settings = {
            "data": {"collection": str(actions), "scale": (0, 3), "min_relevant_grade": 2},
            "model": str(student),
            "seeds": (0, 1),
            "train": {"optimizer": OPTIMIZER},
            "values": {"losses": ["bixse", "infonce"]},
            "jobs": 1,
        }
        return StudyConfig(study=name, **{**settings, **changes})

    return make


def table(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def runs_table(out):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in table(out / "runs.csv")]


def test_a_study_leaves_tables_plot_findings_and_page(study, tmp_path):
    out = tmp_path / "study"
    result = run_study(study(), out, command="bixse study losses")
    rows = runs_table(out)
    expected = [("bixse", "0"), ("bixse", "1"), ("infonce", "0"), ("infonce", "1"), ("untrained", "0"), ("bm25", "0")]
    assert [(row["loss"], row["seed"]) for row in rows] == expected
    assert {row["status"] for row in rows} == {"finished"}
    scores = {row["loss"]: [float(r["ndcg@10"]) for r in rows if r["loss"] == row["loss"]] for row in rows}
    means = {loss: sum(values) / len(values) for loss, values in scores.items()}
    (gap,) = (row for row in table(out / "findings.csv") if row["claim"] == "bixse above infonce")
    assert float(gap["difference"]) == pytest.approx(means["bixse"] - means["infonce"], abs=1e-5)
    assert (gap["low"], gap["high"], gap["finding"]) == ("", "", "cannot tell"), "too few queries"
    findings = (out / "findings.md").read_text(encoding="utf-8")
    assert "cannot tell: " in findings and "at least 40" in findings
    assert "The paper: Table 1" in findings and "bixse study losses" in findings
    assert ElementTree.parse(out / "plot.svg").getroot().tag.endswith("svg")
    assert json.loads((out / "run.json").read_text())["status"] == "finished"
    assert not list((out / "runs").rglob("*.safetensors"))
    again = run_study(study(), out)
    assert (result.made, again.made, runs_table(out)) == (6, 0, rows)
    stopped = out / "runs" / "loss=infonce" / "seed-1"
    shutil.rmtree(stopped)
    (stopped / "train" / "checkpoints").mkdir(parents=True)  # as before the record of its training
    again = run_study(study(), out)
    assert (again.made, runs_table(out)) == (1, rows)  # the same seed, the same figures
    assert again.outcome.verdict() == result.outcome.verdict()


def divided_actions(folder):
    """Save pairs of the train queries, and collections with other test queries or three train queries."""
    actions = action_collection()
    save_graded_pairs(Pairs.from_collection(actions, "train", GradeScale(0, 3)), folder / "pairs.parquet")
    test, train = actions.qrels["test"], actions.qrels["train"]
    parts = {"test": list(test)[::2], "other": list(test)[1::2], "trained": list(train)[:3]}
    for name, queries in parts.items():
        qrels = {"test": {query: (test | train)[query] for query in queries}}
        texts = {query: actions.queries[query] for query in queries}
        save_collection(Collection(name, actions.corpus, texts, qrels), folder / name)
    return {"pairs": [folder / "pairs.parquet"], "test": [folder / "test"], "extra_test": [folder / "other"]}


@pytest.mark.slow
def test_extra_collections_and_the_model_before_merging_have_a_table_without_claims(study, tmp_path, monkeypatch):
    data = divided_actions(tmp_path)
    merge = {"weights": [0.5], "keep_tuned": True}
    train = {"optimizer": OPTIMIZER, "merge": merge, "evaluations_per_epoch": 0}
    config, out = study(data=data, train=train, values={"losses": ["bixse"]}), tmp_path / "study"
    result = run_study(config, out)
    assert result.outcome.failed == []
    rows = {(row["measured_on"], row["loss"]): row for row in table(out / "apart.csv")}
    assert set(rows) == {
        ("other", "bixse"), ("other, not merged", "bixse"), ("test, not merged", "bixse"), ("other", "untrained"),
        ("other", "bm25"),
    }  # fmt: skip
    base, row = (float(rows["other", loss]["ndcg@10"]) for loss in ("untrained", "bixse"))
    assert float(rows["other", "bixse"]["difference"]) == pytest.approx(row - base, abs=1e-5)
    assert rows["other", "untrained"]["difference"] == ""
    summary = {row.labels["loss"]: row.figures["ndcg@10"] for row in result.outcome.summary}
    unmerged = rows["test, not merged", "bixse"]
    gap = float(unmerged["ndcg@10"]) - summary["untrained"]
    assert float(unmerged["difference"]) == pytest.approx(gap, abs=1e-5)
    assert summary["bixse"] != pytest.approx(float(unmerged["ndcg@10"]), abs=1e-9)
    assert {claim.claim for claim in result.outcome.claims} == {"bixse above the untrained encoder"}
    assert "other, not merged" in (out / "findings.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)  # the same files by other paths
    here = {name: [path.name for path in paths] for name, paths in data.items()}
    assert run_study(study(data=here, train=train, values={"losses": ["bixse"]}), out).made == 0


def test_a_failed_run_is_reported_and_tried_again(study, tmp_path):
    config, out = study(seeds=(0,), per_loss={"infonce": {"instructions": tmp_path / "none.json"}}), tmp_path / "study"
    result = run_study(config, out)
    assert {row.labels["loss"] for row in result.outcome.failed} == {"infonce"}
    assert all("; fix: " in row.reason for row in result.outcome.failed)
    assert json.loads((out / "run.json").read_text())["status"] == "failed"
    assert {claim.finding for claim in result.outcome.claims if "infonce" in claim.claim} == {"no figures"}
    assert run_study(config, out).made == 1


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
    outcome = run_study(study(name, values=small, seeds=(0,)), tmp_path / "study").outcome
    assert not outcome.failed
    assert outcome.claims
    assert all(claim.finding != "no figures" for claim in outcome.claims)


def test_an_only_split_is_divided_by_query_text(study, tmp_path):
    actions = action_collection(splits=False)
    corpus = {**actions.corpus, "copy-0": Document("", "")}  # judged, and empty, as published collections have them
    save_collection(Collection("actions", corpus, actions.queries, actions.qrels), tmp_path / "actions")
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

    @pytest.mark.parametrize("role", ["test", "extra_test"])
    def test_test_queries_that_stand_in_the_training_pairs(self, study, tmp_path, role):
        data = {**divided_actions(tmp_path), role: [tmp_path / "trained"]}
        with pytest.raises(InputError, match="test trained: got 3 of 3 queries"):
            run_study(study(data=data), tmp_path / "study")
        assert not (tmp_path / "study").exists()

    def test_settings_that_a_study_owns_and_names_that_are_not_there(self):
        for settings, message in (
            ({"study": "losses", "preset": "latop"}, "did you mean 'laptop'"),
            ({"study": "losses", "preset": 3}, "preset: got '3'"),
            ({"study": ["losses"], "preset": "smoke", "train": {"seed": 3}}, "which the study sets"),
            ({"study": {"losses": 1}}, "study: got"),
            ({"study": "losses", "per_loss": {"bixs": {}}}, "did you mean 'bixse'"),
            ({"preset": "smoke"}, "study: got nothing"),
        ):
            with pytest.raises(InputError, match=message):
                StudyConfig.load(None, settings)
        with pytest.raises(ConfigError, match="did you mean 'losses'"):
            chosen_values(find_study("losses"), StudyConfig(study="losses", values={"loses": []}))

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("noise", {"noise": [0, 2]}),
            ("noise", {"noise": [True]}),
            ("noise", {"labels_per_query": [4]}),
            ("cutoff", {"cutoffs": [0.5, "x"]}),
            ("cutoff", {"cutoffs": [float("nan")]}),
            ("batch-size", {"batch_sizes": [4.5]}),
            ("bias-rate", {"multipliers": [0]}),
            ("bias-rate", {"starts": [1]}),
            ("hard-negatives", {"hard_negatives": [-1]}),
            ("hard-negatives", {"documents": None}),
            ("annotation", {"labels": -4}),
            ("losses", {"losses": [3]}),
        ],
    )
    def test_wrong_values(self, name, values):
        (key, value), *_ = values.items()
        with pytest.raises(ConfigError, match=key) as caught:
            chosen_values(find_study(name), StudyConfig(study=name, values=values))
        wrong = value[-1] if isinstance(value, list) and isinstance(find_study(name).defaults[key], list) else value
        assert f"got {wrong!r} for" in str(caught.value)

    @pytest.mark.parametrize(
        ("name", "values"),
        [("noise", {"noise": [0, 1], "labels_per_query": 2}), ("annotation", {"labels": None}), ("rankers", {})],
    )
    def test_values_at_the_edge(self, name, values):
        assert chosen_values(find_study(name), StudyConfig(study=name, values=values)).items() >= values.items()

    def test_judges_with_one_short_name_are_several_systems(self):
        judges = ["http://a:8000/v1", "http://b:8000/v1", "c/d", "http://a:8000/v1"]
        config = StudyConfig(study="rankers", values={"judges": judges, "losses": ["bixse"]})
        study, values = find_study("rankers"), chosen_values(find_study("rankers"), config)
        systems = [f"judge {name}" for name in ("http://a:8000/v1", "http://b:8000/v1", "d")]
        assert [arm.labels["system"] for arm in study.arms(config, values, None)][3:] == systems
        claims = [claim.claim for claim in study.contrasts(values)]
        assert claims[:-1] == [f"{name} above {other}" for name in systems for other in ("bm25", "untrained", "bixse")]

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
@pytest.mark.skipif(cores() < 2, reason="needs two cores")
@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=needs_ray)])
def test_ctrl_c_and_the_same_command_goes_on(engine, actions, student, tmp_path):
    path, out = tmp_path / "study.yaml", tmp_path / "out"
    path.write_text(
        f"data: {{collection: {actions}, scale: [0, 3], min_relevant_grade: 2}}\nmodel: {student}\nseeds: [0, 1, 2]\n"
        "values: {losses: [bixse, infonce]}\ntrain: {optimizer: {global_batch_size: 8, num_train_epochs: 40}}\n"
    )
    command = [sys.executable, "-m", "bixse", "study", "losses", "--config", path, "--out", out, "--jobs", "2"]
    command += ["--engine", engine]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    limit = time.monotonic() + 120
    while not list(out.glob("runs/*/*/result.json")) and time.monotonic() < limit and running.poll() is None:
        time.sleep(0.1)
    os.kill(running.pid, signal.SIGINT)
    errors = running.communicate(timeout=120)[1]
    if running.returncode != 0:  # 0: it ended before the signal
        assert running.returncode == 130, errors
        assert "give the same command again" in errors
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
        words = ["study", "losses", "--config", path, "--seeds", "0"]
        words += ["--collection", actions, "--scale", "0", "3", "--min-relevant-grade", "2"]
        code, envelope = call(capsys, *words, "--out", out, "--jobs", "1")
        assert (code, envelope["metrics"]["runs"]) == (0, 3)
        (command,) = [line for line in (out / "findings.md").read_text().splitlines() if line.startswith("`bixse")]
        code, envelope = call(capsys, *command.strip("`").split()[1:], "--out", out, "--jobs", "1")
        assert (code, envelope["metrics"]["made"]) == (0, 0)

    def test_the_list_names_studies_and_presets(self, capsys):
        assert main(["study", "--list"]) == 0
        shown = capsys.readouterr().out
        assert all(name in shown for name in [*STUDIES, *preset_names()])

    def test_the_papers_models_are_presets_with_their_own_settings(self):
        names = {f"paper-{name}" for name in PAPERS_MODELS}
        assert names | {"smoke", "laptop", "laptop-minilm"} == set(preset_names())
        presets = {name: StudyConfig.load(None, {"study": "losses", "preset": name}) for name in names}
        assert {presets[f"paper-{name}"].model for name in PAPERS_MODELS} == set(PAPERS_MODELS.values())
        own = {name: preset.train.get("lora") for name, preset in presets.items()}
        assert {name for name, lora in own.items() if lora} == {"paper-qwen2.5-3b"}
        assert len({preset.train["optimizer"]["learning_rate"] for preset in presets.values()}) == 1

    @pytest.mark.parametrize("preset", preset_names())
    def test_note_of_a_preset_names_no_number_of_seeds(self, preset):
        assert "seed" not in StudyConfig.load(None, {"study": "losses", "preset": preset}).note  # --seeds may change it

    @pytest.mark.parametrize("preset", [name for name in preset_names() if name.startswith("paper")])
    @pytest.mark.parametrize("study", STUDIES)
    def test_the_papers_settings_are_checked_without_their_data(self, preset, study, capsys):
        code, envelope = call(capsys, "study", study, "--preset", preset, "--dry-run")
        assert code == 0 and envelope["metrics"]["runs"] >= 3 and envelope["metrics"]["missing"]

    @pytest.mark.parametrize(
        "words",
        ["", "losses --collection x", "losses --collection x --scale 0 3 --min-relevant-grade 2 --preset laptop"],
    )
    def test_words_that_cannot_be_used(self, words, tmp_path, capsys):
        refused(capsys, "study", *words.split(), "--out", tmp_path / "out")
        assert not (tmp_path / "out").exists()
