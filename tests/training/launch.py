import json
import os
import socket
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from helpers.row_files import yaml_file


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


TRAIN_ALL = """
import sys, pathlib, yaml
from bixse.training.config import TrainConfig
from bixse.training.train import train_into
for config, out in zip(sys.argv[1::2], sys.argv[2::2]):
    train_into(TrainConfig.load(pathlib.Path(config)), pathlib.Path(out), progress=False)
"""


def start(processes, *arguments, each=None, script=None):
    """Start the command, or a script, in one process per rank; `each` has more arguments per rank."""
    port = free_port()
    started = []
    for rank in range(processes):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if processes > 1:
            environment |= dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
            environment |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(processes))
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        what = ["-c", script] if script is not None else ["-m", "bixse"]
        command = [sys.executable, *what, *map(str, arguments), *(each or {}).get(rank, [])]
        started.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    return started


def finish(started, timeout=240):
    """Return the exit code, standard output and standard error of each."""
    try:
        texts = [process.communicate(timeout=timeout) for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, *both) for process, both in zip(started, texts, strict=True)]


def wait_until(reached, process, seconds=120):
    """Return when a condition is true or the process has ended."""
    ends = time.monotonic() + seconds
    while not reached() and process.poll() is None:
        assert time.monotonic() < ends, "waited in vain"
        time.sleep(0.005)


def run_all(processes, *arguments, script=TRAIN_ALL, timeout=240):
    """Run a script in one process per rank, each with exit code 0; return the output of each."""
    ended = finish(start(processes, *arguments, script=script), timeout)
    assert [code for code, *_ in ended] == [0] * processes, ended
    return [output for _, output, _ in ended]


TOLERANCE = 1e-4
"""Rounding of a dozen steps of rate 1e-3: Adam enlarges the differences of small gradients."""
ACCELERATE = "--cpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no --main_process_port 0"


def settings_file(folder, config):
    return yaml_file(folder, config.model_dump(mode="json"))


def read(out):
    """Return the weights of all saved folders of a run, and its log without figures of the clock."""
    files = {path.relative_to(out): load_file(path) for path in out.glob("*/*.safetensors")}
    weights = {(path, name): tensor for path, tensors in files.items() for name, tensor in tensors.items()}
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    steps = [{k: v for k, v in entry.items() if not k.endswith("_second")} for entry in log if "loss" in entry]
    return weights, steps


def compare(one, several):
    (weights, log), (others, other_log) = read(one), read(several)
    for mine, theirs in zip(log, other_log, strict=True):
        assert theirs == pytest.approx(mine, rel=TOLERANCE, abs=TOLERANCE)
    assert weights.keys() == others.keys()
    assert all(torch.allclose(weights[name], others[name], atol=TOLERANCE) for name in weights)
