import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from bixse.data.run import open_run
from bixse.engine import Engine, rank_of
from bixse.errors import DivergedError, InterruptedRunError, InvalidFileError, OutputExistsError, TrainingError
from bixse.lab.experiments import RESULT_FILE, Arm, ArmRun, Measured, do_runs, load_result, opened


def count(run, inputs, folder):
    """Note the run, raise the error that the inputs hold for it, or measure the number of letters of its label."""
    inputs["done"].append(run.name)
    if (error := inputs.get(run.arm.labels["word"])) is not None:
        raise error
    return Measured({"letters": len(run.arm.labels["word"])}, warnings=["short"])


def runs(words, seeds=(0,)):
    return [ArmRun(Arm({"word": word}, train={}), seed, count) for word in words for seed in seeds]


def do(folder, words, seeds=(0,), **inputs):
    done = []
    record = open_run(folder, "count", {}, {})
    with opened(record) as experiment:
        results = do_runs(experiment, runs(words, seeds), {"done": done, **inputs})
    return results, done


def statuses(results):
    return [result.status for result in results.of.values()]


@pytest.mark.parametrize(
    ("error", "status", "reason", "again"),
    [
        (KeyError("vocabulary"), "failed", "KeyError: 'vocabulary'", 1),
        (DivergedError("training: got loss nan"), "diverged", "training: got", 0),
        (TrainingError("training: got a damaged checkpoint"), "failed", "training: got", 1),
        (torch.OutOfMemoryError("CUDA"), "failed", "got no more memory", 1),
        (MemoryError(), "failed", "got no more memory", 1),
    ],
)
def test_an_error_fails_its_run_alone_which_is_tried_again_unless_it_diverged(tmp_path, error, status, reason, again):
    out, words = tmp_path / "out", ["one", "two", "three"]
    first, _ = do(out, words, two=error)
    assert (statuses(first), first.status) == (["finished", status, "finished"], "failed")
    assert first.of["word=two/seed-0"].reason.startswith(reason)
    second, done = do(out, words)
    assert (second.made, done) == (again, ["word=two/seed-0"] * again)
    shutil.rmtree(out / "runs" / "word=two")
    last = do(out, words)[0]
    assert (statuses(last), last.status) == (["finished"] * 3, "finished")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), InterruptedRunError("after step 2")])
def test_ctrl_c_loses_no_finished_run(tmp_path, error):
    out = tmp_path / "out"
    with pytest.raises(InterruptedRunError, match="after 1 of 3 runs"):
        do(out, ["one", "two", "three"], two=error)
    assert json.loads((out / "run.json").read_text())["status"] == "interrupted"
    path = out / "runs" / "word=two" / "seed-0" / RESULT_FILE
    stopped = json.loads(path.read_text())
    assert stopped["status"] == "interrupted"
    path.write_text(json.dumps({**stopped, "seconds": 1000.0}))
    again, done = do(out, ["one", "two", "three"])
    assert done == ["word=two/seed-0", "word=three/seed-0"]
    assert again.of["word=two/seed-0"].seconds > 1000


@pytest.mark.parametrize("text", ["", "{", "[]", '{"labels": {}, "seed": 0, "metrics": {}}', '{"surplus": 1}'])
def test_a_result_that_is_not_of_this_run_does_not_count(tmp_path, text):
    do(tmp_path / "out", ["one", "two"])
    (run, _) = runs(["one", "two"])
    (tmp_path / "out" / "runs" / run.name / RESULT_FILE).write_text(text)
    assert load_result(run, tmp_path / "out" / "runs") is None
    assert do(tmp_path / "out", ["one", "two"])[1] == [run.name]


@pytest.mark.parametrize("first", [True, False])
def test_a_refused_experiment_leaves_no_folder_unless_it_has_results(tmp_path, first):
    words = ["bad", "good"] if first else ["good", "bad"]
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".hidden").touch()
    with pytest.raises(InvalidFileError):
        do(tmp_path / "out", words, bad=InvalidFileError(Path("pairs.csv")))
    assert {path.name for path in (tmp_path / "out").iterdir()} == (
        {".hidden"} if first else {".hidden", ".lock", "run.json", "runs"}
    )


def test_two_processes_in_one_folder(tmp_path):
    record = open_run(tmp_path / "out", "count", {}, {})
    with opened(record), pytest.raises(OutputExistsError, match="another process"), opened(record):
        pass


def test_results_of_several_versions_give_a_warning(tmp_path):
    do(tmp_path / "out", ["one", "two"])
    path = tmp_path / "out" / "runs" / "word=two" / "seed-0" / RESULT_FILE
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": "0.0.1"}))
    assert "0.0.1" in do(tmp_path / "out", ["one", "two"])[0].warnings[0]


def test_the_fingerprint_of_a_run_ignores_the_folder_of_its_inputs():
    here, there = (
        ArmRun(Arm({"a": 1}, train={"pairs": f"{folder}/p.csv", "scale": 5}), 0, count) for folder in ("x", "y")
    )
    assert here.fingerprint == there.fingerprint
    others = [
        ArmRun(Arm({"a": 1}, train={"scale": 6}), 0, count),
        ArmRun(here.arm, 1, count),
        ArmRun(here.arm, 0, runs),
    ]
    assert len({here.fingerprint, *(other.fingerprint for other in others)}) == 4


class TestRanks:
    @pytest.fixture(autouse=True)
    def two_ranks(self, monkeypatch):
        monkeypatch.setenv("WORLD_SIZE", "2")
        self.turn = lambda rank: monkeypatch.setenv("RANK", str(rank))

    def do(self, folder, rank, words, seeds=(0,), wanted=lambda run, results: True, **inputs):
        self.turn(rank)
        done = []
        with opened(open_run(folder, "count", {}, {}), Engine(1, *rank_of(os.environ))) as experiment:
            results = do_runs(experiment, runs(words, seeds), {"done": done, **inputs}, wanted=wanted)
            experiment.record.save(results.status)
        return results, [name.partition("/")[0].removeprefix("word=") for name in done]

    def test_each_does_its_share_and_the_last_one_has_all(self, tmp_path):
        words = ["one", "two", "three", "four"]
        first, done = self.do(tmp_path / "out", 1, words, four=KeyError("x"))
        assert (done, first.waiting, first.status) == (["two", "four"], 2, "running")
        assert statuses(first) == ["interrupted", "finished", "interrupted", "failed"]
        last, done = self.do(tmp_path / "out", 0, words)
        assert (done, last.waiting, last.status) == (["one", "three"], 0, "failed")
        assert statuses(last) == ["finished", "finished", "finished", "failed"]
        again, done = self.do(tmp_path / "out", 1, words)
        assert (done, again.made, again.status) == (["four"], 1, "finished")
        assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "finished"

    def test_an_unwanted_run_is_not_pending(self, tmp_path):
        def wanted(run, results):
            return all(result.status == "finished" for result in results.values())

        words = ["bad", "one", "two", "three"]
        assert self.do(tmp_path / "out", 1, words, wanted=wanted)[0].waiting == 2
        last, done = self.do(tmp_path / "out", 0, words, wanted=wanted, bad=DivergedError("nan"))
        assert (done, last.waiting) == (["bad"], 0)

    def test_a_run_takes_itself_for_one_process(self, tmp_path):
        self.turn(0)
        lone = ArmRun(Arm({"word": "one"}, train={}), 0, launched)
        with opened(open_run(tmp_path / "out", "launched", {}, {}), Engine(1, *rank_of(os.environ))) as experiment:
            results = do_runs(experiment, [lone], {})
        assert results.of[lone.name].metrics == {"variables": 0}
        assert os.environ["WORLD_SIZE"] == "2"


def launched(run, inputs, folder):
    return Measured({"variables": len({"RANK", "WORLD_SIZE"} & set(os.environ))})
