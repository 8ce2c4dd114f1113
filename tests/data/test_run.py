import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bixse.data.run import open_run
from bixse.errors import InputError, InterruptedRunError, OutputExistsError, StorageError

CONFIG: dict[str, Any] = {"model": "demo", "seed": 0, "pairs": Path("pairs.csv")}
INPUTS = {"pairs": "abc"}


def finish(folder, config=CONFIG, **results):
    record = open_run(folder, "train", config, INPUTS)
    record.results = results
    record.timings["train"] = 1.234
    record.save("finished")
    return record


def test_only_a_new_folder_or_one_of_hidden_files_is_opened(tmp_path):
    assert open_run(tmp_path / "new", "train", CONFIG, INPUTS).status == "running"
    assert not (tmp_path / "new").exists()
    (tmp_path / ".gitkeep").write_text("")
    assert open_run(tmp_path, "train", CONFIG, INPUTS).status == "running"
    (tmp_path / "thesis.tex").write_text("x")
    for path in (tmp_path / "thesis.tex", tmp_path):
        with pytest.raises(OutputExistsError) as caught:
            open_run(path, "train", CONFIG, INPUTS)
        assert caught.value.where == str(path)


def test_setting_that_left_at_its_default_is_of_the_same_run(tmp_path, monkeypatch):
    monkeypatch.setattr("bixse.data.run.LEFT", {"depth": 3, "teacher": None})
    finish(tmp_path, {**CONFIG, "depth": 3, "teacher": None, "loss": {"depth": 3.0}})
    assert open_run(tmp_path, "train", CONFIG, INPUTS).status == "finished"
    finish(tmp_path / "other", {**CONFIG, "loss": {"depth": 4}})
    with pytest.raises(OutputExistsError) as caught:
        open_run(tmp_path / "other", "train", CONFIG, INPUTS)
    assert "loss.depth (was 4, which bixse 1.0.0rc1 alone has)" in caught.value.got
    finish(tmp_path / "section", {**CONFIG, "teacher": {"model": "m"}})
    with pytest.raises(OutputExistsError) as caught:
        open_run(tmp_path / "section", "train", CONFIG, INPUTS)
    assert "teacher.model (was 'm', which bixse 1.0.0rc1 alone has)" in caught.value.got


@pytest.mark.parametrize(("name", "settings"), [("merge.weights", "merge"), ("candidates", None)])
def test_the_default_that_an_earlier_version_recorded_is_of_the_same_run_as_null(tmp_path, name, settings):
    def config(value):
        last = name.rpartition(".")[2]
        return {**CONFIG, **({settings: {last: value}} if settings else {last: value})}

    ten = [step / 10 for step in range(1, 11)]
    finish(tmp_path / "earlier", config(ten))
    assert open_run(tmp_path / "earlier", "train", config(None), INPUTS).status == "finished"
    finish(tmp_path / "now", config(None))
    finish(tmp_path / "two", config(ten[:2]))
    for folder, value in (("now", ten), ("two", None), ("two", ten)):
        with pytest.raises(OutputExistsError) as caught:
            open_run(tmp_path / folder, "train", config(value), INPUTS)
        assert name in caught.value.got


def test_finished_run_with_the_same_settings_is_reused(tmp_path):
    finish(tmp_path, ndcg=0.5)
    record = open_run(tmp_path, "train", dict(reversed(CONFIG.items())), INPUTS)
    assert (record.status, record.results, record.timings) == ("finished", {"ndcg": 0.5}, {"train": 1.23})
    content = json.loads((tmp_path / "run.json").read_text())
    assert (content["config"], content["inputs"]) == ({"model": "demo", "seed": 0, "pairs": "pairs.csv"}, INPUTS)
    assert {"python", "platform", "bixse", "torch", "sentence-transformers"} <= set(content["versions"])


@pytest.mark.parametrize("status", ["running", "interrupted", "failed"])
def test_unfinished_run_with_the_same_settings_continues(tmp_path, status):
    first = open_run(tmp_path, "train", CONFIG, INPUTS)
    first.started = "2001-01-01T00:00:00+00:00"
    first.save(status)
    second = open_run(tmp_path, "train", CONFIG, INPUTS)
    assert (second.status, second.started) == ("running", first.started)
    assert json.loads((tmp_path / "run.json").read_text())["status"] == status


@pytest.mark.parametrize(
    ("command", "config", "inputs", "differences"),
    [
        ("evaluate", CONFIG, INPUTS, "`bixse train`, now `bixse evaluate`"),
        ("train", {**CONFIG, "seed": 1, "model": "x"}, {"pairs": "xyz"},
         "(changed: model (was 'demo', now 'x'), seed (was 0, now 1), pairs (its content))"),
        ("train", {**CONFIG, "new": {"rate": 1e-3}}, INPUTS, "(changed: new.rate (was not set, now 0.001))"),
        ("train", {"model": "demo", "seed": 0}, INPUTS, "(changed: pairs (was 'pairs.csv', now not set))"),
        ("train", CONFIG, {**INPUTS, "dev/x": "abc"}, "(changed: dev/x (read by only one of the two runs))"),
    ],
)  # fmt: skip
def test_folder_of_another_run_is_refused_with_the_differences(tmp_path, command, config, inputs, differences):
    finish(tmp_path)
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(OutputExistsError) as caught:
        open_run(tmp_path, command, config, inputs)
    assert differences in caught.value.got
    assert (tmp_path / "run.json").read_bytes() == before


@pytest.mark.parametrize(
    ("config", "same"),
    [
        (CONFIG, {**CONFIG, "new": None}),
        ({"level": 1, "loss": {"scales": [1, 2.5]}}, {"level": 1.0, "loss": {"scales": [1.0, 2.5]}}),
    ],
    ids=["a new setting that is not set", "whole numbers with and without a point"],
)
def test_equal_settings_are_the_same_run(tmp_path, config, same):
    first = finish(tmp_path, config)
    second = open_run(tmp_path, "train", same, INPUTS)
    assert (second.status, second.fingerprint == first.fingerprint) == ("finished", "new" not in same)


def test_folder_of_an_input_does_not_count(tmp_path):
    first = open_run(tmp_path, "train", {**CONFIG, "dev": None}, INPUTS, paths=("pairs", "dev"))
    first.save("finished")
    moved = {**CONFIG, "pairs": tmp_path / "elsewhere" / "pairs.csv", "dev": None}
    second = open_run(tmp_path, "train", moved, INPUTS, paths=("pairs", "dev"))
    assert (second.status, second.fingerprint) == ("finished", first.fingerprint)
    assert json.loads((tmp_path / "run.json").read_text())["config"]["pairs"] == "pairs.csv"
    with pytest.raises(OutputExistsError, match=r"changed: pairs \(its content\)"):
        open_run(tmp_path, "train", moved, {"pairs": "xyz"}, paths=("pairs", "dev"))


def test_not_finite_numbers_are_null(tmp_path):
    finish(tmp_path, history=[{"step": 1, "mean": float("nan"), "loss": float("inf"), "bias": -1.0}])
    text = (tmp_path / "run.json").read_text()
    assert "NaN" not in text and "Infinity" not in text and '"bias": -1.0' in text
    assert json.loads(text)["results"]["history"] == [{"step": 1, "mean": None, "loss": None, "bias": -1.0}]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"{}", b'"text"', b"\xff", b"[" * 100_000, b'{"fingerprint": 5}']
)
def test_damaged_record_is_refused(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(InputError) as caught:
        open_run(tmp_path, "train", CONFIG, INPUTS)
    assert caught.value.where.endswith("run.json")


@pytest.mark.parametrize("key", ["fingerprint", "status", "config", "inputs", "results", "timings", "command"])
def test_record_with_a_damaged_or_missing_part_is_refused(tmp_path, key):
    finish(tmp_path)
    path = tmp_path / "run.json"
    content = json.loads(path.read_text())
    for damaged in ({**content, key: 5}, {name: value for name, value in content.items() if name != key}):
        path.write_text(json.dumps(damaged))
        with pytest.raises(InputError, match=f"damaged record.*{key}"):
            open_run(tmp_path, "train", CONFIG, INPUTS)


@pytest.mark.parametrize(
    ("error", "status", "raised"),
    [
        (StorageError("disk full"), "failed", StorageError),
        (KeyboardInterrupt(), "interrupted", InterruptedRunError),
        (InterruptedRunError("after step 2"), "interrupted", InterruptedRunError),
    ],
)
def test_stopped_run_records_how_it_ended_and_what_it_has(tmp_path, error, status, raised):
    record = open_run(tmp_path / "new", "train", CONFIG, INPUTS)
    record.timings["train"], record.saved = 10.0, "3 of 4 pairs are kept"
    with pytest.raises(raised) as caught, record.ending("train"):
        record.results = {"pairs": 3}
        raise error
    content = json.loads((tmp_path / "new" / "run.json").read_text())
    assert (content["status"], content["results"]) == (status, {"pairs": 3})
    assert content["timings"]["train"] >= 10
    assert ("3 of 4 pairs" in str(caught.value)) == isinstance(error, KeyboardInterrupt)


@pytest.mark.parametrize("status", ["finished", "interrupted"])
def test_block_that_ends_is_finished_unless_it_says_otherwise(tmp_path, status):
    record = open_run(tmp_path, "train", CONFIG, INPUTS)
    with record.ending():
        record.status = "running" if status == "finished" else status
    content = json.loads((tmp_path / "run.json").read_text())
    assert (content["status"], content["timings"]) == (status, {})


@dataclass(frozen=True)
class Figures:
    ndcg: float
    cuts: tuple[float, ...] = ()
    reused: bool = False


@pytest.mark.parametrize("results", [{}, {"ndcg": "high"}, {"ndcg": 0.5, "cuts": 3}])
def test_damaged_results_of_a_finished_run_are_refused(tmp_path, results):
    finish(tmp_path, **results)
    with pytest.raises(InputError) as caught:
        open_run(tmp_path, "train", CONFIG, INPUTS).result(Figures, lambda _: [])
    assert caught.value.where == str(tmp_path)


def test_results_of_a_finished_run_are_read_with_their_types_if_its_files_are_there(tmp_path):
    finish(tmp_path, ndcg=0.5, cuts=[0.1, 0.2])
    record = open_run(tmp_path, "train", CONFIG, INPUTS)
    assert record.result(Figures, lambda _: ["run.json"]) == Figures(0.5, (0.1, 0.2), reused=True)
    with pytest.raises(InputError, match=r"model\.safetensors"):
        record.result(Figures, lambda _: ["model.safetensors"])
