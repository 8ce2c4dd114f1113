from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bixse.data.run import open_run
from bixse.errors import InputError, OutputExistsError

CONFIG: dict[str, Any] = {"model": "demo", "seed": 0, "pairs": Path("pairs.csv")}
INPUTS = {"pairs": "abc"}


def finish(folder):
    record = open_run(folder, "train", CONFIG, INPUTS)
    record.results = {"ndcg": 0.5}
    record.timings["train"] = 1.234
    record.save("finished")


def test_looking_at_a_new_folder_writes_nothing(tmp_path):
    assert open_run(tmp_path / "new", "train", CONFIG, INPUTS).status == "running"
    assert not (tmp_path / "new").exists()


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "out").write_text("x")
    with pytest.raises(OutputExistsError, match="got a file"):
        open_run(tmp_path / "out", "train", CONFIG, INPUTS)


def test_a_folder_with_files_of_somebody_else(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(OutputExistsError, match=r"no run of bixse \(thesis\.tex\).*choose another --out"):
        open_run(tmp_path, "train", CONFIG, INPUTS)


def test_hidden_files_do_not_count(tmp_path):
    (tmp_path / ".gitkeep").write_text("")
    open_run(tmp_path, "train", CONFIG, INPUTS).save("running")
    assert open_run(tmp_path, "train", CONFIG, INPUTS).status == "running"


def test_the_same_run_finished_is_reused(tmp_path):
    finish(tmp_path)
    record = open_run(tmp_path, "train", dict(reversed(CONFIG.items())), INPUTS)
    assert (record.status, record.results, record.timings) == ("finished", {"ndcg": 0.5}, {"train": 1.23})


@pytest.mark.parametrize("status", ["running", "interrupted", "failed"])
def test_the_same_run_unfinished_goes_on(tmp_path, status):
    first = open_run(tmp_path, "train", CONFIG, INPUTS)
    first.started = "2001-01-01T00:00:00+00:00"
    first.save(status)
    second = open_run(tmp_path, "train", CONFIG, INPUTS)
    assert (second.status, second.started) == ("running", first.started)
    assert json.loads((tmp_path / "run.json").read_text())["status"] == status


@pytest.mark.parametrize(
    ("command", "config", "inputs", "named"),
    [
        ("evaluate", CONFIG, INPUTS, "`bixse train`, now `bixse evaluate`"),
        ("train", {**CONFIG, "seed": 1}, INPUTS, "(changed: seed (was 0, now 1))"),
        (
            "train",
            {**CONFIG, "seed": 1, "model": "x"},
            {"pairs": "xyz"},
            "(changed: model (was 'demo', now 'x'), seed (was 0, now 1), pairs (its content))",
        ),
        ("train", {**CONFIG, "new": 1}, INPUTS, "(changed: new (was not set, now 1))"),
        ("train", {"model": "demo", "seed": 0}, INPUTS, "(changed: pairs (was 'pairs.csv', now not set))"),
        ("train", CONFIG, {**INPUTS, "dev/x": "abc"}, "(changed: dev/x (read by one of the two only))"),
    ],
)
def test_another_run_is_refused_and_named(tmp_path, command, config, inputs, named):
    finish(tmp_path)
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(OutputExistsError) as caught:
        open_run(tmp_path, command, config, inputs)
    assert named in str(caught.value)
    assert (tmp_path / "run.json").read_bytes() == before


def test_a_setting_that_an_earlier_version_did_not_have_and_that_is_not_set_now_changes_nothing(tmp_path):
    finish(tmp_path)
    assert open_run(tmp_path, "train", {**CONFIG, "new": None}, INPUTS).status == "finished"


def test_a_setting_of_a_section_is_named(tmp_path):
    open_run(tmp_path, "train", {"optimizer": {"num_train_epochs": 2, "rate": 1e-4}}, INPUTS).save()
    with pytest.raises(OutputExistsError, match=r"changed: optimizer\.rate \(was 0\.0001, now 0\.001\)\)"):
        open_run(tmp_path, "train", {"optimizer": {"num_train_epochs": 2.0, "rate": 1e-3}}, INPUTS)


def test_whole_numbers_are_the_same_with_and_without_a_point(tmp_path):
    first = open_run(tmp_path, "evaluate", {"level": 1, "loss": {"scales": [1, 2.5]}}, INPUTS)
    first.save("finished")
    second = open_run(tmp_path, "evaluate", {"level": 1.0, "loss": {"scales": [1.0, 2.5]}}, INPUTS)
    assert second.status == "finished"
    assert first.fingerprint == second.fingerprint


def test_where_an_input_lies_does_not_count(tmp_path):
    first = open_run(tmp_path, "train", {**CONFIG, "dev": None}, INPUTS, paths=("pairs", "dev"))
    first.save("finished")
    moved = {**CONFIG, "pairs": tmp_path / "elsewhere" / "pairs.csv", "dev": None}
    second = open_run(tmp_path, "train", moved, INPUTS, paths=("pairs", "dev"))
    assert second.status == "finished"
    assert first.fingerprint == second.fingerprint
    assert json.loads((tmp_path / "run.json").read_text())["config"]["pairs"] == "pairs.csv"
    with pytest.raises(OutputExistsError, match=r"changed: pairs \(its content\)"):
        open_run(tmp_path, "train", moved, {"pairs": "xyz"}, paths=("pairs", "dev"))


def test_numbers_that_are_none_are_null(tmp_path):
    record = open_run(tmp_path, "train", CONFIG, INPUTS)
    record.results = {"history": [{"step": 1, "mean": float("nan"), "loss": float("inf"), "bias": -1.0}]}
    record.save("finished")

    def refuse(word):
        raise AssertionError(word)

    text = (tmp_path / "run.json").read_text()
    (entry,) = json.loads(text, parse_constant=refuse)["results"]["history"]
    assert entry == {"step": 1, "mean": None, "loss": None, "bias": -1.0}
    assert '"bias": -1.0' in text


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"{}", b'"text"', b"\xff", b"[" * 100_000, b'{"fingerprint": 5}'],
)
def test_a_damaged_record(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(InputError, match=r"run\.json: got .*; expected .*; fix: "):
        open_run(tmp_path, "train", CONFIG, INPUTS)


@pytest.mark.parametrize("key", ["fingerprint", "status", "config", "inputs", "results", "timings", "command"])
def test_a_record_with_one_part_damaged(tmp_path, key):
    finish(tmp_path)
    path = tmp_path / "run.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, key: 5}))
    with pytest.raises(InputError, match=rf"got a damaged record \({key}\)"):
        open_run(tmp_path, "train", CONFIG, INPUTS)
    del content[key]
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=f"damaged record.*{key}"):
        open_run(tmp_path, "train", CONFIG, INPUTS)


def test_the_record_says_what_is_needed_to_repeat_the_run(tmp_path):
    finish(tmp_path)
    content = json.loads((tmp_path / "run.json").read_text())
    assert content["config"] == {"model": "demo", "seed": 0, "pairs": "pairs.csv"}
    assert content["inputs"] == INPUTS
    assert {"python", "platform", "bixse", "torch", "sentence-transformers"} <= set(content["versions"])
