"""Jobs that the tests of engines do; their shards are numbers or words."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from bixse.engine import Job
from bixse.errors import StorageError
from bixse.files.files import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs bixse[ray]")


@dataclass(frozen=True)
class Numbers(Job):
    """Write the sum of a file of numbers per shard, and log each step in `log`."""

    folder: Path
    dies: tuple[int, ...] = ()  # shards whose process is killed at each try
    dies_once: tuple[int, ...] = ()
    raises: tuple[int, ...] = ()
    full: tuple[int, ...] = ()  # shards that find a full disk
    seconds: float = 0.0  # time that a shard takes; Ctrl-C during it is logged

    def setup(self):
        self.log(f"setup {os.getpid()}")

    def run(self, shard, state):
        self.log(f"run {shard} {os.getpid()}")
        once = self.folder / f"died-{shard}"
        if shard in self.dies or (shard in self.dies_once and not once.exists()):
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if shard in self.raises:
            raise RuntimeError(f"shard {shard}\nis bad")
        if shard in self.full:
            raise StorageError("got a full disk; expected room; fix: free some")
        try:
            time.sleep(self.seconds)
        except KeyboardInterrupt:
            self.log(f"interrupted {shard}")
            raise
        numbers = (self.folder / f"{shard}.txt").read_text().split()
        total = sum(map(int, numbers))
        write_atomically(self.output(shard), f"{total}\n")
        return total

    def output(self, shard):
        return self.folder / "out" / f"{shard}.sum"

    def log(self, words):
        with (self.folder / "log").open("a") as file:
            file.write(words + "\n")


@dataclass(frozen=True)
class Threads(Job):
    """Tells its process and how many threads that may use."""

    def run(self, shard, state):
        return os.getpid(), os.environ["OMP_NUM_THREADS"]


def write_numbers(folder, shards):
    """The input of `Numbers`: shard n holds n and n + 1."""
    folder.mkdir(exist_ok=True)
    for shard in range(shards):
        (folder / f"{shard}.txt").write_text(f"{shard} {shard + 1}")
    return folder


def logged(folder, word):
    """The second words of the lines of the log that begin with a word."""
    lines = (folder / "log").read_text().splitlines() if (folder / "log").exists() else []
    return [line.split()[1] for line in lines if line.startswith(word)]


def sums(folder):
    """Name -> content of every output."""
    return {path.name: path.read_bytes() for path in sorted((folder / "out").iterdir())}
