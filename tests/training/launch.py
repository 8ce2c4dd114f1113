"""Starts the command, or several trainings in a row, as several real processes, as torchrun does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

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
