"""What an earlier version left on the disk of its users is reused, continued, read and loaded (see `make.py`)."""

import json
import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import bixse
from bixse.cli.main import parse
from bixse.cli.verb import FINISHED_BEFORE
from bixse.errors import LAST_VERSION
from compat.make import ANSWERED, FINISHED, FIXTURE, ODD_ENDS, QUERY, SHORTER, STOPPED_AT, VALUES, scores
from helpers.command import call

pytestmark = pytest.mark.precision("float32")
MADE = json.loads((FIXTURE / VALUES).read_text())
CLOSE = {"abs": 1e-4, "rel": 0}
CLOSE_LOSS = {"abs": 1e-3, "rel": 0}
"""Of a training that one machine began and another ended."""


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """Make a copy of the fixture the current folder: its records name paths from there."""
    copy = shutil.copytree(FIXTURE, tmp_path / "fixture")
    for path in copy.glob("grade-interrupted/ledger/*"):
        os.utime(path, (0, 0))  # a checkout has just touched them, as a living writer does
    monkeypatch.chdir(copy)


@pytest.fixture
def judge(server):
    """The address of the server that graded."""
    return server.scenario()


def content(folder):
    """Path -> bytes of the files of a folder, without locks."""
    files = [path for path in Path(folder).rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {str(path): path.read_bytes() for path in files}


def record(folder):
    return json.loads(Path(folder, "run.json").read_text())


def run(capsys, verb, out, *more):
    """Metrics of a verb with the settings of the fixture."""
    code, envelope = call(capsys, verb, "--config", f"{verb}.yaml", "--out", out, *more)
    assert (code, envelope["errors"]) == (0, [])
    assert record(out)["status"] == "finished"
    return envelope["metrics"]


def losses(folder, name="log.jsonl"):
    entries = map(json.loads, Path(folder, name).read_text().splitlines())
    return {entry["step"]: entry["loss"] for entry in entries if "loss" in entry}


def test_finished_training_is_reused(copied, capsys):
    before = content("train-finished")
    run(capsys, "train", "train-finished", *SHORTER)
    assert content("train-finished") == before


@pytest.mark.parametrize("folder", ["train-interrupted", "train-interrupted-cut"])
def test_interrupted_training_with_a_bias_of_another_form_is_left_to_the_version_that_began_it(copied, capsys, folder):
    more = SHORTER if folder.endswith("cut") else []
    before, words = content(folder), ("train", "--config", "train.yaml", "--out", Path(folder), *more)
    code, envelope = call(capsys, *words)
    assert (code, LAST_VERSION in "".join(envelope["errors"])) == (1, True)
    after = content(folder)
    assert {path for path in before if after[path] != before[path]} == {f"{folder}/run.json"}
    other = [] if more else SHORTER
    assert call(capsys, *words[: len(words) - len(more)], *other)[0] == 2  # with other lengths it is another run


def test_finished_study_is_reused(copied, capsys):
    before = content("study-finished/runs")
    assert run(capsys, "study", "study-finished")["made"] == 0
    assert content("study-finished/runs") == before


def test_interrupted_study_is_continued(copied, capsys):
    first, second = (Path(f"study-interrupted/runs/loss={loss}/seed-0") for loss in ("bixse", "infonce"))
    before, log = content(first), losses(second / "train")
    assert len(log) == STOPPED_AT
    metrics = run(capsys, "study", "study-interrupted")
    assert (metrics["made"], metrics["runs"], metrics["failed"]) == (3, 4, 0)
    assert content(first) == before
    after = losses(second / "train")
    assert {step: after[step] for step in log} == log
    assert after == pytest.approx(losses("study-finished/runs/loss=infonce/seed-0/train"), **CLOSE_LOSS)


def test_finished_index_is_reused(copied, capsys):
    before = content("index-finished")
    metrics = run(capsys, "index", "index-finished")
    assert (metrics["reused"], metrics["encoded"]) == (True, 0)
    assert content("index-finished") == before


def test_interrupted_index_is_continued(copied, capsys):
    before = content("index-interrupted")
    shards = [path for path in before if path.endswith(".safetensors")]
    metrics = run(capsys, "index", "index-interrupted")
    assert metrics["encoded"] == metrics["documents"] // 4 * (4 - len(shards)) > 0
    assert before.items() <= content("index-interrupted").items()


def test_index_finds_what_it_found_with_a_model_that_has_moved(copied):
    with bixse.open_index("index-finished", "tiny-static") as index:
        hits = {hit.document_id: hit.cosine for hit in index.search(QUERY, top=len(MADE["hits"]))}
    assert hits == pytest.approx(MADE["hits"], **CLOSE)


@pytest.mark.parametrize("verb", FINISHED)
def test_finished_run_is_reused(copied, capsys, verb):
    out = f"{verb}-finished"
    before = content(out)
    code, envelope = call(capsys, verb, *map(str, FINISHED[verb]), "--out", out)
    assert (code, envelope["warnings"][-1]) == (0, FINISHED_BEFORE)
    assert content(out) == before


def relevance(folder):
    rows = pq.read_table(Path(folder, "pairs.parquet")).to_pylist()
    return {(row["query"], row["document"]): row["relevance"] for row in rows}


def asked_about(server, judge):
    """Planted documents that the server was asked about."""
    return {name: count for name, count in server.stats(judge)["tries"].items() if name != "known"}


def test_finished_grading_is_reused(copied, capsys, server, judge):
    before = relevance("grade-finished")
    metrics = run(capsys, "grade", "grade-finished", "--judge", judge)
    assert (metrics["asked"], metrics["reused"], metrics["statuses"]) == (0, 24, {"graded": 24})
    assert asked_about(server, judge) == {}
    assert relevance("grade-finished") == before


def test_killed_grading_is_continued(copied, capsys, server, judge):
    metrics = run(capsys, "grade", "grade-interrupted", "--judge", judge)
    left = 24 - MADE["answered"]
    assert (metrics["asked"], metrics["reused"]) == (left, MADE["answered"])
    assert asked_about(server, judge) == {f"d{n}": 1 for n in range(24 - left, 24)}
    assert not list(Path("grade-interrupted/ledger").glob("*.jsonl"))  # the segment of the killed process is sealed
    assert relevance("grade-interrupted") == relevance("grade-finished")


def test_ledger_answers_every_question_that_was_paid(copied, capsys, server, judge):
    words = ["grade", "--judge", judge, "--ledger", "ledger"]
    code, envelope = call(capsys, *words, "--pairs", ANSWERED, "--out", "again")
    assert (code, envelope["metrics"]["asked"], envelope["metrics"]["reused"]) == (0, 0, 24)
    code, envelope = call(capsys, *words, "--pairs", "odd.jsonl", "--out", "odd")
    assert (code, envelope["metrics"]["asked"], envelope["metrics"]["reused"]) == (3, 0, len(ODD_ENDS))
    assert asked_about(server, judge) == {}
    assert relevance("again") == relevance("grade-finished")


@pytest.mark.parametrize("name", MADE["models"])
def test_model_computes_what_it_computed(name):
    made = MADE["models"][name]
    computed = scores(bixse.load_relevance_model(FIXTURE / made["folder"], "cpu", made["cut"]))
    assert computed.keys() == made["scores"].keys()
    for figure, numbers in computed.items():
        assert numbers == pytest.approx(made["scores"][figure], **CLOSE), figure


@pytest.mark.parametrize("verb", MADE["settings"])
def test_settings_in_a_file_mean_what_they_meant(verb, monkeypatch):
    monkeypatch.chdir(FIXTURE)
    settings = parse(verb.split())[1].settings.load(Path(f"yaml/{verb.replace(' ', '-')}.yaml"))
    assert settings.model_dump(mode="json", exclude_unset=True) == MADE["settings"][verb]
