"""Runs that are killed, stopped or out of disk lose nothing but the steps since their last checkpoint."""

from __future__ import annotations

import errno
import json
import random
import signal
import time

import pytest
import yaml
from launch import TRAIN_ALL, finish, start

from bixse.errors import StorageError
from bixse.training.config import TrainConfig
from bixse.training.loop.trainer import GradedTrainer
from bixse.training.recipe import train

LEARNING = {"num_train_epochs": 4, "global_batch_size": 6, "learning_rate": 1e-3, "documents_per_query": 3}


@pytest.fixture
def config(training_files, tiny_model_path, tmp_path):
    """Twenty steps with a checkpoint after each."""
    settings = {
        "pairs": str(training_files / "pairs.jsonl"),
        "model": str(tiny_model_path),
        "dropout": 0.2,
        "optimizer": LEARNING,
        "evaluations_per_epoch": 5,
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


def outcome(out):
    """Weights, and the log without what depends on the clock."""
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    entries = [{k: v for k, v in e.items() if not k.endswith("_second")} for e in log if "loss" in e]
    return (out / "model" / "model.safetensors").read_bytes(), entries


def wait_for_checkpoint(out, step, process, seconds=120):
    """Return when its folder is there, written to its end or not, or the process has ended."""
    ends = time.monotonic() + seconds
    while not (out / "checkpoints" / f"checkpoint-{step}").exists() and process.poll() is None:
        assert time.monotonic() < ends, "waited in vain"
        time.sleep(0.01)


def test_a_run_that_is_killed_at_any_moment_ends_as_if_it_never_was(config, tmp_path):
    """SIGKILL: nothing is told, no handler runs. Weights, bias, optimizer, batches and dropout go on bit for bit."""
    out = tmp_path / "killed"
    for step in (3, 11):
        (process,) = start(1, config, out, script=TRAIN_ALL)
        wait_for_checkpoint(out, step, process)
        time.sleep(random.random() * 0.2)
        process.kill()
        assert finish([process])[0][0] == -signal.SIGKILL
        assert not (out / "model").exists()
    (ended,) = finish(start(1, config, out, config, tmp_path / "whole", script=TRAIN_ALL))  # with as many threads
    assert ended[0] == 0, ended
    assert outcome(out) == outcome(tmp_path / "whole")
    assert len(outcome(out)[1]) == 20


def test_a_disk_that_fills_up_while_a_checkpoint_is_written(config, tmp_path, monkeypatch):
    settings = TrainConfig.load(config)
    train(settings, tmp_path / "whole", progress=False)
    save = GradedTrainer._save_optimizer_and_scheduler

    def full(self, folder):
        if self.state.global_step == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(self, folder)

    out = tmp_path / "out"
    with monkeypatch.context() as patch, pytest.raises(StorageError, match=r"No space left.*fix"):
        patch.setattr(GradedTrainer, "_save_optimizer_and_scheduler", full)
        train(settings, out, progress=False)
    assert (out / "checkpoints" / "checkpoint-4" / "model.safetensors").is_file(), "half a checkpoint is there"
    train(settings, out, progress=False)
    assert outcome(out) == outcome(tmp_path / "whole")


@pytest.mark.slow
def test_processes_with_different_settings_are_told_apart_before_anything_is_written(config, tmp_path):
    """The first one speaks, once; the others keep quiet and end with the same code."""
    arguments = ("train", "--config", config, "--out", tmp_path / "out")
    (code, _, said), (other, output, errors) = finish(start(2, *arguments, each={1: ["--seed", "3"]}))
    assert code == other == 2
    assert "settings: got another value in process 1 than in process 0" in said
    assert "start all processes with the same command, on the same files" in said
    assert "Traceback" not in said
    assert "error:" not in output + errors
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_error_of_one_process_ends_all_with_its_message(config, tmp_path):
    missing = tmp_path / "none.jsonl"
    ended = finish(start(2, "train", "--config", config, "--out", tmp_path / "o", each={1: ["--pairs", str(missing)]}))
    assert [code for code, *_ in ended] == [2, 2]
    assert f"{missing}: got no such file" in ended[0][2]


@pytest.mark.slow
def test_the_signal_that_ends_cluster_jobs_stops_all_processes_after_one_step(config, tmp_path):
    out = tmp_path / "out"
    first, second = start(2, "train", "--config", config, "--out", out)
    wait_for_checkpoint(out, 2, first)
    second.send_signal(signal.SIGTERM)
    ended = finish([first, second])
    assert [code for code, *_ in ended] == [130, 130], ended
    assert "got Ctrl-C or SIGTERM after step" in ended[0][2]
    ended = finish(start(1, "train", "--config", config, "--out", out))  # another number of processes
    assert [code for code, *_ in ended] == [0], ended
    steps = [entry["step"] for entry in outcome(out)[1]]
    assert steps == list(range(1, 21))


def test_other_verbs_refuse_to_be_started_several_times():
    (code, _, said), (other, *silent) = finish(start(2, "doctor"))
    assert code == other == 2
    assert "bixse doctor: got 2 processes; expected one" in said
    assert silent == ["", ""]


@pytest.mark.slow
def test_an_error_that_only_one_process_sees_is_told_by_it(config, tmp_path):
    """As when one graphics card runs out of memory: without its message nobody knows why the others lost it."""
    script = """
import os, sys
from bixse.cli.main import main
from bixse.training.loop.trainer import GradedTrainer
step = GradedTrainer.training_step
def failing(self, *given, **named):
    if os.environ["RANK"] == "1" and self.state.global_step == 2:
        raise RuntimeError("the real cause")
    return step(self, *given, **named)
GradedTrainer.training_step = failing
sys.exit(main(sys.argv[1:]))
"""
    first, second = finish(start(2, "train", "--config", config, "--out", tmp_path / "out", script=script))
    assert first[0] == second[0] == 1
    assert "error: process 1: unexpected RuntimeError: the real cause" in second[2]
    assert "another process ended" in first[2]
    assert "fault of bixse" not in first[2]
