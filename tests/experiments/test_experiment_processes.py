"""Tasks over processes: real ones, really killed."""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest

from bixse.errors import InputError
from bixse.experiments.processes import cores, done_by_processes


def here(task):
    return os.getpid()


def dies(task, folder):
    """Kills its process at a task named `once` the first time, and at `always` each time."""
    mark = folder / task
    if task == "always" or (task == "once" and not mark.exists()):
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.environ["OMP_NUM_THREADS"]


def fails(task):
    raise InputError("got a task; expected none; fix: none")


@pytest.mark.parametrize("jobs", [0, -1, 10_000])
def test_jobs_that_no_machine_has(jobs):
    with pytest.raises(InputError, match=f"got {jobs}"):
        list(done_by_processes(["task"], here, jobs))


def test_one_job_is_this_process_and_takes_tasks_one_by_one():
    taken = iter("abc")
    first = next(done_by_processes(taken, here, 1))
    assert first == ("a", os.getpid())
    assert next(taken) == "b"


needs_two_cores = pytest.mark.skipif(cores() < 2, reason="needs two cores")


@needs_two_cores
def test_a_process_that_is_killed_takes_its_own_task_alone(tmp_path):
    found = dict(done_by_processes(["once", "a", "always", "b"], partial(dies, folder=tmp_path), 2))
    share = str(max(1, cores() // 2))
    assert (found["a"], found["b"], found["once"], found["always"]) == (share, share, str(cores()), None)


@needs_two_cores
def test_what_a_task_raises_ends_all():
    with pytest.raises(InputError, match="got a task"):
        list(done_by_processes(["a", "b", "c"], fails, 2))


@needs_two_cores
def test_the_environment_is_left_as_it_was(monkeypatch):
    monkeypatch.delenv("RAYON_NUM_THREADS", raising=False)
    processes = {process for _, process in done_by_processes(range(4), here, 2)}
    assert os.getpid() not in processes
    assert "RAYON_NUM_THREADS" not in os.environ
