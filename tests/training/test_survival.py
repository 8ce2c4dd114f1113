import errno
import random
import signal
import time

import pytest
from launch import TRAIN_ALL, finish, read, run_all, settings_file, start, wait_until

from bixse.errors import StorageError
from bixse.training.config import TrainConfig
from bixse.training.loop.trainer import GradedTrainer
from bixse.training.recipe import train


@pytest.fixture
def config(run_config, tmp_path):
    """Twenty steps with a checkpoint after each."""
    learning = {"num_train_epochs": 4, "global_batch_size": 6}
    config = run_config(dev=None, dropout=0.2, optimizer=learning, evaluations_per_epoch=5)
    return settings_file(tmp_path, config)


def outcome(out):
    return (out / "model" / "model.safetensors").read_bytes(), read(out)[1]


def test_a_run_that_is_killed_at_any_moment_ends_as_if_it_never_was(config, tmp_path):
    out = tmp_path / "killed"
    for step in (3, 11):
        (process,) = start(1, config, out, script=TRAIN_ALL)
        wait_until((out / "checkpoints" / f"checkpoint-{step}").exists, process)
        time.sleep(random.random() * 0.2)
        process.kill()
        assert finish([process])[0][0] == -signal.SIGKILL
        assert not (out / "model").exists()
    run_all(1, config, out, config, tmp_path / "whole")  # with as many threads
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
    with monkeypatch.context() as patch, pytest.raises(StorageError, match="No space left"):
        patch.setattr(GradedTrainer, "_save_optimizer_and_scheduler", full)
        train(settings, out, progress=False)
    assert (out / "checkpoints" / "checkpoint-4" / "model.safetensors").is_file(), "half a checkpoint is there"
    train(settings, out, progress=False)
    assert outcome(out) == outcome(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "message"),
    [(["--seed", "3"], "settings: got another value in process 1"), (["--pairs", "none.jsonl"], "none.jsonl: got no")],
)
def test_an_error_of_one_process_ends_all_before_anything_is_written(config, tmp_path, flags, message):
    arguments = ("train", "--config", config, "--out", tmp_path / "out")
    (code, _, first), (other, output, errors) = finish(start(2, *arguments, each={1: flags}))
    assert code == other == 2
    assert message in first and "Traceback" not in first
    assert "error:" not in output + errors
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_signal_that_ends_cluster_jobs_stops_all_processes_after_one_step(config, tmp_path):
    out = tmp_path / "out"
    first, second = start(2, "train", "--config", config, "--out", out)
    wait_until((out / "checkpoints" / "checkpoint-2").exists, first)
    second.send_signal(signal.SIGTERM)
    ended = finish([first, second])
    assert [code for code, *_ in ended] == [130, 130], ended
    assert "got Ctrl-C or SIGTERM after step" in ended[0][2]
    run_all(1, config, out)  # another number of processes
    steps = [entry["step"] for entry in outcome(out)[1]]
    assert steps == list(range(1, 21))


def test_other_verbs_refuse_to_be_started_several_times():
    (code, _, message), (other, *silent) = finish(start(2, "doctor"))
    assert code == other == 2
    assert "bixse doctor: got 2 processes" in message
    assert silent == ["", ""]


@pytest.mark.slow
def test_an_error_that_only_one_process_sees_is_told_by_it(config, tmp_path):
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
