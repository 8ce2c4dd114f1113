"""Starts the command, or several trainings in a row, as several real processes, as torchrun does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch
import yaml
from safetensors.torch import load_file

if TYPE_CHECKING:
    from pathlib import Path


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


TRAIN_ALL = """
import sys, pathlib, yaml
from bixse.training.config import TrainConfig
from bixse.training.recipe import train
for config, out in zip(sys.argv[1::2], sys.argv[2::2]):
    train(TrainConfig.load(pathlib.Path(config)), pathlib.Path(out), progress=False)
"""
"""Trains several configurations, so that the libraries are loaded once."""


def start(
    processes: int, *arguments: str | Path, each: dict[int, list[str]] | None = None, script: str | None = None
) -> list[subprocess.Popen]:
    """One process a rank running the command, or a script; `each` gives more arguments to some."""
    port = free_port()
    started = []
    for rank in range(processes):
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(processes),
            "LOCAL_WORLD_SIZE": str(processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        if processes == 1:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        what = ["-c", script] if script is not None else ["-m", "bixse"]
        command = [sys.executable, *what, *map(str, arguments), *(each or {}).get(rank, [])]
        started.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    return started


def finish(started: list[subprocess.Popen], timeout: float = 240) -> list[tuple[int, str, str]]:
    """Exit code, standard output and standard error of each."""
    try:
        found = [process.communicate(timeout=timeout) for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, *texts) for process, texts in zip(started, found, strict=True)]


TOLERANCE = 1e-4
"""Adam makes much of small gradients: what rounding adds in a dozen steps of rate 1e-3."""
ACCELERATE = "--cpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no --main_process_port 0"


def settings_file(folder, pairs, model, **changes):
    """The YAML of a run: 3 epochs of 3 + 4 batches of at most 8 queries."""
    optimizer = {"num_train_epochs": 2, "global_batch_size": 8, "learning_rate": 1e-3, "documents_per_query": 3}
    settings = {
        "pairs": str(pairs),
        "model": str(model),
        "max_length": 16,
        "dropout": 0.0,
        "optimizer": {**optimizer, **changes.pop("optimizer", {})},
        **changes,
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


def read(out):
    """Weights and log of a run."""
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return load_file(out / "model" / "model.safetensors"), [entry for entry in log if "loss" in entry]


def compare(one, several):
    (weights, log), (others, other_log) = read(one), read(several)
    assert [entry["step"] for entry in other_log] == [entry["step"] for entry in log]
    for mine, theirs in zip(log, other_log, strict=True):
        assert set(mine) == set(theirs)
        for figure in mine:
            if not figure.endswith("_second"):
                assert theirs[figure] == pytest.approx(mine[figure], rel=TOLERANCE, abs=TOLERANCE), figure
    assert all(torch.allclose(weights[name], others[name], atol=TOLERANCE) for name in weights)
